"""Answers about changes hold for the content that a person saw, and for nothing else."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tightloop.safety.approval import APPROVALS_LIMIT, Approval, FileVersion, find_approval, with_approval


def change(before: str, after: str, path: str = "t.py") -> FileVersion:
    return FileVersion(path=path, before=before, after=after)


def approval(before: str, after: str, *, asked: bool = True, by: str = "ada") -> Approval:
    return Approval(files=(change(before, after),), by=by, asked=asked)


def test_the_same_change_is_covered_and_any_other_is_not() -> None:
    approvals = (approval("1", "2"),)
    assert find_approval(approvals, change("1", "2")) == approvals[0]
    assert find_approval(approvals, change("1", "3")) is None
    assert find_approval(approvals, change("0", "2")) is None
    assert find_approval(approvals, change("1", "2", "u.py")) is None


def test_several_answers_cover_what_they_lead_to_together() -> None:
    approvals = (approval("1", "2"), approval("2", "3", by="bob"))
    covering = find_approval(approvals, change("1", "3"))
    assert covering is not None
    assert covering.by == "bob"
    # A discarded branch does not stand in the way of a later answer.
    assert find_approval((approval("1", "2"), approval("1", "4")), change("1", "4")) is not None


def test_what_was_only_let_pass_was_not_asked_for() -> None:
    for order in ((False, True), (True, False)):
        approvals = (approval("1", "2", asked=order[0]), approval("2", "3", asked=order[1]))
        covering = find_approval(approvals, change("1", "3"))
        assert covering is not None
        assert not covering.asked


@given(st.lists(st.tuples(st.sampled_from("123"), st.sampled_from("123"))), st.sampled_from("123"))
def test_a_content_that_nobody_saw_is_never_covered(steps: list[tuple[str, str]], before: str) -> None:
    approvals = tuple(approval(*step) for step in steps)
    assert find_approval(approvals, change(before, "never seen")) is None


def test_the_sentence_names_the_person_the_files_and_the_time() -> None:
    files = tuple(change("1", "2", f"tests/test_{name}.py") for name in "abcde")
    at = datetime(2026, 3, 2, 14, 3, tzinfo=UTC)
    named = "tests/test_a.py, tests/test_b.py, tests/test_c.py and 2 more files"
    assert Approval(files=files, by="ada", at=at, asked=True).sentence == (
        f"ada asked for the change to {named} at 2026-03-02 14:03 UTC"
    )


def test_answers_are_bounded_and_kept_once() -> None:
    approvals: tuple[Approval, ...] = ()
    for number in range(APPROVALS_LIMIT + 5):
        approvals = with_approval(approvals, approval("1", str(number)))
    assert len(approvals) == APPROVALS_LIMIT
    assert with_approval(approvals, approvals[0]) == approvals
    assert with_approval(approvals, Approval(files=(), by="ada")) == approvals
