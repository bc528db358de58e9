"""Every kind of question that the product asks, as a person sees it on the command line."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from activities.artifacts.stores import open_local_store
from activities.proof.proving import store_proof
from tests.support.runs import KeptMeter
from tightloop.checks.setup import Setup, setup_question
from tightloop.cli.views import todo_lines
from tightloop.episode.budget import Budget, Spent, checks_work
from tightloop.episode.check import Check, ProofRule
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import EpisodeInput, status_of
from tightloop.episode.decisions import (
    CANCEL_EPISODE,
    THE_EPISODE,
    about_change,
    after_execution,
    after_planning,
    after_tracking,
    already_green_question,
    drift_question,
    end_question,
    guard_rails,
    make_question,
)
from tightloop.episode.failure import Failure, FailureKind, FailureStreak
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict
from tightloop.episode.proof import Proof, ProofFinding, ProofVerdict
from tightloop.executor.asking import (
    Crash,
    clarifying_question,
    crash_question,
    hand_off_question,
    impossible_question,
    permission_question,
    report_question,
    work_question,
)
from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.model import ExecutorChoice, ExecutorReport, ExecutorStatus, LimitHit
from tightloop.plan.action import Option as PlanOption
from tightloop.plan.child import StepFailure
from tightloop.plan.document import Plan, PlanBudget
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.engine.state import choices
from tightloop.plan.failing import FailureClass
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanPhase, PlanSpent, PlanStatus
from tightloop.run.question import Question, QuestionKind, Questions
from tightloop.safety.change.patch import Change, read_patch, show_change
from tightloop.safety.change.rules import review_change
from tightloop.safety.drift import Drift, DriftCause
from tightloop.safety.rubric import Finding, Rubric, Topic, Verdict, Violation, cost, make_finding, planners_own
from workflows.episode.record import EpisodeRecord
from workflows.plan.context import PlanContext
from workflows.plan.reporting import PlanQuestions

NOW = datetime(2026, 3, 2, 14, 3, tzinfo=UTC)
REQUEST = EpisodeRequest(
    goal="Make the parser accept empty files", workspace="/home/ada/shop", pause_timeout=timedelta(days=7)
)
DIFF = "git --git-dir=/home/ada/.local/state/tightloop/shop/store diff 1b2c3d4e5f60 9f8e7d6c5b4a"
WORDS = "I changed the parser so that empty files give an empty list, and all tests pass now."


DRIFT = Drift(
    cause=DriftCause.OUTSIDE,
    expected="1" * 40,
    tree="2" * 40,
    paths=("README.md", "lib/parse.py"),
    count=2,
    lines=("changed 3 minutes ago: README.md (+2 -0)", "changed 3 minutes ago: lib/parse.py (+1 -4)"),
)


class Asked(NamedTuple):
    """A question, with what the command line shows."""

    question: Question
    lines: tuple[str, ...]


def patch_of(path: str, removed: str, added: str, *, context: str = "") -> str:
    """Return a git patch that replaces lines of a file."""
    old, new = removed.splitlines(), added.splitlines()
    kept = context.splitlines()
    head = f"@@ -11,{len(kept) + len(old)} +11,{len(kept) + len(new)} @@"
    body = [*(f" {line}" for line in kept), *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    names = [f"diff --git a/{path} b/{path}", f"index {'1' * 40}..{'2' * 40} 100644", f"--- a/{path}", f"+++ b/{path}"]
    return "\n".join([*names, head, *body, ""])


SKIPPED = (
    patch_of(
        "tests/test_clock.py",
        "",
        '@pytest.mark.skip(reason="flaky")',
        context="\nNOW = 1_700_000_000\n\n",
    )
    + " def test_clock_is_monotonic():\n     assert clock.now() >= NOW\n"
)
KEY = patch_of("shop/client.py", "", "API_KEY = 'sk-proj-" + "a8Zk3QpL9xWv" * 4 + "'", context="import httpx\n")
THRESHOLD = patch_of("pyproject.toml", "fail_under = 90", "fail_under = 60", context="[tool.coverage.report]\n")
EMPTIED = patch_of("check.sh", "grep -q version app.py", "exit 0", context="#!/bin/sh\n")
WEAKER = patch_of(
    "tests/test_shop.py", "    assert total([2, 3]) == 5", "    assert total([2, 3]) is not None",
    context="def test_total():\n",
)  # fmt: skip


def findings_in(patch: str) -> tuple[Finding, ...]:
    """Return what the rules find in a patch."""
    return review_change(Change(files=read_patch(patch), goal=REQUEST.goal, lines_before=1_000))


def about(patch: str, findings: tuple[Finding, ...]) -> Question:
    """Return the question about a change that an iteration made."""
    change = show_change(patch, [finding.path for finding in findings], DIFF)
    state = EpisodeState(findings=findings, change=change, checks_green=True, baseline_red=True)
    question = after_tracking(state, REQUEST).question
    assert question is not None, patch
    return question


def of_proof(rule: ProofRule, patch: str, text: str, *evidence: str) -> Question:
    """Return the question about a proof with one finding."""
    with tempfile.TemporaryDirectory() as folder:
        proof = Proof(
            episode_id="e", base_tree="1" * 40, delivered_tree="2" * 40, verdict=ProofVerdict.DOUBTED,
            findings=(ProofFinding(rule=rule, text=f"pytest -q: {text}", evidence=evidence),), started=NOW, ended=NOW,
        )  # fmt: skip
        proved = store_proof(open_local_store(Path(folder)), proof)
    change = show_change(patch, [file.path for file in read_patch(patch)], DIFF) if patch else None
    return about_change(make_question(QuestionKind.PROOF, proved.title, evidence=proved.evidence), change)


def of_executor(status: ExecutorStatus, error: str, **fields: Any) -> Question:
    """Return the question after a delivery."""
    report = ExecutorReport(key="k", status=status, error=error, **fields)
    question = after_execution(EpisodeState(failed_deliveries=12), report, ExecutorChoice()).question
    assert question is not None
    return question


def stuck(streak: FailureStreak, **fields: Any) -> Question:
    """Return the question about an episode without progress."""
    question = after_tracking(EpisodeState(failures=streak, **fields), REQUEST).question
    assert question is not None
    return question


def failure(summary: str, kind: FailureKind = FailureKind.CHECK) -> Failure:
    return Failure(kind=kind, signature=summary, summary=summary)


def episode_questions() -> Iterator[Question]:
    """Yield the questions of episodes."""
    limit = REQUEST.pause_after
    yield already_green_question((Check(run="pytest -q"), Check(run="ruff check .")))
    setup = Setup(command="npm ci", locks=("package-lock.json",), missing=("node_modules",))
    yield setup_question(setup, blocks=THE_EPISODE, cancel=CANCEL_EPISODE)
    yield setup_question(setup.evolve(problem="failed with exit code 1"), blocks=THE_EPISODE, cancel=CANCEL_EPISODE)
    yield make_question(QuestionKind.OPERATOR, "wait until I have the new API key", by="ada")
    yield of_executor(ExecutorStatus.PAUSED, "")
    checks = (Check(run="ruff check ."), Check(run="pytest -q"))
    yield end_question(checks_work(checks).evolve(since=NOW - timedelta(minutes=4)), NOW)
    for budget, spent in (
        (Budget(max_iterations=12), Spent(iterations=12)),
        (Budget(max_cost_usd=5.0), Spent(iterations=3, cost_usd=5.02)),
    ):
        question = guard_rails(EpisodeState(budget=budget, spent=spent), NOW).question
        assert question is not None
        yield question
    error = failure("executor failed: codex exited with 1: no such model gpt-x", FailureKind.EXECUTOR)
    yield stuck(FailureStreak(last=error, times=limit, iterations=limit))
    idle = failure("1 of 3 checks fails: pytest -q")
    yield stuck(FailureStreak(last=idle, times=limit, iterations=limit, unchanged=limit))
    yield stuck(FailureStreak(last=idle, times=1, iterations=limit))
    yield stuck(FailureStreak(last=idle, times=1, iterations=limit), circles=True)
    yield of_executor(ExecutorStatus.FATAL, "codex is not logged in. Log in with: codex login")
    yield make_question(QuestionKind.FATAL, "the disk of /home/ada/shop is full. Free some space")
    yield make_question(
        QuestionKind.FATAL, "cannot restore ckpt-3 yet: no worker serves the task queue tightloop-workspace-ada"
    )
    text = "You have hit your usage limit. Try again at 17:00."
    hit = LimitHit(kind=LimitKind.RATE_LIMITED, evidence=text, source=LimitSource.REPORT, confidence=1.0)
    yield of_executor(ExecutorStatus.LIMIT_HIT, "", limit=hit)
    force = Violation(
        "rewrites_history", Topic.DAMAGE, Verdict.DENY, "leave git's history as it is; push to a new branch"
    )
    plan = PlanningOutcome(verdict=PlanVerdict.PLANNED, title="push")
    push = make_finding(force, at=("", "push"), where="step 1", evidence="git push --force origin main")
    for findings in ((push,), (planners_own("it would delete the customers' data"),)):
        question = after_planning(plan.evolve(findings=findings)).question
        assert question is not None
        yield question
    for patch in (SKIPPED, KEY, THRESHOLD):
        yield about(patch, findings_in(patch))
    yield about(WEAKER, cost(Rubric(), cpu_s=1_260.0, wall_s=60.0))
    yield of_proof(ProofRule.TESTS_CHANGED, WEAKER, "fails with the original tests and configuration",
        "tests/test_shop.py::test_total", "E   assert 6 == 5", "exit 1", "modified test: tests/test_shop.py",
    )  # fmt: skip
    yield of_proof(ProofRule.CONFIGURATION_CHANGED, EMPTIED, "fails with the original tests and configuration",
        "FAIL: app.py has no version", "exit 1", "modified configuration: check.sh",
    )  # fmt: skip
    yield of_proof(ProofRule.FAILS_FRESH, "", "fails in a fresh checkout",
        "E   FileNotFoundError: data/prices.json", "exit 1", "not in the checkout: data/prices.json",
    )  # fmt: skip
    yield of_proof(ProofRule.NO_REPORT, "", "the command exited with 0, but pytest did not start",
        "at the start: 14 passed", "in the proof: no report",
    )  # fmt: skip
    question = after_planning(
        PlanningOutcome(verdict=PlanVerdict.GAVE_UP, reason="the goal names lib/parse.c, which does not exist")
    ).question
    assert question is not None
    yield question
    yield impossible_question("impossible: the API that the goal names was removed in version 3")
    yield impossible_question("left red on purpose: test_total expects 6, but 2 + 3 is 5 as the goal says")
    yield permission_question("rm -rf build", "execute: rm -rf build\nin /home/ada/shop", "f")
    yield clarifying_question("Which database should the importer use?", "SQLite or PostgreSQL", "f")
    yield work_question("Make the parser accept empty files", "1. Change parse() in lib/parse.py\n2. Add a test")
    yield report_question()
    yield crash_question(Crash(moved=True, effects_outside="it may push to origin"), "publish the release notes")
    yield hand_off_question(
        "Enter was pressed, but the agent has not acknowledged the plan", "Make the parser accept empty files", "msg-4"
    )
    yield drift_question(DRIFT)


PLAN = {
    "id": "release",
    "steps": [
        {"id": "build", "shell": {"run": "make"}},
        {"id": "publish", "needs": ["build"], "shell": {"run": "make publish"}},
    ],
}


def plan_questions() -> Iterator[Question]:
    """Yield the questions of plans."""

    def asking() -> PlanQuestions:
        context = PlanContext(PlanInput(workspace="/w", source="x"), run_id="p", now=lambda: NOW, meter=KeptMeter())
        context.alerts = Silence()  # type: ignore[assignment]
        context.open(compile_graph(Plan.model_validate(PLAN)), has_planner=True)
        return PlanQuestions(context)

    def asked(ask: Callable[[PlanQuestions], None]) -> Question:
        questions = asking()
        ask(questions)
        return questions._context.waiting[0]

    breach = find_breach(PlanBudget(max_attempts=100), PlanSpent(attempts=100))
    no_disk = StepFailure(failure_class=FailureClass.LOGIC, reason="exit code 2 after 3.1 s: make: *** [all] Error 2")
    yield asked(lambda it: it.pause(QuestionKind.OPERATOR, "wait for the release notes", by="ada"))
    yield asked(lambda it: it.pause(QuestionKind.BUDGET, breach or ""))
    yield asked(lambda it: it.pause(QuestionKind.FATAL, "the workspace is locked by another run"))
    reason = "build has been running for more than 900 s. The step keeps running, but no new step starts"
    yield asked(lambda it: it.pause(QuestionKind.LIMIT, reason, step="build"))
    yield asked(lambda it: it.ask_about_failure("build", no_disk))
    yield asked(lambda it: it.ask_about_unmet("make test: exit code 1"))
    proof = of_proof(ProofRule.TESTS_CHANGED, WEAKER, "1 original test disappeared, did not run or did not pass",
        "tests/test_shop.py::test_total", "at the start: 14 passed", "in the proof: 13 passed, 1 failed",
    )  # fmt: skip
    yield asked(lambda it: it.ask_about_proof(proof.title, proof.evidence, proof.change))
    yield asked(lambda it: it.ask_about_drift(DRIFT))
    gate = Question(id="", kind=QuestionKind.GATE, title="May the plan continue after 'sign-off'?", options=choices())
    yield gate.evolve(step="sign-off", blocks="sign-off", evidence=("passed: make test (14 passed)",))
    options = (
        PlanOption(name="canary", to=("canary",), pros=("small risk",), cons=("takes a day",)),
        PlanOption(name="all-at-once", to=("rollout",), cost="no way back"),
    )
    yield gate.evolve(
        title="How should version 4 be rolled out?", options=choices(options), role="release-manager", count=2,
        step="rollout", blocks="rollout",
    )  # fmt: skip
    yield Question(
        id="", kind=QuestionKind.POLICY, title="may publish run? The policy asks before commands that use the network",
        evidence=("make publish",), options=choices(), step="publish", blocks="publish",
    )  # fmt: skip
    yield Question(
        id="", kind=QuestionKind.CLARIFICATION, title="Which option should be chosen for 'pick a database'?",
        evidence=("no rule matched",), options=choices((PlanOption(name="sqlite"), PlanOption(name="postgres"))),
        step="pick", blocks="pick",
    )  # fmt: skip


class Silence:
    """Sends no alerts."""

    def send(self, _alert: object) -> None:
        """Do nothing."""


def opened(question: Question) -> Question:
    """Return the question as a run opens it."""
    return Questions().open(question, NOW)[1]


def shown(question: Question, *, is_plan: bool) -> tuple[str, ...]:
    """Return what `tightloop status` says about a question."""
    if is_plan:
        status: Any = PlanStatus(plan_id="release", status="paused", phase=PlanPhase.RUNNING, questions=(question,))
        return tuple(todo_lines(status))
    record = EpisodeRecord(EpisodeInput.of(REQUEST), run_id="fix-parser", now=lambda: NOW, meter=KeptMeter())
    words = "" if question.kind is QuestionKind.ALIGNMENT and question.change is None else WORDS
    record.replace(record.state.evolve(last_words=words, checkpoints=CHECKPOINTS, phase=phase_of(question)))
    record.ask(question)
    status = status_of(
        record.request, record.state, record.core, episode_id=record.id, run_id="r", status="paused", work=None
    )
    return tuple(todo_lines(status))


CHECKPOINTS = (CheckpointRecord(id="ckpt-3", iteration=3), CheckpointRecord(id="ckpt-4", iteration=4, parent="ckpt-3"))


def phase_of(question: Question) -> EpisodePhase:
    """Return the phase in which an episode asks a question."""
    if question.kind is QuestionKind.PROOF:
        return EpisodePhase.PROVING
    is_of_plan = question.kind is QuestionKind.ALIGNMENT and question.change is None
    return EpisodePhase.PLANNING if is_of_plan else EpisodePhase.TRACKING


def every_question() -> tuple[Asked, ...]:
    """Return every question with what the command line shows."""
    episodes = [Asked(opened(question), shown(question, is_plan=False)) for question in episode_questions()]
    plans = [Asked(opened(question), shown(opened(question), is_plan=True)) for question in plan_questions()]
    return (*episodes, *plans)


if __name__ == "__main__":
    pages = [f"{number}.\n" + "\n".join(asked.lines) for number, asked in enumerate(every_question(), start=1)]
    Path(sys.argv[1]).write_text("\n\n".join(pages) + "\n", encoding="utf-8")
