"""DSSE envelopes: content, its type, and signatures of both.

Source: https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md
"""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

from pydantic import Field, ValidationError

from tightloop.errors import ProofError
from tightloop.value import Value, first_problem

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_BYTES = 4 << 20
"""Of an envelope and of what is in it; Python needs about 40 times as much for the worst JSON."""
MOST_SIGNATURES = 16
SIGNATURE_CHARACTERS = 16_384
INTEGER_DIGITS = 30


class Signature(Value):
    """One signature of an envelope."""

    sig: str = Field(max_length=SIGNATURE_CHARACTERS)
    """In base64."""
    keyid: str = ""
    """A hint that nothing authenticates; here the fingerprint of the key, `SHA256:...`."""


class Envelope(Value):
    """Content with its type; the signatures are about both."""

    payload: str
    """In base64."""
    payload_type: str = Field(alias="payloadType")
    signatures: tuple[Signature, ...] = Field(default=(), max_length=MOST_SIGNATURES)

    @property
    def content(self) -> bytes:
        """The bytes of the payload.

        Raises:
            ProofError: it is not base64, or not in its only canonical form.
        """
        return decode(self.payload, "the payload of the proof")

    @property
    def signed_bytes(self) -> bytes:
        """What signatures are about: the pre-authentication encoding. Raises as `content` does."""
        return signed_bytes(self.payload_type, self.content)


def seal(content: bytes, signatures: Iterable[Signature] = ()) -> Envelope:
    """Put a statement into an envelope."""
    return Envelope(payload=encode(content), payloadType=PAYLOAD_TYPE, signatures=tuple(signatures))


def to_json(envelope: Envelope) -> str:
    """Return the envelope as it is written to a file."""
    return json.dumps(envelope.model_dump(mode="json", by_alias=True), indent=1) + "\n"


def signed_bytes(payload_type: str, content: bytes) -> bytes:
    """Return the pre-authentication encoding, in which neither part can be taken for a piece of the other."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(content), content)


def read_envelope(content: bytes) -> Envelope:
    """Read an envelope.

    Raises:
        ProofError: it is too large, not JSON, or not an envelope around an in-toto statement.
    """
    document = read_json(content, "the proof")
    try:
        envelope = Envelope.model_validate(document)
    except ValidationError as error:
        raise ProofError(f"the proof is not a DSSE envelope: {first_problem(error)}") from None
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ProofError(
            f"the proof holds {envelope.payload_type[:80]!r} and not an in-toto statement ({PAYLOAD_TYPE})"
        )
    return envelope


def read_json(content: bytes, what: str) -> Any:
    """Read JSON that anybody may have written; what two readers could understand differently is refused.

    Raises:
        ProofError: it is too large, not UTF-8 or not JSON, has a name twice, or numbers that are not finite or
            not of a sane length.
    """
    if len(content) > MOST_BYTES:
        raise ProofError(f"{what} is larger than {MOST_BYTES >> 20} MiB: it was not read")
    try:
        document = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_twins,
            parse_constant=_refuse_number,
            parse_int=_bounded_integer,
        )
        # Half a surrogate pair can be written in JSON and in no output.
        json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError:
        raise ProofError(f"{what} has half a character (a lone surrogate)") from None
    except UnicodeDecodeError as error:
        raise ProofError(f"{what} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ProofError(f"{what} is not JSON: {error.msg} in line {error.lineno}. Is the file complete?") from None
    except RecursionError:
        raise ProofError(f"{what} is nested too deeply") from None


def encode(content: bytes) -> str:
    """Return base64 as envelopes have it."""
    return base64.b64encode(content).decode()


def decode(text: str, what: str) -> bytes:
    """Return the bytes of base64 in its canonical form: else a changed character could mean the same bytes.

    Raises:
        ProofError: it is something else.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content or encode(content) != text:
        raise ProofError(f"{what} is not base64. Is the file complete?")
    return content


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twin, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ProofError(f"the proof has the field {twin[:80]!r} twice: readers could disagree on what it says")
    return found


def _refuse_number(number: str) -> NoReturn:
    raise ProofError(f"the proof has the number {number}, which JSON does not know")


def _bounded_integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise ProofError(f"the proof has a number of {len(digits)} digits")
    return int(digits)
