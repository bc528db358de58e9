"""The text form: every word has its place, and every plan can be written in it."""

import pytest

from tightloop.errors import PlanError, Position
from tightloop.plan.document import Plan
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan

TEXT = """\
# Tidy the client before the release.
plan tidy "Tidy \\"the\\" client"
  max_parallel: 2
  definition_of_done:
    - make test

task lint "Lint" kind:validate
  needs: build docs
  input:
    level: strict
  run: |
    on failure -> this line belongs to the command
    make lint
  expect:
    - "${exit_code} == 0"
  on failure -> repair
  on success -> publish tell  # both

task build
task docs
task repair
task publish
task tell
"""


def test_every_word_of_the_text_form_has_its_meaning() -> None:
    plan = read_plan(TEXT).plan
    lint = plan.steps[0]
    assert (plan.title, plan.max_parallel, plan.definition_of_done[0].run) == ('Tidy "the" client', 2, "make test")
    assert (lint.title, lint.kind, lint.needs, lint.inputs) == (
        "Lint",
        "validate",
        ("build", "docs"),
        {"level": "strict"},
    )
    assert lint.shell
    assert lint.shell.run == "on failure -> this line belongs to the command\nmake lint\n"
    assert lint.on_failure
    assert (lint.on_failure.to, lint.on_success) == ("repair", ("publish", "tell"))


def test_positions_in_the_text_form_are_those_of_the_file() -> None:
    read = read_plan(TEXT)
    assert read.where(("steps", 0, "id")) == Position(7, 6)
    assert read.where(("steps", 0, "title")) == Position(7, 12)
    assert read.where(("steps", 0, "kind")) == Position(7, 23)
    assert read.where(("steps", 0, "needs", 1)) == Position(8, 16)
    assert read.where(("steps", 0, "on_failure", "to")) == Position(16, 17)
    assert read.where(("steps", 0, "on_success", 1)) == Position(17, 25)
    assert read.where(("definition_of_done", 0)) == Position(5, 7)


def test_tasks_without_a_plan_header_are_named_after_their_file() -> None:
    assert read_plan("task a\n", name="plans/clean up.plan").plan.id == "clean-up"
    assert read_plan("task a\n").plan.id == "plan"


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm() -> None:
    assert read_plan("\ufeff" + TEXT.replace("\n", "\r\n")).plan.steps[1:] == read_plan(TEXT).plan.steps[1:]
    assert read_plan('\ufeff{"id": "p", "steps": []}').plan.id == "p"


def test_what_has_no_word_of_its_own_is_written_as_fields() -> None:
    plan = Plan.model_validate(
        {
            "id": "p",
            "steps": [
                {"id": "a", "shell": {"run": "x", "folder": "src"}, "on_failure": {"to": "b", "recovers": False}},
                {"id": "b", "title": 'say "hi" \\ \u2028 😀', "subplan": {"steps": [{"id": "c", "needs": []}]}},
            ],
        }
    )
    text = write_plan(plan, "dsl")
    assert read_plan(text).plan == plan
    assert "  shell:\n    run: x\n    folder: src\n" in text
    assert "on failure ->" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('task a "open\n', "1:8: the title has no closing quote."),
        ("task a\n  - x\n", "2:1: expected fields below 'task a'. Write `key: value` lines."),
        ("task a\n  needs: b\n  on success -> b\n  on success -> c\n", "4:3: duplicate 'on success'."),
        ("plan p\nplan q\n", "2:1: duplicate `plan` header."),
        ("task a kind:tool kind:tool\n", "1:18: duplicate 'kind' in the header. Remove one."),
        ("task a\n  needs: [b\n", "2:10: a bracket is not closed"),
        ('task a "bad \\q"\n', "1:9: the title"),
        ("task a\n  on failure -> \n", "2:3: missing step id after 'on failure ->'. Add a step id after the arrow."),
    ],
)
def test_mistakes_in_the_text_form_are_named_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(text)
    assert message in refused.value.message
