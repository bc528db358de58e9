"""What people see of a coder."""

from tightloop.coder.course import spent_tokens
from tightloop.coder.model import CoderStatus
from tightloop.value import shorten

TITLE_CHARACTERS = 200


def details_markdown(status: CoderStatus) -> str:
    """Return the current details, for Temporal's Web UI."""
    known = status.usage.known
    tokens = f"{spent_tokens(status.usage)} tokens" if known else "tokens not reported"
    lines = [
        f"**{status.state.value}** - {shorten(status.title, TITLE_CHARACTERS)}",
        f"- turn {status.turns} of at most {status.max_turns}, round {status.round}, {tokens}",
    ]
    return "\n".join(lines)
