"""The payload codec: what workers and clients send is encrypted, and what they accept is authenticated.

A sealed payload is encrypted with authentication (AES-256-GCM, NIST SP 800-38D), together with its namespace, its
workflow, its activity and its purpose (`SealKind`), to which that binds it.
What is not authentic becomes a payload of the encoding `binary/refused`, which the converter refuses: a codec that
raised would make a workflow task fail for ever.

Workflow modules must not import the package `cryptography`: it cannot be loaded in the workflow sandbox. It is
imported when the first payload is sealed or opened, never when this module is.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from tightloop.client.keys import KeyRing
from tightloop.errors import SettingsError
from tightloop.safety.seal import Seal, SealKind, read_seal

ENCRYPTED = b"binary/encrypted"
REFUSED = b"binary/refused"
KEY_ID_FIELD = "encryption-key-id"
OPENED_FIELD = "tightloop-opened"
"""Metadata of a payload whose seal was checked: what the seal says."""
UNOPENED_FIELD = "tightloop-unopened"
"""Metadata of a payload that the codec server could not open: why, for whoever is shown it."""
RESULT_FIELD = "tightloop-result"
"""Metadata of a refused payload: it stands for the result of an activity or a child."""
NONCE_BYTES = 12
"""96 bits: the length that NIST SP 800-38D recommends for GCM."""
RELOAD_SECONDS = 2.0
_ENCRYPTING = b"tightloop payload 2\0"
_WORKFLOW = frozenset({SealKind.START, SealKind.MESSAGE, SealKind.OPERATOR, SealKind.WORKFLOW})
_ACTIVITY = frozenset({SealKind.INPUT, SealKind.HEARTBEAT})

_NOT_SEALED = "it is not sealed with a key of this installation"

_sealing: ContextVar[SealKind | None] = ContextVar("sealing", default=None)

Claim = Callable[[str, str], bool]
"""Notes that the message with a nonce is for a workflow; False where it was for another one."""


@contextmanager
def sealing_as(kind: SealKind) -> Iterator[None]:
    """Say what the payloads that are encoded in the block are for: a start, a message or heartbeats."""
    token = _sealing.set(kind)
    try:
        yield
    finally:
        _sealing.reset(token)


class RefusedError(Exception):
    """A payload that is not authentic; the text says why."""


class _Place(NamedTuple):
    """What a payload belongs to. The ids of an activity are empty where it is not of one."""

    namespace: str = ""
    workflow: str = ""
    activity_type: str = ""
    activity_id: str = ""


class Keys:
    """The keys as the codec needs them; those that are added to the key file later are found."""

    def __init__(
        self,
        ring: KeyRing | None = None,
        read: Callable[[], KeyRing] | None = None,
        make: Callable[[], KeyRing] | None = None,
    ) -> None:
        """Take the keys, or how to read them.

        Args:
            ring: the current key seals, all of them open; None: they are read when the first one is needed.
            read: reads the keys; asked again at most every `RELOAD_SECONDS` for a key id that the ring does not
                hold, so that a running process can read what was sealed with a key made after its start.
            make: asked for keys where `read` finds none and something is to be sealed; opening never makes any.
        """
        self._known, self._read, self._make = ring, read, make
        self._reloaded = -RELOAD_SECONDS
        self._ciphers: dict[str, Any] = {}

    @property
    def _ring(self) -> KeyRing:
        if self._known is None:
            self._known = self._read() if self._read else KeyRing("", {})
        return self._known

    @property
    def current(self) -> str:
        """The id of the key that seals.

        Raises:
            SettingsError: the keys cannot be read.
        """
        if not self._ring.current and self._make is not None:
            self._known = self._make()
        return self._ring.current

    def holds(self, key_id: str) -> bool:
        """Return whether a key is here.

        Raises:
            SettingsError: the keys cannot be read.
        """
        return self._reread(key_id) is not None

    def cipher(self, key_id: str) -> Any:
        """Return the cipher with a key.

        Raises:
            SettingsError: there is no key with this id.
        """
        if key_id not in self._ciphers:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._ciphers[key_id] = AESGCM(self._key(key_id))
        return self._ciphers[key_id]

    def _reread(self, key_id: str) -> bytes | None:
        now = time.monotonic()
        if key_id not in self._ring.keys and self._read is not None and now - self._reloaded >= RELOAD_SECONDS:
            self._reloaded, found = now, self._read()
            known = {**found.keys, **self._ring.keys}
            self._known = replace(self._ring, current=self._ring.current or found.current, keys=known)
        return self._ring.keys.get(key_id)

    def _key(self, key_id: str) -> bytes:
        key = self._reread(key_id)
        if key is None:
            known = ", ".join(sorted(self._ring.keys)) or "there is none"
            raise SettingsError(
                f"a payload was sealed with key {key_id[:64]!r}, which is not among the keys here ({known}). "
                "Copy the key file of the host that has it, or put the key into the variable of privacy.keys_env"
            )
        return key


@dataclass(frozen=True)
class SealingCodec(PayloadCodec, WithSerializationContext):
    """Seals what is sent and opens what comes, each for the place that the SDK names."""

    keys: Keys
    strict: bool = True
    """Refuse what is not authentic. Else it passes through, and seals say nothing about who sent it."""
    claim: Claim | None = None
    """Asked for each payload of an operator; None: they are not told apart by workflow."""
    context: SerializationContext | None = None

    def with_context(self, context: SerializationContext) -> "SealingCodec":
        """Return the codec for the payloads of a workflow or an activity."""
        return SealingCodec(self.keys, self.strict, self.claim, context)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload, whatever it is, with the current key."""
        return [self.seal(payload, self._kind) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open each payload; one that is not authentic becomes `binary/refused`, with the reason as its data."""
        return [self._accepted(payload) for payload in payloads]

    def seal(self, payload: Payload, kind: SealKind) -> Payload:
        """Return a payload that is sealed for a purpose.

        Raises:
            SettingsError: the keys cannot be read.
        """
        key_id, nonce = self.keys.current, os.urandom(NONCE_BYTES)
        seal = Seal(kind, nonce.hex(), time.time_ns() // 1_000_000)
        bound = self._bound(key_id, seal)
        # A nonce never comes twice with one key: with GCM that would let a reader forge payloads.
        content = len(bound).to_bytes(4, "big") + bound + payload.SerializeToString()
        data = nonce + self.keys.cipher(key_id).encrypt(nonce, content, _ENCRYPTING + key_id.encode())
        return Payload(metadata={"encoding": ENCRYPTED, KEY_ID_FIELD: key_id.encode()}, data=data)

    def open(self, payload: Payload) -> Payload:
        """Return a payload as it was before it was sealed, for a reader that knows no place and acts on nothing.

        What is not sealed comes back as it is.

        Raises:
            SettingsError: its key is missing, or it was changed.
        """
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        try:
            bound, plain = self._decrypted(payload)
        except RefusedError as error:
            raise SettingsError(str(error)) from None
        return _opened(plain, " ".join(bound[1:4]) if self.strict else "")

    @property
    def _kind(self) -> SealKind:
        if not isinstance(self.context, ActivitySerializationContext):
            return _sealing.get() or SealKind.WORKFLOW
        # The SDK's only sign of who encodes: workflows work off commands, activities do not.
        if _is_command():
            return SealKind.INPUT
        return SealKind.HEARTBEAT if _sealing.get() is SealKind.HEARTBEAT else SealKind.RESULT

    @property
    def _allowed(self) -> frozenset[SealKind]:
        is_command = _is_command()
        if isinstance(self.context, ActivitySerializationContext):
            return frozenset({SealKind.RESULT}) if is_command else _ACTIVITY
        return frozenset({SealKind.WORKFLOW}) if is_command else _WORKFLOW

    @property
    def _place(self) -> _Place:
        context = self.context
        if isinstance(context, WorkflowSerializationContext):
            return _Place(context.namespace, context.workflow_id)
        if isinstance(context, ActivitySerializationContext):
            return _Place(
                context.namespace, context.workflow_id or "", context.activity_type or "", context.activity_id or ""
            )
        return _Place()

    def _accepted(self, payload: Payload) -> Payload:
        if not self.strict and payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        try:
            plain, seal = self._checked(payload)
        except (RefusedError, SettingsError) as error:
            metadata = {"encoding": REFUSED}
            if _is_command():
                metadata[RESULT_FIELD] = b"1"
            return Payload(metadata=metadata, data=str(error).encode())
        return _opened(plain, seal.text if self.strict else "")

    def _checked(self, payload: Payload) -> tuple[Payload, Seal]:
        """Return what was sealed for this place, and the seal.

        Raises:
            RefusedError: it was not.
            SettingsError: its key is missing.
        """
        if payload.metadata.get("encoding") != ENCRYPTED:
            raise RefusedError(_NOT_SEALED)
        bound, plain = self._decrypted(payload)
        seal = read_seal(" ".join(bound[1:4]))
        if seal is None:
            raise RefusedError(_NOT_SEALED)
        # Without `strict` the place does not matter: what another program stored is opened as well.
        if self.strict and _joined(*bound) != self._bound(bound[0], seal):
            raise RefusedError("it was sealed for something else")
        self._check_purpose(seal)
        return plain, seal

    def _bound(self, key_id: str, seal: Seal) -> bytes:
        place = _Place() if seal.kind is SealKind.OPERATOR else self._place
        return _joined(key_id, seal.kind.value, str(seal.issued), seal.nonce, *place)

    def _check_purpose(self, seal: Seal) -> None:
        if not self.strict:
            return
        context = self.context
        if isinstance(context, ActivitySerializationContext) and not context.workflow_id:
            raise RefusedError("no workflow asks for it")
        if seal.kind not in self._allowed:
            raise RefusedError(f"it was sealed as {seal.kind.value}")
        if seal.kind is SealKind.OPERATOR and self.claim and not self.claim(seal.nonce, self._place.workflow):
            raise RefusedError("it is a copy of a message to another workflow")

    def _decrypted(self, payload: Payload) -> tuple[list[str], Payload]:
        """Return what an encrypted payload is bound to, and what it was.

        Raises:
            RefusedError: it was changed, or another key has this id here.
            SettingsError: its key is missing.
        """
        key_id = payload.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace")
        cipher, data = self.keys.cipher(key_id), payload.data
        from cryptography.exceptions import InvalidTag

        try:
            content = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _ENCRYPTING + key_id.encode())
        except (InvalidTag, ValueError):
            raise RefusedError(
                f"a payload that names key {key_id[:64]!r} cannot be decrypted: it was changed, or another key has "
                "this id here. Compare with the key file of the host that started the episode: tightloop keys list"
            ) from None
        end = 4 + int.from_bytes(content[:4], "big")
        return _parted(content[4:end]), Payload.FromString(content[end:])


class ReadingCodec(PayloadCodec):
    """Opens what is sealed and takes it at its word, for a replay of what was recorded elsewhere."""

    def __init__(self, codec: SealingCodec | None) -> None:
        """Take the codec with the keys; None: nothing is sealed."""
        self._codec = codec or SealingCodec(Keys())

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads as they are."""
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open what is sealed.

        Raises:
            SettingsError: a key is missing, or a payload was changed.
        """
        return [self._codec.open(payload) for payload in payloads]


class OperatorCodec(PayloadCodec):
    """What the codec server does for Temporal's UI and CLI: what they send is sealed as an operator's."""

    def __init__(self, codec: SealingCodec | None) -> None:
        """Take the codec; None: payloads are not sealed, and pass through."""
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload as a start, a signal or an update of any workflow, once and for a short time."""
        codec = self._codec
        return [codec.seal(payload, SealKind.OPERATOR) if codec else payload for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open what is sealed, to be shown. What cannot be opened stays sealed, with the reason in its metadata.

        One such payload must not fail the others: Temporal's CLI asks for all rows of a list at once.
        """
        codec = self._codec
        return [self._shown(codec, payload) if codec else payload for payload in payloads]

    def _shown(self, codec: SealingCodec, payload: Payload) -> Payload:
        try:
            return _opened(codec.open(payload), "")
        except SettingsError as error:
            marked = Payload()
            marked.CopyFrom(payload)
            marked.metadata[UNOPENED_FIELD] = error.message.encode()
            return marked


def _is_command() -> bool:
    """Return whether a workflow's command is being encoded or decoded: the SDK's only sign of it."""
    # A process without workers, which a client mostly is, is spared the import of them.
    visitor = sys.modules.get("temporalio.worker._command_aware_visitor")
    return visitor is not None and visitor.current_command_info.get() is not None


def _opened(payload: Payload, text: str) -> Payload:
    """Return a payload with what its seal said; without a text, as it was before it was sealed."""
    if not (text or OPENED_FIELD in payload.metadata):
        return payload
    opened = Payload()
    opened.CopyFrom(payload)
    opened.metadata.pop(OPENED_FIELD, None)
    if text:
        opened.metadata[OPENED_FIELD] = text.encode()
    return opened


def _joined(*parts: str) -> bytes:
    # With their lengths: ids may hold any character.
    return "".join([f"{len(part)}:{part}" for part in parts]).encode("utf-8", "surrogatepass")


def _parted(joined: bytes) -> list[str]:
    text, parts, at = joined.decode("utf-8", "surrogatepass"), list[str](), 0
    while at < len(text):
        colon = text.index(":", at)
        end = colon + 1 + int(text[at:colon])
        parts.append(text[colon + 1 : end])
        at = end
    return parts
