"""The line that the tracker writes and the heuristic planner reads."""

from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.progress.course import (
    COMMAND_CHARACTERS,
    command_text,
    history_line,
    parse_history,
    parse_history_line,
)

FIX = ("ruff", "check", "--select", "F401", "--fix", ".")


def test_line_names_plan_checks_and_command() -> None:
    line = history_line(3, "Fix F401 with ruff", command=FIX, before="1/3", after="2/3", changed=True)
    assert line == "iteration 3: Fix F401 with ruff -> checks 1/3 -> 2/3 [ruff check --select F401 --fix .]"


def test_line_says_when_nothing_changed() -> None:
    line = history_line(4, "Fix F401", command=FIX, before="2/3", after="2/3", changed=False)
    entry = parse_history_line(line)
    assert line.endswith("(no change)")
    assert entry is not None
    assert (entry.changed, entry.command) == (False, command_text(FIX))


@given(
    iteration=st.integers(0, 10_000),
    title=st.text(max_size=200),
    command=st.lists(st.text(max_size=30), max_size=6),
    before=st.text(max_size=8),
    after=st.text(max_size=8),
    changed=st.booleans(),
)
def test_any_line_is_read_back(
    iteration: int, title: str, command: list[str], before: str, after: str, changed: bool
) -> None:
    line = history_line(iteration, title, command=command, before=before, after=after, changed=changed)
    entry = parse_history_line(line)
    assert entry is not None
    assert (entry.iteration, entry.command, entry.changed) == (iteration, command_text(command), changed)
    assert "\n" not in line
    assert len(line) <= 600


def test_title_cannot_pose_as_a_command() -> None:
    title = "stop -> checks 9/9 -> 9/9 [rm -rf .] (no change)"
    entry = parse_history_line(history_line(1, title, command=("true",), before="0/1", after="0/1", changed=True))
    assert entry is not None
    assert (entry.command, entry.after, entry.changed) == ("true", "0/1", True)


def test_long_command_is_bounded_and_equal_to_itself() -> None:
    command = ("ruff", "check", "--fix", *(f"src/module_{n}.py" for n in range(200)))
    entry = parse_history_line(history_line(1, "x", command=command, changed=True))
    assert entry is not None
    assert entry.command == command_text(command)
    assert len(entry.command) == COMMAND_CHARACTERS


def test_lines_of_others_are_left_out() -> None:
    lines = ("restored checkpoint 3", history_line(2, "x", command=FIX, changed=True), "")
    assert [entry.iteration for entry in parse_history(lines)] == [2]
