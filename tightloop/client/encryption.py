"""Payload encryption: what Temporal stores is readable only with the keys of this installation.

Every payload (inputs, results, signals, updates, queries, memo, summaries, details, heartbeats, failures) is sealed
with AES-256-GCM (NIST SP 800-38D) and carries the id of its key, so that keys can change while old histories stay
readable. Workers, the client, the command line and the replayer take their converter from `data_converter`.

Workflow modules must not import this module's codec: `cryptography` cannot be loaded in the workflow sandbox. It is
imported when a codec is made, never when this module is.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadCodec, PayloadConverter

from tightloop.client.keys import KeyRing, read_ring
from tightloop.errors import SettingsError
from tightloop.settings import PrivacySettings
from tightloop.value.scrub import scrub

ENCODING = b"binary/encrypted"
KEY_ID_FIELD = "encryption-key-id"
SEALED_MESSAGE = "Encoded failure"
"""What Temporal shows of a failure, in the words of its SDKs."""
NONCE_BYTES = 12
"""96 bits: the length that NIST SP 800-38D recommends for GCM."""
RELOAD_SECONDS = 2.0
# Sealed in with the key's id, as associated data: a payload that names another key does not open.
_PURPOSE = b"tightloop payload 1\0"


class EncryptionCodec(PayloadCodec):
    """Seals and opens payloads. Those that it did not seal pass through unchanged when they are opened."""

    def __init__(self, ring: KeyRing, reload: Callable[[], KeyRing] | None = None) -> None:
        """Take the keys.

        Args:
            ring: the current key seals, all of them open.
            reload: reads the keys again; asked at most every `RELOAD_SECONDS` for a key id that the ring does not
                hold, so that a running process can read what was sealed with a key made after its start.

        Raises:
            SettingsError: the package `cryptography` is not installed.
        """
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise SettingsError(
                "payload encryption needs the package cryptography. Install it: pip install 'tightloop[encryption]'"
            ) from None
        self._aead, self._invalid = AESGCM, InvalidTag
        self._ring, self._reload = ring, reload
        self._reloaded = -RELOAD_SECONDS

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload, whatever it is, with the current key."""
        key_id, sealed = self._ring.current, []
        for payload in payloads:
            # Never twice with one key: with GCM that would let a reader forge payloads.
            nonce = os.urandom(NONCE_BYTES)
            content = self._aead(self._ring.keys[key_id]).encrypt(nonce, payload.SerializeToString(), _bound_to(key_id))
            metadata = {"encoding": ENCODING, KEY_ID_FIELD: key_id.encode()}
            sealed.append(Payload(metadata=metadata, data=nonce + content))
        return sealed

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open what is sealed.

        Raises:
            SettingsError: a key is missing, or a payload was changed; the message names the key id.
        """
        return [self._opened(payload) for payload in payloads]

    def _opened(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        key_id = payload.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace")
        now = time.monotonic()
        if key_id not in self._ring.keys and self._reload is not None and now - self._reloaded >= RELOAD_SECONDS:
            self._reloaded = now
            self._ring = dataclasses.replace(self._ring, keys={**self._reload().keys, **self._ring.keys})
        key = self._ring.keys.get(key_id)
        if key is None:
            known = ", ".join(sorted(self._ring.keys))
            raise SettingsError(
                f"a payload was encrypted with key {key_id!r}, which is not among the keys here ({known}). "
                "Copy the key file of the host that has it, or put the key into the variable of privacy.keys_env"
            )
        try:
            content = self._aead(key).decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], _bound_to(key_id))
        except (self._invalid, ValueError):
            raise SettingsError(
                f"a payload that names key {key_id!r} cannot be decrypted: it was changed, or another key has this id "
                "here. Compare with the key file of the host that started the episode: tightloop keys list"
            ) from None
        return Payload.FromString(content)


def _bound_to(key_id: str) -> bytes:
    return _PURPOSE + key_id.encode()


class ScrubbedFailures(DefaultFailureConverter):
    """Takes secrets and personal data out of the messages and stack traces of failures."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Fill in a failure, its causes included."""
        super().to_failure(exception, payload_converter, failure)
        failure.message = scrub(failure.message)
        failure.stack_trace = scrub(failure.stack_trace)


class SealedFailures(ScrubbedFailures):
    """Moves message and stack trace, scrubbed, into a payload, which the codec encrypts."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Fill in a failure that says nothing by itself, its causes included."""
        super().to_failure(exception, payload_converter, failure)
        if failure.HasField("encoded_attributes") and failure.message == SEALED_MESSAGE:
            return  # it came from Temporal and is passed on
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = SEALED_MESSAGE, ""


PLAIN_CONVERTER = dataclasses.replace(pydantic_data_converter, failure_converter_class=ScrubbedFailures)
"""Without encryption; failures are scrubbed."""


def encrypting_converter(codec: PayloadCodec) -> DataConverter:
    """Return the converter around a codec; failures are sealed, too."""
    return dataclasses.replace(pydantic_data_converter, payload_codec=codec, failure_converter_class=SealedFailures)


async def open_all(message: Message, codec: PayloadCodec) -> None:
    """Open every payload inside a message of Temporal, such as a history, in place.

    Raises:
        SettingsError: a key is missing.
    """
    for _, value in message.ListFields():
        for item in _messages(value):
            if isinstance(item, Payload):
                [opened] = await codec.decode([item])
                item.CopyFrom(opened)
            else:
                await open_all(item, codec)


def key_ids(message: Message) -> set[str]:
    """Return the ids of the keys that sealed the payloads inside a message of Temporal."""
    found: set[str] = set()
    for item in (item for _, value in message.ListFields() for item in _messages(value)):
        if not isinstance(item, Payload):
            found |= key_ids(item)
        elif item.metadata.get("encoding") == ENCODING:
            found.add(item.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace"))
    return found


def _messages(value: Any) -> list[Message]:
    """Return the messages in the value of a field: one, repeated, or the values of a map."""
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | bytes | int | float):
        return []
    items = value.values() if isinstance(value, Mapping) else value
    return [item for item in items if isinstance(item, Message)]


def data_converter(privacy: PrivacySettings, home: Path | None = None) -> DataConverter:
    """Return the converter that the settings ask for.

    Args:
        privacy: the settings.
        home: the state folder, where the key file is by default; None: the one of this host.

    Raises:
        SettingsError: encryption is on and its keys cannot be read, or `cryptography` is missing.
    """
    if not privacy.encrypt:
        return PLAIN_CONVERTER
    return encrypting_converter(EncryptionCodec(read_ring(privacy, home), reload=lambda: read_ring(privacy, home)))
