"""Whole courses by the rules alone: what only gets better is never paused, and what goes round always is."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.episode.test_episode import GREEN, REQUEST, record
from tightloop.episode.check import Check, CheckReport, FailedCheck, Verification, judge, progress, regress
from tightloop.episode.loop.decisions import NextAction, after_tracking
from tightloop.episode.loop.state_changes import begin_iteration, with_tracking, with_verification
from tightloop.episode.model import EpisodeState, Tracked
from tightloop.episode.progress.course import Iteration, observe
from tightloop.episode.progress.tracking import Tracking
from tightloop.episode.progress.work import Work, weigh_work
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.question import QuestionKind
from tightloop.safety.change.patch import FilePatch, Lines

DONE = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED)
CHECK = Check(run="make test")


def paused_at(course: list[tuple[str, str]]) -> int | None:
    """Return the iteration that pauses; each step is the text of a file and what the check prints about it."""
    state, before, text = EpisodeState(baseline_red=True), CheckReport(), ""
    for number, (after_text, output) in enumerate(course):
        result = judge(CHECK, tree=after_text, exit_code=1, timed_out=False, duration_s=0.1, output=output)
        report = CheckReport(tree=after_text, results=(result,))
        verification = Verification(
            tree=after_text,
            total=1,
            failed=(FailedCheck(name="make test"),),
            failed_count=1,
            signature=report.signature,
            progress=progress(before, report),
            regress=regress(before, report),
            same=before.signature == report.signature,
        )
        if number:
            patch = FilePatch("a.py", added=Lines(after_text.split("\n")), removed=Lines(text.split("\n")))
            work, touched = weigh_work([patch], state.memory.touched if state.memory else "", ())
            seen = after_text in state.trees[:-1]
            state = with_verification(begin_iteration(state), verification)
            iteration = Iteration(
                spent=state.spent,
                files_changed=int(after_text != text),
                work=work,
                touched=touched,
                tree_seen_before=seen,
                report=DONE,
                verification=verification,
                checks=report,
            )
            facts, memory = observe(state.memory, iteration)
            tracking = Tracking(
                files_changed=iteration.files_changed,
                went_on=facts.went_on,
                idle=work is Work.NOTHING or seen,
                memory=memory,
            )
            tracked = Tracked(tracking=tracking, checkpoint=record(number).evolve(tree=after_text))
            state = with_tracking(state.evolve(executor_status=DONE.status), tracked, verification)
            if after_tracking(state, REQUEST).action is NextAction.ASK:
                question = after_tracking(state, REQUEST).question
                assert question is not None
                assert question.kind is QuestionKind.REPEATED_ERROR
                return number
        before, text = report, after_text
    return None


words = st.from_regex(r"[a-z]{3,9}", fullmatch=True)
distinct = st.lists(words, min_size=2, max_size=14, unique=True)


@given(distinct, st.booleans())
def test_failing_set_that_shrinks_never_pauses(names: list[str], counter_only: bool) -> None:
    course = []
    for left in range(len(names), 0, -1):
        text = f"left = {left}" if counter_only else "\n".join(names[left:])
        course.append((text, "\n".join(f"FAILED {name}" for name in names[:left])))
    assert paused_at(course) is None


@given(distinct, words)
def test_lines_that_come_one_after_the_other_never_pause(names: list[str], output: str) -> None:
    course = [("\n".join(f"def {name}(): ..." for name in names[:n]), output) for n in range(len(names) + 1)]
    assert paused_at(course) is None


@given(st.lists(words, min_size=1, max_size=4, unique=True), words, st.integers(min_value=0, max_value=9))
def test_circle_of_trees_with_the_same_output_always_pauses(circle: list[str], output: str, number: int) -> None:
    course = [
        ("start()", output),
        *((f"{name}()", f"{output} at line {n * number}") for n, name in enumerate(circle * 5)),
    ]
    found = paused_at(course)
    assert found is not None
    assert found <= len(circle) + 5


def test_green_is_not_a_failure() -> None:
    state = with_verification(begin_iteration(EpisodeState()), GREEN)
    tracked = Tracked(tracking=Tracking(files_changed=1), checkpoint=record(1))
    assert with_tracking(state, tracked, GREEN).failures.last is None
