"""The converters of payloads and failures, which workers, the client, the command line and the replayer share.

`data_converter` puts them together as the settings ask for: payloads are sealed (see `tightloop/client/sealing.py`)
unless both `temporal.authenticate` and `privacy.encrypt` are off. What is not sealed is refused, but for
`temporal.authenticate: false`.
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
"""What Temporal shows of a sealed failure, in the words of its SDKs."""
REFUSED_TYPE = RefusedPayload.__name__
"""Type of the error in place of a failure that is not authentic."""
_MESSAGES = frozenset({SealKind.START, SealKind.MESSAGE, SealKind.OPERATOR})
_SEALED_FIELD = "sealed_as"
_TRACE_LIMIT = 1000
"""Characters of a stack trace, from its end."""


_CONVERTERS = tuple(PydanticPayloadConverter().converters.values())


class SealedPayloadConverter(PydanticPayloadConverter):
    """Converts payloads, refuses those that the codec refused, and hands over what their seals say.

    The input of a workflow gets its seal into its field `sealed_as`; an argument of a signal or an update, which is
    declared as `Any`, becomes a `SealedMessage`. Without authentication there are no seals, and nothing changes.
    """

    def __init__(self) -> None:
        # Each workflow gets a converter: with type adapters of its own it would build all of them again.
        CompositePayloadConverter.__init__(self, *_CONVERTERS)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Return the values.

        Raises:
            ApplicationError: a payload was refused. It fails a workflow that is being started, rejects an update and
                drops a signal.
        """
        hints: list[Any] = list(type_hints or [])
        hints += [None] * (len(payloads) - len(hints))
        return [self._value(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _value(self, payload: Payload, hint: Any) -> Any:
        if payload.metadata.get("encoding") == REFUSED:
            reason = payload.data.decode("utf-8", "replace")
            if RESULT_FIELD in payload.metadata:
                return RefusedPayload(reason)
            raise ApplicationError(
                f"this payload is refused: {reason}. Send it with tightloop, or through the codec endpoint that "
                "`tightloop up` prints",
                type=REFUSED_TYPE,
                non_retryable=True,
            )
        [value] = super().from_payloads([payload], [hint] if hint is not None else None)
        opened = payload.metadata.get(OPENED_FIELD)
        seal = read_seal(opened.decode("utf-8", "replace")) if opened else None
        if isinstance(value, BaseModel) and _SEALED_FIELD in type(value).model_fields:
            return value.model_copy(update={_SEALED_FIELD: seal})
        if seal is not None and hint in (None, Any) and seal.kind in _MESSAGES:
            return SealedMessage(value, seal)
        return value


class ScrubbedFailures(DefaultFailureConverter):
    """Takes secrets and personal data out of the messages and stack traces of failures."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Fill in a failure, its causes included."""
        super().to_failure(exception, payload_converter, failure)
        failure.message = scrub(failure.message)
        # The server replaces a failure of more than 4 kB, reason and all. A recursion makes a trace of that size.
        failure.stack_trace = scrub(failure.stack_trace)[-_TRACE_LIMIT:]


class CheckedFailures(ScrubbedFailures):
    """Reads failures whose origin is proven; any other becomes one of the type `RefusedPayload`.

    A failure needs no payload, so the codec alone would let one pass, whoever made it. Timeouts, cancellations and
    terminations are Temporal's own words and pass: they only stop.
    """

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Return the error of a failure."""
        checked = Failure()
        checked.CopyFrom(failure)
        if checked.HasField("timeout_failure_info"):
            checked.timeout_failure_info.ClearField("last_heartbeat_details")
        if checked.HasField("canceled_failure_info"):
            # The server writes into them, unsealed, that an activity had not started.
            checked.canceled_failure_info.ClearField("details")
        if not _is_authentic(checked, payload_converter):
            refused = (one for one in payloads_of(failure) if one.metadata.get("encoding") == REFUSED)
            why = next((f": {one.data.decode('utf-8', 'replace')}" for one in refused), "")
            return ApplicationError(f"a failure that is not authentic was reported{why}", type=REFUSED_TYPE)
        return super().from_failure(checked, payload_converter)


class SealedFailures(CheckedFailures):
    """Writes failures so that the codec seals their messages, their stack traces, and a proof of their origin."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Fill in a failure, its causes included."""
        super().to_failure(exception, payload_converter, failure)
        if failure.HasField("encoded_attributes") and failure.message == SEALED_MESSAGE:
            return  # it came from Temporal and is passed on
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace, "of": _digest(failure)}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = SEALED_MESSAGE, ""


class UncheckedSealedFailures(SealedFailures):
    """Seals failures, and reads those of anybody."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Return the error of a failure."""
        return DefaultFailureConverter.from_failure(self, failure, payload_converter)


def _is_authentic(failure: Failure, payload_converter: PayloadConverter) -> bool:
    """Return whether a failure says nothing by itself, or says what its sealed part says."""
    kind = failure.WhichOneof("failure_info")
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
    said = Failure()
    said.CopyFrom(failure)
    said.message, said.stack_trace = str(attributes.get("message", "")), str(attributes.get("stack_trace", ""))
    return attributes.get("of") == _digest(said)


def _digest(failure: Failure) -> str:
    info = failure.application_failure_info
    parts = (failure.message, failure.stack_trace, info.type, info.non_retryable, info.category, info.next_retry_delay)
    return hashlib.sha256("\0".join(map(repr, map(str, parts))).encode("utf-8", "surrogatepass")).hexdigest()[:32]


PLAIN_CONVERTER = DataConverter(
    payload_converter_class=SealedPayloadConverter, failure_converter_class=ScrubbedFailures
)
"""Seals nothing; failures are scrubbed."""


def sealing_converter(codec: SealingCodec) -> DataConverter:
    """Return the converter around a codec; failures are sealed, too."""
    failures = SealedFailures if codec.strict else UncheckedSealedFailures
    return _SealingConverter(PLAIN_CONVERTER.payload_converter_class, codec, failures)


class _SealingConverter(DataConverter):
    """The SDK's converter; its own copy for a context makes every converter again, for each payload of a workflow."""

    def with_context(self, context: SerializationContext) -> Self:
        """Return a copy whose codec knows the context: nothing else asks for it."""
        copied = copy.copy(self)
        assert isinstance(self.payload_codec, SealingCodec)
        object.__setattr__(copied, "payload_codec", self.payload_codec.with_context(context))
        return copied


async def open_all(message: Message, codec: PayloadCodec) -> None:
    """Open every payload inside a message of Temporal, such as a history, in place; for readers only.

    Raises:
        SettingsError: a key is missing.
    """
    for payload in payloads_of(message):
        opened = codec.open(payload) if isinstance(codec, SealingCodec) else (await codec.decode([payload]))[0]
        payload.CopyFrom(opened)


def key_ids(message: Message) -> set[str]:
    """Return the ids of the keys that sealed the payloads inside a message of Temporal."""
    sealed = (payload for payload in payloads_of(message) if payload.metadata.get("encoding") == ENCRYPTED)
    return {payload.metadata.get(KEY_ID_FIELD, b"").decode("utf-8", "replace") for payload in sealed}


def has_seals(message: Message) -> bool:
    """Return whether a message of Temporal has payloads that are or were sealed."""
    return any(
        OPENED_FIELD in payload.metadata or payload.metadata.get("encoding") == ENCRYPTED
        for payload in payloads_of(message)
    )


def payloads_of(message: Message) -> Iterator[Payload]:
    """Yield every payload inside a message."""
    for item in (item for _, value in message.ListFields() for item in _messages(value)):
        if isinstance(item, Payload):
            yield item
        else:
            yield from payloads_of(item)


def _messages(value: Any) -> list[Message]:
    """Return the messages in the value of a field: one, repeated, or the values of a map."""
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | bytes | int | float):
        return []
    items = value.values() if isinstance(value, Mapping) else value
    return [item for item in items if isinstance(item, Message)]


def data_converter(settings: "Settings", home: Path | None = None, *, claims: bool = False) -> DataConverter:
    """Return the converter that the settings ask for.

    Args:
        settings: those in force.
        home: the state folder, where the key file is by default; None: the one of this host.
        claims: note which workflow a message of Temporal's UI or CLI is for, so that it is for no other one. Workers.

    Raises:
        SettingsError: the keys cannot be read.
    """
    codec = _codec(settings, home, _claim(home or state_home()) if claims else None)
    return PLAIN_CONVERTER if codec is None else sealing_converter(codec)


def operator_codec(settings: "Settings", home: Path | None = None) -> PayloadCodec:
    """Return what the codec server does: it shows what is sealed, and seals what Temporal's UI and CLI send.

    Raises:
        SettingsError: the keys cannot be read.
    """
    return OperatorCodec(_codec(settings, home, None))


def _codec(settings: "Settings", home: Path | None, claim: Claim | None) -> SealingCodec | None:
    if not settings.seals_payloads:
        return None

    keys = Keys(read=lambda: present_ring(settings, home), make=lambda: ring_of(settings, home))
    if settings.privacy.encrypt or not settings.temporal.loopback:
        keys.cipher(keys.current)  # says at once where they are missing; elsewhere the first use makes one
    return SealingCodec(keys, strict=settings.temporal.authenticate, claim=claim)


def _claim(home: Path) -> Claim:
    folder = home / "operator"

    def claim(nonce: str, workflow_id: str) -> bool:
        file = folder / nonce
        try:
            write_private(file, workflow_id)
        except FileExistsError:
            return file.read_text(encoding="utf-8", errors="surrogateescape") == workflow_id
        except OSError:
            return False
        return True

    return claim
