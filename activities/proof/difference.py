"""Changes since the start of the work, including those that determine the result of a check."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from shutil import which

from activities.proof.port import DeliveredFile, Files, LockedTrees, TreeFile
from activities.workspace.store.entry import REGULAR
from tightloop.episode.proof import FILES_LIMIT, ChangedFile, ConfigurationFile, FileChange, FileKind
from tightloop.episode.proof.files import (
    ENVIRONMENTS,
    Guards,
    can_redefine,
    data_named_in,
    is_cache,
    is_environment,
    is_same_setup,
    programs_of,
    redefinitions,
    suspicious_lines,
)
from tightloop.episode.proof.inner_tests import lost_inner_tests
from tightloop.episode.proof.kept_tests import KeptTests, Sources, compare_tests
from tightloop.episode.proof.loaded import LoadedFiles
from tightloop.episode.proof.report import InitialState, Observation
from tightloop.episode.proof.same_code import can_compare, is_same_code
from tightloop.episode.proof.verdict import SourceChanges
from tightloop.safety.announcement import RequestedChanges
from tightloop.safety.approval import Approval, FileVersion, find_approval
from tightloop.safety.scope import files_in

READ_FILES = 400
"""Maximum number of files to read when looking for referenced data files or new lines."""
READ_BYTES = 1_000_000
"""Maximum size in bytes of a file to read. Larger files are not read."""


class Difference:
    """Changes between two trees."""

    def __init__(self, trees: LockedTrees, base: str, delivered: str, goal: str, commands: list[str]) -> None:
        self._trees, self._commands = trees, commands
        self.before, self.after = trees.files(base), trees.files(delivered)
        self._changed: dict[str, FileChange] = {}
        for path in sorted({path for path, _ in self.before.items() ^ self.after.items() if not is_cache(path)}):
            was, is_there = path in self.before, path in self.after
            self._changed[path] = (
                FileChange.ADDED if not was else FileChange.MODIFIED if is_there else FileChange.DELETED
            )
        # Initial files that the definition of done refers to, and the files that these refer to.
        programs, texts = frozenset[str](), commands
        # Until nothing new is found: a Makefile may call a script that calls another one.
        while more := programs_of(texts, self.before) - programs:
            programs |= more
            texts = list(self._texts(self.before, sorted(more)).values())
        self._guards = Guards(programs=programs, goal_files=frozenset(files_in(goal)))
        self._guards = self._guards._replace(named_data=self._named_data())
        self._rewritten = frozenset(self._same_code(self._is_tested_by_name))
        self.guarded = tuple(self._find_guarded_files())
        self.sources = SourceChanges()
        """Observations about the changed sources. Empty before `observe`."""

    def observe(self, before: Iterable[Observation], now: Iterable[Observation]) -> None:
        """Determine which changed files decide the result of a check.

        This is based on the files that the checks loaded. `before` contains the observations of the checks at
        the start, and `now` contains those on the delivered tree.
        """
        kinds = self._guards.kind_of
        loaded = LoadedFiles(
            tuple(before),
            tuple(now),
            lambda path: kinds(path, self._changed.get(path, FileChange.MODIFIED)),
            functools.cache(lambda path: self._texts(self.before, [path]).get(path, "")),
            frozenset(self.before),
            tuple(self._commands),
            frozenset(name for path in self._changed if which(name := path.rpartition("/")[2])),
            frozenset(path for path in self._changed if path in self.after and self.after[path].mode != REGULAR),
            len(self.after),
        )
        self._loaded = loaded
        deciding = loaded.find_deciding(self._changed)
        self._rewritten |= frozenset(self._same_code(deciding.__contains__))
        by_name = [file for file in self.guarded if not loaded.is_complete or loaded.keeps(file.path, file.kind)]
        # A command may name a file of tests that a runner runs, as in `pytest tests/test_a.py`.
        named_tests = set(filter(loaded.has_tests, self._guards.programs))
        by_name = [file.evolve(kind=FileKind.TEST) if file.path in named_tests else file for file in by_name]
        by_load = [
            ChangedFile(path=path, kind=kind, change=self._changed[path])
            for path, kind in deciding.items()
            if path not in self._rewritten
        ]
        self.guarded = tuple(sorted((*by_name, *by_load), key=lambda file: file.path))
        guarded = {file.path for file in self.guarded}
        sources = frozenset(path for path in self._changed if kinds(path, self._changed[path]) is None) - guarded
        self.sources = SourceChanges(
            files=sources,
            peeks=loaded.find_peeks(self._changed, deciding),
            inner_tests=self._lost_inner_tests(loaded, sources),
        )

    def inspections(self) -> frozenset[str]:
        """Return the commands that only inspect the text of files on which other checks depend."""
        return self._loaded.find_inspections(file.path for file in self.guarded)

    def named_tests(self, goal: RequestedChanges) -> bool:
        """Return whether the goal names every test file that was changed or removed."""
        paths = [file.path for file in self.guarded if file.kind is FileKind.TEST and file.path in self.before]
        return bool(paths) and all(goal.names(path.rpartition("/")[2]) for path in paths)

    def add_earlier(self, restored: Iterable[ChangedFile]) -> dict[str, TreeFile]:
        """Return the files of the delivered tree, with the given files reset to their initial content."""
        files = dict(self.after)
        for file in restored:
            files.pop(file.path, None)
            if (old := self.before.get(file.path)) is None:
                continue
            # A tree cannot have a file and a folder of the same name, so anything in the old file's way is dropped.
            for path in [
                path for path in files if path.startswith(f"{file.path}/") or file.path.startswith(f"{path}/")
            ]:
                del files[path]
            files[file.path] = old
        return files

    @property
    def count(self) -> int:
        """The number of changed files, excluding caches."""
        return len(self._changed)

    def configuration(self) -> tuple[ConfigurationFile, ...]:
        """Return the digests of delivered files that configure a checker."""
        kinds = (FileKind.CONFIGURATION, FileKind.START_UP)
        paths = [path for path in sorted(self.after) if not is_cache(path) and self._guards.kind_of(path) in kinds]
        paths = [path for path in paths if not is_environment(path)][:FILES_LIMIT]
        contents = self._trees.read(self.after[path].blob for path in paths)
        return tuple(
            ConfigurationFile(path=_escape(path), sha256=hashlib.sha256(contents[self.after[path].blob]).hexdigest())
            for path in paths
        )

    def _lost_inner_tests(self, loaded: LoadedFiles, sources: Iterable[str]) -> dict[str, tuple[str, ...]]:
        paths = [path for path in sources if path in self.before and loaded.has_inner_tests(path)]
        old, new = self._texts(self.before, paths), self._texts(self.after, [*self._changed] if paths else [])
        lost = {path: lost_inner_tests(path, text, new.get(path, ""), new) for path, text in old.items()}
        return {path: tests for path, tests in lost.items() if tests}

    def versions(self, paths: Iterable[str]) -> tuple[FileVersion, ...]:
        """Return the content of the changed files among `paths` before and after the change."""
        sides = ((path, self.before.get(path), self.after.get(path)) for path in paths if path in self._changed)
        return tuple(
            FileVersion(path=path, before=old.blob if old else "", after=new.blob if new else "")
            for path, old, new in sides
        )

    def answered(self, approvals: tuple[Approval, ...]) -> dict[str, Approval]:
        """Return earlier answers by path. An answer is reused only if the change is exactly the same."""
        found = ((file.path, find_approval(approvals, file)) for file in self.versions(self._changed))
        return {path: approval for path, approval in found if approval is not None}

    def contains(self, approval: Approval) -> bool:
        """Return whether any file covered by an approval still differs from its initial content."""
        return any(file.path in self._changed for file in approval.files)

    def suspicious(self) -> tuple[str, ...]:
        """Return new source lines that could make any check pass."""
        guarded = {file.path for file in self.guarded} | self._rewritten
        paths = [path for path, kind in self._changed.items() if kind is not FileChange.DELETED and path not in guarded]
        old, new = self._texts(self.before, paths), self._texts(self.after, paths)
        lines = [line for path in new for line in suspicious_lines(_escape(path), old.get(path, ""), new[path])]
        tests = self._tests_with_helpers(frozenset(new)) if any(map(can_redefine, new)) else {}
        for path, text in new.items() if tests else ():
            lines += redefinitions(_escape(path), old.get(path, ""), text, tests)
        return tuple(lines)

    def _tests_with_helpers(self, changed: frozenset[str]) -> dict[str, str]:
        """Return the initial texts of the tests and of helper programs that the tests mention by name."""
        programs = [path for path in self.before if can_redefine(path) and path not in changed]
        tests = [path for path in programs if self._guards.kind_of(path) is FileKind.TEST]
        texts = self._texts(self.before, tests)
        words = {word for text in texts.values() for word in re.findall(r"[\w-]+", text)}
        helpers = (path for path in programs if path.rpartition("/")[2].partition(".")[0] in words)
        return texts | self._texts(self.before, helpers)

    def compare_tests(self, requested: RequestedChanges, beginning: InitialState) -> KeptTests:
        """Compare the assertions of the tests before and after, taking the requested changes into account."""
        kinds = (FileKind.TEST, FileKind.TEST_DATA, FileKind.CONFIGURATION)
        tests = [file.path for file in self.guarded if file.kind in kinds]
        guarded = {file.path for file in self.guarded} | self._rewritten
        product = [path for path in self._changed if path.endswith(".py") and path not in guarded]

        @functools.cache
        def others() -> dict[str, str]:
            paths = (path for path in self.after if path.endswith(".py") and path not in self._changed)
            return self._texts(self.after, [path for path in paths if self._guards.kind_of(path) is FileKind.TEST])

        before, after = (
            Sources(self._texts(files, tests), self._texts(files, product), others, files.keys())
            for files in (self.before, self.after)
        )
        return compare_tests(before, after, self.guarded, requested, beginning)

    def delivered_files(self) -> dict[str, DeliveredFile]:
        """Return the changed files that exist in the delivered tree."""
        paths = [path for path in self._changed if path in self.after]
        old, new = self._contents(self.before, paths), self._contents(self.after, paths)
        return {
            _escape(path): DeliveredFile(self.after[path].blob, content, old.get(path, b""))
            for path, content in new.items()
        }

    def source_texts(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the contents of changed files before and after the change.

        Files that decide a check are left out.
        """
        guarded = {file.path for file in self.guarded} | self._rewritten
        paths = [path for path in self._changed if path not in guarded]
        return self._texts(self.before, paths), self._texts(self.after, paths)

    def hollow(self, names: Iterable[str], *, is_none: bool) -> dict[str, object]:
        """Build the instructions for running tests with all of the product's functions doing nothing."""
        kept = [path for path in self.after if path.endswith(".py") and self._guards.kind_of(path) is not None]
        kept += [file.path for file in self.guarded]
        return {"kept": kept, "tests": sorted(names), "none": is_none, "environments": sorted(ENVIRONMENTS)}

    def new_test_texts(self) -> dict[str, str]:
        """Return the delivered text of each changed Python test."""
        paths = [file.path for file in self.guarded if file.kind is FileKind.TEST and file.path.endswith(".py")]
        return self._texts(self.after, paths)

    def modules(self) -> frozenset[str]:
        """Return the names of the modules that can be imported from the delivered tree."""
        parts = (path.removesuffix(".py").split("/") for path in self.after if path.endswith(".py"))
        return frozenset(part[1] if part[0] in ("src", "lib", "python") and part[1:] else part[0] for part in parts)

    def _named_data(self) -> frozenset[str]:
        """Return changed data files that are named in tests or in the definition of done."""
        candidates = [path for path, kind in self._changed.items() if kind is not FileChange.ADDED]
        candidates = [path for path in candidates if self._guards.kind_of(path) is None]
        if not candidates:
            return frozenset()
        naming = [path for path in self.before if self._guards.kind_of(path) in (FileKind.TEST, FileKind.CONFIGURATION)]
        return data_named_in([*self._commands, *self._texts(self.before, naming).values()], candidates)

    def _is_tested_by_name(self, path: str) -> bool:
        kind = self._guards.kind_of(path, self._changed[path])
        return path in self._guards.programs or kind is FileKind.TEST

    def _same_code(self, selects: Callable[[str], bool]) -> Iterable[str]:
        """Return the selected files that differ only in formatting."""
        paths = [
            path
            for path, change in self._changed.items()
            if can_compare(path)
            and change is FileChange.MODIFIED
            and self.before[path].mode == self.after[path].mode
            and selects(path)
        ]
        old, new = self._contents(self.before, paths), self._contents(self.after, paths)
        return (path for path in old.keys() & new.keys() if is_same_code(path, old[path], new[path]))

    def _find_guarded_files(self) -> Iterable[ChangedFile]:
        for path, change in self._changed.items():
            kind = self._guards.kind_of(path, change)
            if kind is None or path in self._rewritten:
                continue
            if kind is FileKind.CONFIGURATION and change is not FileChange.DELETED:
                old, new = self.before.get(path), self.after[path]
                contents = self._trees.read((new.blob, *((old.blob,) if old is not None else ())))
                if is_same_setup(path, contents[old.blob] if old is not None else None, contents[new.blob]):
                    continue
            yield ChangedFile(path=path, kind=kind, change=change)

    def _texts(self, files: Files, paths: Iterable[str]) -> dict[str, str]:
        return {path: text.decode("utf-8", "replace") for path, text in self._contents(files, paths).items()}

    def _contents(self, files: Files, paths: Iterable[str]) -> dict[str, bytes]:
        # The content of a link is a path and no text.
        regular_paths = [path for path in paths if path in files and files[path].mode != 0o120000][:READ_FILES]
        contents = self._trees.read((files[path].blob for path in regular_paths), READ_BYTES)
        return {path: contents[blob] for path in regular_paths if (blob := files[path].blob) in contents}


def _escape(path: str) -> str:
    """Convert a path to text, escaping invalid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
