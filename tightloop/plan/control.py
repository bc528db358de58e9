"""What a person may say to a plan, read leniently and refused with a sentence.

The Temporal Web UI sends one JSON value without a form: every command takes plain text, an object, or nothing.
"""

import math
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tightloop.errors import InvalidRequestError
from tightloop.plan.model import FAN_OUT_LIMIT, PlanBudget
from tightloop.plan.request import WaitingGate
from tightloop.value import Document, shorten

NAME_CHARACTERS = 80
TEXT_CHARACTERS = 2_000
AMOUNT_LIMIT = 10**12
"""Bound of what is added at once; larger numbers do not fit into what shows and stores them."""
SOURCE_BYTES = 1_000_000
"""Bound of a plan text in a message; Temporal refuses messages of 2 MB."""
APPROVE_EXAMPLE = '{"gate": "release", "by": "ada", "rationale": "looked at the diff"}'
ANSWER_EXAMPLE = '{"step": "build", "answer": "retry", "by": "ada"} or "retry", "skip", "abort", "replan"'
TOP_UP_EXAMPLE = '{"cost_usd": 2.5} or {"steps": 100, "wall_minutes": 60}'


class FailureAnswer(StrEnum):
    """What follows a failure that a person was asked about."""

    RETRY = "retry"
    SKIP = "skip"
    """Go on as if the step had been skipped."""
    ABORT = "abort"
    """Leave the step failed."""
    REPLAN = "replan"
    """Have the plan changed; with a text: to that text."""


class GateWord(Document):
    """A yes or a no to what waits for a person."""

    gate: str = ""
    """Id of the step, or the window; empty where only one waits."""
    by: str = "operator"
    option: str = ""
    rationale: str = ""


class FailureWord(Document):
    """An answer about a failed step."""

    step: str = ""
    """Empty: all that were asked about."""
    answer: FailureAnswer
    text: str = ""
    by: str = "operator"


class ReplanWord(Document):
    """Another text for a plan that runs; empty: a planner is asked."""

    source: str = ""
    rationale: str = ""
    by: str = "operator"


class StepWord(Document):
    """A step that is to be started."""

    step: str
    by: str = "operator"


class PlanTopUp(Document):
    """What is added to the bounds of a plan; a bound that is not set stays unset."""

    wall_minutes: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    api_calls: int = 0
    steps: int = 0
    fan_out: int = 0
    revisions: int = 0

    def applied(self, budget: PlanBudget) -> PlanBudget:
        """Return the budget with the amounts added."""
        added = {
            "max_wall_s": self.wall_minutes * 60,
            "max_cost_usd": self.cost_usd,
            "max_tokens": self.tokens,
            "max_api_calls": self.api_calls,
            "max_steps": self.steps,
            "max_fan_out": self.fan_out,
            "max_revisions": self.revisions,
        }
        now = {name: getattr(budget, name) for name in added}
        raised = {name: now[name] + more for name, more in added.items() if more and now[name] is not None}
        if "max_fan_out" in raised:
            raised["max_fan_out"] = min(raised["max_fan_out"], FAN_OUT_LIMIT)
        return budget.model_copy(update=raised)


M = TypeVar("M", bound=BaseModel)


def _read(value: Any, kind: type[M], *, what: str, example: str) -> M:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the value"
        raise InvalidRequestError(f"{what}: {field}: {first['msg']}. Send for example: {example}") from None


def _named(value: Any, *others: str, to: str) -> Any:
    """Return an object with a synonym of a field under its own name."""
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for other in others:
        if other in found and to not in found:
            found[to] = found.pop(other)
    return found


def read_gate_word(value: Any, *, what: str) -> GateWord:
    """Read the argument of `approve_gate` or `reject_gate`: nothing, the gate's id, or an object.

    Raises:
        InvalidRequestError: with an example of a right value.
    """
    if value is None or isinstance(value, str):
        value = {"gate": value or ""}
    value = _named(_named(value, "step", "window", to="gate"), "reason", "text", "note", to="rationale")
    word = _read(value, GateWord, what=what, example=APPROVE_EXAMPLE)
    return word.model_copy(
        update={
            "gate": word.gate.strip(),
            "option": shorten(word.option, TEXT_CHARACTERS),
            "by": shorten(word.by.strip() or "operator", NAME_CHARACTERS),
            "rationale": shorten(word.rationale.strip(), TEXT_CHARACTERS),
        }
    )


def gates_meant(word: GateWord, waiting: dict[str, WaitingGate], *, what: str) -> tuple[str, ...]:
    """Return the ids of the waiting steps that a word is about: a step, a whole window, or the only one.

    Raises:
        InvalidRequestError: nothing waits under this name; the sentence names what does.
    """
    if word.gate in waiting:
        return (word.gate,)
    windows = {gate.question.window for gate in waiting.values()}
    if word.gate and word.gate in windows:
        return tuple(name for name, gate in waiting.items() if gate.question.window == word.gate)
    if not waiting:
        raise InvalidRequestError(f"{what}: no step waits for an approval now")
    known = ", ".join(list(waiting)[:12])
    if word.gate:
        raise InvalidRequestError(f"{what}: {word.gate!r} does not wait for an approval. Waiting are: {known}")
    if len(waiting) == 1 or (len(windows) == 1 and windows != {""}):
        return tuple(waiting)
    example = '{"gate": "' + next(iter(waiting)) + '"}'
    raise InvalidRequestError(f"{what}: {len(waiting)} steps wait: {known}. Say which one: {example}")


def check_approval(word: GateWord, name: str, gate: WaitingGate) -> None:
    """Refuse an approval that cannot count.

    Raises:
        InvalidRequestError: there is no such option, one is missing, or this person has approved already.
    """
    options = [option.name for option in gate.question.options]
    if word.option and word.option not in options:
        raise InvalidRequestError(
            f"approve_gate: {name} has no option {word.option!r}. "
            + (f"Its options are: {', '.join(options)}" if options else "It has none: leave it out")
        )
    if options and not word.option:
        example = '{"gate": "' + name + '", "option": "' + options[0] + '"}'
        raise InvalidRequestError(
            f"approve_gate: {name} needs one of its options: {', '.join(options)}. Send for example: {example}"
        )
    if any(decision.approved and decision.by == word.by for decision in gate.decisions):
        raise InvalidRequestError(
            f"approve_gate: {word.by} has approved {name} already; it needs {gate.question.count} different people"
        )
    taken = {decision.option for decision in gate.decisions if decision.approved}
    if taken and word.option not in taken:
        raise InvalidRequestError(
            f"approve_gate: {gate.decisions[0].by} chose {gate.decisions[0].option!r} for {name}, not {word.option!r}. "
            "Agree, or reject the gate"
        )


def read_failure_word(value: Any) -> FailureWord:
    """Read the argument of `answer`: one word, a word and a text behind a colon, or an object.

    Raises:
        InvalidRequestError: it is none of the answers; the sentence shows right ones.
    """
    if isinstance(value, str):
        answer, _, text = value.partition(":")
        value = {"answer": answer, "text": text}
    if isinstance(value, dict) and isinstance(value.get("answer"), str):
        value = {**value, "answer": value["answer"].strip().lower()}
    value = _named(_named(value, "gate", to="step"), "reason", "rationale", to="text")
    word = _read(value, FailureWord, what="answer", example=ANSWER_EXAMPLE)
    text = word.text.strip()
    _check_size(text, what="answer")
    return word.model_copy(update={"text": text, "by": shorten(word.by.strip() or "operator", NAME_CHARACTERS)})


def read_replan(value: Any) -> ReplanWord:
    """Read the argument of `replan`: the new text, an object, or nothing to have a planner asked.

    Raises:
        InvalidRequestError: a field is misspelt, or the text is too large for a message.
    """
    if value is None or isinstance(value, str):
        value = {"source": value or ""}
    value = _named(_named(value, "text", "plan", to="source"), "reason", "note", to="rationale")
    word = _read(value, ReplanWord, what="replan", example='{"source": "<the whole plan>", "rationale": "why"}')
    _check_size(word.source, what="replan")
    return word.model_copy(
        update={
            "rationale": shorten(word.rationale.strip(), TEXT_CHARACTERS),
            "by": shorten(word.by.strip() or "operator", NAME_CHARACTERS),
        }
    )


def _check_size(text: str, *, what: str) -> None:
    size = len(text.encode("utf-8", "replace"))
    if size > SOURCE_BYTES:
        raise InvalidRequestError(
            f"{what}: the text has {size} bytes, at most {SOURCE_BYTES} can be sent. "
            "Leave out what is not needed, or start another plan from a file"
        )


def read_step_word(value: Any) -> StepWord:
    """Read the argument of `run_step`: a step's id, or an object.

    Raises:
        InvalidRequestError: no step is named.
    """
    value = {"step": value} if isinstance(value, str) else _named(value or {}, "id", "name", to="step")
    word = _read(value, StepWord, what="run_step", example='"build" or {"step": "build", "by": "ada"}')
    if not word.step.strip():
        raise InvalidRequestError('run_step: no step is named. Send for example: "build"')
    return word.model_copy(update={"step": word.step.strip(), "by": shorten(word.by, NAME_CHARACTERS)})


def read_plan_top_up(value: Any) -> PlanTopUp:
    """Read the argument of `top_up`.

    Raises:
        InvalidRequestError: a field is misspelt, negative, or nothing is added.
    """
    if not isinstance(value, dict):
        shown = shorten(repr(value), 60)
        raise InvalidRequestError(f"top_up: it needs an object, not {shown}. Send for example: {TOP_UP_EXAMPLE}")
    addition = _read(value, PlanTopUp, what="top_up", example=TOP_UP_EXAMPLE)
    amounts = addition.model_dump().values()
    if any(not 0 <= amount < math.inf for amount in amounts) or not any(amounts):
        raise InvalidRequestError(f"top_up: the amounts must be positive. Send for example: {TOP_UP_EXAMPLE}")
    if any(amount > AMOUNT_LIMIT for amount in amounts):
        raise InvalidRequestError(f"top_up: an amount can be at most {AMOUNT_LIMIT:g}. Send less, again if need be")
    return addition
