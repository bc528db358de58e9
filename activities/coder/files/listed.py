"""Which files the tools list and search."""

from pathlib import Path

from activities.coder.files.tree_files import relative, shown
from activities.coder.port import ToolError
from activities.workspace.listing import list_files
from tightloop.safety.glob import fits

GLOB_CHARACTERS = 500


def listed_files(root: Path, path: str | None, glob: str | None) -> list[str]:
    """Return the files and links of a tree that git does not ignore, sorted.

    Args:
        root: of the tree.
        path: a folder or a file; None or `.`: all.
        glob: what the paths have to fit, from `root` or, without a slash, the names; None: all.

    Raises:
        ToolError: nothing is there, or the pattern is too long.
        GitError: the files could not be listed in time.
    """
    names = sorted(list_files(root))
    top = "" if path is None else relative(root, path).removesuffix("/")
    if top not in ("", "."):
        names = [name for name in names if name == top or name.startswith(f"{top}/")]
        if not names:
            raise ToolError(f"{shown(top)} is not there, or git ignores it. list_files without a path shows what is")
    if not glob:
        return names
    if len(glob) > GLOB_CHARACTERS:
        raise ToolError(f"the glob has more than {GLOB_CHARACTERS} characters. Use a path")
    pattern = glob if "/" in glob else f"**/{glob}"
    return [name for name in names if fits((pattern,), name)]
