"""What is done about a delivery that was interrupted."""

from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.asking import MOST_CLAIMS, Crash, after_crash, crash_question, explain_crash
from tightloop.executor.model import OnCrash

crashes = st.builds(
    Crash,
    moved=st.booleans(),
    effects_outside=st.sampled_from(["", "the agent may reach the network"]),
    processes_ended=st.integers(0, 3),
    claims=st.integers(1, 9),
    session=st.sampled_from(["", "s1"]),
    can_tell=st.booleans(),
)


@given(st.sampled_from(OnCrash), crashes)
def test_only_what_cannot_take_effect_twice_is_delivered_again_without_a_person(policy: OnCrash, crash: Crash) -> None:
    todo = after_crash(policy, crash)
    if todo is OnCrash.RETRY:
        assert policy is OnCrash.RETRY
        assert not crash.moved
        assert not crash.effects_outside
        assert crash.claims < MOST_CLAIMS
    assert (todo is OnCrash.ASK) == (policy is OnCrash.ASK)


@given(crashes)
def test_question_keeps_within_its_bounds_and_a_bare_resume_does_nothing_twice(crash: Crash) -> None:
    question = crash_question(crash, "t" * 2_000).bounded
    assert question.default == "verify"
    assert set(crash.sentences) <= set(question.evidence)
    assert len(question.title) <= 600


def test_same_crash_is_told_in_the_same_words() -> None:
    first = Crash(moved=True, claims=1, session="s1", processes_ended=2)
    assert explain_crash(first) == explain_crash(first.evolve(session="s2", claims=2, processes_ended=0))
