"""Discovery of a project's own checks, each tried in a throwaway checkout without network access."""

import hashlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import ArtifactStore
from activities.attempt import should_stop
from activities.checks.activity import CheckView
from activities.proof import untracked
from activities.proof.port import Files, LockedTrees
from activities.proof.runs import FirstRun, Runs
from tightloop.checks.choice import TriedCheck, find_reaching_tests, finds_no_tests, is_decisive, unusable
from tightloop.checks.commands import CheckKind, FoundCheck, Project, folder_of, started_program
from tightloop.checks.finding import family_of, find_checks, is_covered, is_read, is_within
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check, CheckResult, failed_tests
from tightloop.episode.exit_status import masked_problem
from tightloop.episode.proof.files import is_cache, is_program
from tightloop.errors import InvalidRequestError
from tightloop.value import clip
from tightloop.wording import span

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.proof.checkouts import LocalCheckouts
    from activities.workspace.working_tree import WorkingTree

READ_BYTES = 1_000_000
"""Maximum size of a file in bytes. Larger files are not read."""
SOURCES_LIMIT = 20_000
"""Maximum number of files that are searched for the code named in a goal."""
TRIAL_S = 300.0
"""Time limit for the trial run of a check, in seconds."""
TRIALS_S = 1_200.0
"""Time limit for all trial runs together, in seconds. Checks that have not run by then are not used."""
PROBE_S = 30.0
_PROBE = (
    "python -c 'import sys; print(\"python %d.%d\" % sys.version_info[:2])' 2>/dev/null || "
    "python3 -c 'import sys; print(\"python %d.%d\" % sys.version_info[:2])' 2>/dev/null; "
    "node --version 2>/dev/null | sed 's/^v/node /'; true"
)
_LINK = 0o120000


class CheckFinder:
    """Finds and tries the checks of a locked working tree."""

    def __init__(
        self, runner: "CheckRunner", checkouts: "LocalCheckouts", store: ArtifactStore, *, limit_s: float = TRIAL_S
    ) -> None:
        self._runner, self.checkouts, self._store = runner, checkouts, store
        self.limit_s = limit_s
        self.first_runs: list[FirstRun] = []
        """Trial runs that ended, for the baseline."""

    def try_checks(
        self,
        tree: "WorkingTree",
        snapshot: str,
        goal: str = "",
        *,
        folder: str = "",
        covered: Collection[tuple[str, str]] = (),
        before: str = "",
    ) -> tuple[TriedCheck, ...]:
        """Find the project's checks and try each of them. The working tree is not touched.

        Args:
            tree: working tree whose store contains the snapshot.
            snapshot: tree id of the files.
            goal: goal of the work, used to find the failed tests that the work should fix.
            folder: the project's folder, relative to the top of the tree; "" for the top itself.
            covered: families of checks to leave out.
            before: tree id of earlier files. Commands found in these files are left out.

        Raises:
            CancelledError: the activity was cancelled in the meantime.
            InvalidRequestError: the tree has no such folder.
        """
        trees = LockedTrees(tree)
        files = trees.files(snapshot)
        if folder and not any(is_within(path, folder) for path in files):
            raise InvalidRequestError(f"{tree.root} has no files in the folder {folder!r}. Choose another folder")
        trial = _Trial(self, tree, trees, files, goal)
        sources = find_checks(self._read_project(trial, trees, files, folder))
        if before:
            earlier = find_checks(self._read_project(trial, trees, trees.files(before), folder))
            known = {check.run for source in earlier for check in source}
            sources = tuple(tuple(check for check in source if check.run not in known) for source in sources)
        until, tried, families = time.monotonic() + TRIALS_S, list[TriedCheck](), set(covered)
        by_ci: set[str] = set()
        total = sum(map(len, sources))
        number = 0
        for source in sources:
            is_ci = source is sources[0]
            usable: list[TriedCheck] = []
            for check in source:
                number += 1
                if is_covered(check, families, by_ci=by_ci):
                    continue
                work = check_work(
                    Check(run=check.run, timeout_s=self.limit_s), number, total, datetime.now(UTC), "first run"
                )
                activity.heartbeat(work)
                results = list(self._try(trial, check, until))
                tried += results
                # Tests that are red without names may be unable to run here, so that another source has to be tried.
                usable += [
                    result
                    for result in results
                    if not result.not_used and (is_decisive(result) or result.check.kind is not CheckKind.TESTS)
                ]
            families |= {family_of(result.check) for result in usable}
            by_ci |= {result.check.kind.value for result in usable} if is_ci else set()
        return tuple({result.check.run: result for result in reversed(tried)}.values())[::-1]

    def _try(self, trial: "_Trial", check: FoundCheck, until: float) -> Iterator[TriedCheck]:
        result = trial.run(check, until)
        yield result
        # If a check was excluded from the start, such as a CI command that publishes, so are its parts.
        if result.not_used and not check.not_used:
            for inner in check.otherwise:
                yield from self._try(trial, inner, until)

    def _read_project(self, trial: "_Trial", trees: LockedTrees, files: Files, folder: str) -> Project:
        paths = {path: file for path, file in files.items() if is_read(path, folder) and file.mode != _LINK}
        contents = trees.read((file.blob for file in paths.values()), READ_BYTES)
        texts = {
            path: contents[file.blob].decode("utf-8", "replace")
            for path, file in paths.items()
            if file.blob in contents
        }
        versions = dict(line.split(" ", 1) for line in trial.output(_PROBE).splitlines() if " " in line)
        node = re.match(r"\d+", versions.get("node", ""))
        return Project(
            paths=frozenset(files),
            texts=texts,
            python=versions.get("python", ""),
            node=node[0] if node else "",
            system="macos" if sys.platform == "darwin" else "linux",
            folder=folder,
        )

    def runs_on(self, tree: "WorkingTree") -> Runs:
        """Return an object that runs checks with observers on a locked tree."""
        return Runs(tree, self._store, self._runner, self.checkouts, should_stop, lambda _work: None)

    def read_output(self, result: CheckResult) -> str:
        return self._store.get(result.output).decode("utf-8", "replace") if result.output is not None else ""


class _Trial:
    """Runs commands on one tree, each in its own checkout."""

    def __init__(self, finder: CheckFinder, tree: "WorkingTree", trees: LockedTrees, files: Files, goal: str) -> None:
        self._finder, self._tree, self._trees, self._files, self._goal = finder, tree, trees, files, goal
        self._untracked = untracked.present(tree.root, files)
        self._runs = finder.runs_on(tree)

    def output(self, command: str) -> str:
        """Run a harmless command in a fresh checkout and return its output."""
        with self._finder.checkouts.proof_folder(self._tree.root) as folder:
            view = CheckView(content=folder.folder("empty"), network=False)
            result, _ = self._runs.run_observed_check(Check(run=command, timeout_s=PROBE_S), folder, view, ())
        return self._finder.read_output(result)

    def run(self, check: FoundCheck, until: float) -> TriedCheck:
        left = until - time.monotonic()
        problem = check.not_used or masked_problem(check.run)
        if not problem and left <= 0:
            problem = (
                f"no time was left to try the check: the limit for all checks is {TRIALS_S / 60:.0f} minutes in total"
            )
        if not problem:
            problem = self._not_of_project(check)
        if problem:
            return TriedCheck(check=check, not_used=problem)
        limit = min(self._finder.limit_s, left)
        with self._finder.checkouts.proof_folder(self._tree.root) as folder:
            view = folder.checkout(self._trees, self._files, self._untracked)
            view = CheckView(content=view.content, mounts=view.mounts, environment=view.environment, network=False)
            result, observation = self._runs.run_observed_check(
                Check(run=check.run, timeout_s=limit), folder, view, self._files
            )
            assert view.content is not None
            changed = list(_changed_files(view.content, self._files))
        code, output = result.exit_code, self._finder.read_output(result)
        failed = failed_tests(output) if code else ()
        reason = unusable(check.run, code, output, changed, failed)
        if not reason and finds_no_tests(output, failed, self._read_sources):
            reason = "the files of the check do not contain test functions"
        if code is None:
            reason = f"the check did not finish within {span(limit)}"
        else:
            self._finder.first_runs.append(FirstRun(result=result, observation=observation))
        return TriedCheck(
            check=check,
            passed=code == 0,
            exit_code=code,
            duration_s=result.duration_s,
            failed_tests=failed,
            reached=find_reaching_tests(self._goal, failed, self._read_sources),
            tail=clip(output.strip(), 1_000),
            not_used=reason,
        )

    def _read_sources(self) -> dict[str, str]:
        paths = {
            path: file
            for path, file in islice(self._files.items(), SOURCES_LIMIT)
            if is_program(path) and file.mode != _LINK
        }
        contents = self._trees.read((file.blob for file in paths.values()), READ_BYTES)
        return {
            path: contents[file.blob].decode("utf-8", "replace")
            for path, file in paths.items()
            if file.blob in contents
        }

    def _not_of_project(self, check: FoundCheck) -> str:
        """Return the reason to reject a check whose program exists only in tightloop's own environment.

        Return "" for any other check.
        """
        root = self._tree.root
        own_folders = [root / ".venv/bin", root / folder_of(check.run) / ".venv/bin"]
        if not any(folder.is_dir() for folder in own_folders):
            return ""
        program = started_program(check.run)
        if "/" in program or not re.fullmatch(r"[\w.-]+", program) or program.startswith("python"):
            return ""
        own = Path(sys.executable).parent / program
        folders: Sequence[str] = os.environ.get("PATH", os.defpath).split(os.pathsep)
        others = [Path(folder) for folder in folders if folder and Path(folder) != own.parent]
        if not own.exists() or any((folder / program).exists() for folder in (*own_folders, *others)):
            return ""
        return f"{program} is not installed in the project's .venv"


def _changed_files(folder: Path, files: Files) -> Iterator[str]:
    """Yield the tracked files of a checkout that were changed or deleted."""
    for path, file in files.items():
        target = folder / path
        if is_cache(path):
            continue
        if file.mode == _LINK:
            if not target.is_symlink():
                yield path
            continue
        try:
            content = b"" if target.is_symlink() else target.read_bytes()
        except OSError:
            yield path
            continue
        # The id of a blob in git.
        new = hashlib.sha256 if len(file.blob) == 64 else hashlib.sha1
        if new(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != file.blob:
            yield path
