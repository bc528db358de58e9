"""What every start needs: an id that git and a person can use, task queues, and the memo that lists show."""

import secrets

from tightloop.client.execution import Kind
from tightloop.episode.model import Queues
from tightloop.errors import InvalidRequestError
from tightloop.safety.identity import CHOSEN_CHARACTERS, is_id
from tightloop.settings import QueueSettings
from tightloop.value.scrub import scrub

LAST = "last"
"""Stands for the newest one, where an id is asked for."""
# Temporal warns of memos over 2 KiB.
MEMO_CHARACTERS = 200


def choose_id(kind: Kind, wanted: str | None) -> str:
    """Return the id that a caller chose, or a new one.

    Raises:
        InvalidRequestError: git or a person would misread it.
    """
    if wanted is None:
        return f"{kind}-{secrets.token_hex(4 if kind is Kind.EPISODE else 6)}"
    if wanted == LAST or not is_id(wanted, CHOSEN_CHARACTERS):
        article = "an" if kind is Kind.EPISODE else "a"
        raise InvalidRequestError(
            f"{wanted!r} cannot be {article} {kind} id: it needs 1 to 100 letters, digits, '-', '_' or single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return wanted


def queues_of(asked: Queues, settings: QueueSettings) -> Queues:
    """Return the task queues of a request; the settings fill those that it leaves out."""
    return Queues(
        workspace=asked.workspace or settings.workspace,
        llm=asked.llm or settings.llm,
        executor=asked.executor or settings.executor,
    )


def memo_of(title: str, workspace: str, executor: str = "") -> dict[str, str]:
    """Return the memo that Temporal keeps for lists; secrets in the title are scrubbed."""
    return {"goal": scrub(title)[:MEMO_CHARACTERS], "workspace": workspace, "executor": executor}
