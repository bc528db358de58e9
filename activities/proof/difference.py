"""What changed between two trees, and what of it decides what checks say."""

import hashlib
from collections.abc import Iterable

from activities.proof.port import Files, TreeFile, Trees
from tightloop.episode.proof import ChangedFile, ConfigurationFile, FileChange, FileKind
from tightloop.episode.proof.files import (
    Guards,
    data_named_in,
    is_cache,
    is_environment,
    is_same_setup,
    programs_of,
    suspicious_lines,
)
from tightloop.episode.proof.model import FILES_LIMIT
from tightloop.episode.proof.same_code import is_same_code
from tightloop.safety.scope import files_in

READ_FILES = 400
"""Files that are read to find what they name, or new lines in them."""
READ_BYTES = 1_000_000
"""A larger file is not read for that."""


class Difference:
    """The changes from one tree to another."""

    def __init__(self, trees: Trees, base: str, delivered: str, goal: str, commands: list[str]) -> None:
        self._trees, self._commands = trees, commands
        self.before, self.after = trees.files(base), trees.files(delivered)
        paths = sorted({*self.before, *self.after})
        self._changed = {
            path: kind for path in paths if (kind := self._change(path)) is not None and not is_cache(path)
        }
        self._guards = Guards(programs=self._programs(commands), goal_files=frozenset(files_in(goal)))
        self._guards = self._guards._replace(named_data=self._named_data())
        self._rewritten = frozenset(self._same_code())
        self.guarded = tuple(self._guarded())

    def with_earlier(self, restored: Iterable[ChangedFile]) -> dict[str, TreeFile]:
        """Return the delivered tree with some files as they were at the beginning."""
        files = dict(self.after)
        for file in restored:
            files.pop(file.path, None)
            if (old := self.before.get(file.path)) is None:
                continue
            # No tree has a file and a folder of the same name: what is in the way of the old file is left out.
            for path in [
                path for path in files if path.startswith(f"{file.path}/") or file.path.startswith(f"{path}/")
            ]:
                del files[path]
            files[file.path] = old
        return files

    def configuration(self) -> tuple[ConfigurationFile, ...]:
        """Return the digests of the delivered files that configure checkers."""
        kinds = (FileKind.CONFIGURATION, FileKind.START_UP)
        paths = [path for path in sorted(self.after) if not is_cache(path) and self._guards.kind_of(path) in kinds]
        paths = [path for path in paths if not is_environment(path)][:FILES_LIMIT]
        contents = self._trees.read(self.after[path].blob for path in paths)
        return tuple(
            ConfigurationFile(path=shown(path), sha256=hashlib.sha256(contents[self.after[path].blob]).hexdigest())
            for path in paths
        )

    def suspicious(self) -> tuple[str, ...]:
        """Return new lines of sources that can make any check pass."""
        guarded = {file.path for file in self.guarded} | self._rewritten
        paths = [path for path, kind in self._changed.items() if kind is not FileChange.DELETED and path not in guarded]
        old, new = self._texts(self.before, paths), self._texts(self.after, paths)
        return tuple(line for path in new for line in suspicious_lines(shown(path), old.get(path, ""), new[path]))

    def _change(self, path: str) -> FileChange | None:
        old, new = self.before.get(path), self.after.get(path)
        if old == new:
            return None
        return FileChange.ADDED if old is None else FileChange.DELETED if new is None else FileChange.MODIFIED

    def _programs(self, commands: list[str]) -> frozenset[str]:
        """Return the files of the beginning that the definition of done names, and those that they name in turn."""
        found = frozenset[str]()
        while more := programs_of(commands, self.before) - found:
            found |= more
            commands = list(self._texts(self.before, sorted(more)).values())
        return found

    def _named_data(self) -> frozenset[str]:
        """Return changed data files that tests, or programs of the definition of done, name."""
        candidates = [path for path, kind in self._changed.items() if kind is not FileChange.ADDED]
        candidates = [path for path in candidates if self._guards.kind_of(path) is None]
        if not candidates:
            return frozenset()
        naming = [path for path in self.before if self._guards.kind_of(path) in (FileKind.TEST, FileKind.CONFIGURATION)]
        return data_named_in([*self._commands, *self._texts(self.before, naming).values()], candidates)

    def _same_code(self) -> Iterable[str]:
        """Return Python tests and programs of the definition of done that only look different."""
        paths = [
            path
            for path, change in self._changed.items()
            if path.endswith(".py")
            and change is FileChange.MODIFIED
            and self.before[path].mode == self.after[path].mode
            and (path in self._guards.programs or self._guards.kind_of(path, change) is FileKind.TEST)
        ]
        old, new = self._contents(self.before, paths), self._contents(self.after, paths)
        return (path for path in old.keys() & new.keys() if is_same_code(old[path], new[path]))

    def _guarded(self) -> Iterable[ChangedFile]:
        for path, change in self._changed.items():
            kind = self._guards.kind_of(path, change)
            if kind is None or path in self._rewritten:
                continue
            if kind is FileKind.CONFIGURATION and change is FileChange.MODIFIED and path not in self._guards.programs:
                old, new = self.before[path], self.after[path]
                contents = self._trees.read((old.blob, new.blob))
                if is_same_setup(path, contents[old.blob], contents[new.blob]):
                    continue
            yield ChangedFile(path=path, kind=kind, change=change)

    def _texts(self, files: Files, paths: Iterable[str]) -> dict[str, str]:
        return {path: text.decode("utf-8", "replace") for path, text in self._contents(files, paths).items()}

    def _contents(self, files: Files, paths: Iterable[str]) -> dict[str, bytes]:
        wanted = [path for path in paths if path in files and files[path].mode != 0o120000][:READ_FILES]
        contents = self._trees.read((files[path].blob for path in wanted), READ_BYTES)
        return {path: contents[blob] for path in wanted if (blob := files[path].blob) in contents}


def shown(path: str) -> str:
    """Return a path as it can be written as text."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
