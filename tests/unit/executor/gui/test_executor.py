"""The executor `cursor-gui` on a desktop in memory, with the real ledger and the real hook."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.executor.gui import cursor, cursor_hook
from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.executor import CursorGuiExecutor
from activities.executor.gui.port import Health
from tests.support.gui.fake import EDITOR, Calls, Desktop, FakeDriver, Killed, kill, leading_marker
from tests.support.orders import Supervision, order, step
from tightloop.errors import ExecutorError
from tightloop.executor.asking import RETRY
from tightloop.executor.handoff import Message
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus
from tightloop.run.question import QuestionKind
from tightloop.settings import WindowSettings


class Stage:
    """An executor whose agent acknowledges by hook, and answers when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "demo"
        self.root.mkdir()
        self.opened = self.root
        """Folder that the editor has open."""
        self.folder = folder / "gui"
        (folder / "transcripts").mkdir()
        self.desktop = Desktop(windows=[EDITOR])
        self.desktop.on_submit = self.take
        self.settings = WindowSettings(transcripts=str(folder / "transcripts"))
        self.answers = True
        self.health = Health()

    def executor(self, calls: Calls | None = None, **changes: Any) -> CursorGuiExecutor:
        def open_driver(_settings: WindowSettings) -> FakeDriver:
            driver = FakeDriver(self.desktop, calls)
            driver.health = self.health
            return driver

        return CursorGuiExecutor(self.settings, self.folder, open_driver, **{"refused_s": 0.0, **changes})

    def run(self, calls: Calls | None = None, *, options: Any = None, cancel: int | None = None) -> ExecutorOutcome:
        asked = order(self.root, step("true"), options=options, idle_limit_s=1.0)
        return self.executor(calls, patience_s=1.0).execute(asked, Supervision(cancel), self.folder)

    def take(self, text: str) -> None:
        self.tell("beforeSubmitPrompt", prompt=text)
        if self.answers:
            self.answer()

    def answer(self, status: str = "completed") -> None:
        self.tell("afterAgentResponse", text="I have done it.")
        self.tell("stop", status=status)

    def tell(self, name: str, **fields: Any) -> None:
        event = {"hook_event_name": name, "conversation_id": "c", "workspace_roots": [str(self.opened)], **fields}
        cursor_hook.handle(self.folder / "hooks", event)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    cursor.install()
    return Stage(tmp_path)


def test_plan_is_read_from_a_file_that_goes_with_the_end(stage: Stage) -> None:
    outcome = stage.run()
    assert (outcome.status, outcome.summary) == (ExecutorStatus.COMPLETED, "I have done it.")
    assert stage.desktop.submitted[0].isascii()
    assert list(stage.root.iterdir()) == []


def test_plan_can_be_pasted_whole(stage: Stage) -> None:
    assert stage.run(options={"inline": True}).status is ExecutorStatus.COMPLETED
    assert stage.desktop.submitted[0].endswith("]\nthe plan: ordentlich aufräumen")


def test_worker_that_dies_while_the_agent_works_goes_on_waiting_and_pastes_nothing(stage: Stage) -> None:
    stage.answers = False
    calls = Calls()
    with pytest.raises(Killed):
        stage.run(Calls(kinds={("press enter", 1): kill("after")}))
    asked = order(stage.root, step("true"))
    assert stage.executor().continues(asked, stage.folder)
    stage.answer()
    assert stage.run(calls).status is ExecutorStatus.COMPLETED
    assert len(stage.desktop.submitted) == 1
    assert "press mod+v" not in calls.names


def test_delivery_that_never_began_is_no_continuation(stage: Stage) -> None:
    assert not stage.executor().continues(order(stage.root, step("true")), stage.folder)


def test_nothing_that_tells_of_the_submission_asks_a_person(stage: Stage) -> None:
    stage.desktop.on_submit = None
    outcome = stage.run()
    assert outcome.status is ExecutorStatus.NEEDS_PERSON
    assert outcome.question is not None
    assert outcome.question.kind is QuestionKind.CRASH
    assert RETRY in [option.name for option in outcome.question.options]
    assert leading_marker(stage.desktop.submitted[0]) in " ".join(outcome.question.evidence)


def test_agent_that_tells_nothing_more_asks_a_person(stage: Stage) -> None:
    stage.answers = False
    outcome = stage.run()
    assert outcome.status is ExecutorStatus.NEEDS_PERSON
    assert outcome.question is not None
    assert outcome.question.kind is QuestionKind.WORK


@pytest.mark.parametrize(("status", "words"), [("aborted", "stopped in the editor"), ("error", "ended with 'error'")])
def test_turn_that_was_stopped_has_failed(stage: Stage, status: str, words: str) -> None:
    stage.answers = False
    take = stage.desktop.on_submit
    assert take is not None

    def on_submit(text: str) -> None:
        take(text)
        stage.answer(status)

    stage.desktop.on_submit = on_submit
    outcome = stage.run()
    assert (outcome.status, words in outcome.error) == (ExecutorStatus.FAILED, True)


def test_notice_of_a_limit_before_the_hand_off_is_none(stage: Stage) -> None:
    take = stage.desktop.on_submit
    assert take is not None

    def on_submit(text: str) -> None:
        stage.desktop.shown = ("Note: By default, we stop the agent after 25 tool calls.", text, "I have done it.")
        take(text)

    stage.desktop.on_submit = on_submit
    assert stage.run().status is ExecutorStatus.COMPLETED


def test_window_that_is_not_open_is_a_fault_of_the_setup(stage: Stage) -> None:
    stage.desktop.windows = []
    outcome = stage.run()
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)
    assert "Open the project folder in the editor" in outcome.error


def test_plan_in_another_checkout_of_the_same_name_is_reported_with_both_paths(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "other" / "demo"
    other.mkdir(parents=True)
    stage.opened, stage.desktop.acknowledges = other, False
    outcome = stage.run()
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)
    assert "wrong window" in outcome.error
    assert str(stage.root) in outcome.error
    assert str(other) in outcome.error
    assert list(other.iterdir()) == []


def test_order_that_is_cancelled_stops_waiting(stage: Stage) -> None:
    stage.answers = False
    assert stage.run(cancel=4).status is ExecutorStatus.CANCELLED


def test_doctor_is_told_what_stands_in_the_way(stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage.health = Health(problems=("the screen is locked. Unlock it",), version="display :1")
    seen = stage.executor().availability()
    assert (seen.usable, seen.reason, seen.version) == (False, "the screen is locked. Unlock it", "fake, display :1")
    stage.health = Health()
    assert stage.executor().availability().usable
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "tightloop hooks install" in stage.executor().availability().reason
    stage.settings = stage.settings.evolve(allow_unknown_roots=True)
    assert stage.executor().availability().usable, "transcripts are enough for its owner"


def test_link_of_a_hostile_repository_is_not_followed(stage: Stage, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (stage.root / ".tightloop").symlink_to(elsewhere)
    with pytest.raises(ExecutorError, match="points outside the working tree"):
        stage.run()
    assert list(elsewhere.iterdir()) == []
    assert stage.desktop.submitted == []


def test_unknown_option_is_refused(stage: Stage) -> None:
    with pytest.raises(ExecutorError, match="inlin"):
        stage.run(options={"inlin": True})


class Busy:
    """An agent that is still in its turn, after a report by MCP: its hook `stop` comes when the test says so."""

    def __init__(self, stage: Stage, *, episode: str = "episode-1") -> None:
        self.stage, self.said = stage, list[dict[str, Any]]()
        message = Message(id=f"{episode}/1/00000000", text=f"[tightloop handoff {episode}/1/00000000] Read it.")
        CursorEvents(stage.folder / "hooks", stage.folder).expect(message, str(stage.root))
        stage.tell("beforeSubmitPrompt", prompt=message.text)

    def stop(self, **fields: Any) -> dict[str, Any]:
        roots = [str(self.stage.opened)]
        event = {"hook_event_name": "stop", "conversation_id": "c", "workspace_roots": roots, "status": "completed"}
        return cursor_hook.handle(self.stage.folder / "hooks", {**event, **fields})


def run_meanwhile(stage: Stage, meanwhile: Callable[[], None], **changes: Any) -> ExecutorOutcome:
    """Execute an order of which something happens while it waits for the agent."""
    asked = order(stage.root, step("true"), idle_limit_s=1.0)
    timer = threading.Timer(0.5, meanwhile)
    timer.start()
    try:
        return stage.executor(patience_s=1.0, **changes).execute(asked, Supervision(None), stage.folder)
    finally:
        timer.join()


def test_next_plan_goes_with_the_end_of_the_turn_without_a_key(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.executor.gui.executor.RETRY_S", 0.1)
    agent = Busy(stage)

    def ends() -> None:
        given = agent.stop()["followup_message"]
        assert agent.stop() == {}, "it is given once"
        stage.take(given)

    outcome = run_meanwhile(stage, ends, refused_s=10.0)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert (stage.desktop.submitted, stage.desktop.box) == ([], ""), "nothing was pasted"


@pytest.mark.parametrize("stop", [{"status": "aborted"}, {"status": "error"}, {"loop_count": 5}])
def test_turn_that_a_person_stopped_or_that_went_on_too_often_takes_nothing(
    stage: Stage, stop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.executor.gui.executor.RETRY_S", 0.1)
    agent = Busy(stage)

    def ends() -> None:
        assert agent.stop(**stop) == {}

    assert run_meanwhile(stage, ends, refused_s=10.0).status is ExecutorStatus.COMPLETED
    assert len(stage.desktop.submitted) == 1, "it was pasted when the agent was idle"


def test_turn_of_another_episode_takes_nothing(stage: Stage) -> None:
    agent = Busy(stage, episode="another")
    assert stage.run().status is ExecutorStatus.FATAL
    assert agent.stop() == {}


def test_what_was_not_taken_in_time_is_taken_back(stage: Stage) -> None:
    agent = Busy(stage)
    outcome = stage.run()
    assert (outcome.status, "still working" in outcome.error) == (ExecutorStatus.FATAL, True)
    assert agent.stop() == {}


def test_prompt_that_was_given_and_never_came_asks_a_person(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.executor.gui.executor.RETRY_S", 0.1)
    agent = Busy(stage)
    outcome = run_meanwhile(stage, lambda: agent.said.append(agent.stop()), refused_s=10.0)
    assert (outcome.status, stage.desktop.submitted) == (ExecutorStatus.NEEDS_PERSON, [])
    assert outcome.question is not None
    assert RETRY in [option.name for option in outcome.question.options]
