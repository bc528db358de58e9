"""The two messages survive rendering and parsing, take what models write, and refuse what is incomplete."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.errors import MessageError
from tightloop.executor.message import (
    Alignment,
    PlanMessage,
    PlannedStep,
    PlanRequestMessage,
    Reflection,
    Section,
    parse_plan,
    parse_plan_request,
    problems_of,
    render_plan,
    render_plan_request,
)

AWKWARD_LINES = (
    *(f"[{section.value}]" for section in Section),
    "[PLAN]",
    "[PLAN] with text",
    "## [PLAN]",
    "**[PLAN]**",
    "[project]",
    "\\[PLAN]",
    "\\\\[🪞 REFLECTION] x",
    "- ",
    "- - item",
    "* item",
    "1. item",
    "    - deep",
    "run: ",
    'run: ["a"]',
    "\\run: x",
    "\\",
    "\\\\run:",
    "diagnosis: x",
    "action_items:",
    "yes // no // yes",
    "```",
    '"quoted"',
    "'quoted'",
    '"',
    "",
    "   ",
    "trailing  ",
    "a\u2028b",
    "a\x0cb",
    "a\x85b",
    "\ufeff",
    "👩‍💻 🗺️",
    "\x00",
    "\ud800 half",
    "\u200b[PLAN]",
    "\tTab",
    "[✅ ALIGNMENT_CHECK] yes // no",
    "%}{{ x }}",
    "مرحبا\u200f",
)
pieces = st.one_of(st.sampled_from(AWKWARD_LINES), st.text(max_size=12))
texts = st.lists(pieces, max_size=5).map("\n".join)
filled = texts.filter(lambda text: bool(Reflection(diagnosis=text).diagnosis))
items = st.lists(texts, max_size=3).map(tuple)
reflections = st.builds(Reflection, diagnosis=filled, action_items=st.lists(filled, min_size=1, max_size=3).map(tuple))
alignments = st.builds(Alignment, answer=st.sampled_from(["yes", "no"]), rationale=filled)
steps = st.builds(PlannedStep, title=texts, run=st.lists(pieces, max_size=3).map(tuple))
counts = st.integers(min_value=-1000, max_value=10**12)
plans = st.builds(
    PlanMessage,
    project=filled,
    goal=filled,
    iteration=counts,
    definition_of_done=items,
    context=texts,
    steps=st.lists(steps, max_size=3).map(tuple),
    scope=items,
    final=st.booleans(),
    reflection=reflections,
    alignment=alignments,
).filter(lambda plan: plan.final or bool(plan.steps))
requests = st.builds(
    PlanRequestMessage,
    project=filled,
    goal=filled,
    iteration=counts,
    outcome=filled,
    report=texts,
    changes=items,
    checks=items,
    history=items,
    questions=items,
    reflection=reflections,
    alignment=alignments,
)

OPENING = "[PROJECT] p\n[CURRENT GOAL] g\n"
PLAN = OPENING + "[PLAN]\n- s\n"
ENDING = "[REFLECTION]\ndiagnosis: d\naction_items:\n- a\n[ALIGNMENT_CHECK] yes // fine\n"


@given(plans)
def test_plan_message_is_the_same_after_rendering_and_parsing(message: PlanMessage) -> None:
    assert parse_plan(render_plan(message)) == message


@given(requests)
def test_plan_request_is_the_same_after_rendering_and_parsing(message: PlanRequestMessage) -> None:
    assert parse_plan_request(render_plan_request(message)) == message


@given(plans)
def test_windows_line_ends_change_nothing(message: PlanMessage) -> None:
    assert parse_plan(render_plan(message).replace("\n", "\r\n")) == message


@given(plans)
def test_rendered_message_can_be_stored_as_utf8(message: PlanMessage) -> None:
    assert parse_plan(render_plan(message).encode("utf-8").decode("utf-8")) == message


def parsed_or_refusal(text: str) -> PlanMessage | str:
    try:
        return parse_plan(text)
    except MessageError as error:
        return error.message


@given(texts)
def test_any_text_is_parsed_or_refused_with_an_example(text: str) -> None:
    answer = parsed_or_refusal(f"{text}\n{ENDING}")
    assert answer.goal if isinstance(answer, PlanMessage) else "A correct message looks like this:" in answer


def test_plan_message_reads_like_the_template() -> None:
    message = PlanMessage(
        project="shop",
        goal="make the tests pass",
        iteration=3,
        definition_of_done=("pytest -q",),
        steps=(PlannedStep(title="format it", run=("ruff", "format", "a b.py")), PlannedStep(title="fix parse()")),
        scope=("shop/*.py",),
        reflection=Reflection(diagnosis='it "fails"', action_items=("fix parse()",)),
        alignment=Alignment(rationale="small and tested"),
    )
    assert render_plan(message) == (
        "[📂 PROJECT]\nshop\n\n"
        "[🗺️ CURRENT GOAL]\nmake the tests pass\n\n"
        "[🔁 ITERATION] 3\n\n"
        "[🎯 DEFINITION_OF_DONE]\n- pytest -q\n\n"
        '[📋 PLAN]\n- format it\n    run: ["ruff", "format", "a b.py"]\n- fix parse()\n\n'
        "[📁 SCOPE]\n- shop/*.py\n\n"
        "[🏁 CLAIM] not done yet\n\n"
        '[🪞 REFLECTION]\n  diagnosis: "it \\"fails\\""\n  action_items:\n    - fix parse()\n\n'
        "[✅ ALIGNMENT_CHECK] yes // small and tested\n"
    )


HAND_WRITTEN = """\
Sure, here is the plan.

## [PROJECT]
shop
[🗺 CURRENT GOAL] make the tests pass
**[ITERATION]** 7
[PLAN]
1. run the formatter
   run: ruff format "a b.py"
2. fix parse()
   and its test
* run: `ruff check --fix .`
[SCOPE]
  - shop/*.py
  - tests/*.py
[🏁 Claim]: done
[🪞 REFLECTION]
- **Diagnosis:** the "last" line is lost
- **Action Items:**
  - keep the last line
  - test it
[✅ ALIGNMENT CHECK]
YES - small and tested
"""


@pytest.mark.parametrize("text", [HAND_WRITTEN, HAND_WRITTEN.replace("\n", "\r\n"), "\ufeff" + HAND_WRITTEN])
def test_message_written_by_hand_is_understood(text: str) -> None:
    message = parse_plan(text)
    assert message.project == "shop"
    assert message.goal == "make the tests pass"
    assert message.iteration == 7
    assert message.steps == (
        PlannedStep(title="run the formatter", run=("ruff", "format", "a b.py")),
        PlannedStep(title="fix parse()\nand its test"),
        PlannedStep(title="ruff check --fix .", run=("ruff", "check", "--fix", ".")),
    )
    assert message.scope == ("shop/*.py", "tests/*.py")
    assert message.final
    assert message.reflection == Reflection(
        diagnosis='the "last" line is lost', action_items=("keep the last line", "test it")
    )
    assert message.alignment == Alignment(answer="yes", rationale="small and tested")


@pytest.mark.parametrize(
    "reflection",
    [
        "diagnosis: d\naction_items:\n- a",
        "diagnosis: 'd'\naction_items:\n  * a",
        '{"diagnosis": "d", "action_items": ["a"]}',
        '```json\n{"diagnosis": "d", "action_items": ["a"]}\n```',
        'diagnosis: "d"\naction_items: ["a"]',
        "diagnosis:\n  d\naction_items: a",
    ],
)
def test_reflection_is_understood_in_the_forms_that_models_use(reflection: str) -> None:
    text = f"{PLAN}[REFLECTION]\n{reflection}\n[ALIGNMENT_CHECK] yes // fine"
    assert parse_plan(text).reflection == Reflection(diagnosis="d", action_items=("a",))


@pytest.mark.parametrize(
    ("line", "answer", "rationale"),
    [
        ("yes // fine", "yes", "fine"),
        ("**No** — it deletes the tests", "no", "it deletes the tests"),
        ('Yes: "fine"', "yes", "fine"),
        ("no, // costs // a lot\nreally", "no", "costs // a lot\nreally"),
        ("yes // fine\n```", "yes", "fine"),
    ],
)
def test_alignment_check_is_understood_in_the_forms_that_models_use(line: str, answer: str, rationale: str) -> None:
    text = f"{PLAN}[REFLECTION]\ndiagnosis: d\naction_items:\n- a\n[ALIGNMENT_CHECK]\n{line}\n"
    alignment = parse_plan(text).alignment
    assert (alignment.answer, alignment.rationale) == (answer, rationale)


def test_lines_of_a_toml_file_in_a_report_open_no_section() -> None:
    message = parse_plan_request(f"{OPENING}[OUTCOME] completed\n[REPORT]\n[project]\nname = 1\n[plan]\n{ENDING}")
    assert message.report == "[project]\nname = 1\n[plan]"
    assert message.project == "p"


def test_command_over_several_lines_is_read_as_one() -> None:
    message = parse_plan(OPENING + '[PLAN]\n- lint\n  run: ["ruff",\n  "check"]\n' + ENDING)
    assert message.steps == (PlannedStep(title="lint", run=("ruff", "check")),)


def test_command_with_an_open_quote_is_split_at_spaces() -> None:
    message = parse_plan(f"{OPENING}[PLAN]\n- say\n  run: echo it's\n{ENDING}")
    assert message.steps[0].run == ("echo", "it's")


def test_refusal_names_everything_that_is_missing_at_once() -> None:
    with pytest.raises(MessageError) as refused:
        parse_plan("just do it")
    listed = [line for line in refused.value.message.split("\n") if line.startswith("- [")]
    assert listed == [
        "- [📂 PROJECT] is missing: write the name of the project",
        "- [🗺️ CURRENT GOAL] is missing: write the goal in one sentence",
        "- [📋 PLAN] is missing: write at least one step as a line starting with '- '",
        "- [🪞 REFLECTION] is missing: write a diagnosis and action_items",
        "- [✅ ALIGNMENT_CHECK] is missing: write yes or no, then ' // ' and the reason",
    ]


def test_refusal_names_empty_parts_and_a_wrong_answer() -> None:
    with pytest.raises(MessageError) as refused:
        parse_plan_request(
            "[PROJECT] p\n[CURRENT GOAL]\n[OUTCOME]\n\n[REFLECTION]\ndiagnosis:\n[ALIGNMENT_CHECK] yes | no // why"
        )
    listed = [line for line in refused.value.message.split("\n") if line.startswith("- [")]
    assert listed == [
        "- [🗺️ CURRENT GOAL] is empty: write the goal in one sentence",
        "- [📨 OUTCOME] is empty: write how the work ended, such as completed",
        "- [🪞 REFLECTION] has no diagnosis: write one sentence on why things are the way they are",
        "- [🪞 REFLECTION] has no action_items: write at least one line starting with '- '",
        "- [✅ ALIGNMENT_CHECK] must be yes or no, followed by ' // ' and the reason, got 'yes | no // why'",
    ]


GAPS = {
    "[PROJECT] p\n": ("[📂 PROJECT] is missing", "both"),
    "[CURRENT GOAL] g\n": ("[🗺️ CURRENT GOAL] is missing", "both"),
    "[PLAN]\n- s\n": ("[📋 PLAN] is missing", "plan"),
    "[OUTCOME] completed\n": ("[📨 OUTCOME] is missing", "request"),
    "diagnosis: d\n": ("[🪞 REFLECTION] has no diagnosis", "both"),
    "action_items:\n- a\n": ("[🪞 REFLECTION] has no action_items", "both"),
    "[REFLECTION]\ndiagnosis: d\naction_items:\n- a\n": ("[🪞 REFLECTION] is missing", "both"),
    "[ALIGNMENT_CHECK] yes // fine\n": ("[✅ ALIGNMENT_CHECK] is missing", "both"),
    " // fine": ("[✅ ALIGNMENT_CHECK] has no rationale", "both"),
}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("kind", ["plan", "request"])
def test_each_gap_is_named_alone(kind: str, gap: str) -> None:
    words, concerns = GAPS[gap]
    parse = parse_plan if kind == "plan" else parse_plan_request
    whole = (PLAN if kind == "plan" else OPENING + "[OUTCOME] completed\n") + ENDING
    assert parse(whole).goal == "g"
    if concerns not in ("both", kind):
        return
    with pytest.raises(MessageError) as refused:
        parse(whole.replace(gap, "", 1))
    listed = [line for line in refused.value.message.split("\n") if line.startswith("- [")]
    assert len(listed) == 1
    assert listed[0].startswith(f"- {words}")


def test_plan_without_steps_is_fine_where_the_work_is_claimed_done() -> None:
    assert parse_plan(f"{OPENING}[CLAIM] done\n{ENDING}").final
    with pytest.raises(MessageError, match=r"\[📋 PLAN\] is empty"):
        parse_plan(f"{OPENING}[PLAN]\n- \n-  \n{ENDING}")


def test_refusal_asks_for_a_rationale() -> None:
    with pytest.raises(MessageError, match=r"\[✅ ALIGNMENT_CHECK\] has no rationale: write it after '//'"):
        parse_plan(f"{PLAN}[REFLECTION]\ndiagnosis: d\naction_items:\n- a\n[ALIGNMENT_CHECK] yes")


def test_example_in_a_refusal_is_itself_a_right_message() -> None:
    for parse in (parse_plan, parse_plan_request):
        with pytest.raises(MessageError) as refused:
            parse("")
        example = refused.value.message.partition("A correct message looks like this:\n")[2]
        assert parse(example).alignment.rationale


def test_problems_are_sentences_that_name_the_section() -> None:
    assert problems_of(Reflection(diagnosis="d", action_items=("a",)), Alignment(rationale="r")) == ()
    assert len(problems_of(Reflection(), Alignment())) == 3
    assert len(problems_of(Reflection(), None)) == 2


def test_white_space_and_empty_items_do_not_count_as_content() -> None:
    assert Reflection(diagnosis=" \n\u2028").diagnosis == ""
    assert Reflection(action_items=("", "  ", " a\r\n")).action_items == ("a",)
    assert PlanMessage(steps=(PlannedStep(title=" "), PlannedStep(title="do it"))).steps == (
        PlannedStep(title="do it"),
    )


def test_step_without_a_title_is_called_by_its_command() -> None:
    step = PlannedStep.model_validate({"title": "", "run": ["ruff", "check"]})
    assert step.title == "ruff check"
