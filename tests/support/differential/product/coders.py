"""The activities of the coder: turns and results of calls as the script says."""

from typing import Any

from temporalio import activity

from activities.coder.port import (
    Brief,
    CheckWorkResult,
    CoderRequest,
    JudgeRequest,
    JudgeResult,
    ToolRequest,
    TurnRequest,
)
from tests.support.differential.product.world import Step, World, reference
from tightloop.coder.course import resume_progress
from tightloop.coder.model import Bounds, CallHead, CallResult, CoderProgress, Turn
from tightloop.executor.asking import permission_question
from tightloop.executor.model import Usage

CALLS = {
    "read": CallHead(tool="read_file", reads=True),
    "edit": CallHead(tool="edit_file"),
    "run": CallHead(tool="run_command", runs=True),
    "ask": CallHead(tool="ask_person"),
    "finish": CallHead(tool="finish"),
    "bad": CallHead(tool="edit_file"),
}


class ScriptedCoders:
    """What a worker registers for coders."""

    world: World

    def __init__(self) -> None:
        self.proposed: dict[tuple[str, int], list[str]] = {}
        self.granted: set[tuple[str, int, int]] = set()
        self.progress: CoderProgress = CoderProgress()
        self.done: list[str] = []

    def on_host(self) -> list[Any]:
        """Return the definitions of ordinary activities."""
        return [self.begin_coding, self.take_turn, self.check_work, self.judge_tests, self.use_tool]

    @activity.defn
    async def begin_coding(self, request: CoderRequest) -> Brief:
        del request
        bounds = Bounds(**self.world.schedule.request.get("bounds", {}))
        return await self.world.call(
            "brief", lambda _step, _attempt: Brief(session="s1", bounds=bounds, progress=resume_progress(self.progress))
        )

    @activity.defn
    async def take_turn(self, request: TurnRequest) -> Turn:
        def effect(step: Step, _attempt: int) -> Turn:
            calls = step.get("calls", ["finish"])
            self.proposed[request.scope.session, request.number] = calls
            tokens = step.get("tokens")
            usage = Usage() if tokens is None else Usage(
                input_tokens=tokens, cached_tokens=0, output_tokens=tokens // 10, cost_usd=tokens / 1e5
            )  # fmt: skip
            return Turn(
                number=request.number,
                node=reference(f"node {request.number}"),
                calls=tuple(CALLS[call] for call in calls),
                problem=step.get("problem", ""),
                usage=usage,
                model="m1",
            )

        return await self.world.call(f"turn {request.role}", effect)

    @activity.defn
    async def use_tool(self, request: ToolRequest) -> CallResult:
        call = self.proposed[request.scope.session, request.turn][request.index]
        key = (request.scope.session, request.turn, request.index)

        def effect(_step: Step, _attempt: int) -> CallResult:
            if call == "ask" and key not in self.granted:
                # Asked once: after the answer the same call is made again, and works.
                self.granted.add(key)
                question = permission_question("run it", "run", f"run {request.turn}.{request.index}")
                return CallResult(result=reference("asked"), question=question)
            if call in ("edit", "run", "ask"):
                self.world.deliveries.append(f"{call} {request.turn}.{request.index}")
            return CallResult(
                result=reference(f"result {key}"),
                failed=call == "bad",
                mark="again" if call in ("bad", "read") else f"{key}",
                finished=call == "finish",
            )

        return await self.world.call(f"tool {call}", effect)

    @activity.defn
    async def check_work(self, request: CoderRequest) -> CheckWorkResult:
        del request

        def effect(step: Step, _attempt: int) -> CheckWorkResult:
            green = step.get("s") != "fail"
            question = permission_question("check it", "run", "check") if step.get("ask") else None
            return CheckWorkResult(
                green=green, tree="tree", said=None if green else reference("red"), summary="checked", question=question
            )

        return await self.world.call("tests", effect)

    @activity.defn
    async def judge_tests(self, request: JudgeRequest) -> JudgeResult:
        del request
        return await self.world.call(
            "judge",
            lambda step, _attempt: JudgeResult(
                accepted=step.get("accepted", 1), refused=step.get("refused", 0), survived=step.get("survived", 0),
                covered=2, changed=3, said=reference("judged"), summary="judged",
            ),
        )  # fmt: skip
