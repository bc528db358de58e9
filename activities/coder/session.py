"""The folder of a session, and the progress that is kept from one delivery to the next."""

import contextlib
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.durable import write_durably
from tightloop.coder.model import CoderProgress
from tightloop.coder.session import place_of
from tightloop.host import private_folder


def session_folder(state_folder: Path, session: str) -> Path:
    """Return the folder of a session in the state of its project.

    Raises:
        InvalidRequestError: the id is not one of ours.
    """
    return state_folder / place_of(session)


def keep_progress(state_folder: Path, session: str, progress: CoderProgress) -> None:
    """Keep how far a session has come, for the delivery that goes on with it."""
    folder = session_folder(state_folder, session)
    private_folder(folder)
    write_durably(folder / "progress.json", progress.model_dump_json().encode())


def read_progress(state_folder: Path, session: str) -> CoderProgress:
    """Return how far a session has come; from the beginning where nothing is kept."""
    place = session_folder(state_folder, session) / "progress.json"
    # A file that cannot be read costs no more than reading the journal from its beginning.
    with contextlib.suppress(OSError, ValidationError):
        return CoderProgress.model_validate_json(place.read_bytes())
    return CoderProgress()
