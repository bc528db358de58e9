"""Draws schedules that are dangerous: bounds, questions and ways back are likely, and messages come at bad moments."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.support.differential.schedule import Act, Kind, Moment, Reply, Schedule

T = TypeVar("T")
Step = dict[str, Any]
SHARES: dict[Kind, int] = {"episode": 1300, "plan": 1000, "project": 400, "coder": 300}
"""Schedules of each kind in a full recording."""
BARE = (Act(do="send", name="resume"), Act(do="send", name="cancel"))
HOURS_S = (3_600.0, 7_200.0, 20_000.0)


def kind_of(seed: int) -> Kind:
    """Return the kind of a seed: they are mixed in their shares."""
    return random.Random(f"kind {seed}").choices(list(SHARES), list(SHARES.values()))[0]


def draw(seed: int, kind: Kind | None = None) -> Schedule:
    """Return the schedule of a seed."""
    chosen = kind or kind_of(seed)
    draws: dict[Kind, Callable[[Draw], Schedule]] = {
        "episode": draw_episode, "plan": draw_plan, "project": draw_project, "coder": draw_coder,
    }  # fmt: skip
    return draws[chosen](Draw(seed, chosen))


class Draw:
    """Random choices of one schedule."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.seed, self.kind = seed, kind
        self._random = random.Random(f"{kind} {seed}")

    def chance(self, share: float) -> bool:
        """Return true in that share of all draws."""
        return self._random.random() < share

    def one(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return self._random.choice(items)

    def weighed(self, weights: dict[str, float]) -> str:
        """Return one of the names, as likely as its weight."""
        return self._random.choices(list(weights), list(weights.values()))[0]

    def number(self, least: int, most: int) -> int:
        """Return a number, both bounds included."""
        return self._random.randint(least, most)

    def share(self) -> float:
        """Return a number from 0 to 1."""
        return round(self._random.random(), 3)

    def some(self, items: Sequence[T], most: int) -> list[T]:
        """Return up to so many of the items."""
        return self._random.sample(list(items), min(self.number(0, most), len(items)))

    def subset(self, items: Sequence[T], share: float) -> list[T]:
        """Return each item in that share of all draws."""
        return [item for item in items if self.chance(share)]


# -- messages -------------------------------------------------------------------------------------------


def _edit(draw: Draw) -> Act:
    return Act(do="edit", name=draw.one(["mine.txt", "log.txt"]) if draw.kind == "episode" else "mine", value="mine\n")


def _episode_message(draw: Draw) -> Act:
    name = draw.weighed(
        {"pause": 5, "resume": 3, "cancel": 0.7, "respond": 3, "top_up": 2, "amend": 3, "restore": 4, "answer": 2}
    )
    values: dict[str, Any] = {
        "pause": draw.one([None, "wait a moment", {"text": "stop", "by": "ada"}]),
        "resume": draw.one([None, "go on", "ckpt-0"]),
        "cancel": draw.one([None, "enough"]),
        "respond": draw.one(["another way", {"text": "faster", "by": "ada"}, {"text": "a report", "resumes": False}]),
        "top_up": draw.one([{"iterations": 2}, {"executor_failures": 1, "tokens": 5000}, {"cost_usd": 1}]),
        "amend": draw.one([
            {"goal": "another goal"}, {"definition_of_done": ["lines 1"]}, {"goal": ""}, {"planner": "heuristic"},
            {"definition_of_done": ["lines 5", "have x.txt"]},
        ]),
        "restore": draw.share(),
        "answer": draw.one(["end", "wait", "allow", "cancel", "q9"]),
    }  # fmt: skip
    return Act(do="send", name=name, value=values[name])


def _plan_message(draw: Draw, steps: Sequence[str], source: dict[str, Any]) -> Act:
    name = draw.weighed({"pause": 5, "resume": 3, "cancel": 0.7, "top_up": 2, "replan": 3, "run_step": 3, "answer": 1})
    values: dict[str, Any] = {
        "pause": draw.one([None, "wait a moment"]),
        "resume": draw.one([None, "go on"]),
        "cancel": draw.one([None, "enough"]),
        "top_up": draw.one([{"attempts": 5}, {"tokens": 5000}, {"cost_usd": 1}, {"revisions": 2}]),
        "replan": {"source": _text(_revised(draw, source)), "rationale": "better", "by": "ada"},
        "run_step": draw.one([*steps, "nobody"]),
        "answer": draw.one(["approve", "retry", "q9"]),
    }
    return Act(do="send", name=name, value=values[name])


def _text(source: dict[str, Any]) -> str:
    return json.dumps(source)


def _moments(draw: Draw, calls: Sequence[str], message: Callable[[], Act], most: int = 3) -> tuple[Moment, ...]:
    found = {}
    for _ in range(draw.number(0, most)):
        acts = [Act(do="restart")] if draw.chance(0.2) else [message()]
        if acts[0].name == "pause" and draw.chance(0.4):
            acts.append(Act(do="send", name="answer", value="end") if draw.chance(0.4) else draw.one(BARE))
        elif draw.chance(0.2):
            acts.append(message())
        if acts[0].do == "send" and draw.chance(0.3):
            acts.append(Act(do="restart"))
        at, after = f"{draw.one(calls)}#{draw.one([1, 1, 1, 2, 2, 3, 4])}", draw.chance(0.3)
        found[at, after] = Moment(at=at, after=after, acts=tuple(acts))
    return tuple(found.values())


def _replies(draw: Draw, message: Callable[[], Act], count: int = 4) -> tuple[Reply, ...]:
    replies = []
    for _ in range(count):
        do = draw.weighed({"answer": 8, "silence": 0.5, "act": 2.0})
        before: list[Act] = []
        if draw.chance(0.15):
            before.append(_edit(draw))
        if do == "act" or draw.chance(0.12):
            before.append(message())
        if draw.chance(0.08):
            before.append(Act(do="restart"))
        if do == "act":
            # What does not end the wait is followed by something that does.
            before.append(draw.one((*BARE, BARE[0])))
        text = draw.one(["", "", "because"])
        # The first options go on, the last one mostly cancels.
        pick = draw.share() if draw.chance(0.35) else 0.0
        replies.append(Reply(do=do, pick=pick, before=tuple(before), text=text))  # type: ignore[arg-type]
    return tuple(replies)


def _at_start(draw: Draw) -> tuple[Act, ...]:
    if not draw.chance(0.08):
        return ()
    return (Act(do="send", name=draw.one(["pause", "resume", "cancel"]), value=draw.one([None, "early"])),)


def _at_continue(draw: Draw) -> tuple[Act, ...]:
    if not draw.chance(0.3):
        return ()
    name = draw.one(["pause", "pause", "resume", "cancel"])
    return (Act(do="send", name=name, value=draw.one([None, "in between"])),)


def _crash(draw: Draw, step: Step, share: float = 0.05) -> Step:
    return {**step, "crash": draw.one(["before", "after"])} if draw.chance(share) else step


# -- episodes -------------------------------------------------------------------------------------------

EPISODE_CALLS = ("open", "baseline", "plan", "plan", "handoff", "work", "work", "work", "check", "track", "track",
                 "reflect", "prove", "prove", "adopt", "restore", "amend", "close", "accept")  # fmt: skip


def draw_episode(draw: Draw) -> Schedule:
    """Return an episode."""
    lines = draw.number(1, 3)
    checks = [f"lines {lines}", *draw.some(["have x.txt", "lack bad.txt", "lines 2"], 2)]
    budget: dict[str, Any] = {"max_iterations": draw.one([1, 2, 2, 3, 4]), "max_executor_failures": draw.one([1, 2, 6])}
    if draw.chance(0.15):
        budget["max_tokens"] = draw.one([1500, 3000])
    if draw.chance(0.1):
        budget["max_cost_usd"] = 0.02
    if draw.chance(0.08):
        budget["max_infrastructure_retries"] = 1
    if draw.chance(0.05):
        budget["max_wall_time"] = 5_000
    if draw.chance(0.2):
        budget["warn_at_iteration"] = 1
    request: dict[str, Any] = {
        "goal": "make it pass",
        "definition_of_done": checks,
        "planner": "heuristic",
        "executor": {"name": "scripted"},
        "budget": budget,
        "pause_after": draw.one([1, 2, 2, 3]),
        "iterations_per_run": draw.one([1, 1, 2, 3, 50]),
        "pause_timeout": draw.one([600, 86_400, 604_800]),
    }
    script = {
        "plan": tuple(_crash(draw, _planned(draw)) for _ in range(8)),
        "work": tuple(_worked(draw) for _ in range(10)),
        "check": tuple(_crash(draw, {"flaky": True} if draw.chance(0.06) else {}, 0.03) for _ in range(8)),
        "track": tuple(_crash(draw, _tracked(draw), 0.03) for _ in range(8)),
        "prove": tuple(_crash(draw, {"doubted": True} if draw.chance(0.3) else {}) for _ in range(3)),
        "baseline": ({"crash": "after"} if draw.chance(0.04) else {},),
        "open": ({"crash": draw.one(["before", "after"])} if draw.chance(0.04) else {},),
        "restore": ({"crash": draw.one(["before", "after"])} if draw.chance(0.1) else {},),
        "close": ({"crash": draw.one(["before", "after"])} if draw.chance(0.04) else {},),
    }
    if draw.chance(0.08):
        script["work"] = ({"status": "limit_hit", "retry_after_s": None},) * 4 + script["work"]
    moments = list(_moments(draw, EPISODE_CALLS, lambda: _episode_message(draw)))
    if draw.chance(0.12):
        at = f"{draw.one(['plan', 'work', 'check', 'track', 'prove'])}#{draw.number(1, 3)}"
        if all(moment.at != at for moment in moments):
            moments.append(Moment(at=at, after=draw.chance(0.5), acts=(_edit(draw),)))
    return Schedule(
        kind="episode",
        seed=draw.seed,
        request=request,
        script={name: steps for name, steps in script.items() if any(steps)},
        moments=tuple(moments),
        replies=_replies(draw, lambda: _episode_message(draw)),
        at_start=_at_start(draw),
        at_continue=_at_continue(draw),
        cached=not draw.chance(0.05),
        reopen=f"ckpt-{draw.number(0, 2)}" if draw.chance(0.08) else "",
    )


def _planned(draw: Draw) -> Step:
    what = draw.weighed({"planned": 40, "claims_done": 3, "gave_up": 2.5, "malformed": 3, "finding": 2.5, "final": 3})
    step: Step = {}
    if what in ("claims_done", "gave_up", "malformed"):
        step["verdict"] = what
    elif what == "finding":
        step["finding"] = draw.one(["rm -rf a", "rm -rf b"])
    elif what == "final":
        step["final"] = True
    if draw.chance(0.6):
        step["tokens"] = draw.one([100, 500, 1000])
    return step


def _worked(draw: Draw) -> Step:
    what = draw.weighed({
        "completed": 40, "idle": 6, "failed": 6, "timed_out": 3, "limit_hit": 8, "fatal": 2, "refused": 2,
        "no_change": 2,
        "permission": 3, "clarification": 2, "work": 2, "crash": 3, "outcome_unknown": 2, "paused": 1,
    })  # fmt: skip
    if what in ("permission", "clarification", "work", "crash"):
        return {"asks": what}
    step: Step = {} if what in ("completed", "idle") else {"status": what}
    if what == "idle":
        step["idle"] = True
    if what == "limit_hit":
        step["retry_after_s"] = draw.one([None, *HOURS_S])
    if what in ("failed", "fatal"):
        step["error"] = draw.one(["exit 1", "exit 2"])
    if what in ("completed", "failed") and draw.chance(0.3):
        path = draw.one(["x.txt", "x.txt", "bad.txt", "y.txt"])
        step["files"] = {path: draw.one(["one\n", "two\n", None])}
    if draw.chance(0.6):
        step["tokens"] = draw.one([100, 500, 1000])
    return _crash(draw, step)


def _tracked(draw: Draw) -> Step:
    step: Step = {}
    if draw.chance(0.3):
        step["class"] = draw.one(["LOW", "LOW", "MEDIUM", "HIGH"])
    for name in ("progress",):
        if draw.chance(0.06):
            step[name] = True
    if draw.chance(0.06):
        step["finding"] = draw.one(["rm -rf c", "rm -rf d"])
    if draw.chance(0.1):
        step["tokens"] = 200
    return step


# -- plans ----------------------------------------------------------------------------------------------


class PlanDraw:
    """A plan that is being drawn, with the script of its steps."""

    def __init__(self, draw: Draw, depth: int = 1) -> None:
        self._draw, self._depth = draw, depth
        self.steps: list[Step] = []
        self.script: dict[str, Any] = {}

    def source(self, least: int, most: int) -> dict[str, Any]:
        """Draw the steps and return the plan."""
        for number in range(self._draw.number(least, most)):
            self._add(f"s{number}")
        self.script = {name: found for name, found in self.script.items() if any(found)}
        on_failure = self._draw.one(["ask", "ask", "fail", "compensate", "compensate"])
        # One at a time: what runs beside each other ends in any order.
        return {"id": "drawn", "on_failure": on_failure, "max_parallel": 1, "steps": self.steps}

    def chain(self, count: int) -> dict[str, Any]:
        """Return steps that all write, one after the other; the last one fails, and they are undone."""
        draw = self._draw
        for number in range(count):
            name, needs = f"s{number}", [f"s{number - 1}"] if number else []
            self.steps.append({"id": name, "needs": needs, "shell": {"run": "true"}, "retry": {"attempts": 1}})
            if draw.chance(0.12):
                self.script[f"undo {name}"] = (_crash(draw, {"cannot": True} if draw.chance(0.5) else {}, 0.5),)
        self.script[f"step s{count - 1}"] = ({"s": "fail", "class": "logic"},) * 3
        if draw.chance(0.25):
            # Another step does the work, once some were undone.
            undo = [f"s{number}" for number in range(count - 1) if draw.chance(0.7)]
            self.steps[-1]["on_failure"] = {"to": "other", "recovers": True, "compensate": undo}
            self.steps.append({"id": "other", "shell": {"run": "true"}, "retry": {"attempts": 1}})
        return {"id": "drawn", "on_failure": "compensate", "max_parallel": 1, "steps": self.steps}

    def _add(self, name: str) -> None:
        draw, nested = self._draw, 1.0 if self._depth == 1 else 0.0
        before = [step["id"] for step in self.steps[-4:] if step["id"].isalnum() and not step["id"].endswith("x")]
        step: Step = {"id": name, "needs": draw.some(before, 2)}
        self.steps.append(step)
        what = draw.weighed(
            {
                "shell": 10, "none": 1, "gate": 3, "for_each": 1.5, "model": 1.5, "subplan": 1.5 * nested,
            }
        )  # fmt: skip
        step["retry"] = _retry(draw) if what in ("shell", "model") else {"attempts": 1}
        if draw.chance(0.2):
            step["priority"] = draw.number(-2, 2)
        if what == "gate":
            self._gate(step)
        elif what == "subplan":
            self._nested(step)
        elif what != "none":
            self._command(step, what)
        self.script[f"undo {name}"] = ({"cannot": True} if draw.chance(0.1) else {},)
        if what == "shell":
            self._failing(step, before)

    def _command(self, step: Step, what: str) -> None:
        draw, name = self._draw, step["id"]
        results = tuple(_crash(draw, _stepped(draw), 0.06) for _ in range(4))
        if what == "model":
            step["model"] = {"prompt": "say it"}
            results = tuple({**each, "tokens": draw.one([100, 800])} for each in results)
        else:
            step["shell"] = {"run": "true"}
            step["access"] = draw.one(["writes", "writes", "none", "reads"])
        if what == "for_each":
            step["id"] = f"{name}-*"
            step["for_each"] = list(range(draw.number(0, 3)))
        self.script[f"step {step['id']}"] = results

    def _gate(self, step: Step) -> None:
        draw = self._draw
        approval: dict[str, Any] = {}
        ask: dict[str, Any] = {}
        if draw.chance(0.2):
            ask["count"] = approval["count"] = 2
        gate: dict[str, Any] = {"approval": approval}
        step["gate"] = gate
        if draw.chance(0.25):
            gate["window"] = ask["window"] = "evening"
        if draw.chance(0.15):
            ask["kind"] = draw.one(["policy", "clarification"])
        self.script[f"step {step['id']}"] = ({"ask": ask, "repeat": True},)

    def _nested(self, step: Step) -> None:
        # No branches: alternatives work beside each other, in worktrees that the files in memory do not have.
        draw, name = self._draw, step["id"]
        inner = PlanDraw(draw, self._depth + 1)
        body = {**inner.source(1, 3), "id": "inner", "on_failure": draw.one(["fail", "ask"])}
        self.script |= {f"{name}:{call}": found for call, found in inner.script.items()}
        step["subplan"] = {"steps": body["steps"]}
        self.script[f"prepare {name}"] = ({"plans": [body], "repeat": True},)
        self.script[f"settle {name}"] = tuple(_stepped(draw, share=0.15) for _ in range(2))

    def _failing(self, step: Step, before: list[str]) -> None:
        draw, name = self._draw, step["id"]
        if draw.chance(0.1):
            step["compensate"] = draw.one([{"none": True}, {"run": "undo"}])
        if draw.chance(0.25):
            # Another step does its work where it fails.
            other = f"{name}x"
            self.steps.append({"id": other, "shell": {"run": "true"}, "retry": {"attempts": 1}})
            self.script[f"step {other}"] = (_stepped(draw, share=0.2),)
            undo = draw.some([*before, name], 2)
            step["on_failure"] = {"to": other, "recovers": draw.chance(0.8), "compensate": undo}


def _retry(draw: Draw) -> dict[str, Any]:
    return {"attempts": draw.one([1, 1, 2, 3]), "initial_s": draw.one(HOURS_S), "maximum_s": 100_000.0}


def _stepped(draw: Draw, share: float = 0.25) -> Step:
    step: Step = {}
    if draw.chance(share):
        step |= {"s": "fail", "class": draw.one(["logic", "logic", "transient", "policy"])}
        if draw.chance(0.3):
            step["recover"] = draw.one(["retry", "replan", "ask", "abort", "skip"])
    elif draw.chance(0.05):
        step["s"] = "skip"
    if draw.chance(0.15):
        step["tokens"] = draw.one([100, 1000])
    return step


def _revised(draw: Draw, source: dict[str, Any]) -> dict[str, Any]:
    """Return the plan with a step more, less or changed."""
    steps = [dict(step) for step in source["steps"]]
    what = draw.weighed({"add": 5, "change": 3, "drop": 2, "wrong": 1})
    if what == "add":
        steps.append(
            {
                "id": f"new{draw.number(0, 9)}",
                "shell": {"run": "true"},
                "needs": draw.some([s["id"] for s in steps if "*" not in s["id"]], 1),
            }
        )
    elif what == "change":
        draw.one(steps)["title"] = "another title"
        draw.one(steps)["priority"] = 9
    elif what == "drop":
        steps = steps[:-1] or steps
    else:
        steps.append({"id": "s0", "needs": ["nobody"]})
    return {**source, "steps": steps}


def _plan_budget(draw: Draw, steps: int) -> dict[str, Any]:
    bounds: dict[str, tuple[float, list[Any]]] = {
        "max_attempts": (0.2, [max(2, steps + more) for more in (0, 0, 1, 3)]),
        "max_tokens": (0.15, [500, 1500]),
        "max_api_calls": (0.1, [1, 2]),
        "max_wall_s": (0.08, [5_000.0]),
        "max_revisions": (0.1, [1, 2]),
        "max_fan_out": (0.05, [1]),
    }
    return {name: draw.one(values) for name, (share, values) in bounds.items() if draw.chance(share)}


def draw_plan(draw: Draw) -> Schedule:
    """Return a plan."""
    plan = PlanDraw(draw)
    source = plan.chain(draw.number(3, 5)) if draw.chance(0.2) else plan.source(2, 5)
    script = plan.script
    if draw.chance(0.5):
        source["definition_of_done"] = ["true"]
        failing = ({"failing": ["true"]} if draw.chance(0.25) else {} for _ in range(3))
        script["verify"] = tuple(_crash(draw, step, 0.05) for step in failing)
        script["prove"] = tuple({"doubted": True} if draw.chance(0.25) else {} for _ in range(2))
    source["budget"] = _plan_budget(draw, len(source["steps"]))
    if draw.chance(0.35):
        revisions = ({"source": _revised(draw, source)} if draw.chance(0.7) else {"tokens": 100} for _ in range(3))
        script["revise"] = tuple(revisions)
    names = [step["id"] for step in source["steps"]]
    calls = ["open", "baseline", "verify", "prove", "close", "adopt", "revise", "load"]
    calls += [f"step {name}" for name in names] * 2
    calls += [f"{call} {name}" for call in ("undo", "prepare") for name in names[:2]]

    def message() -> Act:
        return _plan_message(draw, names, source)

    moments = list(_moments(draw, calls, message))
    if draw.chance(0.1):
        at = f"step {draw.one(names)}#1"
        if all(moment.at != at for moment in moments):
            moments.append(Moment(at=at, after=draw.chance(0.5), acts=(_edit(draw),)))
    request = {
        "source": source,
        "attempts_per_run": draw.one([1, 2, 2, 3, 1_000]),
        "pause_timeout": draw.one([600, 86_400, 604_800]),
    }
    return Schedule(
        kind="plan",
        seed=draw.seed,
        request=request,
        script={name: tuple(steps) for name, steps in script.items() if any(steps)},
        moments=tuple(moments),
        replies=_replies(draw, message),
        at_start=_at_start(draw),
        at_continue=_at_continue(draw),
        cached=not draw.chance(0.05),
    )


# -- project plans --------------------------------------------------------------------------------------


def draw_project(draw: Draw) -> Schedule:
    """Return a project plan."""
    count = draw.number(1, 4)
    tasks = []
    script: dict[str, Any] = {}
    for number in range(1, count + 1):
        needs = draw.some(list(range(1, number)), 2)
        checks = draw.one([["lines 1"], ["lines 1"], ["lines 2"], ["have x.txt"]])
        tasks.append({"id": number, "priority": draw.number(1, 3), "needs": needs, "checks": checks})
        name = f"ptask_{number}"
        script[f"{name}:work"] = tuple(_worked_in_project(draw) for _ in range(3))
        script[f"settle {name}"] = ({"s": "fail", "conflict": True, "reason": "conflict"} if draw.chance(0.2) else {},)
    for number in range(count + 1, count + 4):
        script[f"settle ptask_{number}"] = ({"s": "fail", "conflict": True} if draw.chance(0.15) else {},)
        # What resolves a conflict has nothing to check in memory but the task's own checks.
        script[f"ptask_{number}:work"] = ({"files": {"x.txt": "resolved\n"}},) * 2
    gates = draw.one([["a"], ["a", "b"], ["a", "b", "c"], []])
    for gate in gates:
        script[f"gate {gate}"] = (_crash(draw, {"s": "fail"} if draw.chance(0.15) else {}, 0.08),)
    script["inspect"] = ({"s": "fail"} if draw.chance(0.04) else _crash(draw, {}),)
    script["tasks"] = ({"s": "fail"} if draw.chance(0.05) else _crash(draw, {}),)
    calls = ["inspect", "tasks", "results", "gates", "leave", *[f"gate {gate}" for gate in gates]]
    calls += [f"ptask_{number}:{call}" for number in range(1, count + 1) for call in ("work", "plan", "open")]

    def message() -> Act:
        name = draw.weighed({"pause": 4, "resume": 3, "cancel": 2, "dispatch": 2, "verify": 2})
        values: dict[str, Any] = {
            "pause": None, "resume": None, "cancel": draw.one([None, "enough"]),
            "dispatch": {"parallel": 1, "by": "ada"}, "verify": {"by": "ada"},
        }  # fmt: skip
        # During the call of a task the others can also be meant for its episode.
        to_root = name in ("dispatch", "verify") or draw.chance(0.6)
        return Act(do="send", name=name, value=values[name], to="root" if to_root else "self")

    request = {
        "goal": "a project", "gates": gates, "tasks": tasks, "parallel": 1, "planner": "heuristic",
        "executor": {"name": "scripted"}, "pause_timeout": draw.one([3_600, 604_800]),
        "budget": {"max_iterations": draw.one([2, 3, 15])},
    }  # fmt: skip
    return Schedule(
        kind="project",
        seed=draw.seed,
        request=request,
        script={name: steps for name, steps in script.items() if any(steps)},
        moments=tuple(moment for moment in _moments(draw, calls, message, most=2)),
        replies=_project_replies(draw, message),
        at_start=_at_start(draw),
        cached=not draw.chance(0.05),
    )


def _worked_in_project(draw: Draw) -> Step:
    what = draw.weighed({"completed": 14, "failed": 2, "limit_hit": 1, "permission": 1.5, "fatal": 0.7})
    if what == "permission":
        return {"asks": what}
    step: Step = {} if what == "completed" else {"status": what}
    if what == "limit_hit":
        step["retry_after_s"] = 7_200.0
    if what == "completed" and draw.chance(0.6):
        step["files"] = {"x.txt": "one\n"}
    return _crash(draw, step)


def _project_replies(draw: Draw, message: Callable[[], Act]) -> tuple[Reply, ...]:
    replies = []
    for _ in range(9):
        do = draw.weighed({"answer": 14, "silence": 0.4, "act": 0.6})
        before = (message(),) if draw.chance(0.1) else ()
        pick = draw.share() if draw.chance(0.15) else 0.0
        replies.append(Reply(do=do, pick=pick, before=before))  # type: ignore[arg-type]
    return tuple(replies)


# -- the coder ------------------------------------------------------------------------------------------


def draw_coder(draw: Draw) -> Schedule:
    """Return deliveries to the coder: of a session of its own, or of an episode whose work it does."""
    alone = _coder_alone(draw)
    if draw.chance(0.6):
        return alone
    coder = {f"coder:{call}": steps for call, steps in alone.script.items()}
    episode = draw_episode(draw)
    script = {
        **{call: steps for call, steps in episode.script.items() if call in ("open", "close", "prove", "track")},
        "work": ({"status": "delegated", "repeat": True},),
        **coder,
    }
    moments = tuple(
        Moment(at=f"coder:{moment.at}", after=moment.after, acts=(Act(do="send", name="pause", to="root"),))
        for moment in alone.moments
    )
    request = {**episode.request, "bounds": alone.request["bounds"], "executor": {"name": "coder"}}
    return episode.model_copy(
        update={
            "kind": "coder", "request": request, "script": script, "reopen": "",
            "moments": (*moments, *(moment for moment in episode.moments if moment.at.split("#")[0] != "work")),
        }
    )  # fmt: skip


PROPOSED = (
    ["read"], ["edit"], ["edit", "run"], ["read", "read"], ["edit", "read", "run"], ["finish"], ["finish"],
    ["edit", "finish"], ["run"], ["bad"], [], ["ask"],
)  # fmt: skip
"""Calls of one answer of a model."""


def _coder_alone(draw: Draw) -> Schedule:
    roles = ["coder", *draw.subset(["planner", "tester"], 0.4), "reflector"]
    bounds: dict[str, Any] = {
        "max_turns": draw.one([3, 6, 12, 60]), "rounds": draw.one([0, 1, 2, 3]), "planning": "planner" in roles,
        "testing": "tester" in roles,
    }  # fmt: skip
    if draw.chance(0.2):
        bounds["max_tokens"] = draw.one([500, 2_000])
    if draw.chance(0.2):
        bounds["turns_of"] = {draw.one(roles): draw.number(1, 3)}
    script: dict[str, Any] = {
        f"turn {role}": tuple(_crash(draw, _turn(draw), 0.06) for _ in range(10)) for role in roles
    }
    script["tests"] = tuple(_crash(draw, _tests(draw), 0.05) for _ in range(6))
    script["judge"] = ({"accepted": draw.number(0, 1), "refused": draw.number(0, 1), "survived": draw.number(0, 1)},)
    for call in ("edit", "run"):
        script[f"tool {call}"] = tuple(_crash(draw, {}, 0.08) for _ in range(4))
    calls = ["brief", *[f"turn {role}" for role in roles] * 2, "tool run", "tests", "judge"]
    return Schedule(
        kind="coder",
        seed=draw.seed,
        request={"bounds": bounds, "wall_limit_s": 3_600.0},
        script={name: steps for name, steps in script.items() if any(steps)},
        moments=_moments(draw, calls, lambda: Act(do="send", name="pause"), most=2),
        at_start=(Act(do="send", name="pause"),) if draw.chance(0.05) else (),
        cached=not draw.chance(0.15),
    )


def _turn(draw: Draw) -> Step:
    calls = draw.one(PROPOSED)
    step: Step = {"calls": calls}
    if draw.chance(0.05):
        step["problem"] = "it was cut off"
    if draw.chance(0.9):
        step["tokens"] = draw.one([50, 100, 400])
    return step


def _tests(draw: Draw) -> Step:
    return {"s": "fail"} if draw.chance(0.4) else {"ask": True} if draw.chance(0.05) else {}
