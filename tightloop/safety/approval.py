"""Changes shown in questions, and people's answers to them."""

from collections.abc import Iterable
from datetime import datetime

from tightloop.value import Value, format_count
from tightloop.wording import diff_text

DIFF_LINES = 40
DIFF_CHARACTERS = 200
FILES_LIMIT = 50
APPROVALS_LIMIT = 20
"""Maximum number of approvals that a run remembers. The oldest ones are dropped, so that their changes are asked about
again.
"""
PATHS_NAMED = 3


class FileVersion(Value):
    """The content of a changed file before and after the change."""

    path: str
    before: str = ""
    """Git id of the content before the change. Empty if the file did not exist."""
    after: str = ""
    """Git id of the content after the change. Empty if the file was deleted."""


class ShownChange(Value):
    """The change that a question shows to the user."""

    files: tuple[FileVersion, ...] = ()
    """Changed files that the question concerns, at most `FILES_LIMIT`."""
    lines: tuple[str, ...] = ()
    """Beginning of the diff, at most `DIFF_LINES` lines of `DIFF_CHARACTERS` each. Secrets are removed."""
    more: int = 0
    """Number of lines that are not shown."""
    command: str = ""
    """Command that prints the complete diff on the host of the workspace."""

    @property
    def text(self) -> tuple[str, ...]:
        """The diff lines to show. If the diff was cut, the last line names the command that shows all of it."""
        return diff_text(self)


class Approval(Value):
    """A person's answer about a change. It only applies to files with exactly this content."""

    files: tuple[FileVersion, ...]
    by: str
    at: datetime | None = None
    asked: bool = False
    """True if the person asked for the change. Otherwise they only let it pass."""

    @property
    def sentence(self) -> str:
        """The answer as a sentence, such as `ada asked for the change to tests/test_a.py at 2026-01-31 14:03 UTC`."""
        paths = [file.path for file in self.files]
        more = f" and {format_count(len(paths) - PATHS_NAMED, 'more file')}" if len(paths) > PATHS_NAMED else ""
        when = f" at {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        verb = "asked for" if self.asked else "allowed"
        return f"{self.by} {verb} the change to {', '.join(paths[:PATHS_NAMED])}{more}{when}"


def find_approval(approvals: Iterable[Approval], change: FileVersion) -> Approval | None:
    """Return the approval that covers a change to a file, or None.

    The approvals of successive steps can be combined. In this case, the weakest approval is returned,
    because the change only counts as requested if every step was requested.
    """
    reached: dict[str, Approval | None] = {change.before: None}
    for approval in approvals:
        for file in approval.files:
            if file.path == change.path and file.before in reached and file.after != change.before:
                earlier = reached[file.before]
                reached[file.after] = earlier if earlier is not None and not earlier.asked else approval
    return reached.get(change.after)


def with_approval(approvals: tuple[Approval, ...], *more: Approval) -> tuple[Approval, ...]:
    """Append the approvals that are not in the list yet."""
    return tuple(dict.fromkeys((*approvals, *(approval for approval in more if approval.files))))[-APPROVALS_LIMIT:]
