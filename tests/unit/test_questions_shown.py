"""Questions as people see them: the order of their options, what they name, and what a bare `resume` does."""

import pytest

from tests.support.questions import Asked, every_question
from tightloop.episode.control import question_lines as details_of
from tightloop.run.question import Option, OptionGroup, QuestionKind, in_order

EVERY = every_question()
GROUPS = tuple(OptionGroup)
SAFE_DEFAULTS = {
    QuestionKind.OPERATOR: {"resume", "wait"},
    QuestionKind.REPEATED_ERROR: {"continue"},
    QuestionKind.DEVIATION: {"continue"},
    QuestionKind.FATAL: {"retry"},
    QuestionKind.LIMIT: {"retry", "resume"},
    QuestionKind.PROOF: {"work"},
    QuestionKind.PLANNER_GAVE_UP: {"retry"},
    QuestionKind.IMPOSSIBLE: {"work"},
    QuestionKind.CRASH: {"verify"},
    QuestionKind.DRIFT: {"keep"},
    QuestionKind.UNMET: {"retry"},
    QuestionKind.ALREADY_GREEN: {"continue"},
}
"""What a bare `resume` may choose: nothing that discards work, spends a larger budget, or repeats a delivery or a step.
`retry` runs an activity or a check that could not run.
"""


def test_every_kind_of_question_is_among_them() -> None:
    assert {asked.question.kind for asked in EVERY} == set(QuestionKind)
    assert len(EVERY) >= 40


@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.question.title[:40])
def test_options_stand_in_one_order_and_say_what_they_do(asked: Asked) -> None:
    options = asked.question.options
    places = [GROUPS.index(option.group) for option in options]
    assert places == sorted(places)
    assert all(option.effect for option in options)
    commands = [line for line in asked.lines if line.startswith("  tightloop answer ")]
    assert [line.split()[3] for line in commands] == [option.name for option in options]


@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.question.title[:40])
def test_a_bare_resume_neither_discards_nor_repeats_work(asked: Asked) -> None:
    default, kind = asked.question.default, asked.question.kind
    assert not default or default in SAFE_DEFAULTS.get(kind, set())
    chosen = [option for option in asked.question.options if option.name == default]
    assert all(option.group is OptionGroup.GO_ON for option in chosen)


def test_custom_options_stand_before_those_that_stop() -> None:
    stop, custom = Option(name="reject", group=OptionGroup.STOP), Option(name="canary", group=OptionGroup.ACCEPT)
    assert in_order((stop, custom, Option(name="retry"))) == (Option(name="retry"), custom, stop)


@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.question.title[:40])
def test_a_question_about_a_change_shows_it_and_offers_that_a_person_asked_for_it(asked: Asked) -> None:
    change = asked.question.change
    has_files = change is not None and bool(change.files)
    assert ("asked" in asked.question.names) == has_files
    if change is not None:
        for line in change.lines:
            assert f"  | {line}" in asked.lines
            assert f"    {line}" in details_of(asked.question)


def test_a_long_diff_is_shown_in_part_with_the_command_for_the_rest() -> None:
    from tightloop.safety.change.patch import show_change

    body = "".join(f"+line {number}\n" for number in range(100))
    patch = (
        f"diff --git a/a.py b/a.py\nindex {'0' * 40}..{'2' * 40}\n--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,100 @@\n{body}"
    )
    change = show_change(patch, ["a.py"], "git diff 1 2")
    assert len(change.lines) == 40
    assert change.text[-1] == "... and 63 more lines. Show all of them: git diff 1 2"
    [version] = change.files
    assert (version.path, version.before, version.after) == ("a.py", "", "2" * 40)
