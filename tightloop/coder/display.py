"""What people see of a coder."""

from tightloop.coder.model import CoderProgress, CoderStatus
from tightloop.value import counted, shorten

TITLE_CHARACTERS = 200


def details_markdown(status: CoderStatus) -> str:
    """Return the current details, for Temporal's Web UI."""
    return f"**{status.state.value}** - {shorten(status.title, TITLE_CHARACTERS)}\n- {status.line}"


def path_line(progress: CoderProgress) -> str:
    """Return the states that a coder went through, such as `PLANNING (3 turns) > CODING (9 turns) > TESTING`."""
    ends = [*(turns for _, turns in progress.path[1:]), progress.turns]
    parts = []
    for (state, began), end in zip(progress.path, ends, strict=True):
        parts.append(state.value + (f" ({counted(end - began, 'turn')})" if end > began else ""))
    return " > ".join(parts)
