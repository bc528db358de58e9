"""The journal of turns: an answer is paid for once, and a future that was given up leaves nothing behind."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from activities.coder.turns import StoredTurn, TurnTaker, write_turn
from activities.model.gateway.wire import Wire
from tests.support.coder_turns import Conversing, conversing
from tests.support.dying.turn import Death
from tests.support.fake_model import FakeCoderModel, use
from tightloop.coder.model import Turn
from tightloop.errors import ArtifactCorruptError, ArtifactError, ArtifactMissingError

READ = ("read_file", {"path": "src/shop.py", "start": None})
EDIT = ("edit_file", {"path": "src/shop.py", "old": "a", "new": "b"})
FINISH = ("finish", {"summary": "done"})


def taken(workspace: Path, model: FakeCoderModel, death: Death) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "tests.support.dying.turn", str(workspace), model.base_url(Wire.CHAT), death)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("death", "paid"),
    [(Death.STREAM, 2), (Death.BEFORE_NODE, 2), (Death.BEFORE_JOURNAL, 2), (Death.BEFORE_RETURN, 1)],
)
def test_killed_turn_is_paid_again_only_where_its_answer_was_not_written(
    workspace: Path, death: Death, paid: int
) -> None:
    with FakeCoderModel(use(READ, text="I look at it.")) as model:
        assert taken(workspace, model, death).returncode == -signal.SIGKILL
        again = taken(workspace, model, Death.NEVER)
        once_more = taken(workspace, model, Death.NEVER)
    assert again.returncode == 0, again.stderr
    assert again.stdout == once_more.stdout
    assert [call.tool for call in Turn.model_validate_json(again.stdout).calls] == ["read_file"]
    assert model.paid == (paid,)


def test_turn_killed_five_times_after_the_journal_is_paid_once(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        codes = {taken(workspace, model, Death.BEFORE_RETURN).returncode for _ in range(5)}
    assert codes == {-signal.SIGKILL}
    assert model.paid == (1,)


async def test_retried_turn_is_returned_from_the_journal(workspace: Path) -> None:
    with FakeCoderModel(use(READ), use(FINISH)) as model:
        session = conversing(workspace, model)
        await session.turn()
        request = session.request("text")
        assert await session.take(request) == await session.take(request)
    assert model.paid == (1, 1)


@pytest.mark.parametrize("name", ["small-one", "large-one"])
async def test_the_model_that_was_asked_for_takes_the_turn(workspace: Path, name: str) -> None:
    with FakeCoderModel(use(READ)) as model:
        session = conversing(workspace, model)
        await session.take(session.request(), model=name)
    assert [request.body["model"] for request in model.requests] == [name]


async def test_delivery_that_goes_on_with_a_session_does_not_pay_again(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        session = conversing(workspace, model)
        first = await session.take(session.request())
        again = await session.take(
            session.request().evolve(scope=session.scope.evolve(key="delivery-2", put_back=True))
        )
    assert first == again
    assert model.paid == (1,)


async def test_discarded_future_is_removed_with_its_calls(workspace: Path) -> None:
    with FakeCoderModel(use(READ), use(EDIT), use(EDIT), use(FINISH)) as model:
        session = conversing(workspace, model)
        await session.turn()
        node = session.node
        await session.turn("old")
        await session.turn("done")
        for name in ("call-0001-0.json", "call-0002-0.json", "call-0003-11.json"):
            (session.folder / name).write_text("{}")
        session.number, session.node = 1, node
        turn = await session.turn("new")
    assert [call.tool for call in turn.calls] == ["finish"]
    assert sorted(path.name for path in session.folder.iterdir()) == [
        "call-0001-0.json",
        "turn-0001.json",
        "turn-0002.json",
    ]
    assert TurnTaker.read(session.folder, 2).turn == turn


async def test_half_discarded_future_is_discarded_by_the_next_attempt(workspace: Path) -> None:
    with FakeCoderModel(use(READ), use(EDIT), use(FINISH)) as model:
        session = conversing(workspace, model)
        await session.turn()
        node = session.node
        await session.turn("old")
        # Turn 3 and the call of turn 2 went before the process died.
        session.number, session.node = 1, node
        await session.turn("new")
    assert [path.name for path in sorted(session.folder.glob("turn-*"))] == ["turn-0001.json", "turn-0002.json"]


async def test_late_answer_of_a_run_that_was_given_up_changes_nothing(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        late = conversing(workspace, model)
        task = asyncio.create_task(late.take(late.request()))
        # While the first answer is on its way, the journal gets the turn of another run.
        stored = StoredTurn(input="another", turn=Turn(number=1, node=late.put("another plan")))
        while not model.requests:
            await asyncio.sleep(0)
        write_turn(late.folder, stored)
        with pytest.raises(ArtifactError, match="another run has taken turn"):
            await task
    assert TurnTaker.read(late.folder, 1) == stored


async def test_problem_costs_one_request_and_is_kept(workspace: Path) -> None:
    with FakeCoderModel(use(("nothing", {}))) as model:
        session = conversing(workspace, model)
        first = await session.take(session.request())
        again = await session.take(session.request())
    assert first == again
    assert first.problem.startswith("Unknown tool")
    assert TurnTaker.read(session.folder, 1).calls == ()
    assert model.paid == (1,)


async def test_damaged_entry_is_not_paid_again_but_reported(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        session = conversing(workspace, model)
        await session.turn()
        (session.folder / "turn-0001.json").write_text("{")
        session.number, session.node = 0, None
        with pytest.raises(ArtifactCorruptError, match=r"turn-0001.json is damaged"):
            await session.turn()
    assert model.paid == (1,)


def test_missing_turn_is_named(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissingError, match="turn 3 is not in the journal"):
        TurnTaker.read(tmp_path, 3)


async def test_journal_is_private(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        session: Conversing = conversing(workspace, model)
        await session.turn()
    assert session.folder.stat().st_mode & 0o077 == 0
    assert (session.folder / "turn-0001.json").stat().st_mode & 0o077 == 0
