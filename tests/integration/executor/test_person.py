"""A person as the executor: the plan in an inbox, a question that says where."""

import stat
from pathlib import Path

import pytest

from activities.executor.person import PersonExecutor
from tests.support.orders import Supervision, order, step
from tightloop.errors import ExecutorError
from tightloop.executor.model import ExecutorStatus
from tightloop.run.question import QuestionKind


def test_person_finds_the_whole_plan_in_a_private_file_and_is_told_where(tmp_path: Path) -> None:
    made = order(tmp_path, step("ruff", "check", ".", title="Fix what ruff finds"), step(title="Write a note"))
    outcome = PersonExecutor().execute(made, Supervision(), tmp_path / "state")
    assert outcome.status is ExecutorStatus.NEEDS_PERSON
    assert outcome.question is not None
    assert outcome.question.kind is QuestionKind.WORK
    assert outcome.question.title == "Fix what ruff finds (and 1 more step)"
    (file,) = (tmp_path / "state" / "inbox").iterdir()
    assert file.read_text(encoding="utf-8") == made.prompt
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = "\n".join(outcome.question.evidence)
    assert str(file) in shown
    assert "1. Fix what ruff finds (run: ruff check .)" in "\n".join(outcome.question.evidence)
    assert "2. Write a note" in "\n".join(outcome.question.evidence)


def test_question_stays_small_however_long_the_plan_is(tmp_path: Path) -> None:
    made = order(tmp_path, *(step(*["word"] * 200, title=f"step {n} " + "x" * 400) for n in range(50)))
    outcome = PersonExecutor().execute(made, Supervision(), tmp_path / "state")
    assert outcome.question is not None
    assert len(outcome.question.title) <= 200
    assert sum(map(len, outcome.question.evidence)) <= 1_000
    assert "The whole plan is in " in "\n".join(outcome.question.evidence)


def test_plan_that_is_laid_again_replaces_the_first_and_follows_no_link(tmp_path: Path) -> None:
    inbox = tmp_path / "state" / "inbox"
    made = order(tmp_path)
    PersonExecutor().execute(made, Supervision(), tmp_path / "state")
    (file,) = inbox.iterdir()
    outside = tmp_path / "outside.md"
    outside.write_text("keep", encoding="utf-8")
    file.unlink()
    file.symlink_to(outside)
    PersonExecutor().execute(made, Supervision(), tmp_path / "state")
    assert outside.read_text(encoding="utf-8") == "keep"
    assert file.read_text(encoding="utf-8") == made.prompt
    assert list(inbox.iterdir()) == [file]


def test_inbox_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(ExecutorError, match="cannot write the plan to"):
        PersonExecutor().execute(order(tmp_path), Supervision(), tmp_path / "state")
