"""The other spellings of a step, its action and its edges."""

import re
from typing import Any

from tightloop.errors import ExpressionError
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.model import Capability, OnFailure, Recovery, Step, StepBudget
from tightloop.plan.problem import Position, Problem, Severity
from tightloop.plan.text.marked import Map, Seq, entries
from tightloop.plan.text.prose import looks_like_prose
from tightloop.plan.text.spelling import (
    CAPABILITY_NAMES,
    IGNORED_IN_STEP,
    MAIN_TEXT,
    STEP_NAMES,
    TEXT_LISTS,
    as_fields,
    as_list,
    as_seconds,
    as_words,
    budget_fields,
    rename_fields,
    snake,
)

STEP_FIELDS = frozenset(Step.model_fields)
CAPABILITIES = tuple(one.value for one in Capability if one is not Capability.NONE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NO_ID = re.compile(r"^[^A-Za-z0-9]+")


class StepAliases:
    """Rewrites steps in place, also those within subplans and branches."""

    def __init__(self, problems: list[Problem]) -> None:
        """Tell what is odd to `problems`."""
        self._problems = problems

    def apply(self, step: Map, number: str) -> None:
        """Give a step the spelling of `Step`.

        Args:
            step: the fields.
            number: what it is called where it has no id.
        """
        self._ignore(step)
        self._checks(step)
        self._approver(step)
        rename_fields(step, STEP_NAMES, STEP_FIELDS)
        for field in ("needs", "on_success"):
            as_words(step, field)
        for field in TEXT_LISTS:
            as_list(step, field)
        self._first_of(step, "kind")
        self._next(step)
        self._action(step)
        self._values(step)
        self._gate(step)
        self._within(step, str(step.get("id", number)))

    def _warn(self, message: str, at: Position, suggestion: str, code: str) -> None:
        self._problems.append(
            Problem(message=message, suggestion=suggestion, severity=Severity.WARNING, position=at, code=code)
        )

    def _ignore(self, step: Map) -> None:
        for field in [field for field in step if snake(field) in IGNORED_IN_STEP]:
            _, _, at = step.take(field)
            self._warn(f"'{field}' is not read", at, f"Remove it: {IGNORED_IN_STEP[snake(field)]}", "ignored")

    def _first_of(self, step: Map, field: str) -> None:
        """Read `research|implement` as its first word."""
        value = step.get(field)
        if isinstance(value, str) and "|" in value:
            step[field] = value.split("|")[0].strip()
            said = f"'{field}' lists alternatives ({value}); '{step[field]}' is taken"
            self._warn(said, step.values_at[field], f"Write `{field}: {step[field]}`", "alternatives")

    def _checks(self, step: Map) -> None:
        """Move `checks` into the gate; texts become invariants or prose."""
        for field in [field for field in step if field == "checks"]:
            value, at, key_at = step.take(field)
            gate = step.get("gate")
            if gate is None:
                step.put("gate", Map(at), at=at, key_at=key_at)
                gate = step["gate"]
            if isinstance(gate, Map) and "checks" not in gate:
                gate.put("checks", value, at=at, key_at=key_at)

    def _approver(self, step: Map) -> None:
        for field in [field for field in step if snake(field) in ("approver", "approvers", "approver_role")]:
            value, at, key_at = step.take(field)
            if step.get("gate") is None:
                step.put("gate", Map(at), at=at, key_at=key_at)
            role = next((one for one, _ in entries(value, at)), None)
            if isinstance(step["gate"], Map) and "approval" not in step["gate"]:
                approval = Map(at)
                approval.put("role", role, at=at, key_at=key_at)
                step["gate"].put("approval", approval, at=at, key_at=key_at)

    def _next(self, step: Map) -> None:
        """Read `next: [{on: success, to: x}]`."""
        if not isinstance(step.get("next"), Seq):
            return
        value, at, key_at = step.take("next")
        left = Seq(at)
        for one, one_at in entries(value, at):
            fields = one if isinstance(one, Map) else Map(one_at)
            to, to_at = fields.get("to"), fields.values_at.get("to", one_at)
            if fields.get("on") == "success" and to is not None:
                if not isinstance(step.get("on_success"), Seq):
                    step.put("on_success", Seq(at), at=at, key_at=key_at)
                for name, name_at in entries(to, to_at):
                    step["on_success"].add(name, name_at)
            elif fields.get("on") == "failure" and isinstance(to, str) and "on_failure" not in step:
                step.put("on_failure", to, at=to_at, key_at=fields.keys_at["to"])
            else:
                left.add(one, one_at)
        if left:
            step.put("next", left, at=left.items_at[0], key_at=key_at)

    def _action(self, step: Map) -> None:
        """Put `run`, `command` and bare texts into the action that they are meant for."""
        using = self._using(step)
        for field in [field for field in step if snake(field) in ("command", "commands", "run", "prompt")]:
            value, at, key_at = step.take(field)
            meant = "model" if snake(field) == "prompt" else using if using in MAIN_TEXT else "shell"
            action = step.get(meant)
            if action is None:
                step.put(meant, Map(at), at=at, key_at=key_at)
                action = step[meant]
            if not isinstance(action, Map) or MAIN_TEXT[meant] in action:
                step.put(field, value, at=at, key_at=key_at)
                continue
            text = "\n".join(value) if isinstance(value, Seq) and all(isinstance(one, str) for one in value) else value
            action.put(MAIN_TEXT[meant], text, at=at, key_at=key_at)
            if meant == "shell" and isinstance(text, str) and looks_like_prose(text):
                said = f"the command of '{step.get('id', '')}' reads as prose, and a shell would be given it as it is"
                hint = "Write a command, or `episode: {goal: ...}` to have an agent do it"
                self._warn(said, at, hint, "prose-command")
        for capability, name in MAIN_TEXT.items():
            as_fields(step, capability, name)
        for field in [field for field in step if field == "environment" and isinstance(step.get("shell"), Map)]:
            value, at, key_at = step.take(field)
            step["shell"].put(field, value, at=at, key_at=key_at)

    def _using(self, step: Map) -> str:
        """Read `using` and the list `capabilities`; return what of it is meant for `run`."""
        if isinstance(using := step.get("using"), str):
            step["using"] = CAPABILITY_NAMES.get(using.lower(), using)
        for field in [field for field in step if snake(field) in ("capabilities", "capability")]:
            value, at, key_at = step.take(field)
            names = [CAPABILITY_NAMES.get(str(one), str(one)) for one, _ in entries(value, at)]
            has_text = any(snake(name) in ("command", "run") for name in step)
            if len(names) == 1 and "using" not in step:
                step.put("using", names[0], at=at, key_at=key_at)
            elif names and (has_text or len(names) > 1):
                said = f"'{field}' is not read: what '{step.get('id', '')}' uses follows from its action"
                self._warn(said, at, f"Write one of {', '.join(names)} as its action, or remove it", "capabilities")
        return str(step.get("using", ""))

    def _values(self, step: Map) -> None:
        as_fields(step, "on_failure", "to")
        if isinstance(step.get("on_failure"), Map):
            rename_fields(step["on_failure"], {}, frozenset(OnFailure.model_fields))
            as_words(step["on_failure"], "compensate")
        as_fields(step, "compensate", "run")
        for field in ("timeout_s", "timebox_s", "estimate_s"):
            as_seconds(step, field)
        time = budget_fields(step.get("budget"), frozenset(StepBudget.model_fields))
        if time is not None and "timebox_s" not in step:
            step.put("timebox_s", time[0], at=time[1], key_at=time[2])
        for mode, _ in entries(step.get("failure_modes"), step.at):
            recover = mode.get("recover") if isinstance(mode, Map) else None
            if isinstance(recover, str) and recover not in list(Recovery) and "advice" not in mode and " " in recover:
                mode.rename("recover", "advice")
        self._outputs(step)

    def _outputs(self, step: Map) -> None:
        """Read a list of files, and `artifacts.<name>`."""
        outputs = step.get("outputs")
        if isinstance(outputs, Seq) and all(isinstance(one, str) for one in outputs):
            made = Map(outputs.at)
            for path, at in entries(outputs, outputs.at):
                made.put(_output_name(path, made), f"file:{path}", at=at)
            _, at, key_at = step.take("outputs")
            step.put("outputs", made, at=at, key_at=key_at)
        elif isinstance(outputs, Map):
            for name, source in outputs.items():
                if isinstance(source, str):
                    outputs[name] = source.removeprefix("artifacts.")

    def _gate(self, step: Map) -> None:
        gate = step.get("gate")
        if step.get("kind") == "gate" and not any(step.get(name) is not None for name in CAPABILITIES):
            at = step.values_at.get("kind", step.at)
            gate = Map(at)
            gate.put("approval", Map(at), at=at)
            step.put("gate", gate, at=at, key_at=step.keys_at.get("kind"))
            said = f"gate '{step.get('id', '')}' has no checks; a person is asked"
            self._warn(said, at, "Write `gate: {checks: [...]}` or `gate: {approval: {role: ...}}`", "empty-gate")
        if not isinstance(gate, Map):
            return
        as_list(gate, "checks")
        as_fields(gate, "approval", "role")
        checks = gate.get("checks")
        for index, (check, at) in enumerate(list(entries(checks, gate.at))):
            if isinstance(check, str) and isinstance(checks, Seq):
                made = Map(at)
                made.put("invariant" if _is_invariant(check) else "prose", check, at=at)
                checks[index] = made

    def _within(self, step: Map, id_: str) -> None:
        subplan = step.get("subplan")
        if isinstance(subplan, Seq):
            _, at, key_at = step.take("subplan")
            made = Map(at)
            made.put("steps", subplan, at=at, key_at=key_at)
            step.put("subplan", made, at=at, key_at=key_at)
        as_fields(step, "subplan", "file")
        self._steps(step.get("subplan"), step, id_)
        branch = step.get("branch")
        if isinstance(branch, Map):
            for alternative, _ in entries(branch.get("alternatives"), branch.at):
                self._steps(alternative, step, id_)

    def _steps(self, owner: Any, step: Map, id_: str) -> None:
        """Read the steps of a subplan or an alternative; a sentence becomes a step that does nothing, and says so."""
        steps = owner.get("steps") if isinstance(owner, Map) else None
        if not isinstance(steps, Seq):
            return
        for index, (one, at) in enumerate(list(entries(steps, owner.at))):
            if isinstance(one, str):
                made = Map(at)
                made.put("id", f"part-{index + 1}", at=at)
                made.put("title", one, at=at)
                if isinstance(step.get("kind"), str) and step["kind"] not in ("gate", "subplan", "branch"):
                    made.put("kind", step["kind"], at=at)
                steps[index] = made
                said = f"'{one[:80]}' in '{id_}' is prose; nothing is done for it"
                hint = "Write a step with `run:`, or `episode: {goal: ...}` to have an agent do it"
                self._warn(said, at, hint, "prose-step")
            elif isinstance(one, Map):
                self.apply(one, f"part-{index + 1}")


def _is_invariant(text: str) -> bool:
    if "${" not in text.replace("$${", ""):
        return False
    try:
        parse_expression(text)
    except ExpressionError:
        return False
    return True


def _output_name(path: str, taken: Map) -> str:
    """Return a name for an output that is a file: `q1` for `cache/q1.json`, or the whole path where that is taken."""
    name = path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    name = _NO_ID.sub("", _UNSAFE.sub("-", name).replace(".", "-"))
    if not name or name in taken:
        name = _NO_ID.sub("", _UNSAFE.sub("-", path).replace(".", "-"))
    return name if name not in taken else f"{name}-{len(taken) + 1}"
