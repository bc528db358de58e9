"""The capability `decision`: by rules, by the best supported hypothesis, by a model, or by a person."""

from typing import Any

from activities.plan.port import Done, Work
from activities.plan.runners.question import Asked, PlanModel
from tightloop.plan.action import DecisionAction, Option
from tightloop.plan.approval import tally
from tightloop.plan.hypothesis import best
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.model import FailureClass
from tightloop.plan.result import REASON_CHARACTERS, GateQuestion, StepFailure
from tightloop.value import shorten

QUESTION_CHARACTERS = 1_500
SUMMARY_CHARACTERS = 200


class DecisionRunner:
    """Decides which steps start. The same records and beliefs give the same decision, but for a model's."""

    def __init__(self, model: PlanModel) -> None:
        """Take what asks a model."""
        self._model = model

    def preview(self, work: Work) -> str:
        """Return the rows of the decision."""
        action = _action(work)
        rows = [f"if {rule.when}: {', '.join(rule.to) or 'nothing'}" for rule in action.rules]
        rows += [f"if {name} is best supported: {', '.join(to)}" for name, to in action.hypotheses.items()]
        rows += [f"if {option.name} is chosen: {', '.join(option.to)}" for option in action.options]
        return "\n".join([*rows, f"otherwise: {', '.join(action.otherwise) or 'nothing'}"])

    def run(self, work: Work) -> Done:
        """Decide; see the port. A person's answer comes before everything else."""
        action = _action(work)
        options = action.options or _as_options(work, action)
        said = tally(work.decisions, 1, options)
        if said.rejection is not None:
            reason = f"{said.rejection.by or 'somebody'} said no: {said.rejection.rationale or 'no reason given'}"
            return Done(failure=_policy(reason), command=_told(work), outputs={"by": said.rejection.by})
        if said.option is not None:
            return _chosen(work, said.option.to, f"person {', '.join(said.by)}", said.rationale, said.option.name)
        for number, rule in enumerate(action.rules, 1):
            if parse_expression(rule.when).holds(work.lookup):
                return _chosen(work, rule.to, f"rule {number}", rule.note or rule.when)
        if action.hypotheses:
            name = best(work.beliefs, action.hypotheses, action.min_confidence)
            if name is not None:
                sure = next(belief.confidence for belief in work.beliefs if belief.hypothesis == name)
                return _chosen(work, action.hypotheses[name], f"hypothesis {name}", f"confidence {sure:.2f}", name)
        elif action.question and self._model.configured:
            return self._by_model(work, action)
        return _undecided(work, action, options, said.note)

    def _by_model(self, work: Work, action: DecisionAction) -> Done:
        by_name = {option.name: option for option in action.options}
        if not by_name:
            problem = (
                "the decision has a question but no options. Name at least two, each with the steps that it starts"
            )
            return Done(failure=StepFailure(failure_class=FailureClass.LOGIC, reason=problem), command=_told(work))
        answered = self._model.ask(
            work,
            Asked(
                prompt=self._model.render("options.md", question=action.question, options=action.options),
                system="decision.md",
                schema=_schema(tuple(by_name)),
            ),
        )
        spent: dict[str, Any] = {
            "artifacts": answered.artifacts,
            "usage": answered.usage,
            "api_calls": answered.calls,
        }
        if answered.failure is not None:
            return Done(failure=answered.failure, command=_told(work), **spent)
        option = by_name[answered.value["option"]]
        sure = float(answered.value["confidence"])
        if sure < action.min_confidence:
            doubt = f"would choose {option.name}, but is only {sure:.2f} sure: {answered.value['reason']}"
            note = f"model {answered.model} {doubt}"
            return _undecided(work, action, action.options, note, **spent)
        reason = str(answered.value["reason"])
        return _chosen(work, option.to, f"model {answered.model}", reason, option.name, **spent)


def _action(work: Work) -> DecisionAction:
    assert work.step.decision is not None
    return work.step.decision


def _told(work: Work) -> str:
    return f"decide: {work.step.title or work.step.id}"


def _as_options(work: Work, action: DecisionAction) -> tuple[Option, ...]:
    """Return the hypotheses as options for a person, with how sure the plan is of each."""
    known = {belief.hypothesis: belief for belief in work.beliefs}
    statements = {hypothesis.id: hypothesis.statement for hypothesis in work.plan.hypotheses}

    def speaks_for(name: str) -> tuple[str, ...]:
        belief = known.get(name)
        sure = f"confidence {belief.confidence:.2f} after {belief.evidence} notes" if belief else "no evidence yet"
        return tuple(line for line in (statements.get(name, ""), sure) if line)

    return tuple(Option(name=name, pros=speaks_for(name), to=to) for name, to in action.hypotheses.items())


def _schema(names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "option": {"type": "string", "enum": list(names)},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["reason", "option", "confidence"],
        "additionalProperties": False,
    }


def _chosen(work: Work, to: tuple[str, ...], by: str, reason: str, option: str = "", **spent: Any) -> Done:
    return Done(
        outputs={"chosen": list(to), "by": by, "reason": reason, "option": option},
        chosen=to,
        command=_told(work),
        summary=shorten(f"{option or ', '.join(to) or 'nothing'} by {by}: {reason}", SUMMARY_CHARACTERS),
        **spent,
    )


def _undecided(work: Work, action: DecisionAction, options: tuple[Option, ...], note: str, **spent: Any) -> Done:
    """Take the way that is left, or ask a person where there is none."""
    if action.otherwise or not options:
        return _chosen(work, action.otherwise, "otherwise", note or "nothing else held", **spent)
    text = (
        str(work.resolve(action.question))
        if action.question
        else f"Which way does '{work.step.title or work.step.id}' take?"
    )
    question = GateQuestion(text=shorten(f"{text}\n({note})" if note else text, QUESTION_CHARACTERS), options=options)
    return Done(question=question, command=_told(work), summary="a person has to decide", **spent)


def _policy(reason: str) -> StepFailure:
    return StepFailure(failure_class=FailureClass.POLICY, reason=shorten(reason, REASON_CHARACTERS))
