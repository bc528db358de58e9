"""Plans are read from every form and spelling, and what is wrong is named with line, column and fix."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plan.strategies import plans
from tightloop.errors import PlanError, Position
from tightloop.plan.document import Plan
from tightloop.plan.failing import Recovery
from tightloop.plan.step import Capability, StepKind
from tightloop.plan.text.reading import TEXT_BYTES, ReadPlan, decode, read_plan
from tightloop.plan.text.writing import FORMS, write_plan
from tightloop.plan.validation import check_text

SEEDS = Path(__file__).parents[2] / "data" / "plans"


def refusal(text: str, name: str = "p.yaml") -> str:
    with pytest.raises(PlanError) as refused:
        read_plan(text, name=name)
    return refused.value.message


def seed(name: str) -> ReadPlan:
    return read_plan((SEEDS / name).read_text(encoding="utf-8"), name=name)


def warned(read: ReadPlan) -> str:
    return "\n".join(str(problem) for problem in read.warnings)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_a_written_plan_reads_back_as_the_same_plan_in_every_form(plan: Plan) -> None:
    for form in FORMS:
        assert read_plan(write_plan(plan, form)).plan == plan, form


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown plan format 'toml'"):
        write_plan(Plan(id="p"), "toml")


def test_the_text_form_holds_for_yaml_json_and_the_dsl_alike() -> None:
    as_yaml = "id: p\nsteps:\n- {id: a, shell: {run: make}}\n- {id: b, needs: [a]}\n"
    as_json = '{"id": "p",\n\t"steps": [{"id": "a", "shell": {"run": "make"}}, {"id": "b", "needs": ["a"]}]}'
    as_dsl = "# a comment\nplan p\n\ntask a  # built\n  run: make\ntask b\n  needs: a\n"
    first, second, third = (read_plan(text).plan for text in (as_yaml, as_json, as_dsl))
    assert first == second == third


@pytest.mark.parametrize("name", sorted(path.name for path in SEEDS.iterdir()))
def test_every_seed_reads_and_round_trips(name: str) -> None:
    read = seed(name)
    for form in FORMS:
        assert read_plan(write_plan(read.plan, form)).plan == read.plan


def test_a_task_with_a_full_contract_is_understood() -> None:
    read = seed("research-task.yaml")
    step = read.plan.steps[0]
    assert (read.plan.id, step.kind, step.inputs, step.timebox_s) == (
        "research",
        StepKind.RESEARCH,
        {"query": "congestion control over QUIC"},
        300.0,
    )
    assert step.search
    assert step.search.query == "${inputs.query}"
    assert (step.on_success, step.on_failure and step.on_failure.to) == (("rfc-summarize-1",), "research-broaden-1")
    assert step.failure_modes[0].recover is Recovery.ASK
    assert step.failure_modes[0].advice == "widen the query, add synonyms"
    assert len(step.expect) == 2
    assert (read.plan.artifacts[0].name, read.plan.artifacts[0].from_step) == ("sources", "rfc-collect-1")
    assert warned(read) == (
        "research-task.yaml:8:5: warning: 'status' is ignored in step 'rfc-collect-1'. "
        "Remove the field: the run tracks its state."
    )


def test_nodes_gates_and_memory_of_the_graph_form_are_understood() -> None:
    read = seed("research-graph.yaml")
    plan = read.plan
    assert [step.id for step in plan.steps][3:] == ["gaps-deep-dive-*", "validation-gate-1"]
    assert plan.steps[4].needs == ("rfc-summarize-1",)
    assert plan.created_at == "2025-10-30T00:00:00Z"
    gate = plan.steps[4].gate
    assert gate
    assert [check.prose for check in gate.checks][1] == ">= 2 independent confirmations"
    assert plan.memory == ("http3.terms", "http3.key_claims")
    assert {artifact.name: artifact.from_step for artifact in plan.artifacts}["gaps"] == "gaps-identify-1"
    assert (
        warned(read)
        == "research-graph.yaml:6:1: warning: 'state' is ignored. Remove the field: the run tracks its state."
    )


def test_budgets_files_and_policies_of_the_json_sketch_are_understood() -> None:
    read = seed("build-search.json")
    research = read.plan.steps[1]
    assert (research.needs, research.timebox_s, research.budget.max_cost_usd) == (("intake-01",), 1800.0, 5.0)
    assert research.outputs == {"cache-q1-json": "file:.cache/q1.json", "kb-q1-md": "file:kb/q1.md"}
    assert read.plan.policy.approve == ("deploy",)
    assert "build-search.json:3:3: warning: 'version' is ignored" in warned(read)
    assert "warning: 'requireGateForProd' is ignored. Remove the field: steps of kind deploy wait" in warned(read)


def test_a_subplan_of_sentences_says_that_nothing_is_done_for_them() -> None:
    read = seed("debug.yaml")
    assert [one.id for one in read.plan.hypotheses] == ["H1", "H2", "H3"]
    subplan = read.plan.steps[1].subplan
    assert subplan
    assert [(step.id, step.kind, step.capability) for step in subplan.steps] == [
        ("part-1", StepKind.TOOL, Capability.NONE),
        ("part-2", StepKind.TOOL, Capability.NONE),
    ]
    assert (
        "debug.yaml:14:9: warning: 'look at pool statistics; compare them with error peaks' is only a string and "
        "does nothing" in warned(read)
    )


def test_the_text_form_knows_its_words() -> None:
    plan = seed("text-form.plan").plan
    collect, summarize, broaden, publish = plan.steps
    assert plan.id == "text-form"
    assert collect.shell
    assert collect.shell.run == "ls docs > sources.txt\n"
    assert summarize.model
    assert summarize.model.prompt == "Summarize ${inputs.sources}\n"
    assert (summarize.inputs, summarize.on_success) == ({"sources": "${collect.stdout}"}, ("publish",))
    assert summarize.on_failure
    assert summarize.on_failure.to == "broaden"
    assert (broaden.title, publish.needs) == ("Look at more", ("summarize",))


def test_checks_become_invariants_commands_or_prose() -> None:
    text = """
id: p
steps:
- {id: a, run: make}
- id: g
  kind: gate
  needs: a
  checks: ["${a.exit_code} == 0", {command: make check}, {prose: backwards compatible}]
  gate: {approval: lead}
"""
    gate = read_plan(text).plan.steps[1].gate
    assert gate
    assert gate.approval
    assert gate.approval.role == "lead"
    assert [(check.invariant, check.command, check.prose) for check in gate.checks] == [
        ("${a.exit_code} == 0", "", ""),
        ("", "make check", ""),
        ("", "", "backwards compatible"),
    ]


def test_other_names_durations_and_bare_texts_are_understood() -> None:
    text = """
id: p
budget: {timeMin: 2, costUSD: 1}
steps:
- {id: a, shell: make, timeout: 2m, on_failure: b, watchdog: {after_s: 1h}}
- {id: b, dependsOn: a, model: "Say why", on_success: "c, d"}
- {id: c, rollback: make clean, command: make}
- {id: d, search: quic, budget: {timeMin: 30, costUSD: 1}}
"""
    plan = read_plan(text).plan
    assert (plan.budget.max_wall_s, plan.budget.max_cost_usd) == (120.0, 1.0)
    a, b, c, d = plan.steps
    assert (a.timeout_s, a.on_failure and a.on_failure.to, a.shell and a.shell.run) == (120.0, "b", "make")
    assert a.watchdog
    assert a.watchdog.after_s == 3600.0
    assert (b.on_success, b.needs, b.model and b.model.prompt) == (("c", "d"), ("a",), "Say why")
    assert c.compensate
    assert (c.compensate.run, c.shell and c.shell.run) == ("make clean", "make")
    assert (d.capability, d.search and d.search.query) == (Capability.SEARCH, "quic")
    assert (d.timebox_s, d.budget.max_cost_usd) == (1800.0, 1.0)


@pytest.mark.parametrize("twice", ["timeout_s: 5\n  timeout: 5m", "run: make\n  shell: make", "run: a\n  command: b"])
def test_a_field_under_two_names_is_refused(twice: str) -> None:
    assert "unknown field" in refusal(f"id: p\nsteps:\n- id: a\n  {twice}\n")


def test_words_that_yaml_1_1_takes_for_booleans_and_dates_stay_texts() -> None:
    plan = read_plan(
        "id: p\ninputs: {a: on, b: yes, c: 2025-01-01, d: 1:30, e: 0o17, f: 1e3, g: ~, h: '5'}\nsteps: []"
    ).plan
    assert plan.inputs == {
        "a": "on",
        "b": "yes",
        "c": "2025-01-01",
        "d": "1:30",
        "e": 15,
        "f": 1000.0,
        "g": None,
        "h": "5",
    }


def test_anchors_and_merges_work_and_copies_are_independent() -> None:
    text = """
id: p
steps:
- &base {id: a, run: make, labels: [x]}
- {<<: *base, id: b, needs: a}
"""
    a, b = read_plan(text).plan.steps
    assert (a.needs, b.needs, b.labels) == ((), ("a",), ("x",))
    assert b.shell == a.shell


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "id: p\nsteps:\n- id: a\n  titel: x\n",
            "p.yaml:4:3: unknown field 'titel' in step 'a'. Did you mean 'title'?",
        ),
        ("id: p\nmax_wall: 5m\n", "p.yaml:2:1: unknown field 'max_wall'. Write `budget: {max_wall_s: ...}`."),
        ("id: p\nsteps:\n- {id: a, prompt: x}\n", "unknown field 'prompt' in step 'a'. Write `model: {prompt: ...}`."),
        ("id: p\nstep: []\n", "p.yaml:2:1: unknown field 'step'. Did you mean 'steps'?"),
        (
            "id: p\nsteps:\n- {id: a, kind: reserch}\n",
            "p.yaml:3:17: invalid value for 'kind': 'reserch' in step 'a'. Did you mean 'research'?",
        ),
        (
            "id: p\nsteps:\n- {id: a, using: shell}\n",
            "p.yaml:3:11: unknown field 'using' in step 'a'. Remove the field and name the action: `shell: make`",
        ),
        (
            "id: p\nbudget: {max_steps: 5}\nsteps:\n- {id: a, fetch: x}\n",
            "p.yaml:4:11: unknown field 'fetch' in step 'a'. Write `http: {urls: [...]}`.",
        ),
        (
            "id: p\nsteps:\n- id: a\n  shell:\n    runn: x\n    run: y\n",
            "p.yaml:5:5: unknown field 'runn' in step 'a'. Did you mean 'run'?",
        ),
        (
            "id: p\nsteps:\n- id: a\n  model: {model: x}\n",
            "p.yaml:4:3: 'prompt' is missing in step 'a'. Add `prompt:`.",
        ),
        (
            "id: p\nsteps:\n- {id: a, timeout_s: soon}\n",
            "p.yaml:3:22: 'timeout_s' is not a valid duration: 'soon' in step 'a'. Write a duration as a number of",
        ),
        (
            "id: p\nsteps:\n- {id: a, title: 5}\n",
            "p.yaml:3:18: 'title' must be a string, not 5 in step 'a'. Put the value in quotes: \"5\".",
        ),
        ("id: p\nsteps:\n- {id: a, rnu: make}\n", "unknown field 'rnu' in step 'a'. Did you mean 'run'?"),
        ("id: p\nsteps:\n- {id: a, env: {A: b}}\n", "Write `shell: {run: ..., environment: {NAME: value}}`."),
        ("id: p\nsteps:\n- {id: a, shell: {run: x, env: {A: b}}}\n", "'env' in step 'a'. Write `environment`."),
        ("id: p\nsteps:\n- {id: a, depends: b}\n", "unknown field 'depends' in step 'a'. Write `needs:`."),
        ("id: p\nsteps:\n- {id: a, matrix: [1]}\n", "Write `for_each: [...]` in a step with an id such as `build-*`"),
        ("id: p\nsteps:\n- {name: a}\n", "unknown field 'name'. Write `id:`, or `title:` for a display name."),
        ("id: p\nsteps:\n- {name: a}\n", "'id' is missing. Add `id:`."),
        ("id: p\nsteps:\n- {id: a, decision: {rules: [{if: x}]}}\n", "'if' in step 'a'. Write `when`."),
        ("id: p\nsteps: 5\n", "p.yaml:2:8: 'steps' must be a list, not 5. Write `steps: [...]`."),
        ("id: p\nsteps:\n- [a]\n", "p.yaml:3:3: item 1 of 'steps' must be a mapping (`key: value`), not a list."),
        ("id: p\nid: q\n", "p.yaml:2:1: duplicate field 'id' (first on line 1). Remove one."),
        ("id: p\n\tsteps: []\n", "Indent with spaces instead of tabs."),
        (
            "id: p: q\n",
            "p.yaml:1:6: the line contains a second ': ' or is indented too far. Put text",
        ),
        ("id: !!python/name:os.system x\n", "p.yaml:1:5: unknown tag 'tag:yaml.org,2002:python/name:os.system'."),
        ("id: p\n---\nid: q\n", "p.yaml:2:1: a second document starts here. Write only one plan per file."),
        ("", "p.yaml: the plan is empty. Write `id:` and `steps:`."),
        ("- a\n", "p.yaml:1:1: a plan must be a mapping, not a list or a string."),
        ('{"id": "p",\n "id": "q"}', "p.yaml:2:2: duplicate field 'id' (first on line 1). Remove one."),
        ('{"id": "p",\n "steps": [}', "p.yaml:2:11: '[' is not closed. Add `]`."),
        (
            '{"id": "p",\n "steps": [{"id": "a",\n  "kindd": 1}]}',
            "p.yaml:3:3: unknown field 'kindd' in step 'a'. Did you mean 'kind'?",
        ),
        (
            '{"id": "p", "seed": NaN}',
            "p.yaml:1:21: 'NaN' is not a valid JSON value. Write a number, or put the text in quotes",
        ),
        (
            "gates:\n- id: chek\nid: p\nsteps:\n- {id: check}\n",
            "p.yaml:2:7: 'chek' under 'gates' is not a step. Did you mean 'check'?",
        ),
        ("gates: [{checks: []}, 5]\nid: p\nsteps:\n- {id: check}\n", "p.yaml:1:9: '' under 'gates' is not a step."),
        (
            "id: p\nsteps: []\ndefinition_of_done:\n- {runn: x}\n",
            "p.yaml:4:4: unknown field 'runn'. Did you mean 'run'?",
        ),
        (
            "id: p\nsteps:\n- id: a\n  episode: {goal: x, definition_of_done: [{rum: y}]}\n",
            "p.yaml:4:44: unknown field 'rum' in step 'a'. Did you mean 'run'?",
        ),
        ("id: p\nsteps:\n- id: my step\n", "Write `my-step`."),
        ("plan p\ntask a kind:tool oops\n", "p.yaml:2:18: 'oops' in the header is not in the form `key:value`."),
        ("plan p\ntask a\n  titel: x\n", "p.yaml:3:3: unknown field 'titel' in step 'a'. Did you mean 'title'?"),
        (
            "plan p\ntask a\n  on sucess -> b\n",
            "p.yaml:3:3: 'on sucess' is not a valid step outcome. Did you mean 'success'?",
        ),
        ("task a\nrun: make\n", "p.yaml:2:1: expected a header, got: run: make. Indent the line"),
        ("task a\nplan p\n", "p.yaml:2:1: the `plan` header comes after a task. Move the header to the top."),
        (
            "plan p\n\ntask a kind:tool\n  needs: b\n  kind: model\n",
            "p.yaml:5:3: duplicate field 'kind' (first on line 3). Remove one.",
        ),
    ],
)
def test_what_is_wrong_is_named_with_line_column_and_fix(text: str, message: str) -> None:
    assert message in refusal(text)


def test_steps_under_their_names_are_one_mistake() -> None:
    said = "p.yaml:2:1: 'steps' must be a list, not a mapping. Start each step with `- id: NAME`."
    assert refusal("id: p\nsteps:\n  build: {run: make}\n  test: {run: make test}\n") == said


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            '{"id": "p",\n "steps": [{"id": "a", "run": "x",},\n ]}',
            ["2:34: trailing comma before '}'. Remove the comma.", "2:36: trailing comma before"],
        ),
        (
            '{"id": "p",\n // why\n "steps": [{"id": "a" "run": "x"}]}',
            ["2:2: JSON does not allow comments.", "missing comma"],
        ),
        (
            "{'id': 'p', steps: []}",
            ['1:2: JSON does not allow single quotes. Write `"id"`.', "1:13: field name steps is not in quotes."],
        ),
        ('{"id": "p", "steps": [{"id": "a", "cache": True}]}', ["1:44: 'True' is not valid JSON. Write `true`."]),
        ('{"id": "p", "steps": [\n{"id": "a"', ["2:1: '{' is not closed. Add `}`."]),
        ('{"id": "p", "title": "a\nb"}', ["1:22: a string is not closed before the end of the line."]),
        ('{"id": "p", "steps": []} x', ["1:26: unexpected text after the end of the JSON. Remove it."]),
        (
            "id: p\nsteps:\n  - id: a\n    run: x\n   needs: b\n",
            ["5:4: the indentation differs from the list above."],
        ),
        (
            "id: p\nsteps:\n\t- id: a\n\t  run: x\n\t  needs: [x]\n",
            [
                "3:1: the indentation contains a tab",
                "4:1: the indentation contains a tab",
                "5:1: the indentation contains a tab",
            ],
        ),
        ("id: p\nsteps:\n- id: a\n  run: 'make\n- id: b\n", ["4:8: a quote is not closed."]),
        ("id: p\nsteps: [{id: a}\n", ["2:8: a bracket is not closed, or a comma is missing."]),
        ("plan p\ntask a\n  run: x\n   needs: b\n", ["4:9: the line contains a second ': ' or is indented"]),
        (
            "id: p\nsteps:\n- {id: a, timeout: 5 minutes}\n",
            ["3:20: 'timeout' is not a valid duration: '5 minutes'", "Write `5m`."],
        ),
        (
            '{"id": "p", "budget": {"time": "1h30m"}}',
            ["1:33: 'budget.time' is not a valid duration: '1h30m'. Write `5400s`."],
        ),
        ("task a\n  timeout: soon\n", ["2:12: 'timeout' is not a valid duration", "`90s`, `5m`, `2h` or `1d`"]),
        ("id: p\nmax_parallel: 0\nsteps: []\n", ["2:15: 'max_parallel' must be at least 1, got 0."]),
        ("id: p\nsteps:\n- {id: a, cache: maybe}\n", ["3:18: 'cache' must be true or false, not 'maybe'"]),
        (
            "id: p\nsteps:\n- {id: a, expect: [{prose: 7}, 5]}\n",
            ["3:28: 'expect.item 1.prose' must be a string", "3:32: item 2"],
        ),
        (f"id: p\nsteps:\n- {{id: {'x' * 201}}}\n", ["is not a valid id: an id has at most 200 letters"]),
    ],
)
def test_slips_are_told_in_the_words_of_a_writer_of_plans(text: str, messages: list[str]) -> None:
    said = refusal(text)
    assert [one for one in messages if one not in said] == []
    for jargon in ("Expecting", "mapping values", "Input should", "parse", "pydantic", "Traceback", "block mapping"):
        assert jargon not in said


def test_a_file_that_is_not_utf_8_is_refused_with_its_place() -> None:
    with pytest.raises(PlanError) as refused:
        decode("id: p\ntitle: café\n".encode("latin-1"), name="p.yaml")
    assert refused.value.message == "p.yaml:2:11: byte 0xe9 is not valid UTF-8. Save the file as UTF-8."
    with pytest.raises(PlanError, match="the file is UTF-16, not UTF-8"):
        decode("id: p\n".encode("utf-16"))


def test_wrong_values_hide_nothing_else() -> None:
    text = """id: p
policy: {network: ["https://x.org"]}
steps:
- id: a
  titel: x
  timeout: 5 minutes
  run: |
    echo ${b c}
    echo ${nobody.x} ${plan.y}
- {id: b, needs: [aa], kind: reserch, edit: {files: [{search: x}]}, when: 1 +}
"""
    _, problems = check_text(text, name="p")
    assert [(one.position.line, one.code) for one in problems] == [
        (2, "host"),
        (5, "unknown-field"),
        (6, "wrong-value"),
        (8, "expression"),
        (9, "unknown-reference"),
        (9, "unknown-input"),
        (10, "unknown-step"),
        (10, "wrong-value"),
        (10, "missing"),
        (10, "expression"),
    ]


def test_an_id_has_up_to_200_characters() -> None:
    assert read_plan(f"id: {'p' * 200}\nsteps: [{{id: {'s' * 200}}}]\n").plan.steps[0].id == "s" * 200


def test_all_problems_are_told_at_once_in_the_order_of_the_text() -> None:
    text = "id: p\nsteps:\n- {id: a, kind: x}\n- {id: b, foo: 1}\n- {id: c, priority: high}\n"
    assert [line.split(":")[1] for line in refusal(text).splitlines()] == ["3", "4", "5"]


def test_small_texts_that_stand_for_huge_or_deep_data_are_refused_at_once() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
    )
    assert "aliases expand to more than 20000 values" in refusal(bomb)
    for deep in ("[" * 100_000, "- " * 50_000, "{a: " * 5_000):
        said = refusal("id: " + deep)
        assert "nested deeper than 100 levels" in said or "a list cannot start here" in said
    assert "nested deeper" in refusal('{"a": ' + "[" * 200 + "]" * 200 + "}")
    assert "is used before its anchor is complete" in refusal("id: &x\n  a: *x\n")
    assert f"larger than {TEXT_BYTES} bytes" in refusal("#" * (TEXT_BYTES + 1))


def test_positions_survive_renaming() -> None:
    read = read_plan("plan_id: p\nnodes:\n- id: a\n- id: b\n  depends_on: [a]\n  command: |\n    make\n")
    assert read.where(("steps", 1, "needs", 0)) == Position(5, 16)
    assert read.where(("steps", 1, "shell", "run")) == Position(6, 12)
    assert read.where(("steps", 1, "timeout_s")) == Position(4, 3)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=200) | st.text("[]{}:,&*-!|>'\"#%@ \n\tab<12", max_size=80))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    for start in ("", "id: p\nsteps:\n- ", "task a\n  ", '{"id": '):
        with suppress(PlanError):
            assert read_plan(start + text).plan


@pytest.mark.parametrize(
    "text", ["id: a\nsteps:\n- {id: \ud800}", 'plan a\n  "\ud800"\n', '{"id": "a",\n  "b\ud800": 1}']
)
def test_text_that_is_no_unicode_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(PlanError, match="surrogate") as refused:
        read_plan(text)
    assert refused.value.problems[0].position.line == text[: text.index("\ud800")].count("\n") + 1
