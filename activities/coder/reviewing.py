"""Reviews what the coder wrote, before anything of it is run."""

from dataclasses import dataclass

from activities.coder.port import ToolContext, ToolResult
from activities.safety.code import CodeScanner, answered, question_of
from activities.safety.project import changed_files, project_facts
from activities.workspace.port import WorkingTree
from activities.workspace.store.entry import LINK
from tightloop.executor.model import Grant
from tightloop.safety.code.model import CodeReview
from tightloop.safety.code.rules import CodeRules, Layer
from tightloop.safety.verdict import Verdict


@dataclass(frozen=True)
class CodeReviewer:
    """The safety layers, over everything that has changed since the delivery began."""

    rules: CodeRules
    scanner: CodeScanner

    def review(self, context: ToolContext) -> ToolResult | None:
        """Return why nothing may be run now: what to change, or what a person decides first; None: it may be run."""
        review = self._scan(context, context.grants)
        match review.verdict:
            case Verdict.ALLOW:
                return None
            case Verdict.DENY:
                return ToolResult(review.message, failed=True)
            case Verdict.ASK:
                return ToolResult(review.message, question=question_of(review))

    def bandit_findings(self, context: ToolContext) -> int:
        """Return how many new findings of Bandit the change has, those included that a person allowed."""
        return sum(finding.layer == Layer.BANDIT.value for finding in self._scan(context, ()).findings)

    def _scan(self, context: ToolContext, grants: tuple[Grant, ...]) -> CodeReview:
        tree = context.tree
        if tree is None:
            return CodeReview()
        before, after = _blobs(tree, context.base_tree), _blobs(tree, tree.snapshot())
        if not (files := changed_files(before, after, tree.content)):
            return CodeReview()
        known = project_facts(before, after, tree.content, self.rules)
        return self.scanner.scan(files, answered(known, grants))


def _blobs(tree: WorkingTree, identity: str) -> dict[bytes, str]:
    # Links are skipped: their targets are reviewed where they are.
    return {path: entry.id for path, entry in tree.entries(identity).items() if entry.mode != LINK}
