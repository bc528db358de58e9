"""Prompts: what the model is sent at iteration 10 and at iteration 100 of the same kind of work."""

import json
import random
from itertools import pairwise
from statistics import median
from typing import Any

from activities.model.client import ModelService
from activities.planner.planners import OpenAIPlanner
from tests.benchmarks.figures import Report, Spread, progress
from tests.support.model_server import CHARACTERS_PER_TOKEN, Asked, ModelServer, says
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.messages import plan_request_of
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import Briefing
from tightloop.episode.state_changes import begin_iteration
from tightloop.executor.message import PlanMessage, PlannedStep, PlanRequestMessage, Reflection
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.settings import Settings

EPISODES = 12
EARLY, LATE = 10, 100
AROUND = 2
"""So many iterations before and after are counted, too: one output may be longer than the next."""

REQUEST = EpisodeRequest(
    goal="Make the order service pass its tests, without new dependencies. " * 6,
    workspace="/home/me/orders",
    definition_of_done=(Check(run="pytest -q"), Check(run="ruff check ."), Check(run="mypy orders")),
    budget=Budget(max_iterations=110, warn_at_iteration=90),
)
_LETTERS = random.Random(0)
WORDS = ["".join(_LETTERS.choices("abcdefghijklmnopqrstuvwxyz", k=2 + n % 9)) for n in range(2_000)]
ANSWER: dict[str, Any] = {
    "diagnosis": "parse() drops the last line",
    "action_items": ["keep the last line"],
    "steps": [{"title": "Fix parse() in orders/parser.py", "run": None}],
    "scope": ["orders/parser.py"],
    "context": "",
    "claims_done": False,
    "gave_up": False,
    "impossible": False,
    "reason": "",
    "alignment": {"answer": "yes", "rationale": "touches only the parser"},
}


async def measure() -> Report:
    """Send the briefings of many made-up episodes through the real planner."""
    report = Report(
        f"prompts: tokens (characters / {CHARACTERS_PER_TOKEN}, as the loopback model server counts) of a plan call",
        ("work", f"at {EARLY}", f"at {LATE}", f"ratio {LATE} / {EARLY}", "changing part only", "same start", "aim"),
    )
    limit = Settings().planner.context_characters
    for name, size in (("typical", 1.0), ("everything long", 30.0)):
        progress(f"prompts: {name}")
        early, late = [], []
        for seed in range(EPISODES):
            prompts = await _sent(_briefings(random.Random(seed), size), limit)
            early.append([prompts[n] for n in range(EARLY - AROUND, EARLY + AROUND + 1)])
            late.append([prompts[n] for n in range(LATE - AROUND, LATE + AROUND + 1)])
        report.add(
            name,
            Spread.of(_tokens(group) for group in early),
            Spread.of(_tokens(group) for group in late),
            Spread.of(_tokens(b) / _tokens(a) for a, b in zip(early, late, strict=True)),
            Spread.of(_changing(b) / _changing(a) for a, b in zip(early, late, strict=True)),
            Spread.of(_same_start(group) for group in late),
            aim="ratio <= 1.2",
        )
    report.notes.append(f"{EPISODES} episodes of each kind, the median of {2 * AROUND + 1} iterations around each")
    report.notes.append(f"the iterations from {REQUEST.budget.warn_at_iteration} on have the circuit breaker's warning")
    report.notes.append("same start: part of a prompt that equals the start of the one before (a provider's cache)")
    return report


async def _sent(briefings: list[Briefing], limit: int) -> dict[int, Asked]:
    """Return what went over the wire for the briefings around both iterations."""
    wanted = [b for b in briefings if min(abs(b.iteration - EARLY), abs(b.iteration - LATE)) <= AROUND]
    with ModelServer(says(ANSWER)) as server:
        planner = OpenAIPlanner(
            ModelService(api_key="none", base_url=server.url, models=("m1",), api="responses", context_characters=limit)
        )
        for briefing in wanted:
            answer = await planner.plan(briefing)
            assert answer.usage is not None
            assert answer.usage.input_tokens == len(server.requests[-1].text) // CHARACTERS_PER_TOKEN
        return {b.iteration: asked for b, asked in zip(wanted, server.requests, strict=True)}


def _tokens(group: list[Asked]) -> float:
    return median(len(asked.text) // CHARACTERS_PER_TOKEN for asked in group)


def _changing(group: list[Asked]) -> float:
    return median(len(json.dumps(asked.body["input"])) for asked in group)


def _same_start(group: list[Asked]) -> float:
    texts = [asked.text for asked in group]
    return median(_equal_start(a, b) / len(b) for a, b in pairwise(texts))


def _equal_start(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _briefings(chosen: random.Random, size: float) -> list[Briefing]:
    """Make up an episode of endless failures, written by the same rules as a real one."""
    found: list[Briefing] = []
    state = EpisodeState(budget=REQUEST.budget)
    before: PlanRequestMessage | None = None
    checks = _checks(chosen, size)
    for _ in range(LATE + AROUND):
        state = begin_iteration(state)
        found.append(_briefing(chosen, size, state, before, checks))
        state = state.evolve(plan_title=_words(chosen, 12 * size), notes=())
        plan = PlanMessage(steps=(PlannedStep(title=state.plan_title, run=tuple(_words(chosen, 4 * size).split())),))
        checks = _checks(chosen, size)
        state = state.evolve(checks_text="1/3")
        before = plan_request_of(
            REQUEST,
            state,
            plan=plan,
            report=ExecutorReport(
                key="run/1/1", status=ExecutorStatus.COMPLETED, summary=_words(chosen, 40 * size)[:500]
            ),
            checks=checks,
            changes=tuple(f"orders/{_words(chosen, 1)}.py (+{n} -2)" for n in range(int(5 * size))),
            before=before,
            checks_before="1/3",
        )
    return found


def _briefing(
    chosen: random.Random, size: float, state: EpisodeState, before: PlanRequestMessage | None, checks: CheckReport
) -> Briefing:
    return Briefing(
        project=REQUEST.project_name,
        goal=REQUEST.goal,
        definition_of_done=tuple(check.run for check in REQUEST.definition_of_done),
        iteration=state.iteration,
        plan_request=before,
        checks=checks,
        reflection=Reflection(
            diagnosis=_words(chosen, 30 * size), action_items=tuple(_words(chosen, 12 * size) for _ in range(3))
        ),
        notes=state.notes,
    )


def _checks(chosen: random.Random, size: float) -> CheckReport:
    """Two checks of three fail, with tails longer than what is kept."""
    tests = "".join(f"FAILED tests/test_{_words(chosen, 1)}.py::test_{n} - {_words(chosen, 8)}\n" for n in range(14))
    outputs = {
        "pytest -q": (1, _words(chosen, 200 * size) + f"\n{tests}=== 14 failed, 120 passed in 3.21s ==="),
        "ruff check .": (0, "All checks passed!"),
        "mypy orders": (1, _words(chosen, 150 * size) + "\nFound 9 errors in 3 files"),
    }
    return CheckReport(
        tree="0" * 40,
        results=tuple(
            judge(check, tree="0" * 40, exit_code=code, timed_out=False, duration_s=1.0, output=output)
            for check in REQUEST.definition_of_done
            for code, output in [outputs[check.run]]
        ),
    )


def _words(chosen: random.Random, about: float) -> str:
    count = max(1, round(about * chosen.uniform(0.7, 1.3)))
    return " ".join(chosen.choices(WORDS, k=count))
