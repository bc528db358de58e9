"""How a project's plan is verified: its gates run one after the other, and nothing is tried again."""

from datetime import timedelta

from activities.loop.gates.activity import (
    FindGatesRequest,
    FoundGates,
    GateActivities,
    GateRun,
    LeaveProjectRequest,
    RunGateRequest,
)
from tightloop.episode.check import Check
from tightloop.loop.gates import gate_name, running
from tightloop.loop.model import GateCheck, GateResult, LoopState
from tightloop.loop.states import failing_gates
from tightloop.value import counted
from workflows.loop.context import LoopContext, LoopEnd
from workflows.loop.reporting import LoopReporting
from workflows.loop.waiting import Waiting
from workflows.shared.activities import CLOSE_TIMEOUT, GRACE, OPEN_TIMEOUT, ActivityFailedError, ActivityRunner

CHECKS_LIMIT = 300
"""Gates and checks within them that the status holds."""


class Verifying:
    """Runs `gate:all`."""

    def __init__(
        self, context: LoopContext, waiting: Waiting, reporting: LoopReporting, activities: ActivityRunner
    ) -> None:
        self._context, self._waiting, self._reporting = context, waiting, reporting
        self._activities = activities
        self._times = 0

    async def run(self) -> None:
        """Run the gates. Where they cannot be run, the plan is as before, and says why.

        Raises:
            LoopEnd: all passed, or one did not, or the plan was cancelled.
        """
        context = self._context
        self._times += 1
        context.enter(LoopState.VERIFYING)
        context.change(context.status.evolve(verify_run_id=f"verify_{context.plan_id}_{self._times}"))
        context.set_gates(())
        self._reporting.show()
        try:
            passed = await self._run_gates()
        except ActivityFailedError as failure:
            context.verify(False)
            context.change(context.status.evolve(status=LoopState.RUNNING, reason=failure.reason, gate_result=None))
            context.log("verify_not_run", failure.reason)
            self._reporting.show()
            return
        finally:
            await self._leave()
        result = context.status.gate_result or GateResult()
        if not passed:
            raise LoopEnd(LoopState.FAILED, failing_gates(result))
        raise LoopEnd(LoopState.VERIFIED, f"{counted(self._gates, 'gate')} passed")

    async def _run_gates(self) -> bool:
        context = self._context
        found: FoundGates = await self._waiting.run(
            GateActivities.find_gates,
            FindGatesRequest(scope=context.scope(), asked=context.request.gates, planned=context.gates),
            context.on_host("find the gates", OPEN_TIMEOUT),
        )
        self._gates = len(found.gates)
        context.change(context.status.evolve(tree=found.tree))
        if not found.gates:
            why = "no gate is known for this project. Name some in the settings: gates.checks"
            context.set_gates((GateCheck(name="gate:all", passed=False, message=why),))
            return False
        done: tuple[GateCheck, ...] = ()
        passed = True
        for number, gate in enumerate(found.gates, start=1):
            await self._waiting.until_resumed()
            context.set_gates((*done, running(gate)))
            context.log("gate_running", f"{number} of {self._gates}", step=gate_name(gate))
            self._reporting.show()
            run = await self._run_gate(gate, number, found.tree)
            done = (*done, *run.checks)[:CHECKS_LIMIT]
            passed = passed and run.checks[0].passed
            word = "passed" if run.checks[0].passed else "failed"
            context.log(f"gate_{word}", run.checks[0].message, step=gate_name(gate))
            context.set_gates(done, passed=passed and number == self._gates)
            self._reporting.show()
        return passed

    async def _run_gate(self, gate: Check, number: int, tree: str) -> GateRun:
        context = self._context
        request = RunGateRequest(scope=context.scope(), gate=gate, number=number, total=self._gates, expected_tree=tree)
        limit = timedelta(seconds=gate.timeout_s) + GRACE
        run: GateRun = await self._waiting.run(
            GateActivities.run_project_gate, request, context.on_host(gate_name(gate), limit)
        )
        return run

    async def _leave(self) -> None:
        options = self._context.on_host("give the workspace back", CLOSE_TIMEOUT)
        try:
            request = LeaveProjectRequest(scope=self._context.scope())
            await self._activities.run(GateActivities.leave_project, request, options)
        except ActivityFailedError as failure:
            self._context.log("workspace", f"it could not be given back: {failure.reason}")
