"""Alerts: one key for a cause, nothing of a person's in a notice, and commands that the CLI knows."""

import json
import shlex
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.alerts.channels import signature_headers
from tightloop.cli.main import app
from tightloop.episode.budget import Budget, Spent
from tightloop.episode.decisions import guard_rails
from tightloop.episode.failure import Failure, FailureKind, FailureStreak
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.errors import SettingsError
from tightloop.executor.asking import permission_question, work_question
from tightloop.ledger.alert import (
    Alert,
    AlertKind,
    Delivery,
    alert_key,
    alert_kind,
    alert_of,
    answer_commands,
    delivery_line,
    episode_link,
    notice_of,
)
from tightloop.run.question import Question, QuestionKind
from tightloop.settings import Settings, parse_settings

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
GOAL = "rewrite the billing of ACME"
REQUEST = EpisodeRequest(goal=GOAL, workspace="/srv/acme-billing", definition_of_done=["pytest -q"])  # type: ignore[arg-type]
REASON = "2 iterations in a row went off course: edited /srv/acme-billing/rates.py: RATE = 0.17"


def alert(kind: AlertKind = AlertKind.DEVIATION, *, at: datetime = NOW, reason: str = REASON) -> Alert:
    state = EpisodeState(budget=REQUEST.budget).evolve(
        phase=EpisodePhase.TRACKING, iteration=3, checks_text="1/3", plan_title="Fix RATE"
    )
    return alert_of(REQUEST, state, kind, episode_id="episode-1", happened=(at, reason))


@pytest.mark.parametrize("kind", QuestionKind)
def test_every_question_alerts_but_the_pause_of_an_operator_who_knows(kind: QuestionKind) -> None:
    told = alert_kind(Question(id="q1", kind=kind, title="t", options=()))
    assert (told.value if told else None) == (None if kind is QuestionKind.OPERATOR else kind.value)


@given(st.text(), st.text(), st.sampled_from(AlertKind), st.sampled_from(AlertKind))
def test_the_key_is_the_same_for_the_same_cause_only(one: str, other: str, kind: AlertKind, second: AlertKind) -> None:
    key = alert_key("episode-1", kind, one, NOW)
    assert key == alert_key("episode-1", kind, one, NOW)
    assert (key == alert_key("episode-1", second, other, NOW)) == ((kind, one) == (second, other))
    assert key != alert_key("episode-2", kind, one, NOW)


def test_what_came_back_after_a_person_ended_the_wait_is_a_new_cause() -> None:
    assert alert().key == alert().key
    assert alert(at=NOW + timedelta(seconds=1)).key != alert().key


def test_the_cause_of_a_repeated_error_is_its_signature_and_not_how_it_is_worded() -> None:
    failure = Failure(kind=FailureKind.CHECK, signature="ab" * 8)
    state = EpisodeState(budget=REQUEST.budget).evolve(failures=FailureStreak(last=failure, times=3))
    one, other = (
        alert_of(REQUEST, state, AlertKind.REPEATED_ERROR, episode_id="e", happened=(NOW, text)) for text in ("a", "b")
    )
    assert one.key == other.key


@pytest.mark.parametrize("kind", AlertKind)
def test_a_notice_holds_ids_kinds_and_counts_alone(kind: AlertKind) -> None:
    body = (
        notice_of(alert(kind), link=episode_link("http://127.0.0.1:8233/", "default", "episode-1")).as_json().decode()
    )
    for private in (GOAL, "ACME", "acme", "/srv", "RATE", "rates.py", "in a row"):
        assert private not in body
    told = json.loads(body)
    assert told["kind"] == kind.value
    assert (told["iteration"], told["checks"], told["phase"]) == (3, "1/3", "TRACKING")
    assert told["link"] == "http://127.0.0.1:8233/namespaces/default/workflows/episode-1"
    assert datetime.fromisoformat(told["at"]) == NOW


def test_a_full_notice_tells_the_reason_without_secrets() -> None:
    secret = "ghp_" + "aB3dE5gH7j" * 3 + "kL9mN1"
    notice = notice_of(alert(reason=f"the push with {secret} failed"), full=True)
    assert notice.goal == GOAL
    assert "the push with [secret:" in notice.reason
    assert "the push with [secret:" in notice.text
    assert secret not in notice.as_json().decode()


@pytest.mark.parametrize("kind", AlertKind)
@pytest.mark.parametrize("options", [(), ("retry", "cancel"), ("allow", "refuse", "cancel")])
@pytest.mark.parametrize("checkpoint", ["", "ckpt-2"])
def test_every_command_of_an_alert_is_one_that_the_cli_knows(
    kind: AlertKind, options: tuple[str, ...], checkpoint: str
) -> None:
    known = app.commands
    told = alert(kind).evolve(question="q1", options=options, checkpoint_id=checkpoint)
    for line in answer_commands(told):
        program, name, *rest = shlex.split(line)
        command = known[name]
        context = command.make_context(name, list(rest), resilient_parsing=False)
        assert program == "tightloop"
        assert context.params["workflow"] == "episode-1"


def test_an_alert_names_the_options_of_its_question() -> None:
    def first(question: Question) -> str:
        told = alert_of(
            REQUEST,
            EpisodeState(budget=REQUEST.budget),
            AlertKind.WORK,
            episode_id="e",
            happened=(NOW, "r"),
            question=question.evolve(id="q7"),
        )
        assert json.loads(notice_of(told).as_json())["question"] == "q7"
        return answer_commands(told)[0]

    assert first(permission_question("t", "", "f")) == "tightloop answer e allow"
    assert first(work_question("t")) == "tightloop answer e done"


def test_work_that_is_questioned_can_be_allowed_or_undone() -> None:
    told = alert().evolve(kind=AlertKind.ALIGNMENT, checkpoint_id="ckpt-3", options=("allow", "refuse", "cancel"))
    words = [line.split()[1] for line in answer_commands(told)]
    assert words == ["answer", "answer", "respond", "restore", "cancel", "status"]


def test_an_id_with_blanks_is_quoted_for_the_shell_and_for_the_link() -> None:
    odd = alert().evolve(episode_id="my run; rm -rf ~", options=("continue",))
    assert shlex.split(answer_commands(odd)[0]) == ["tightloop", "answer", "my run; rm -rf ~", "continue"]
    assert episode_link("http://ui", "a b", odd.episode_id).endswith("/a%20b/workflows/my%20run%3B%20rm%20-rf%20~")


def test_the_timeline_says_how_long_it_took_or_why_it_failed() -> None:
    sent = Delivery(channel="ops", at=NOW, seconds=0.123, tries=2)
    assert delivery_line(alert(), sent) == "deviation alert sent to channel ops after 0.12 s on attempt 2"
    again = sent.evolve(known=True)
    assert delivery_line(alert(), again) == "deviation alert was already sent to channel ops at 12:00:00"
    failed = Delivery(channel="ops", error="the receiver returned 503", tries=8)
    assert (
        delivery_line(alert(), failed)
        == "deviation alert could not be sent to channel ops on attempt 8: the receiver returned 503"
    )


def test_the_signature_is_the_one_of_standard_webhooks() -> None:
    """The example of the specification and of its libraries."""
    headers = signature_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        at=1614265330,
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_by_default_alerts_go_to_the_log_only() -> None:
    channels = Settings().alerts.channels
    assert [channel.type for channel in channels.values()] == ["log"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{ops: {type: webhook}}", "alerts.channels.ops: a webhook requires either url or url_env"),
        ("{ops: {type: webhook, url: 'https://x', url_env: X}}", "requires either url or url_env"),
        ("{ops: {type: webhook, url: 'ftp://x'}}", "alerts.channels.ops: url must look like https://host/path"),
        ("{ops: {type: webhook, url: 'https://u:hunter22@x'}}", "without a username or password"),
        ("{ops: {type: log, secret_env: X}}", "only valid for a webhook, not for log"),
        ("{ops: {type: log, kinds: [deviaton]}}", "alerts.channels.ops.kinds[0] must be one of"),
        ("{ops: {type: log, timeout_s: 31}}", "a number, above 0, at most 30"),
        ("{ops: {type: log, kind: x}}", "Did you mean alerts.channels.ops.kinds?"),
    ],
)
def test_a_wrong_channel_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(f"alerts: {{channels: {text}}}", {})
    assert sentence in refused.value.message
    assert "hunter22" not in refused.value.message


@pytest.mark.parametrize(
    ("budget", "spent", "options"),
    [
        (Budget(max_iterations=5), Spent(iterations=5), "--iterations 5"),
        (Budget(max_tokens=10), Spent(input_tokens=12), "--tokens 100000"),
        (Budget(max_executor_failures=2), Spent(executor_failures=2), "--executor-failures 5"),
        (Budget(max_wall_time=timedelta(hours=1)), Spent(wall_time=timedelta(days=1)), "--wall-minutes 60"),
        (Budget(max_iterations=1, max_cost_usd=1), Spent(iterations=1, cost_usd=1.5), "--iterations 5 --cost-usd 1"),
    ],
)
def test_spent_budget_is_answered_by_raising_every_bound_that_is_reached(
    budget: Budget, spent: Spent, options: str
) -> None:
    question = guard_rails(EpisodeState(budget=budget, spent=spent), datetime.now(UTC)).question
    assert question is not None
    told = answer_commands(alert(AlertKind.BUDGET, reason=question.title))
    assert told[0] == f"tightloop top-up episode-1 {options}"
