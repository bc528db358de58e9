"""The policy of a plan as the activities ask for it."""

from collections.abc import Mapping
from typing import Any

from activities.plan.port import Judgement, Ruling
from tightloop.plan.model import Plan, Step
from tightloop.plan.rules.guard import acts_of, judge, judge_changes
from tightloop.plan.rules.ruling import Verdict


class PolicyGuard:
    """Judges by the rules of `tightloop/plan/rules/guard.py`."""

    def before(self, plan: Plan, step: Step, action: Mapping[str, Any]) -> Ruling:
        """Judge a step before it starts; see the port."""
        return _ruling(judge(plan.policy, step, acts_of(step, action)))

    def changed(self, plan: Plan, paths: tuple[str, ...]) -> Ruling:
        """Judge what a step changed; see the port."""
        return _ruling(judge_changes(plan.policy, paths))


def _ruling(verdict: Verdict) -> Ruling:
    return Ruling(judgement=Judgement(verdict.stance.value), reason=verdict.reason)
