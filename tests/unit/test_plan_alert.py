"""What leaves the host when a plan needs a person."""

import json
import shlex
from datetime import UTC, datetime

import pytest
import typer

from tightloop.alert import Alert, AlertKind, Subject, alert_key, notice_of
from tightloop.cli.main import app
from tightloop.episode import EpisodePhase

AT = datetime(2026, 1, 1, tzinfo=UTC)


def alert(kind: AlertKind, **more: object) -> Alert:
    fields = {"subject": Subject.PLAN, "phase": "RUNNING", "step": "deploy", "reason": "may it?", "goal": "Release"}
    key = alert_key("plan-1", kind, "cause", AT)
    return Alert.model_validate({"key": key, "kind": kind, "episode_id": "plan-1", "at": AT, **fields, **more})


@pytest.mark.parametrize(
    ("kind", "title", "command"),
    [
        (AlertKind.APPROVAL, "Plan plan-1 waits for an approval", "tightloop plan approve plan-1 deploy"),
        (AlertKind.RESPONSE, "Plan plan-1 asks for an answer", "tightloop plan answer plan-1 retry deploy"),
        (AlertKind.BUDGET, "Plan plan-1 spent its budget and waits", "tightloop plan top-up plan-1 --cost-usd 1"),
        (AlertKind.FATAL, "Plan plan-1 cannot go on and waits", "tightloop plan resume plan-1"),
        (AlertKind.OVERDUE, "Plan plan-1 has a step that takes longer than it should", "tightloop plan status plan-1"),
        (AlertKind.FAILED, "Plan plan-1 failed", "tightloop plan status plan-1"),
    ],
)
def test_notice_of_a_plan_names_the_step_and_the_command_that_answers(kind, title, command):
    notice = notice_of(alert(kind))
    assert (notice.title, notice.commands[0]) == (title, command)
    assert "(RUNNING, deploy)" in notice.text
    assert "may it?" not in notice.text


@pytest.mark.parametrize("kind", AlertKind)
def test_every_command_of_an_alert_is_one_that_the_cli_knows(kind: AlertKind) -> None:
    plan_commands = typer.main.get_command(app).commands["plan"].commands  # type: ignore[attr-defined]
    for line in notice_of(alert(kind, step="look-at it")).commands:
        program, group, name, *rest = shlex.split(line)
        context = plan_commands[name].make_context(name, rest, resilient_parsing=False)
        assert (program, group) == ("tightloop", "plan")
        assert context.params["plan"] == "plan-1"


def test_body_of_a_plan_holds_nothing_that_only_episodes_have():
    body = json.loads(notice_of(alert(AlertKind.APPROVAL)).as_json())
    assert (body["subject"], body["step"], body["phase"]) == ("plan", "deploy", "RUNNING")
    assert not {"iteration", "branch", "checks", "reason", "goal"} & body.keys()


def test_body_of_an_episode_is_as_before():
    episode = Alert(key="k", kind=AlertKind.FATAL, episode_id="e-1", at=AT, phase=EpisodePhase.TRACKING, iteration=3)
    body = json.loads(notice_of(episode).as_json())
    assert (body["phase"], body["iteration"], body["branch"]) == ("TRACKING", 3, 1)
    assert not {"subject", "step"} & body.keys()


def test_alert_comes_back_from_temporal_as_it_went():
    for one in (alert(AlertKind.APPROVAL), alert(AlertKind.FATAL, subject="episode", phase=EpisodePhase.PLANNING)):
        read = Alert.model_validate_json(one.model_dump_json())
        assert (read, f"{read.phase}") == (one, f"{one.phase}")
