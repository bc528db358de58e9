"""Whole courses by the rules alone: what only gets better is never paused, and what goes round always is."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.episode.test_episode import GREEN, REQUEST, record
from tightloop.episode.check import Check, CheckReport, FailedCheck, Verification, judge, progress, regress
from tightloop.episode.checkpoint import Tracked
from tightloop.episode.decisions import NextAction, after_tracking
from tightloop.episode.model import EpisodeState
from tightloop.episode.progress.course import Iteration, observe
from tightloop.episode.progress.tracking import TrackerMemory, Tracking
from tightloop.episode.progress.work import compare_words, weigh_work
from tightloop.episode.state_changes import begin_iteration, with_reported_doubt, with_tracking, with_verification
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.run.question import QuestionKind
from tightloop.safety.change.patch import FilePatch, Lines

DONE = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED)
CHECK = Check(run="make test")


def paused_at(course: list[tuple[str, str]]) -> int | None:
    """Return the iteration that pauses; each step is the text of a file and what the check prints about it."""
    return followed(course)[1]


def followed(course: list[tuple[str, str]]) -> tuple[int | None, int | None]:
    """Return the first iteration after which people are told of the checks, and the one that pauses."""
    told: int | None = None
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
            known = state.memory or TrackerMemory()
            work, touched = weigh_work([patch], known.touched, ())
            news, other, heard = compare_words([patch], output, known.heard)
            seen = after_text in state.trees[:-1]
            state = with_verification(begin_iteration(state), verification)
            iteration = Iteration(
                spent=state.spent,
                files_changed=int(after_text != text),
                work=work,
                touched=touched,
                news=news,
                other=other,
                heard=heard,
                tree_seen_before=seen,
                report=DONE,
                verification=verification,
                checks=report,
            )
            facts, memory = observe(state.memory, iteration)
            tracking = Tracking(
                files_changed=iteration.files_changed,
                went_on=facts.went_on,
                doubtful=facts.doubtful,
                unproven=facts.unproven,
                idle=after_text == text or seen or facts.worse,
                memory=memory,
            )
            tracked = Tracked(tracking=tracking, checkpoint=record(number).evolve(tree=after_text))
            state = with_tracking(state.evolve(executor_status=DONE.status), tracked, verification)
            decision = after_tracking(state, REQUEST)
            if decision.action is NextAction.ASK:
                assert decision.question is not None
                assert decision.question.kind is QuestionKind.REPEATED_ERROR
                return told, number
            if decision.action is NextAction.TELL:
                assert told is None, "once without progress in between"
                told, state = number, with_reported_doubt(state)
        before, text = report, after_text
    return told, None


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


@given(distinct, st.lists(words, min_size=1, max_size=3, unique=True), st.data())
def test_new_lines_do_not_hide_that_the_checks_show_no_progress(
    names: list[str], failures: list[str], data: st.DataObject
) -> None:
    """Whatever is written, in whatever order known failures come back, and with whatever numbers: people hear of it."""
    said = [f"{word.upper()} failed at line 1" for word in ("it", *failures)]
    for _ in range(6):
        failure, number = data.draw(st.sampled_from(failures)), data.draw(st.integers(min_value=0, max_value=99))
        said.append(f"{failure.upper()} failed at line {number}")
    course = [("\n".join(f"def {names[0]}_{n}(): ..." for n in range(at)), output) for at, output in enumerate(said)]
    told, paused = followed(course)
    noticed = told if told is not None else paused
    assert noticed is not None
    assert noticed <= len(failures) + 5


@given(distinct)
def test_failure_that_is_another_one_each_time_is_progress_where_work_is_behind_it(names: list[str]) -> None:
    course = [
        ("\n".join(f"def done_{n}(): ..." for n in range(at)), f"cannot find {name}") for at, name in enumerate(names)
    ]
    assert followed(course) == (None, None)


def test_doubt_pauses_where_it_comes_back_after_people_were_told() -> None:
    tries = ["", *(f"{letter}()" for letter in "abcabdacbdab")]
    course = [(text, "it does not start") for text in (f"limit = {n}" for n in range(len(tries)))]
    assert followed(course) == (4, 7)


def test_tree_that_never_changes_and_checks_that_only_get_worse_pause_at_once() -> None:
    assert followed([("a()", "it does not start")] * 6) == (None, 3)


def test_green_is_not_a_failure() -> None:
    state = with_verification(begin_iteration(EpisodeState()), GREEN)
    tracked = Tracked(tracking=Tracking(files_changed=1), checkpoint=record(1))
    assert with_tracking(state, tracked, GREEN).failures.last is None
