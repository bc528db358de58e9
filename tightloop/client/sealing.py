"""Payload codec: encrypts everything that workers and clients send, and authenticates what they receive.

A sealed payload is encrypted with authentication (AES-256-GCM, NIST SP 800-38D). It is bound to its namespace,
workflow, activity and purpose (`SealKind`). A payload that is not authentic is replaced with a payload that has the
encoding `binary/refused`, which the converter rejects. An exception in the codec would make the workflow task fail
forever.

Workflow modules must not import the `cryptography` package, which cannot be loaded in the workflow sandbox. It is
imported when the first payload is sealed or opened, never when this module is imported.
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
from tightloop.errors import ArtifactCorruptError, SettingsError
from tightloop.safety.seal import Seal, SealKind, read_seal

ENCRYPTED = b"binary/encrypted"
REFUSED = b"binary/refused"
KEY_ID_FIELD = "encryption-key-id"
OPENED_FIELD = "tightloop-opened"
"""Metadata key of a checked payload. Its value is the text of the seal."""
UNOPENED_FIELD = "tightloop-unopened"
"""Metadata key of a payload that the codec server could not open. Its value is the reason, for display."""
RESULT_FIELD = "tightloop-result"
"""Metadata key of a rejected payload that was the result of an activity or a child workflow."""
NONCE_BYTES = 12
"""96 bits, the length that NIST SP 800-38D recommends for GCM."""
# Bounds the work for payloads with made-up key ids, each of which makes the file be read.
RELOAD_SECONDS = 2.0
# Authenticated with each payload, so that data of another format or version never opens under the same key.
_ENCRYPTING = b"tightloop payload 2\0"
_WORKFLOW = frozenset({SealKind.START, SealKind.MESSAGE, SealKind.OPERATOR, SealKind.WORKFLOW})
_ACTIVITY = frozenset({SealKind.INPUT, SealKind.HEARTBEAT})

_NOT_SEALED = "it is not sealed with a key of this installation"

# Per task, because concurrent calls of one client have different purposes.
_sealing: ContextVar[SealKind | None] = ContextVar("sealing", default=None)

Claim = Callable[[str, str], bool]
"""Binds a message's nonce to a workflow; returns False if the nonce is bound to another workflow."""


@contextmanager
def sealing_as(kind: SealKind) -> Iterator[None]:
    """Set the purpose of all payloads that are encoded in the block: start, message or heartbeat."""
    token = _sealing.set(kind)
    try:
        yield
    finally:
        _sealing.reset(token)


class RefusedError(Exception):
    """Error for a payload that is not authentic. The message contains the reason."""


class _PayloadOwner(NamedTuple):
    """The workflow or activity that a payload belongs to.

    For a workflow's payload, the activity fields are empty.
    """

    namespace: str = ""
    workflow: str = ""
    activity_type: str = ""
    activity_id: str = ""


class Keys:
    """Provides the codec's keys. Picks up keys that are added to the key file later.

    Args:
        ring: key ring. The current key seals payloads, and all keys can open them. If None, the keys are
            loaded on first use.
        read: function that loads the keys. For an unknown key id, it is called again, at most once every
            `RELOAD_SECONDS`. A running process can therefore open payloads sealed with a newer key.
        make: function that creates keys if `read` finds none and a payload must be sealed. It is never
            called to open a payload.
    """

    def __init__(
        self,
        ring: KeyRing | None = None,
        read: Callable[[], KeyRing] | None = None,
        make: Callable[[], KeyRing] | None = None,
    ) -> None:
        self._known, self._read, self._make = ring, read, make
        # `monotonic` may be near 0 right after boot; the first unknown key must reload even then.
        self._reloaded = -RELOAD_SECONDS
        self._ciphers: dict[str, Any] = {}

    @property
    def _ring(self) -> KeyRing:
        if self._known is None:
            self._known = self._read() if self._read else KeyRing("", {})
        return self._known

    @property
    def current(self) -> str:
        """Id of the key used for sealing.

        Raises:
            SettingsError: the keys cannot be read.
        """
        if not self._ring.current and self._make is not None:
            self._known = self._make()
        return self._ring.current

    def holds(self, key_id: str) -> bool:
        """Return whether a key with this id is available.

        Raises:
            SettingsError: the keys cannot be read.
        """
        return self._reread(key_id) is not None

    def cipher(self, key_id: str) -> Any:
        """Return the cipher for the key with this id.

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
            self._reloaded, ring = now, self._read()
            # Known keys and the current one stay: a replaced file must not change what an id means in this process.
            keys = {**ring.keys, **self._ring.keys}
            self._known = replace(self._ring, current=self._ring.current or ring.current, keys=keys)
        return self._ring.keys.get(key_id)

    def _key(self, key_id: str) -> bytes:
        key = self._reread(key_id)
        if key is None:
            ids = ", ".join(sorted(self._ring.keys)) or "none"
            raise SettingsError(
                f"a payload was sealed with key {key_id[:64]!r}, which is not one of the keys on this host ({ids}). "
                "Copy the key file from a host that has it, or add the key to the variable that privacy.keys_env "
                "names"
            )
        return key


def encrypt_file(keys: Keys, head: bytes, name: str, content: bytes) -> bytes:
    """Encrypt a file so that it can be decrypted only under this name.

    The file is encrypted with AES-256-GCM (NIST SP 800-38D). The result starts with `head`, which
    identifies the kind of file. Raises the same errors as `Keys.cipher`.
    """
    key, nonce = keys.current.encode(), os.urandom(NONCE_BYTES)
    opening = head + bytes([len(key)]) + key
    sealed: bytes = keys.cipher(key.decode()).encrypt(nonce, content, opening + name.encode())
    return opening + nonce + sealed


def decrypt_file(keys: Keys, head: bytes, name: str, sealed: bytes, *, what: str) -> bytes:
    """Decrypt the result of `encrypt_file`. `what` describes the file in error messages.

    Raises:
        ArtifactCorruptError: the file was changed, or it was encrypted for another purpose or name.
        SettingsError: there is no such key.
    """
    from cryptography.exceptions import InvalidTag

    rest = sealed.removeprefix(head)
    end = 1 + rest[0] if rest != sealed and rest else 0
    nonce, data = rest[end : end + NONCE_BYTES], rest[end + NONCE_BYTES :]
    try:
        if not end:
            raise ValueError
        key = rest[1:end].decode("utf-8", "replace")
        return bytes(keys.cipher(key).decrypt(nonce, data, sealed[: len(head) + end] + name.encode()))
    except (InvalidTag, ValueError):
        raise ArtifactCorruptError(
            f"{what} is not authentic: it was modified, or sealed with a different key that has the same id. "
            "Compare the key files: tightloop keys list"
        ) from None


@dataclass(frozen=True)
class SealingCodec(PayloadCodec, WithSerializationContext):
    """Codec that seals outgoing payloads and opens incoming ones.

    Each payload is bound to the context that the SDK passes.
    """

    keys: Keys
    strict: bool = True
    """True to reject payloads that are not authentic.

    If False, they are accepted, and seals do not prove the sender.
    """
    claim: Claim | None = None
    """Function to call for each payload from an operator; None to skip the binding to a workflow."""
    context: SerializationContext | None = None

    def with_context(self, context: SerializationContext) -> "SealingCodec":
        """Return the codec for the payloads of a workflow or an activity."""
        return SealingCodec(self.keys, self.strict, self.claim, context)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload with the current key."""
        return [self.seal(payload, self._kind) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open each payload.

        A payload that is not authentic becomes `binary/refused`, with the reason as its data.
        """
        return [self._open_or_refuse(payload) for payload in payloads]

    def seal(self, payload: Payload, kind: SealKind) -> Payload:
        """Encrypt a payload and bind it to its context and purpose.

        Raises:
            SettingsError: the keys cannot be read.
        """
        key_id, nonce = self.keys.current, os.urandom(NONCE_BYTES)
        seal = Seal(kind, nonce.hex(), time.time_ns() // 1_000_000)
        bound = self._bound(key_id, seal)
        # The nonce must be unique per key: with GCM, a repeated one would let a reader forge payloads.
        content = len(bound).to_bytes(4, "big") + bound + payload.SerializeToString()
        data = nonce + self.keys.cipher(key_id).encrypt(nonce, content, _ENCRYPTING + key_id.encode())
        return Payload(metadata={"encoding": ENCRYPTED, KEY_ID_FIELD: key_id.encode()}, data=data)

    def open(self, payload: Payload) -> Payload:
        """Open a payload for display without checking its context. Unsealed payloads are accepted.

        Raises:
            SettingsError: the payload's key is missing, or the payload was modified.
        """
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        try:
            bound, plain = self._decrypt(payload)
        except RefusedError as error:
            raise SettingsError(str(error)) from None
        return _with_seal_text(plain, " ".join(bound[1:4]) if self.strict else "")

    @property
    def _kind(self) -> SealKind:
        if not isinstance(self.context, ActivitySerializationContext):
            return _sealing.get() or SealKind.WORKFLOW
        # The SDK's only distinction: workflows process commands, activities do not.
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
    def _owner(self) -> _PayloadOwner:
        context = self.context
        if isinstance(context, WorkflowSerializationContext):
            return _PayloadOwner(context.namespace, context.workflow_id)
        if isinstance(context, ActivitySerializationContext):
            return _PayloadOwner(
                context.namespace, context.workflow_id or "", context.activity_type or "", context.activity_id or ""
            )
        return _PayloadOwner()

    def _open_or_refuse(self, payload: Payload) -> Payload:
        if not self.strict and payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        try:
            plain, seal = self._unseal(payload)
        except (RefusedError, SettingsError) as error:
            metadata = {"encoding": REFUSED}
            # The converter does not know where a payload came from; for a result it has to return a value, not raise.
            if _is_command():
                metadata[RESULT_FIELD] = b"1"
            return Payload(metadata=metadata, data=str(error).encode())
        return _with_seal_text(plain, seal.text if self.strict else "")

    def _unseal(self, payload: Payload) -> tuple[Payload, Seal]:
        """Open a payload that was sealed for this context. Return the payload and its seal.

        Raises:
            RefusedError: the payload was sealed for another context or not at all.
            SettingsError: the payload's key is missing.
        """
        if payload.metadata.get("encoding") != ENCRYPTED:
            raise RefusedError(_NOT_SEALED)
        bound, plain = self._decrypt(payload)
        seal = read_seal(" ".join(bound[1:4]))
        if seal is None:
            raise RefusedError(_NOT_SEALED)
        # Without `strict` the context is ignored, so that payloads stored by another program open too.
        if self.strict and _join_parts(*bound) != self._bound(bound[0], seal):
            raise RefusedError("it was sealed for another workflow or purpose")
        self._check_purpose(seal)
        return plain, seal

    def _bound(self, key_id: str, seal: Seal) -> bytes:
        # Temporal's UI and CLI encode a message before its target is known.
        context = _PayloadOwner() if seal.kind is SealKind.OPERATOR else self._owner
        return _join_parts(key_id, seal.kind.value, str(seal.issued), seal.nonce, *context)

    def _check_purpose(self, seal: Seal) -> None:
        if not self.strict:
            return
        context = self.context
        # An activity without a workflow, as Temporal's own tools can start one.
        if isinstance(context, ActivitySerializationContext) and not context.workflow_id:
            raise RefusedError("no workflow requested it")
        if seal.kind not in self._allowed:
            raise RefusedError(f"its seal is of kind {seal.kind.value}, which is not allowed here")
        # Last, because binding lasts: a message that is refused for another reason must stay usable.
        if seal.kind is SealKind.OPERATOR and self.claim and not self.claim(seal.nonce, self._owner.workflow):
            raise RefusedError("it is a copy of a message to another workflow")

    def _decrypt(self, payload: Payload) -> tuple[list[str], Payload]:
        """Decrypt a payload. Return the values that it is bound to, and the decrypted payload.

        Raises:
            RefusedError: the payload was modified, or its key id refers to a different key on this host.
            SettingsError: the payload's key is missing.
        """
        key_id = payload.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace")
        cipher, data = self.keys.cipher(key_id), payload.data
        from cryptography.exceptions import InvalidTag

        try:
            content = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _ENCRYPTING + key_id.encode())
        except (InvalidTag, ValueError):
            raise RefusedError(
                f"a payload sealed with key {key_id[:64]!r} cannot be decrypted: the payload was changed, or this "
                "host has a different key with the same id. Compare the keys with those on the host that started "
                "the episode: tightloop keys list"
            ) from None
        end = 4 + int.from_bytes(content[:4], "big")
        return _split_parts(content[4:end]), Payload.FromString(content[end:])


class ReadingCodec(PayloadCodec):
    """Codec that opens payloads without checking their context. Used to replay recorded histories.

    Args:
        codec: codec with the keys, or None if nothing is sealed.
    """

    def __init__(self, codec: SealingCodec | None) -> None:
        self._codec = codec or SealingCodec(Keys())

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads unchanged, because this codec only reads."""
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open sealed payloads.

        Raises:
            SettingsError: a key is missing, or a payload was modified.
        """
        return [self._codec.open(payload) for payload in payloads]


class OperatorCodec(PayloadCodec):
    """Codec used by the codec server for Temporal's UI and CLI.

    Input from the UI and CLI is sealed as input from an operator.

    Args:
        codec: codec with the keys. If None, payloads are passed through unchanged.
    """

    def __init__(self, codec: SealingCodec | None) -> None:
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload so that a single workflow can accept it within a limited time."""
        codec = self._codec
        return [codec.seal(payload, SealKind.OPERATOR) if codec else payload for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open sealed payloads for display.

        A payload that cannot be opened stays sealed, and the reason is added to its metadata. One failure
        must not affect the other payloads, because Temporal's CLI sends all rows of a list at once.
        """
        codec = self._codec
        return [self._open_or_mark(codec, payload) if codec else payload for payload in payloads]

    def _open_or_mark(self, codec: SealingCodec, payload: Payload) -> Payload:
        try:
            return _with_seal_text(codec.open(payload), "")
        except SettingsError as error:
            marked = Payload()
            marked.CopyFrom(payload)
            marked.metadata[UNOPENED_FIELD] = error.message.encode()
            return marked


def _is_command() -> bool:
    """Return whether a workflow command is being encoded or decoded."""
    # Not imported here: a process without workers, such as most clients, does not need the worker module.
    visitor = sys.modules.get("temporalio.worker._command_aware_visitor")
    return visitor is not None and visitor.current_command_info.get() is not None


def _with_seal_text(payload: Payload, text: str) -> Payload:
    """Return a payload with the seal's text in its metadata. If the text is empty, remove the entry."""
    if not (text or OPENED_FIELD in payload.metadata):
        return payload
    opened = Payload()
    opened.CopyFrom(payload)
    # The sealed payload may contain this field, set by its sender; it must never pass as ours.
    opened.metadata.pop(OPENED_FIELD, None)
    if text:
        opened.metadata[OPENED_FIELD] = text.encode()
    return opened


def _join_parts(*parts: str) -> bytes:
    # Length-prefixed, because ids may contain any character.
    return "".join([f"{len(part)}:{part}" for part in parts]).encode("utf-8", "surrogatepass")


def _split_parts(joined: bytes) -> list[str]:
    text, parts, at = joined.decode("utf-8", "surrogatepass"), list[str](), 0
    while at < len(text):
        colon = text.index(":", at)
        end = colon + 1 + int(text[at:colon])
        parts.append(text[colon + 1 : end])
        at = end
    return parts
