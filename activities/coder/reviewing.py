"""Reviews what the coder wrote, before anything of it is run."""

from dataclasses import dataclass

from activities.coder.port import ToolContext, ToolResult
from activities.safety.code import CodeScanner, answered, question_of
from activities.safety.project import changed_files, project_facts
from activities.workspace.port import WorkingTree
from activities.workspace.store.entry import LINK
from tightloop.safety.code.rules import CodeRules
from tightloop.safety.verdict import Verdict


@dataclass(frozen=True)
class CodeReviewer:
    """The safety layers, over everything that has changed since the delivery began."""

    rules: CodeRules
    scanner: CodeScanner

    def review(self, context: ToolContext) -> ToolResult | None:
        """Return why nothing may be run now: what to change, or what a person decides first; None: it may be run."""
        if context.tree is None:
            return None
        tree = context.tree
        before, after = _blobs(tree, context.base_tree), _blobs(tree, tree.snapshot())
        if not (files := changed_files(before, after, tree.content)):
            return None
        known = answered(project_facts(before, after, tree.content, self.rules), context.grants)
        review = self.scanner.scan(files, known)
        match review.verdict:
            case Verdict.ALLOW:
                return None
            case Verdict.DENY:
                return ToolResult(review.message, failed=True)
            case Verdict.ASK:
                return ToolResult(review.message, question=question_of(review))


def _blobs(tree: WorkingTree, identity: str) -> dict[bytes, str]:
    # Links are skipped: their targets are reviewed where they are.
    return {path: entry.id for path, entry in tree.entries(identity).items() if entry.mode != LINK}
