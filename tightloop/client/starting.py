"""What every start needs: an id that git and a person can use, task queues, and the memo that lists show."""

import re

from tightloop.episode import Queues
from tightloop.errors import InvalidRequestError
from tightloop.scrub import scrub
from tightloop.settings import QueueSettings

LAST = "last"
"""Stands for the newest one, where an id is asked for."""
MEMO_CHARACTERS = 200
# An id becomes part of a git ref (refs/tightloop/<id>/<n>), whose rules are stricter than Temporal's.
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,99}")


def checked_id(new_id: str, what: str) -> str:
    """Return an id that a caller chose; `what` is such as `a plan id`.

    Raises:
        InvalidRequestError: git or a person would misread it.
    """
    if new_id == LAST or new_id.endswith(".lock") or not _ID.fullmatch(new_id):
        raise InvalidRequestError(
            f"{new_id!r} cannot be {what}: it needs 1 to 100 letters, digits, '-', '_' or single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return new_id


def queues_of(asked: Queues, settings: QueueSettings) -> Queues:
    """Return the task queues of a request; what it leaves open is as the settings say."""
    return Queues(
        workspace=asked.workspace or settings.workspace,
        llm=asked.llm or settings.llm,
        executor=asked.executor or settings.executor,
    )


def memo_of(title: str, workspace: str, executor: str = "") -> dict[str, str]:
    """Return what Temporal keeps of a workflow for lists; secrets in the title are left out."""
    return {"goal": scrub(title)[:MEMO_CHARACTERS], "workspace": workspace, "executor": executor}
