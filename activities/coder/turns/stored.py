"""The journal of a session's turns: an answer is written before it is returned, so that it is paid for once."""

import re
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.durable import write_durably
from activities.coder.port import ProposedCall
from tightloop.coder.model import Turn
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError
from tightloop.host import private_folder
from tightloop.value import Value

_ENTRY = re.compile(r"(?P<kind>turn|call)-(?P<turn>[0-9]{4,})(?:-[0-9]+)?\.json")


class StoredTurn(Value):
    """One turn in the journal."""

    input: str
    """Digest of what the model was asked with."""
    turn: Turn
    calls: tuple[ProposedCall, ...] = ()
    """With their arguments, which follow the schemas of their tools; in the order of `turn.calls`."""


def read_turn(session_folder: Path, number: int) -> StoredTurn:
    """Read a turn of the journal.

    Raises:
        ArtifactMissingError: it is not there.
        ArtifactCorruptError: it cannot be read.
    """
    found = find_turn(session_folder, number)
    if found is None:
        raise ArtifactMissingError(f"turn {number} is not in the journal {session_folder}: take it again")
    return found


def find_turn(session_folder: Path, number: int) -> StoredTurn | None:
    """Read a turn of the journal, if it is there.

    Raises:
        ArtifactCorruptError: it cannot be read.
    """
    path = _path(session_folder, number)
    try:
        return StoredTurn.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ArtifactCorruptError(
            f"{path} is damaged ({error.error_count()} problems): remove the folder {session_folder}, which makes the "
            "coder begin again"
        ) from None


def write_turn(session_folder: Path, stored: StoredTurn) -> None:
    """Write a turn; it survives a power loss."""
    private_folder(session_folder)
    write_durably(_path(session_folder, stored.turn.number), stored.model_dump_json().encode())


def discard_turns(session_folder: Path, first: int) -> None:
    """Remove the turns from `first` on and the calls of all of them: they are of a future that was given up."""
    found = [(match, path) for path in session_folder.glob("*.json") if (match := _ENTRY.fullmatch(path.name))]
    # The first turn goes last: whoever dies in between finds it and goes on.
    for match, path in sorted(found, key=lambda entry: (-int(entry[0]["turn"]), entry[0]["kind"])):
        if int(match["turn"]) >= first:
            path.unlink(missing_ok=True)


def _path(session_folder: Path, number: int) -> Path:
    return session_folder / f"turn-{number:04}.json"
