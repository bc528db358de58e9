"""Decision, checkpoint and milestone steps."""

import re
from dataclasses import replace
from typing import Any

from activities.plan.attempts.runner import fail_step
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.model import ModelQuestion, PlanModel, strict
from tightloop.plan.action import CheckpointAction, DecisionAction, Option
from tightloop.plan.engine.state import choices, count_votes, find_best_hypothesis
from tightloop.plan.expression import parse_expression
from tightloop.plan.failing import FailureClass
from tightloop.run.question import Question, QuestionKind
from tightloop.value import shorten

SUMMARY_CHARACTERS = 200


class DecisionRunner:
    """Chooses the steps to start.

    The choice is deterministic for the same records and beliefs, unless a model decides.
    """

    def __init__(self, model: PlanModel) -> None:
        self._model = model

    def preview(self, work: Work) -> str:
        """List the rows of the decision, one per line."""
        action = work.action(DecisionAction)
        rows = [f"if {rule.when}: {', '.join(rule.to) or 'nothing'}" for rule in action.rules]
        rows += [f"if {name} is best supported: {', '.join(to)}" for name, to in action.hypotheses.items()]
        rows += [f"if {option.name} is chosen: {', '.join(option.to)}" for option in action.options]
        return "\n".join([*rows, f"otherwise: {', '.join(action.otherwise) or 'nothing'}"])

    def run(self, work: Work) -> RunnerResult:
        """Make the decision. A person's answer overrides the rules, the hypotheses and the model."""
        action = work.action(DecisionAction)
        options = action.options or _as_options(work, action)
        votes = count_votes(work.request.answers, 1, options)
        if votes.rejection is not None:
            reason = f"rejected by {votes.rejection.by}: {votes.rejection.text or 'no reason given'}"
            return fail_step(
                reason, FailureClass.POLICY, command=_describe_decision(work), outputs={"by": votes.rejection.by}
            )
        if votes.option is not None:
            return _chosen(work, votes.option.to, f"person {', '.join(votes.by)}", votes.rationale, votes.option.name)
        for number, rule in enumerate(action.rules, 1):
            if parse_expression(rule.when).holds(work.lookup):
                return _chosen(work, rule.to, f"rule {number}", rule.note or rule.when)
        if action.hypotheses:
            name = find_best_hypothesis(work.request.beliefs, action.hypotheses, action.min_confidence)
            if name is not None:
                sure = next(belief.confidence for belief in work.request.beliefs if belief.hypothesis == name)
                return _chosen(work, action.hypotheses[name], f"hypothesis {name}", f"confidence {sure:.2f}", name)
        # Not with hypotheses: there the evidence decides, or a person, and a model's guess must not outweigh it.
        elif action.question and self._model.configured:
            return self._by_model(work, action)
        return _fall_back(work, action, options, votes.note)

    def _by_model(self, work: Work, action: DecisionAction) -> RunnerResult:
        by_name = {option.name: option for option in action.options}
        if not by_name:
            problem = "the decision has a question but no options. Add at least two options with their steps"
            return fail_step(problem, command=_describe_decision(work))
        answered = self._model.ask(
            work,
            ModelQuestion(
                prompt=self._model.render("options.md", question=action.question, options=action.options),
                system="decision.md",
                schema=_schema(tuple(by_name)),
            ),
        )
        if answered.failure is not None:
            return replace(answered, command=_describe_decision(work))
        spent = {"artifacts": answered.artifacts, "usage": answered.usage, "api_calls": answered.api_calls}
        option, reason = by_name[answered.outputs["option"]], str(answered.outputs["reason"])
        sure = float(answered.outputs["confidence"])
        if sure < action.min_confidence:
            note = f"model {answered.model} would choose {option.name}, but is only {sure:.2f} sure: {reason}"
            return _fall_back(work, action, action.options, note, **spent)
        return _chosen(work, option.to, f"model {answered.model}", reason, option.name, **spent)


def _describe_decision(work: Work) -> str:
    return f"decide: {work.step.title or work.step.id}"


def _as_options(work: Work, action: DecisionAction) -> tuple[Option, ...]:
    """Convert hypotheses to options for a person. Each option states the confidence in its hypothesis."""
    beliefs = {belief.hypothesis: belief for belief in work.request.beliefs}
    statements = {hypothesis.id: hypothesis.statement for hypothesis in work.plan.hypotheses}

    def speaks_for(name: str) -> tuple[str, ...]:
        belief = beliefs.get(name)
        sure = f"confidence {belief.confidence:.2f} after {belief.evidence} notes" if belief else "no evidence yet"
        return tuple(line for line in (statements.get(name, ""), sure) if line)

    return tuple(Option(name=name, pros=speaks_for(name), to=to) for name, to in action.hypotheses.items())


def _schema(names: tuple[str, ...]) -> dict[str, Any]:
    # The reason comes first: models write fields in this order, so the choice follows the reasoning.
    properties = {
        "reason": {"type": "string"},
        "option": {"type": "string", "enum": list(names)},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    }
    return strict({"type": "object", "properties": properties})


def _chosen(work: Work, to: tuple[str, ...], by: str, reason: str, option: str = "", **spent: Any) -> RunnerResult:
    return RunnerResult(
        outputs={"chosen": list(to), "by": by, "reason": reason, "option": option},
        chosen=to,
        command=_describe_decision(work),
        summary=shorten(f"{option or ', '.join(to) or 'nothing'} by {by}: {reason}", SUMMARY_CHARACTERS),
        **spent,
    )


def _fall_back(
    work: Work, action: DecisionAction, options: tuple[Option, ...], note: str, **spent: Any
) -> RunnerResult:
    """Take the `otherwise` branch, or ask a person if there is none."""
    if action.otherwise or not options:
        return _chosen(work, action.otherwise, "otherwise", note or "no rule matched", **spent)
    text = (
        str(work.resolve(action.question)) or f"Which option should be chosen for '{work.step.title or work.step.id}'?"
    )
    question = Question(
        id="",
        kind=QuestionKind.CLARIFICATION,
        title=text,
        evidence=(note,) if note else (),
        options=choices(options),
        step=work.step.id,
    )
    return RunnerResult(
        question=question, command=_describe_decision(work), summary="waiting for a person to decide", **spent
    )


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class CheckpointRunner:
    """Keeps the tree as `refs/tightloop/<plan>/<name>`."""

    def preview(self, work: Work) -> str:
        return f"save the tree as refs/tightloop/{work.scope.episode_id}/{_name(work)}"

    def run(self, work: Work) -> RunnerResult:
        """Save a snapshot of the tree as a checkpoint. An existing checkpoint with the same name is moved."""
        name = _name(work)
        if not _NAME.fullmatch(name):
            return fail_step(f"{name!r} is not a valid checkpoint name. Use at most 100 letters, digits, '-' and '_'")
        if work.tree is None:
            return fail_step("a checkpoint needs access to the tree. Remove 'access', or set 'access' to 'writes'")
        tree = work.tree.snapshot()
        work.tree.keep(name, tree)
        reference = f"refs/tightloop/{work.scope.episode_id}/{name}"
        return RunnerResult(
            outputs={"name": name, "tree": tree, "reference": reference},
            command=f"save {tree} as {reference}",
            summary=f"saved {tree[:12]} as {name}",
        )


def _name(work: Work) -> str:
    name = str(work.resolve(work.action(CheckpointAction).name))
    return name or re.sub(r"[^A-Za-z0-9_-]", "-", work.step.id)


class MilestoneRunner:
    """Completes milestones."""

    def preview(self, work: Work) -> str:
        return f"reach the milestone {work.step.id}"

    def run(self, work: Work) -> RunnerResult:  # noqa: ARG002 - the port has it
        return RunnerResult(summary="passed")
