"""Steps that do nothing: others wait for them, and their conditions are judged like those of all steps."""

from activities.plan.port import RunnerResult, Work


class MilestoneRunner:
    """Passes milestones."""

    def preview(self, work: Work) -> str:
        """Say that nothing is done."""
        return f"pass the milestone {work.step.id}"

    def run(self, work: Work) -> RunnerResult:  # noqa: ARG002 - the port has it
        """Do nothing."""
        return RunnerResult(summary="passed")
