"""The capability `model`: one question to a model, with a checked answer."""

import json
from dataclasses import replace

from activities.plan.port import RunnerResult, Work
from activities.plan.runners.model.question import Asked, PlanModel
from activities.plan.runners.model.schema import strict
from tightloop.plan.document.action import ModelAction
from tightloop.value import shorten

PREVIEW_CHARACTERS = 4_000
PLAIN = strict({"type": "object", "properties": {"text": {"type": "string"}}})
"""Without a schema the answer is the output `text`."""


class ModelRunner:
    """Asks the question of a step. The fields of the answer are its outputs."""

    def __init__(self, model: PlanModel) -> None:
        """Take what asks."""
        self._model = model

    def preview(self, work: Work) -> str:
        """Return the prompt as it would be sent."""
        return shorten(self._model.prompt(work, work.action(ModelAction).prompt), PREVIEW_CHARACTERS)

    def run(self, work: Work) -> RunnerResult:
        """Ask; see the port. Prompt, answer and the whole exchange are kept as artifacts."""
        action = work.action(ModelAction)
        answered = self._model.ask(
            work,
            Asked(
                prompt=action.prompt,
                schema=action.schema_ or PLAIN,
                model=action.model,
                max_output_tokens=action.max_output_tokens,
            ),
        )
        artifacts = dict(answered.artifacts)
        if answered.failure is None:
            content = json.dumps(answered.outputs, ensure_ascii=False, indent=1, sort_keys=True).encode()
            artifacts["answer"] = work.store.put(content, name="answer")
        told = f"asked {answered.model or action.model or 'no model'}"
        summary = shorten(answered.failure.reason if answered.failure else told, 200)
        return replace(answered, artifacts=artifacts, command=told, summary=summary)
