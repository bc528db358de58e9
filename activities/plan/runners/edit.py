"""Steps that edit files."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from activities.plan.attempts.runner import fail_step
from activities.plan.files import read_file, resolve_path
from activities.plan.port import RunnerResult, Work
from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.git_command import Git, Outcome, split_z, store_git
from activities.workspace.ownership import write_atomically
from activities.workspace.scope import EpisodeScope
from tightloop.errors import InvalidRequestError
from tightloop.plan.action import EditAction, FileEdit
from tightloop.plan.reference import as_text, is_one_reference
from tightloop.value import format_count

PATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Patch:
    """A diff to apply to a working tree."""

    git: Git
    text: bytes
    paths: tuple[str, ...]
    applied: bool
    """True if the files already contain the change."""

    @property
    def changed(self) -> tuple[str, ...]:
        """The paths that change when the diff is applied."""
        return () if self.applied else self.paths

    def check(self) -> None:
        """Check that the diff applies.

        Raises:
            InvalidRequestError: the diff does not apply. The message names the first conflict.
        """
        if not self.applied:
            _refuse(_apply_hunk(self.git, self.text, "--check"))

    def apply(self) -> None:
        """Apply the diff. Raises the same errors as `check`. Nothing is changed if an error is raised."""
        if not self.applied:
            _refuse(_apply_hunk(self.git, self.text))


def patch_of(scope: EpisodeScope, text: bytes) -> Patch:
    """Parse a diff that can be applied to a working tree.

    Raises:
        InvalidRequestError: the text is not a diff, is too large, or changes a path that steps must not
            touch.
    """
    if len(text) > PATCH_BYTES:
        raise InvalidRequestError(
            f"the diff is {len(text)} bytes long, but the limit is {PATCH_BYTES} bytes. Split the diff"
        )
    # Without a final newline git calls the diff corrupt.
    text = text if text.endswith(b"\n") else text + b"\n"
    git = store_git(store_folder_of(scope), root_of(scope))
    raw_paths: set[bytes] = set()
    # A rename is listed under its new path, and with --reverse under its old one.
    for direction in ((), ("--reverse",)):
        listed = _apply_hunk(git, text, "--numstat", "-z", *direction)
        if listed.code != 0:
            raise InvalidRequestError(f"cannot parse the diff: {listed.error}. Use the format of 'git diff'")
        raw_paths |= {line.split(b"\t", 2)[2] for line in split_z(listed.out)}
    paths = tuple(sorted(path.decode("utf-8", "surrogateescape") for path in raw_paths))
    for path in paths:
        resolve_path(root_of(scope), path)
    # A diff that applies only in reverse has been applied already.
    fits = _apply_hunk(git, text, "--check").code == 0
    return Patch(git, text, paths, not fits and _apply_hunk(git, text, "--check", "--reverse").code == 0)


def _apply_hunk(git: Git, text: bytes, *options: str) -> Outcome:
    return git.attempt("apply", "--whitespace=nowarn", *options, "-", stdin=text)


def _refuse(outcome: Outcome) -> None:
    if outcome.code != 0:
        raise InvalidRequestError(
            f"the diff does not apply, so no files were changed: {outcome.error}. Regenerate the diff against the "
            "current files"
        )


NEW_FILE_MODE = 0o644
_CRLF = b"\r\n"


@dataclass
class Draft:
    """The contents of files before and after the edits. None means that the file does not exist."""

    root: Path
    before: dict[str, bytes | None] = field(default_factory=dict)
    after: dict[str, bytes | None] = field(default_factory=dict)

    def content(self, path: str) -> bytes | None:
        """Return a file's content after all edits so far."""
        if path not in self.after:
            location = resolve_path(self.root, path)
            if location.is_symlink() or location.is_dir():
                kind = "a link" if location.is_symlink() else "a folder"
                raise InvalidRequestError(f"{path!r} is {kind}: only regular files can be edited")
            self.before[path] = self.after[path] = read_file(self.root, path)
        return self.after[path]

    @property
    def changes(self) -> Mapping[str, bytes | None]:
        """Files whose content has changed."""
        return {path: content for path, content in self.after.items() if content != self.before[path]}

    def diff(self) -> str:
        """Return the changes to all files as a unified diff."""
        return "\n".join(_diff(path, self.before[path], content) for path, content in self.changes.items())

    def write(self) -> None:
        """Write the changes to disk and preserve the file modes.

        This is not atomic. If it fails, the caller reverts the changes.
        """
        for path, content in self.changes.items():
            location = resolve_path(self.root, path)
            if content is None:
                location.unlink(missing_ok=True)
                continue
            mode = location.stat().st_mode & 0o7777 if location.exists() else NEW_FILE_MODE
            write_atomically(location, content)
            # The new file replaced the old one and would lose its executable bit.
            location.chmod(mode)


class EditRunner:
    """Runs edit steps."""

    def preview(self, work: Work) -> str:
        """Show the complete change as a unified diff."""
        draft, patch = _draft_changes(work)
        if patch is not None and not draft.changes:
            patch.check()
        parts = (draft.diff(), patch.text.decode("utf-8", "replace") if patch is not None and not patch.applied else "")
        return "\n".join(filter(None, parts)) or "no changes: the files are already up to date"

    def run(self, work: Work) -> RunnerResult:
        """Apply the edits. Edits that have already been applied are skipped."""
        if work.tree is None:
            return fail_step("an edit changes the tree. Remove 'access', or set 'access' to 'writes'")
        draft, patch = _draft_changes(work)
        if patch is not None and not draft.changes:
            patch.check()
        # With edits the diff is checked only after them; if it does not apply, the failed step is undone as a whole.
        draft.write()
        if patch is not None:
            # Parse again: the edits before it may decide whether the diff applies.
            patch = patch_of(work.scope, patch.text) if draft.changes else patch
            patch.apply()
        paths = sorted({*draft.changes, *(patch.changed if patch is not None else ())})
        return RunnerResult(
            outputs={"paths": paths, "changed": bool(paths)},
            command=f"edit {', '.join(paths)}" if paths else "edit nothing",
            summary=f"{format_count(len(paths), 'file')} changed"
            if paths
            else "nothing to do: the files are already up to date",
        )


def _draft_changes(work: Work) -> tuple[Draft, Patch | None]:
    action = work.action(EditAction)
    if not (action.files or action.diff):
        raise InvalidRequestError(f"step {work.step.id!r} does not edit anything: specify 'files' or 'diff'")
    draft = Draft(work.root)
    # An empty `content` is an empty file, unlike a missing one.
    files = [work.resolve(edit.model_dump(exclude_unset=True)) for edit in action.files]
    texts = [{name: value if name == "delete" else as_text(value) for name, value in file.items()} for file in files]
    # Normalise each path, so that two edits of the same file are applied one after the other.
    for edit in EditAction.model_validate({"files": [{**file, "path": _plain(file["path"])} for file in texts]}).files:
        _apply(draft, edit)
    if not action.diff.strip():
        return draft, None
    # Otherwise the diff is literal: an apparent reference in it is file content.
    text = str(work.resolve(action.diff.strip())) if is_one_reference(action.diff) else action.diff
    return draft, patch_of(work.scope, text.encode("utf-8", "surrogateescape"))


def _plain(path: str) -> str:
    return path if path.startswith("/") else str(PurePosixPath(path)) if path else path


def _apply(draft: Draft, edit: FileEdit) -> None:
    ways = [name for name, option in (("search", edit.search), ("delete", edit.delete)) if option]
    ways += ["content"] if edit.content is not None else []
    if len(ways) != 1:
        raise InvalidRequestError(
            f"the edit of {edit.path!r} must use exactly one of search, content and delete, but uses "
            f"{' and '.join(ways) or 'none of them'}"
        )
    old = draft.content(edit.path)
    if edit.delete:
        draft.after[edit.path] = None
    elif edit.content is not None:
        draft.after[edit.path] = edit.content.encode()
    elif old is None:
        raise InvalidRequestError(
            f"cannot replace text in {edit.path!r}: the file does not exist. To create the file, specify 'content'"
        )
    else:
        draft.after[edit.path] = _replace_match(old, edit)


def _replace_match(old: bytes, edit: FileEdit) -> bytes:
    """Replace the only occurrence of the search text. Do nothing if the edit was already applied.

    Raises:
        InvalidRequestError: the search text does not occur exactly once.
    """
    # Git's heuristic for binary files: a zero byte within the first 8 000 bytes.
    if b"\0" in old[:8_000]:
        raise InvalidRequestError(
            f"{edit.path!r} is a binary file, so text in it cannot be replaced. Replace the whole file, or use a script"
        )
    search, new = edit.search.encode(), edit.replace.encode()
    # Plans use LF. A file that uses CRLF throughout keeps it.
    if _CRLF in old and old.count(b"\n") == old.count(_CRLF) and _CRLF not in search:
        search, new = search.replace(b"\n", _CRLF), new.replace(b"\r\n", b"\n").replace(b"\n", _CRLF)
    places = _places(old, search)
    # If the replacement contains the search text, an applied edit must not match again.
    if search in new and new != search:
        applied = _places(old, new)
        places = [at for at in places if not any(start <= at < start + len(new) for start in applied)]
    if len(places) == 1:
        return old[: places[0]] + new + old[places[0] + len(search) :]
    if not places and new and new in old:
        return old
    times = format_count(len(places), "time") if places else "0 times"
    advice = "Include more of the surrounding lines" if places else "Copy the text exactly, including whitespace"
    raise InvalidRequestError(
        f"{edit.path!r} contains the search text {times}, but it must occur exactly once: "
        f"{edit.search[:80]!r}. {advice}"
    )


def _places(text: bytes, part: bytes) -> list[int]:
    """Return the offsets of all occurrences of a text, including overlapping ones."""
    offsets, at = [], text.find(part)
    while at >= 0:
        offsets.append(at)
        at = text.find(part, at + 1)
    return offsets


def _diff(path: str, old: bytes | None, new: bytes | None) -> str:
    if b"\0" in (old or b"") or b"\0" in (new or b""):
        return f"binary file {path} changes from {len(old or b'')} to {len(new or b'')} bytes"
    before, after = ((side or b"").decode("utf-8", "replace").splitlines(keepends=True) for side in (old, new))
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    lines = difflib.unified_diff(before, after, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
