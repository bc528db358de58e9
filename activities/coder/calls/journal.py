"""The journal of tool calls: what was going to happen, and what came of it, so that nothing happens twice.

A call that changes a file or starts a program is *claimed* before and *done* after its effect; each entry is one file
in the folder of the session, written and renamed durably. Whoever finds a claim that is not done can tell by the file
that it is about whether the effect took place.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.durable import write_durably
from activities.coder.port import ProposedCall
from tightloop.coder.model import CallResult
from tightloop.errors import ExecutorError
from tightloop.host import private_folder
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef

_DIGITS = re.compile(r"[0-9a-f]{12,64}")


class CallRecord(Sparse):
    """What is known of one call."""

    call: str
    """Digest of the tool and its arguments."""
    path: str = ""
    """Of the file that is changed; empty: a program is started."""
    before: str = ""
    """sha256 of the file; empty: there is none."""
    after: str = ""
    text: str = ""
    """What the model is told once the file is changed."""
    result: CallResult | None = None
    """None: claimed, not done."""
    whole: ArtifactRef | None = None
    """The whole text of a result of which the model was shown the ends."""


class CallJournal:
    """The entry of one call of one turn."""

    def __init__(self, session: Path, turn: int, index: int, call: ProposedCall) -> None:
        self._path = session / f"call-{turn:04d}-{index}.json"
        self._name = f"call {index} of turn {turn}"
        self.call = digest_call(call)
        self.temporary = f".tightloop-{session.name[:16]}-{turn}-{index}"
        """Name of a file that is not complete yet, beside the one that it replaces."""

    def read(self) -> CallRecord | None:
        """Return the entry; None: nothing has happened yet.

        Raises:
            ExecutorError: it is about another call, or damaged. Not retryable.
        """
        try:
            record = CallRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ExecutorError(
                f"the journal entry {self._path} of {self._name} is damaged, so what was done is not known. "
                "Look at the files of the workspace, then cancel this episode and start another one"
            ) from error
        if record.call != self.call:
            raise ExecutorError(
                f"{self._name} is not the call that the journal has for it in {self._path}: two conversations have "
                "one session. Cancel this episode and start another one"
            )
        return record

    def claim(self, record: CallRecord) -> None:
        """Write down what is going to happen."""
        self._write(record)

    def conclude(self, result: CallResult, whole: ArtifactRef | None) -> None:
        """Write down what came of it: from here on the call is never made again."""
        self._write(CallRecord(call=self.call, result=result, whole=whole))

    def withdraw(self) -> None:
        """Take a claim back: it is certain that nothing happened."""
        self._path.unlink(missing_ok=True)

    def _write(self, record: CallRecord) -> None:
        private_folder(self._path.parent)
        write_durably(self._path, record.model_dump_json().encode())


def digest_call(call: ProposedCall) -> str:
    """Return what tells a call from others, whatever id the provider gave it."""
    text = f"{call.tool}\0{call.arguments}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def find_result(session: Path, digits: str) -> ArtifactRef | None:
    """Return the one result of a session whose digest begins with these digits (12 or more).

    Only what the calls of this session brought is found, whatever else the store holds.
    """
    if not _DIGITS.fullmatch(digits):
        return None
    found = {ref.sha256: ref for ref in _results(session) if ref.sha256.startswith(digits)}
    return next(iter(found.values())) if len(found) == 1 else None


def _results(session: Path) -> Iterator[ArtifactRef]:
    for path in session.glob("call-*.json"):
        try:
            record = CallRecord.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            continue
        if record.result is not None:
            yield record.result.result
        if record.whole is not None:
            yield record.whole
