"""Reads the patch of a change for the alignment rules, and says what the patch lacks."""

from activities.workspace.trail import TreeDiff
from tightloop.safety.change.patch import FilePatch, Unread, read_patch
from tightloop.safety.change.tables import is_data

NO_PATCH = "no patch"


def read_diff(diff: TreeDiff, tree: str) -> tuple[tuple[FilePatch, ...], Unread]:
    """Return the files of the patch, and what of the difference it lacks.

    Binary files and generated data are not missed: no rule about lines reads them.
    """
    files = read_patch(diff.patch.decode("utf-8", "replace"))
    if not diff.note and (diff.patch or not diff.files_changed):
        return files, Unread()
    held = {file.path for file in files}
    missing = [file for file in diff.files if not (file.binary or file.path in held or is_data(file.path))]
    unlisted = max(diff.files_changed - max(len(diff.files), len(files)), 0)
    lines = sum(file.added + file.removed for file in missing)
    if unlisted:
        lines += diff.lines_added + diff.lines_removed - sum(file.added + file.removed for file in diff.files)
    return files, Unread(
        paths=tuple(file.path for file in missing),
        files=len(missing) + unlisted,
        lines=lines,
        why=diff.note or NO_PATCH,
        mark=tree,
    )
