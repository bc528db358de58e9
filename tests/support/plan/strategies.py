"""Random valid plans with all features, for hypothesis."""

import string
from typing import Any

from hypothesis import strategies as st

from tightloop.plan.document import Plan
from tightloop.plan.text.reading import ReadPlan
from tightloop.plan.validation import validate

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6)
_ODD = string.ascii_letters + string.digits + " .,:;#-'\"!?%&*@[]{}|>\\/äß€😀\t"
WORDS = (st.text(_ODD, max_size=30) | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)).filter(
    lambda text: "${" not in text
)
LINES = st.lists(WORDS, min_size=1, max_size=3).map("\n".join)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | LINES
    | st.sampled_from(["", "yes", "on", "1e3", "0o17", "012", "null", "~", "2025-10-30", ".inf", "=", "<<", "1:30"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | WORDS | st.sampled_from(["<<", "on", "1", "", "a: b"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SECONDS = st.sampled_from([0.5, 1.0, 30.0, 3600.0])
KINDS = ("tool", "research", "analyze", "synthesize", "implement", "validate", "debug", "refactor")


@st.composite
def plans(draw: st.DrawFn, *, min_steps: int = 1, max_steps: int = 8) -> Plan:
    """A plan that validates without errors: a random graph, random actions, edges, templates, subplans and branches."""
    count = draw(st.integers(min_steps, max_steps))
    hypotheses = draw(st.lists(st.sampled_from(["H1", "H2", "H3"]), unique=True, max_size=3))
    inputs = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    steps = draw(_steps(count, tuple(hypotheses), tuple(inputs), 1))
    fields = {
        "id": draw(st.sampled_from(["plan-1", "tidy.up", "A_b"])),
        "title": draw(WORDS),
        "description": draw(LINES),
        "inputs": inputs,
        "steps": steps,
        "hypotheses": [{"id": one, "statement": draw(WORDS), "prior": 0.25} for one in hypotheses],
        "artifacts": [{"name": "result", "from_step": steps[0]["id"]}] if draw(st.booleans()) else [],
        "definition_of_done": draw(st.lists(st.sampled_from(["make test", {"run": "true", "name": "ok"}]), max_size=2)),
        "max_parallel": draw(st.integers(1, 8)),
        "on_failure": draw(st.sampled_from(["ask", "fail", "compensate"])),
        "policy": {"network": ["127.0.0.1"], "write": draw(st.sampled_from([["**"], ["*.txt", "src/**"]]))},
        "budget": {"max_wall_s": 10**6, "max_cost_usd": draw(st.sampled_from([None, 5.0]))},
        "labels": draw(st.lists(WORDS, max_size=2)),
    }
    return Plan.model_validate(fields)


@st.composite
def _steps(
    draw: st.DrawFn, count: int, hypotheses: tuple[str, ...], inputs: tuple[str, ...], depth: int
) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    targets: set[int] = set()
    for place in range(count):
        before = [step["id"] for step in steps]
        step = draw(_step(place, before, hypotheses, depth))
        after = draw(st.lists(st.integers(place + 1, count), max_size=2, unique=True))
        ahead = [one for one in after if one < count and one not in targets]
        if ahead and step.get("shell"):
            # Each step has at most one source of conditional edges, and nothing else needs it: paths never collide.
            targets.update(ahead)
            step["_targets"] = ahead
        if inputs and draw(st.booleans()):
            step["inputs"] = {"given": f"${{plan.{draw(st.sampled_from(inputs))}}}"}
        steps.append(step)
    for place, step in enumerate(steps):
        if place in targets:
            step["needs"] = []
            step.pop("_reads", None)
        step["needs"] = [need for need in step["needs"] if _place(steps, need) not in targets]
        read = step.pop("_reads", None)
        if read in step["needs"]:
            step["inputs"] = step.get("inputs", {}) | {"read": f"${{{read}.result}}"}
    for step in steps:
        _conditional(draw, step, [steps[one]["id"] for one in step.pop("_targets", [])])
    return steps


def _place(steps: list[dict[str, Any]], id_: str) -> int:
    return next(place for place, step in enumerate(steps) if step["id"] == id_)


def _conditional(draw: st.DrawFn, step: dict[str, Any], ahead: list[str]) -> None:
    if not ahead:
        return
    way = draw(st.sampled_from(["success", "failure", "decision", "gate"]))
    if way == "success":
        step["on_success"] = ahead
    elif way == "failure":
        step["on_failure"] = {"to": ahead[0], "recovers": draw(st.booleans())}
        step["on_success"] = ahead[1:]
    elif way == "decision":
        step.pop("shell")
        rules = [{"when": "1 == 1", "to": ahead[:1]}, {"when": "1 < 2", "to": ahead[1:]}]
        step |= {"kind": "decision", "decision": {"rules": rules}}
    else:
        step.pop("shell")
        options = [{"name": f"option {one}", "to": [one], "pros": [draw(WORDS)]} for one in ahead]
        step |= {"kind": "gate", "gate": {"approval": {"role": "lead", "options": options}}}


@st.composite
def _step(draw: st.DrawFn, place: int, before: list[str], hypotheses: tuple[str, ...], depth: int) -> dict[str, Any]:
    template = draw(st.integers(0, 5)) == 0
    needs = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
    step: dict[str, Any] = {
        "id": f"step{chr(97 + place % 26)}{place}" + ("-*" if template else ""),
        "title": draw(WORDS),
        "kind": draw(st.sampled_from(KINDS)),
        "needs": needs,
        "priority": draw(st.integers(-2, 2)),
        "outputs": {"result": "file:result.txt"},
        "timeout_s": draw(SECONDS),
        "retry": draw(st.sampled_from([{}, {"attempts": 1}, {"attempts": 5, "initial_s": 0.0}])),
        "expect": draw(st.lists(st.sampled_from([{"prose": "It is done"}, "${status} == 'completed'"]), max_size=2)),
        "risks": draw(st.lists(WORDS, max_size=2)),
        "access": draw(st.sampled_from([None, "none", "reads", "writes"])),
        **draw(_action(depth, hypotheses)),
    }
    if template:
        step["for_each"] = draw(st.lists(VALUES, max_size=3))
    elif len(needs) > 1 and draw(st.booleans()):
        step["join"] = "any"
    if hypotheses and draw(st.booleans()):
        step["evidence"] = [{"hypothesis": hypotheses[0], "when": "${status} == 'completed'", "note": draw(WORDS)}]
    if draw(st.booleans()):
        step["failure_modes"] = [{"name": draw(WORDS), "detect": "${status} == 'failed'", "recover": "skip"}]
    if needs:
        step["_reads"] = needs[0]
    return step


@st.composite
def _action(draw: st.DrawFn, depth: int, hypotheses: tuple[str, ...]) -> dict[str, Any]:
    name = draw(
        st.sampled_from(["shell", "shell", "shell", "none", "edit", "git", "http", "documents", "search", "model"]
                        + ["gate", "checkpoint", "episode"] + (["subplan", "branch"] if depth < 3 else []))
    )  # fmt: skip
    if name == "none":
        # Other kinds need an action.
        return {"kind": "tool"}
    if name in ("subplan", "branch"):
        inner = draw(_steps(draw(st.integers(1, 3)), hypotheses, (), depth + 1))
        if name == "subplan":
            return {"subplan": {"steps": inner, "inputs": draw(st.dictionaries(NAMES, VALUES, max_size=2))}}
        return {"branch": {"alternatives": [{"name": "a", "steps": inner}, {"name": "b", "steps": inner}]}}
    simple: dict[str, st.SearchStrategy[Any]] = {
        "shell": st.builds(dict, run=LINES.map(lambda text: f"true {text}")),
        "edit": st.builds(dict, files=st.just([{"path": "a.txt", "search": "x", "replace": "y"}])),
        "git": st.builds(dict, commit=st.just("feat(${plan}): ${title}")),
        "http": st.builds(dict, url=st.just("http://127.0.0.1/"), body=VALUES),
        "documents": st.builds(dict, urls=st.sampled_from(["http://127.0.0.1/", ["http://127.0.0.1/a"]])),
        "search": st.builds(dict, query=WORDS.map(lambda text: f"find {text}"), limit=st.integers(1, 20)),
        "model": st.builds(
            dict, prompt=LINES.map(lambda text: f"Say {text}"), schema=st.sampled_from([None, {"type": "object"}])
        ),
        "gate": st.builds(
            dict,
            checks=st.lists(st.sampled_from([{"command": "true"}, {"prose": "Looks right"}]), min_size=1, max_size=2),
            approval=st.sampled_from([None, {"role": "lead", "count": 2}]),
        ),
        "checkpoint": st.builds(dict, name=WORDS),
        "episode": st.builds(
            dict, goal=LINES.map(lambda text: f"Do {text}"), definition_of_done=st.just(["make test"])
        ),
    }
    return {"http" if name == "documents" else name: draw(simple[name])} | ({"kind": "gate"} if name == "gate" else {})


def errors_of(plan: Plan) -> list[str]:
    """Return what validation says against a plan."""
    return [str(problem) for problem in validate(ReadPlan.of(plan)) if problem.is_error]
