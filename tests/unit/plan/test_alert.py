"""What leaves the host when a plan needs a person."""

import json
import shlex
from datetime import UTC, datetime, timedelta

import pytest

from tightloop.cli.main import app
from tightloop.episode.model import EpisodePhase
from tightloop.ledger.alert import Alert, AlertKind, Subject, alert_key, notice_of
from tightloop.plan.document import PlanBudget
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.request import PlanSpent
from tightloop.settings import parse_settings

AT = datetime(2026, 1, 1, tzinfo=UTC)


def alert(kind: AlertKind, **more: object) -> Alert:
    fields = {"subject": Subject.PLAN, "phase": "RUNNING", "step": "deploy", "reason": "may it?", "goal": "Release"}
    key = alert_key("plan-1", kind, "cause", AT)
    return Alert.model_validate({"key": key, "kind": kind, "episode_id": "plan-1", "at": AT, **fields, **more})


@pytest.mark.parametrize(
    ("kind", "options", "title", "command"),
    [
        (
            AlertKind.GATE,
            ("approve", "reject"),
            "Plan plan-1 is waiting for approval",
            "tightloop answer plan-1 approve --question q1",
        ),
        (
            AlertKind.FAILED_STEP,
            ("retry", "skip"),
            "Plan plan-1 is asking about a failed step",
            "tightloop answer plan-1 retry --question q1",
        ),
        (
            AlertKind.BUDGET,
            ("extend", "cancel"),
            "Plan plan-1 has spent its budget and is waiting",
            "tightloop answer plan-1 extend --question q1",
        ),
        (
            AlertKind.FATAL,
            ("retry", "cancel"),
            "Plan plan-1 cannot continue and is waiting",
            "tightloop answer plan-1 retry --question q1",
        ),
        (
            AlertKind.OVERDUE,
            (),
            "Plan plan-1 has a step that is taking longer than expected",
            "tightloop status plan-1",
        ),
        (AlertKind.FAILED, (), "Plan plan-1 failed", "tightloop status plan-1"),
    ],
)
def test_notice_of_a_plan_names_the_step_and_the_command_that_answers(kind, options, title, command):
    notice = notice_of(alert(kind, question="q1", options=options))
    assert (notice.title, notice.commands[0]) == (title, command)
    assert "(RUNNING, deploy)" in notice.text
    assert "may it?" not in notice.text


@pytest.mark.parametrize("kind", AlertKind)
def test_every_command_of_an_alert_is_one_that_the_cli_knows(kind: AlertKind) -> None:
    commands = app.commands
    for line in notice_of(alert(kind, question="look-at it", options=("retry", "cancel"))).commands:
        program, name, *rest = shlex.split(line)
        context = commands[name].make_context(name, rest, resilient_parsing=False)
        assert program == "tightloop"
        assert context.params["workflow"] == "plan-1"


def test_body_of_a_plan_holds_nothing_that_only_episodes_have():
    body = json.loads(notice_of(alert(AlertKind.GATE)).as_json())
    assert (body["subject"], body["step"], body["phase"]) == ("plan", "deploy", "RUNNING")
    assert not {"iteration", "branch", "checks", "reason", "goal"} & body.keys()


def test_body_of_an_episode_is_as_before():
    episode = Alert(key="k", kind=AlertKind.FATAL, episode_id="e-1", at=AT, phase=EpisodePhase.TRACKING, iteration=3)
    body = json.loads(notice_of(episode).as_json())
    assert (body["phase"], body["iteration"], body["branch"]) == ("TRACKING", 3, 1)
    assert not {"subject", "step"} & body.keys()


def test_alert_comes_back_from_temporal_as_it_went():
    for one in (alert(AlertKind.GATE), alert(AlertKind.FATAL, subject="episode", phase=EpisodePhase.PLANNING)):
        read = Alert.model_validate_json(one.model_dump_json())
        assert (read, f"{read.phase}") == (one, f"{one.phase}")


@pytest.mark.parametrize(
    ("budget", "spent", "command"),
    [
        (PlanBudget(max_api_calls=1), PlanSpent(api_calls=1), "tightloop top-up plan-1 --api-calls 100"),
        (PlanBudget(max_cost_usd=1), PlanSpent(cost_usd=2), "tightloop top-up plan-1 --cost-usd 1"),
        (PlanBudget(max_attempts=3), PlanSpent(attempts=3), "tightloop top-up plan-1 --attempts 100"),
        (PlanBudget(max_tokens=9), PlanSpent(tokens=9), "tightloop top-up plan-1 --tokens 100000"),
        (PlanBudget(max_wall_s=9), PlanSpent(wall_time=timedelta(days=1)), "tightloop top-up plan-1 --wall-minutes 60"),
    ],
)
def test_notice_of_a_spent_budget_raises_the_bound_that_is_reached(budget, spent, command):
    reason = find_breach(budget, spent)
    assert notice_of(alert(AlertKind.BUDGET, reason=reason, options=("extend", "cancel"))).commands[0] == command


def test_notice_leads_to_the_page_before_temporal() -> None:
    settings = parse_settings("gateway: {url: 'https://tightloop.example.com'}", {})
    page = settings.gateway.link(settings.temporal, "a/b")
    notice = notice_of(alert(AlertKind.GATE), page=page, link="https://temporal.example.com/x")
    assert page == "https://tightloop.example.com/workflows/a%2Fb"
    assert notice.text.endswith(f"\n{page}\nhttps://temporal.example.com/x")
    assert json.loads(notice.as_json())["page"] == page
    nobody = parse_settings("gateway: {enabled: false}", {})
    assert nobody.gateway.link(nobody.temporal, "x") == ""
