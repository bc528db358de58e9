"""The picture of a plan: every step and edge once, statuses as colours, no text that breaks it."""

import re

from hypothesis import HealthCheck, given, settings

from tests.support.plan.strategies import plans
from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import NODES_LIMIT, to_mermaid

TEXT = """
id: p
steps:
- {id: build, title: 'Say "hi" | <b>', run: make, on_failure: repair, on_success: [ask]}
- {id: repair, run: fix, compensate: {step: undo}}
- {id: undo, kind: compensation, run: unfix}
- {id: ask, gate: {approval: {options: [{name: ship it, to: [ship]}]}}}
- {id: ship, kind: checkpoint, checkpoint: v1}
- {id: parts, needs: build, subplan: {steps: [{id: a}, {id: b, needs: a, model: {prompt: x}}]}}
- {id: ways, needs: parts, branch: {alternatives: [{name: one, steps: [{id: a}]}, {name: two, steps: [{id: a}]}]}}
"""


def test_shapes_edges_and_subplans_are_drawn() -> None:
    assert (
        to_mermaid(read_plan(TEXT).plan)
        == """\
flowchart TD
  s0["Say #quot;hi#quot; #124; #lt;b#gt;<br/>build"]
  s1["repair"]
  s2{{"undo"}}
  s3{"ask"}
  s4[("ship")]
  subgraph s5["parts"]
    s5_0_0(["a"])
    s5_0_1[/"b"/]
    s5_0_0 --> s5_0_1
  end
  subgraph s6["ways"]
    subgraph s6_0_a["one"]
      s6_0_0(["a"])
    end
    subgraph s6_1_a["two"]
      s6_1_0(["a"])
    end
  end
  s0 -->|"success"| s3
  s0 -.->|"failure"| s1
  s1 -.->|"undone by"| s2
  s3 -->|"ship it"| s4
  s0 --> s5
  s5 --> s6
"""
    )


def test_statuses_are_colours_and_only_those_that_occur_are_defined() -> None:
    drawn = to_mermaid(
        read_plan(TEXT).plan, {"build": StepStatus.FAILED, "ask": StepStatus.WAITING, "a": StepStatus.RUNNING}
    )
    assert "  class s0 failed\n" in drawn
    assert "  class s3 waiting\n" in drawn
    assert re.findall(r"classDef (\w+) fill:", drawn) == ["failed", "waiting"]


def test_every_status_has_a_colour() -> None:
    plan = Plan.model_validate({"id": "p", "steps": [{"id": status.value + "-1"} for status in StepStatus]})
    drawn = to_mermaid(plan, {status.value + "-1": status for status in StepStatus})
    assert len(re.findall(r"classDef ", drawn)) == len(StepStatus)


def test_a_picture_that_leaves_steps_out_says_so() -> None:
    plan = Plan.model_validate(
        {"id": "p", "steps": [{"id": f"s{n}", "needs": [f"s{n - 1}"] if n else []} for n in range(NODES_LIMIT + 20)]}
    )
    drawn = to_mermaid(plan)
    assert f'more["{NODES_LIMIT} of {NODES_LIMIT + 20} steps are shown"]' in drawn
    assert drawn.count("-->") == NODES_LIMIT - 1


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_no_title_breaks_the_picture(plan: Plan) -> None:
    line = re.compile(
        r'flowchart TD|  +(\w+(\[\(|\[\[|\[/|\(\[|\{\{|\{|\[)"[^"\n]*"(\)\]|\]\]|/\]|\]\)|\}\}|\}|\])'
        r'|\w+ (-->|-\.->)(\|"[^"|\n]*"\|)? \w+|subgraph \w+\["[^"\n]*"\]|end)'
    )
    lines = to_mermaid(plan).removesuffix("\n").split("\n")
    assert [text for text in lines if not line.fullmatch(text)] == []
    assert len([text for text in lines if "subgraph" in text]) == len([text for text in lines if text.strip() == "end"])
