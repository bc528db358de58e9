"""What starts a run of an episode, read from whatever was sent."""

from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.episode.checkpoint import RestoreTarget
from tightloop.episode.model import RIGHT_INPUT, EpisodeRequest, EpisodeState
from tightloop.errors import followed_by
from tightloop.safety.seal import Heard, Seal
from tightloop.value import first_problem
from tightloop.value.caller import unknown_fields


class EpisodeInput(EpisodeRequest):
    """What starts a run: a request; or a request with the state that the run before it left."""

    state: EpisodeState | None = None
    restore: RestoreTarget | None = None
    """Start from a stored checkpoint (restore of a closed episode, or fork)."""
    replace: bool = False
    """An episode with this id may have ended before; its checkpoints are kept and listed."""
    heard: Heard = Heard()
    """Messages that the runs before have taken."""
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""
    problem: str = ""
    """Why the input could not be read; the workflow then fails with this sentence, instead of hanging."""
    unknown: str = ""
    """A misspelt name in an input that a person wrote, and the nearest right one."""

    @property
    def goes_on(self) -> bool:
        """Whether it is for an id that has been used before."""
        return self.replace or (self.restore is not None and not self.restore.episode_id)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "EpisodeInput":
        # A payload that cannot be decoded fails the workflow task, which Temporal tries again for ever.
        try:
            read: EpisodeInput = handler(value)
        except ValidationError as error:
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {RIGHT_INPUT}")
        # What tightloop itself writes has all fields, and unknown ones where it is newer than this worker.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"A right input: {RIGHT_INPUT}"))
        return read
