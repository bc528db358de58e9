"""Payload and failure converters shared by workers, client, command line and replayer.

`data_converter` combines them as configured. Payloads are sealed (see `tightloop/client/sealing.py`) unless both
`temporal.authenticate` and `privacy.encrypt` are off. Unsealed payloads are rejected unless `temporal.authenticate` is
off.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import Message
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
)
from temporalio.exceptions import ApplicationError

from tightloop.client.keys import present_ring, ring_of
from tightloop.client.sealing import (
    ENCRYPTED,
    KEY_ID_FIELD,
    OPENED_FIELD,
    REFUSED,
    RESULT_FIELD,
    Claim,
    Keys,
    OperatorCodec,
    SealingCodec,
)
from tightloop.host import state_home
from tightloop.host.access import write_private
from tightloop.safety.seal import RefusedPayload, SealedMessage, SealKind, read_seal
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from tightloop.settings import Settings

SEALED_MESSAGE = "Encoded failure"
"""Message that Temporal shows for a sealed failure; the same as in its SDKs."""
REFUSED_TYPE = RefusedPayload.__name__
"""Error type that replaces a failure if it is not authentic."""
# Kinds that arrive from outside a workflow: only their handlers have to know the sender and the time.
_MESSAGES = frozenset({SealKind.START, SealKind.MESSAGE, SealKind.OPERATOR})
_SEALED_FIELD = "sealed_as"
_TRACE_LIMIT = 1000
"""Number of characters kept from the end of a stack trace."""


_CONVERTERS = tuple(PydanticPayloadConverter().converters.values())


class SealedPayloadConverter(PydanticPayloadConverter):
    """Payload converter that raises an error for rejected payloads and makes seals available.

    A workflow input gets its seal in its `sealed_as` field. A signal or update argument declared as `Any` becomes a
    `SealedMessage`. Without authentication, there are no seals and values are not changed.
    """

    def __init__(self) -> None:
        # Share the converters: each workflow gets an instance and would rebuild all type adapters.
        CompositePayloadConverter.__init__(self, *_CONVERTERS)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode payloads to Python values.

        Raises:
            ApplicationError: a payload was rejected. The error fails a starting workflow, rejects an update,
                or drops a signal.
        """
        hints: list[Any] = list(type_hints or [])
        hints += [None] * (len(payloads) - len(hints))
        return [self._value(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _value(self, payload: Payload, hint: Any) -> Any:
        if payload.metadata.get("encoding") == REFUSED:
            reason = payload.data.decode("utf-8", "replace")
            # Raising would fail the workflow task, which Temporal repeats forever; callers check for this value.
            if RESULT_FIELD in payload.metadata:
                return RefusedPayload(reason)
            raise ApplicationError(
                f"this payload was rejected: {reason}. Send the payload with tightloop, or through the codec endpoint "
                "that `tightloop up` prints",
                type=REFUSED_TYPE,
                non_retryable=True,
            )
        [value] = super().from_payloads([payload], [hint] if hint is not None else None)
        opened = payload.metadata.get(OPENED_FIELD)
        seal = read_seal(opened.decode("utf-8", "replace")) if opened else None
        # Always overwritten, because a sender can set the field itself.
        if isinstance(value, BaseModel) and _SEALED_FIELD in type(value).model_fields:
            return value.model_copy(update={_SEALED_FIELD: seal})
        if seal is not None and hint in (None, Any) and seal.kind in _MESSAGES:
            return SealedMessage(value, seal)
        return value


class ScrubbedFailures(DefaultFailureConverter):
    """Failure converter that removes secrets and personal data from messages and stack traces."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an exception and its causes to a Temporal failure without secrets or personal data."""
        super().to_failure(exception, payload_converter, failure)
        failure.message = scrub(failure.message)
        # The server replaces failures above 4 kB completely, including the reason; a recursion easily exceeds that.
        failure.stack_trace = scrub(failure.stack_trace)[-_TRACE_LIMIT:]


class CheckedFailures(ScrubbedFailures):
    """Failure converter that accepts only failures with a proven origin.

    Other failures become errors of type `RefusedPayload`. The codec alone cannot reject a forged
    failure, because a failure does not need a payload. Timeouts, cancellations and terminations come
    from Temporal. They are accepted because they can only stop work.
    """

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Convert a Temporal failure to an exception."""
        # A copy, because the SDK still uses the original.
        checked = Failure()
        checked.CopyFrom(failure)
        if checked.HasField("timeout_failure_info"):
            checked.timeout_failure_info.ClearField("last_heartbeat_details")
        if checked.HasField("canceled_failure_info"):
            # The server adds unsealed details for an activity that had not started.
            checked.canceled_failure_info.ClearField("details")
        if not _is_authentic(checked, payload_converter):
            refused = (payload for payload in payloads_of(failure) if payload.metadata.get("encoding") == REFUSED)
            why = next((f": {payload.data.decode('utf-8', 'replace')}" for payload in refused), "")
            return ApplicationError(f"the origin of a reported failure could not be verified{why}", type=REFUSED_TYPE)
        return super().from_failure(checked, payload_converter)


class SealedFailures(CheckedFailures):
    """Failure converter that seals messages and stack traces and proves where they come from."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an exception and its causes to a Temporal failure with sealed text."""
        super().to_failure(exception, payload_converter, failure)
        if failure.HasField("encoded_attributes") and failure.message == SEALED_MESSAGE:
            return  # already sealed: received from Temporal and passed on
        # The digest binds type and retry rules too: the server reads them, so they stay in plain text.
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace, "of": _digest(failure)}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = SEALED_MESSAGE, ""


class UncheckedSealedFailures(SealedFailures):
    """Failure converter that seals outgoing failures but also accepts unsealed ones."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Convert a Temporal failure to an exception, even if the failure is not sealed."""
        return DefaultFailureConverter.from_failure(self, failure, payload_converter)


def _is_authentic(failure: Failure, payload_converter: PayloadConverter) -> bool:
    """Return whether a failure is authentic.

    An application failure must match its sealed content. Other failures carry no content and are always
    accepted.
    """
    kind = failure.WhichOneof("failure_info")
    # The server creates all other kinds; only application failures carry content of ours.
    if kind not in (None, "application_failure_info"):
        return True
    details = failure.application_failure_info.details
    if any(payload.metadata.get("encoding") == REFUSED for payload in details.payloads):
        return False
    sealed = failure.encoded_attributes
    if OPENED_FIELD not in sealed.metadata:
        return False
    [attributes] = payload_converter.from_payloads([sealed])
    if not isinstance(attributes, dict):
        return False
    # The digest covers the original texts, which sealing has replaced.
    claimed = Failure()
    claimed.CopyFrom(failure)
    claimed.message, claimed.stack_trace = str(attributes.get("message", "")), str(attributes.get("stack_trace", ""))
    return attributes.get("of") == _digest(claimed)


def _digest(failure: Failure) -> str:
    info = failure.application_failure_info
    parts = (failure.message, failure.stack_trace, info.type, info.non_retryable, info.category, info.next_retry_delay)
    return hashlib.sha256("\0".join(map(repr, map(str, parts))).encode("utf-8", "surrogatepass")).hexdigest()[:32]


PLAIN_CONVERTER = DataConverter(
    payload_converter_class=SealedPayloadConverter, failure_converter_class=ScrubbedFailures
)
"""Converter that does not seal payloads but scrubs failures."""


def sealing_converter(codec: SealingCodec) -> DataConverter:
    """Return a converter that seals payloads and failures."""
    failures = SealedFailures if codec.strict else UncheckedSealedFailures
    return _SealingConverter(PLAIN_CONVERTER.payload_converter_class, codec, failures)


class _SealingConverter(DataConverter):
    """A variant of the SDK's data converter with a faster `with_context`."""

    def with_context(self, context: SerializationContext) -> Self:
        """Return a copy whose codec uses the context. Other parts do not need the context."""
        copied = copy.copy(self)
        assert isinstance(self.payload_codec, SealingCodec)
        # The SDK's converter is a frozen dataclass.
        object.__setattr__(copied, "payload_codec", self.payload_codec.with_context(context))
        return copied


async def open_all(message: Message, codec: PayloadCodec) -> None:
    """Open every payload in a Temporal message in place, for example in a history.

    Use this only to display the message.

    Raises:
        SettingsError: a key is missing.
    """
    for payload in payloads_of(message):
        # Unlike `decode`, `open` raises for a missing key, instead of showing a refused payload.
        opened = codec.open(payload) if isinstance(codec, SealingCodec) else (await codec.decode([payload]))[0]
        payload.CopyFrom(opened)


def key_ids(message: Message) -> set[str]:
    """Return the ids of the keys that sealed the payloads of a Temporal message."""
    sealed = (payload for payload in payloads_of(message) if payload.metadata.get("encoding") == ENCRYPTED)
    return {payload.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace") for payload in sealed}


def has_seals(message: Message) -> bool:
    """Return whether a Temporal message contains sealed payloads, including those already opened."""
    return any(
        OPENED_FIELD in payload.metadata or payload.metadata.get("encoding") == ENCRYPTED
        for payload in payloads_of(message)
    )


def payloads_of(message: Message) -> Iterator[Payload]:
    """Yield every payload in a message, including those in nested messages."""
    for item in (item for _, value in message.ListFields() for item in _messages(value)):
        if isinstance(item, Payload):
            yield item
        else:
            yield from payloads_of(item)


def _messages(value: Any) -> list[Message]:
    """Return the messages in a field, which may be a single message, a list or a map."""
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | bytes | int | float):
        return []
    items = value.values() if isinstance(value, Mapping) else value
    return [item for item in items if isinstance(item, Message)]


def data_converter(settings: "Settings", home: Path | None = None, *, claims: bool = False) -> DataConverter:
    """Return the data converter for the settings.

    Args:
        settings: current settings.
        home: folder of the default key file; None to use this host's state home.
        claims: bind each message from Temporal's UI or CLI to the first workflow that receives it. Used
            by workers.

    Raises:
        SettingsError: the keys cannot be read.
    """
    codec = _codec(settings, home, _claim(home or state_home()) if claims else None)
    return PLAIN_CONVERTER if codec is None else sealing_converter(codec)


def operator_codec(settings: "Settings", home: Path | None = None) -> PayloadCodec:
    """Return the codec for the codec server.

    The codec opens payloads for display and seals input from Temporal's UI and CLI.

    Raises:
        SettingsError: the keys cannot be read.
    """
    return OperatorCodec(_codec(settings, home, None))


def _codec(settings: "Settings", home: Path | None, claim: Claim | None) -> SealingCodec | None:
    if not settings.seals_payloads:
        return None

    keys = Keys(read=lambda: present_ring(settings, home), make=lambda: ring_of(settings, home))
    if settings.privacy.encrypt or not settings.temporal.loopback:
        keys.cipher(keys.current)  # fails early if keys are missing; on the server's host the first use creates them
    return SealingCodec(keys, strict=settings.temporal.authenticate, claim=claim)


def _claim(home: Path) -> Claim:
    folder = home / "operator"

    def claim(nonce: str, workflow_id: str) -> bool:
        file = folder / nonce
        try:
            # Creating the file is the atomic step: of two workflows that get copies of a message, one wins.
            write_private(file, workflow_id)
        except FileExistsError:
            return file.read_text(encoding="utf-8", errors="surrogateescape") == workflow_id
        except OSError:
            return False
        return True

    return claim
