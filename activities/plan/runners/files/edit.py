"""Edits of files: search and replace, whole files, deletions, and unified diffs. All or nothing, and idempotent.

File edits come first, then the diff. Everything is worked out before the first file is touched.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from activities.plan.attempts.contract import fail_step
from activities.plan.files import read_file, resolve_path
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.files.patching import Patch, patch_of
from activities.workspace.ownership import write_atomically
from tightloop.errors import InvalidRequestError
from tightloop.plan.document.action import EditAction, FileEdit
from tightloop.plan.language.reference import as_text, is_one_reference
from tightloop.value import counted

NEW_FILE_MODE = 0o644
_CRLF = b"\r\n"


@dataclass
class Draft:
    """Files before and after the edits: their bytes, or None for a missing file."""

    root: Path
    before: dict[str, bytes | None] = field(default_factory=dict)
    after: dict[str, bytes | None] = field(default_factory=dict)

    def content(self, path: str) -> bytes | None:
        """Return the content of a file as the edits before have made it."""
        if path not in self.after:
            place = resolve_path(self.root, path)
            if place.is_symlink() or place.is_dir():
                kind = "a link" if place.is_symlink() else "a folder"
                raise InvalidRequestError(f"{path!r} is {kind}: only regular files are edited")
            self.before[path] = self.after[path] = read_file(self.root, path)
        return self.after[path]

    @property
    def changes(self) -> Mapping[str, bytes | None]:
        """Files that become different."""
        return {path: content for path, content in self.after.items() if content != self.before[path]}

    def diff(self) -> str:
        """Return the changes for a person."""
        return "\n".join(_diff(path, self.before[path], content) for path, content in self.changes.items())

    def write(self) -> None:
        """Bring the changes to disk; files keep their mode. The caller undoes them should it fail in between."""
        for path, content in self.changes.items():
            place = resolve_path(self.root, path)
            if content is None:
                place.unlink(missing_ok=True)
                continue
            mode = place.stat().st_mode & 0o7777 if place.exists() else NEW_FILE_MODE
            write_atomically(place, content)
            place.chmod(mode)


class EditRunner:
    """Runs edit steps."""

    def preview(self, work: Work) -> str:
        """Return the whole change as a unified diff."""
        draft, patch = _drafted(work)
        if patch is not None and not draft.changes:
            patch.check()
        parts = (draft.diff(), patch.text.decode("utf-8", "replace") if patch is not None and not patch.applied else "")
        return "\n".join(filter(None, parts)) or "nothing: the files are already right"

    def run(self, work: Work) -> RunnerResult:
        """Make the change; see the port. Files that are already right are fine."""
        if work.tree is None:
            return fail_step("an edit changes the tree: leave out 'access', or set it to 'writes'")
        draft, patch = _drafted(work)
        if patch is not None and not draft.changes:
            patch.check()
        draft.write()
        if patch is not None:
            # Read again: whether the diff fits may depend on the edits before it.
            patch = patch_of(work.scope, patch.text) if draft.changes else patch
            patch.apply()
        paths = sorted({*draft.changes, *(patch.changed if patch is not None else ())})
        return RunnerResult(
            outputs={"paths": paths, "changed": bool(paths)},
            command=f"edit {', '.join(paths)}" if paths else "edit nothing",
            summary=f"{counted(len(paths), 'file')} changed" if paths else "nothing to do: the files are already right",
        )


def _drafted(work: Work) -> tuple[Draft, Patch | None]:
    action = work.action(EditAction)
    if not (action.files or action.diff):
        raise InvalidRequestError(f"step {work.step.id!r} edits nothing: give 'files' or 'diff'")
    draft = Draft(work.root)
    files = [work.resolve(edit.model_dump(exclude_unset=True)) for edit in action.files]
    texts = [{name: value if name == "delete" else as_text(value) for name, value in file.items()} for file in files]
    # One spelling of each path: two edits of one file must not be worked out apart from each other.
    for edit in EditAction.model_validate({"files": [{**file, "path": _plain(file["path"])} for file in texts]}).files:
        _apply(draft, edit)
    if not action.diff.strip():
        return draft, None
    # Otherwise a diff is taken literally: what looks like a reference in it is the content of a file.
    text = str(work.resolve(action.diff.strip())) if is_one_reference(action.diff) else action.diff
    return draft, patch_of(work.scope, text.encode("utf-8", "surrogateescape"))


def _plain(path: str) -> str:
    return path if path.startswith("/") else str(PurePosixPath(path)) if path else path


def _apply(draft: Draft, edit: FileEdit) -> None:
    ways = [name for name, asked in (("search", edit.search), ("delete", edit.delete)) if asked]
    ways += ["content"] if edit.content is not None else []
    if len(ways) != 1:
        raise InvalidRequestError(
            f"the edit of {edit.path!r} says {' and '.join(ways) or 'nothing'}: give one of search, content, delete"
        )
    old = draft.content(edit.path)
    if edit.delete:
        draft.after[edit.path] = None
    elif edit.content is not None:
        draft.after[edit.path] = edit.content.encode()
    elif old is None:
        raise InvalidRequestError(f"{edit.path!r} is not there, so nothing in it can be replaced. Give its 'content'")
    else:
        draft.after[edit.path] = _replaced(old, edit)


def _replaced(old: bytes, edit: FileEdit) -> bytes:
    """Return a file with the one place replaced; unchanged if it is done already.

    Raises:
        InvalidRequestError: the text occurs not at all, or more than once.
    """
    # How git tells a binary file: a zero byte within the first 8 000 bytes.
    if b"\0" in old[:8_000]:
        raise InvalidRequestError(f"{edit.path!r} is a binary file: replace it as a whole, or by a script")
    search, new = edit.search.encode(), edit.replace.encode()
    # A plan's text has plain line ends. A file that has CRLF throughout keeps them.
    if _CRLF in old and old.count(b"\n") == old.count(_CRLF) and _CRLF not in search:
        search, new = search.replace(b"\n", _CRLF), new.replace(b"\r\n", b"\n").replace(b"\n", _CRLF)
    places = _places(old, search)
    # Where the replacement contains the searched text, an edit that is done must not be found again.
    if search in new and new != search:
        done = _places(old, new)
        places = [at for at in places if not any(start <= at < start + len(new) for start in done)]
    if len(places) == 1:
        return old[: places[0]] + new + old[places[0] + len(search) :]
    if not places and new and new in old:
        return old
    found = counted(len(places), "time") if places else "nowhere"
    advice = "Take more of the lines around it" if places else "Copy it exactly, with its blanks"
    raise InvalidRequestError(
        f"{edit.path!r} holds the searched text {found}, it must be exactly once: {edit.search[:80]!r}. {advice}"
    )


def _places(text: bytes, part: bytes) -> list[int]:
    """Return where a text occurs, overlapping places included."""
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _diff(path: str, old: bytes | None, new: bytes | None) -> str:
    if b"\0" in (old or b"") or b"\0" in (new or b""):
        return f"binary file {path} changes from {len(old or b'')} to {len(new or b'')} bytes"
    before, after = ((side or b"").decode("utf-8", "replace").splitlines(keepends=True) for side in (old, new))
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    lines = difflib.unified_diff(before, after, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
