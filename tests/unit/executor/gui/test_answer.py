"""How the wait for the agent in a window ends, by its hooks and by what the window shows; the clock is scripted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.executor.gui import cursor_hook
from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.executor import OutcomeWaiter
from tests.support.gui.fake import EDITOR, Desktop, FakeDriver
from tests.support.orders import Supervision, order, step
from tightloop.executor.handoff import Target, file_message
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus
from tightloop.settings import WindowSettings

MESSAGE = file_message("episode-1/1/0123abcd", ".tightloop/handoff/plan.md", "the plan")
NOTICE = "Note: By default, we stop the agent after 25 tool calls. You can resume the conversation."
USAGE = "You've hit your usage limit. Try again in 5 hours."
ANSWER = "I have written three lines into log.txt."


class Watched:
    """One wait, in which things happen at chosen seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.desktop = folder, Desktop(windows=[EDITOR])
        CursorEvents(folder / "hooks", folder).expect(MESSAGE, str(folder))
        self.tell("beforeSubmitPrompt", prompt=MESSAGE.text)
        self.at: dict[float, Callable[[], None]] = {}

    def tell(self, name: str, **fields: Any) -> None:
        event = {"hook_event_name": name, "conversation_id": "c", "workspace_roots": [str(self.folder)], **fields}
        cursor_hook.handle(self.folder / "hooks", event)

    def stop(self, answer: str = ANSWER, *, shown: tuple[str, ...] = ()) -> None:
        self.show(*shown)
        self.tell("afterAgentResponse", text=answer)
        self.tell("stop", status="completed")

    def show(self, *texts: str) -> None:
        self.desktop.shown = (MESSAGE.text, *texts, "Plan, search, build anything")

    def sleep(self, seconds: float) -> None:
        self.desktop.sleep(seconds)
        for moment in [each for each in self.at if each <= self.desktop.clock]:
            self.at.pop(moment)()

    def wait(self) -> ExecutorOutcome:
        cursor = CursorEvents(self.folder / "hooks", self.folder / "transcripts")
        receipt = cursor.find(MESSAGE.id)
        assert receipt is not None
        chosen = WindowSettings()
        target = Target(
            apps=chosen.apps,
            title=chosen.title,
            project="demo",
            root=str(self.folder),
            box=chosen.box,
            chat_key=chosen.chat_key,
        )
        driver, asked = FakeDriver(self.desktop), order(self.folder, step("true"), idle_limit_s=900.0)
        clock = {"now": self.desktop.now, "sleep": self.sleep}
        return OutcomeWaiter(asked, receipt, cursor, driver, target, Supervision(None), **clock).wait()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.mark.parametrize(
    "shown",
    [
        ("Read README.md", NOTICE, ANSWER),
        ("Read README.md", USAGE, ANSWER),
        (f"The README says:\n{NOTICE}",),
        (NOTICE,),
    ],
    ids=["notice-in-a-file", "usage-in-a-file", "quoted", "quoted-alone"],
)
def test_notice_that_a_repository_quotes_does_not_end_a_turn(watched: Watched, shown: tuple[str, ...]) -> None:
    quoted = f"The README says:\n{NOTICE}\n{ANSWER}"
    watched.at[1.0] = lambda: watched.stop(quoted, shown=shown)
    outcome = watched.wait()
    assert (outcome.status, outcome.limit) == (ExecutorStatus.COMPLETED, None)


def test_notice_below_the_answer_is_a_limit_of_low_trust(watched: Watched) -> None:
    watched.at[1.0] = lambda: watched.stop(shown=("Read README.md", ANSWER, NOTICE))
    outcome = watched.wait()
    assert outcome.status is ExecutorStatus.LIMIT_HIT
    assert outcome.limit is not None
    assert (outcome.limit.source, outcome.limit.confidence) == ("screen", 0.5)
    assert outcome.limit.evidence.startswith("on the screen (low confidence): By default, we stop")


@pytest.mark.parametrize("text", [NOTICE, USAGE])
def test_agent_at_work_is_not_ended_by_what_its_tools_show(watched: Watched, text: str) -> None:
    ran = ("Ran: cat README.md; make test", text)
    watched.show(*ran)
    watched.at[50.0] = lambda: watched.stop(shown=(*ran, ANSWER))
    assert watched.wait().status is ExecutorStatus.COMPLETED


def test_notice_after_which_no_hook_tells_anything_is_a_limit(watched: Watched) -> None:
    watched.show(NOTICE)
    assert watched.wait().status is ExecutorStatus.LIMIT_HIT
    assert watched.desktop.clock > 60


def test_other_notices_do_not_end_a_turn_that_has_no_end(watched: Watched) -> None:
    watched.show(USAGE)
    outcome = watched.wait()
    assert outcome.status is ExecutorStatus.NEEDS_PERSON
    assert watched.desktop.clock > 900
