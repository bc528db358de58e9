"""Results of tasks that could not be merged, and the tasks that resolve them."""

import shlex

from tightloop.episode.check import Check
from tightloop.value import Value

CONFLICT = "conflict"
"""The output of a step that could not be merged."""
MARKER = "^(<{7}|>{7})( |$)"
"""A line that git writes around a conflict, as `grep -E` knows it."""


class Conflict(Value):
    """What a task did that conflicts with what others did before it was merged."""

    base: str
    """Tree that the task began with."""
    tree: str
    """Tree that it left; it is kept."""
    paths: tuple[str, ...] = ()
    """Files that both changed in the same places."""
    beside: tuple[str, ...] = ()
    """Files that hold the task's side where no text can show both."""

    @property
    def check(self) -> Check:
        """The check that the conflict is resolved: no markers are left, and no file that lies beside another."""
        tests = [f"test ! -e {shlex.quote(path)}" for path in self.beside]
        if self.paths:
            # A file that was removed is resolved, too.
            files = " ".join(shlex.quote(path) for path in self.paths)
            tests.append(f"! grep -nE {shlex.quote(MARKER)} -- {files} 2>/dev/null")
        return Check(run=" && ".join(tests) or "true", name="no conflict markers are left")
