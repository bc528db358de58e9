"""The capability `model`: one question to a model, with a checked answer."""

import json

from activities.plan.port import Done, Work
from activities.plan.runners.question import Asked, PlanModel
from tightloop.value import shorten

PREVIEW_CHARACTERS = 4_000
PLAIN = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
"""Without a schema the answer is the output `text`."""


class ModelRunner:
    """Asks the question of a step. The fields of the answer are its outputs."""

    def __init__(self, model: PlanModel) -> None:
        """Take what asks."""
        self._model = model

    def preview(self, work: Work) -> str:
        """Return the prompt as it would be sent."""
        assert work.step.model is not None
        return shorten(self._model.prompt(work, work.step.model.prompt), PREVIEW_CHARACTERS)

    def run(self, work: Work) -> Done:
        """Ask; see the port. Prompt, answer and the whole exchange are kept as artifacts."""
        action = work.step.model
        assert action is not None
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
            content = json.dumps(answered.value, ensure_ascii=False, indent=1, sort_keys=True).encode()
            artifacts["answer"] = work.store.put(content, name="answer")
        told = f"asked {answered.model or action.model or 'no model'}"
        return Done(
            outputs=answered.value,
            artifacts=artifacts,
            command=told,
            failure=answered.failure,
            usage=answered.usage,
            api_calls=answered.calls,
            summary=shorten(answered.failure.reason if answered.failure else told, 200),
        )
