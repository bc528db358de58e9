"""Review of the coder's changes and verification of its tests."""

import re
from dataclasses import dataclass
from pathlib import Path

from activities.artifacts.port import put_text
from activities.checks.activity import run_check
from activities.checks.runner import CheckRunner
from activities.coder.files import write_change
from activities.coder.port import FileChange, JudgeResult, Review, ToolContext, ToolError, ToolResult
from activities.safety.code import CodeScanner, apply_grants, changed_files, project_facts, question_of
from activities.testing import SandboxedTestGate
from activities.workspace.store.entry import LINK
from activities.workspace.working_tree import WorkingTree
from tightloop.episode.check import Check, why_no_evidence
from tightloop.episode.planning import ProposedCheck
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import Grant
from tightloop.safety.code.rules import CodeReview, CodeRules, Layer
from tightloop.safety.drift import DriftCause
from tightloop.safety.rubric import Verdict
from tightloop.testing import GateReport
from tightloop.value import clip, format_count


@dataclass(frozen=True)
class CodeReviewer:
    """A safety review of all changes since the delivery started."""

    rules: CodeRules
    scanner: CodeScanner

    def review(self, context: ToolContext) -> ToolResult | None:
        """Return the refusal or the question that prevents the code from running, or None if it may run."""
        review = self._scan(context, context.grants)
        match review.verdict:
            case Verdict.ALLOW:
                return None
            case Verdict.DENY:
                return ToolResult(review.message, failed=True)
            case Verdict.ASK:
                return ToolResult(review.message, question=question_of(review))

    def bandit_findings(self, context: ToolContext) -> int:
        """Return the number of Bandit's new findings, including findings that a person has allowed."""
        return sum(finding.layer == Layer.BANDIT.value for finding in self._scan(context, ()).findings)

    def _scan(self, context: ToolContext, grants: tuple[Grant, ...]) -> CodeReview:
        tree = context.tree
        if tree is None:
            return CodeReview()
        before, after = _blobs(tree, context.base_tree), _blobs(tree, tree.snapshot())
        if not (files := changed_files(before, after, tree.content)):
            return CodeReview()
        facts = project_facts(before, after, tree.content, self.rules)
        return self.scanner.scan(files, apply_grants(facts, grants))


def _blobs(tree: WorkingTree, identity: str) -> dict[bytes, str]:
    # Symlinks are skipped: their targets are reviewed at their own path.
    return {path: entry.id for path, entry in tree.entries(identity).items() if entry.mode != LINK}


TIME_LIMIT_S = 120.0
"""Time limit of the test gate in seconds. A change with ten tests takes 3 to 10 s. A slow suite uses the entire limit.
"""
OUTPUT_CHARACTERS = 800
LISTED_LIMIT = 10
"""Maximum number of rejected tests and surviving mutants listed for the model."""
_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")


@dataclass(frozen=True)
class ChangedTests:
    """The test gate for test files that were added or changed after the coder finished."""

    gate: SandboxedTestGate
    review: Review

    def judge(self, context: ToolContext, coded_tree: str) -> JudgeResult:
        """Judge the new and changed tests. New files without an accepted test are deleted."""
        assert context.tree is not None
        tree, after = context.tree, context.tree.snapshot()
        old, new = tree.entries(coded_tree), tree.entries(after)
        changed = (path for path, entry in new.items() if old.get(path) != entry)
        names = (path.decode("utf-8", "surrogateescape") for path in changed)
        paths = tuple(sorted(name for name in names if _TEST_FILE.fullmatch(name) and name.isprintable()))
        if not paths:
            return JudgeResult(summary="no tests were written")
        # The gate executes the tests, so they are reviewed like any other code.
        if (refusal := self.review(context)) is not None:
            refusal_ref = put_text(context.store, refusal.text.encode(), name="safety")
            return JudgeResult(refused=len(paths), said=refusal_ref, summary="the safety layers rejected the new tests")
        report = self.gate.judge(
            tree,
            context.base_tree,
            after,
            paths,
            cancelled=context.cancelled,
            started=context.started,
            time_limit_s=TIME_LIMIT_S,
        )
        removed = self._remove_useless(context, coded_tree, paths, report)
        lines = [f"Tests for your change were written and evaluated: {_summary(report)}."]
        lines += [
            f"- rejected {rejected_test.test}: {rejected_test.reason}"
            for rejected_test in report.refused[:LISTED_LIMIT]
        ]
        lines += [f"- removed {path} because none of its tests was accepted" for path in removed]
        if report.survived:
            lines.append("No test detects the following faults. Add a test for each real fault and ignore the others:")
            lines += [f"- {mutant}" for mutant in report.survived[:LISTED_LIMIT]]
        lines += [f"- {note}" for note in report.notes[:LISTED_LIMIT]]
        return JudgeResult(
            accepted=len(report.accepted),
            refused=len(report.refused),
            survived=report.survived_count,
            covered=report.coverage.covered,
            changed=report.coverage.total,
            said=put_text(context.store, "\n".join(lines).encode(), name="judged tests"),
            summary=_summary(report),
        )

    def try_check(self, context: ToolContext, proposed: ProposedCheck, runner: CheckRunner) -> tuple[str, str]:
        """Write the test file of a check, and run the check on the tree as it was before any work began.

        Returns:
            The new tree and "" if the check counts. Otherwise, the original tree and the reason, addressed to
            the author of the check.
        """
        assert context.tree is not None
        tree, before = context.tree, context.base_tree
        if proposed.path and (problem := self._write_test(context, proposed)):
            return before, problem
        after = tree.snapshot()
        check = Check(run=proposed.run)
        results = [
            run_check(runner, check, tree, context.store, expected_tree=after, cancelled=context.cancelled)
            for _ in range(2)
        ]
        tree.ensure(after, DriftCause.DURING_CHECKS)
        problem = why_no_evidence(
            results[0], is_flaky=results[0].passed != results[1].passed, is_judged=bool(proposed.path)
        )
        output = f"\n{clip(results[0].tail, OUTPUT_CHARACTERS)}" if problem else ""
        return (before, f"`{proposed.run}`: {problem}{output}") if problem else (after, "")

    def _write_test(self, context: ToolContext, proposed: ProposedCheck) -> str:
        """Write a new test file and try its tests.

        Return "" if a test fails because something is missing. Otherwise, return the reason why no test shows
        that something is missing.
        """
        assert context.tree is not None
        tree, path = context.tree, proposed.path
        if not (_TEST_FILE.fullmatch(path) and path.isprintable()):
            return f"{path} is not a pytest file. Name the file test_....py"
        if path.encode() in tree.entries(context.base_tree):
            return f"{path} already exists. Choose the path of a new file"
        change = FileChange(path=path, before=None, after=proposed.content.encode("utf-8", "replace"), text="")
        try:
            write_change(context.root, change, f".{Path(path).name}.new")
        except (ToolError, InvalidRequestError) as error:
            return f"{path} could not be written: {error.message}"
        if path.encode() not in tree.entries(after := tree.snapshot()):
            return f"git ignores {path}. Choose another path"
        # The gate executes the tests, so they are reviewed like any other code.
        if (refusal := self.review(context)) is not None:
            return refusal.text
        return self.gate.explain_no_failure(
            tree,
            context.base_tree,
            after,
            path,
            cancelled=context.cancelled,
            started=context.started,
            time_limit_s=TIME_LIMIT_S,
        )

    @staticmethod
    def _remove_useless(
        context: ToolContext, coded_tree: str, paths: tuple[str, ...], report: GateReport
    ) -> tuple[str, ...]:
        assert context.tree is not None
        if report.notes:
            # Something was not run or measured, which says nothing about the tests.
            return ()
        counting = {accepted_test.test.partition("::")[0] for accepted_test in report.accepted}
        entries = context.tree.entries(coded_tree)
        # Only new files: one that existed before also holds tests of the project.
        useless = tuple(path for path in paths if path not in counting and path.encode() not in entries)
        for path in useless:
            content = context.tree.content(context.tree.entries(context.tree.snapshot())[path.encode()].id)
            write_change(context.root, FileChange(path=path, before=content, after=None, text=""), "")
        return useless


def _summary(report: GateReport) -> str:
    parts = [f"{format_count(len(report.accepted), 'test')} accepted (able to fail), {len(report.refused)} rejected"]
    if report.mutants:
        parts.append(f"{report.survived_count} of {format_count(report.mutants, 'mutant')} survived")
    if report.coverage.total:
        parts.append(f"{report.coverage.covered} of {report.coverage.total} changed lines executed")
    return "; ".join(parts)
