"""Settings of the memory: failures, what solved them, and facts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tightloop.settings.section import Count, Seconds, Section


class MemorySettings(Section):
    """What is remembered of failures and their solutions, and how it is searched."""

    enabled: bool = True
    """Write to the memory, and let planners and the coder read it."""
    store: Literal["auto", "local"] = "auto"
    """`auto`: the PostgreSQL of `database.url` where that is set (it needs the extension pgvector), else the file
    memory.db in the state home. `local`: the file in any case."""
    embedder: Literal["hashing", "local", "openai"] = "hashing"
    """`hashing` finds alike words and needs nothing. `local`: a model in `folder`. `openai`: `model`, for which the
    lines of failures are sent to the service of `planner`."""
    folder: str = ""
    """Of the local model: model.safetensors and tokenizer.json of a BERT such as all-MiniLM-L6-v2."""
    model: str = Field(default="text-embedding-3-large", min_length=1)
    """Of the embedder `openai`."""
    dimension: Annotated[int, Field(ge=64, le=2_000)] = 1536
    """Of its vectors. pgvector indexes at most 2 000."""
    timeout_s: Seconds = 10.0
    """For one call of the embedder `openai`; without an answer only words are compared."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least cosine of what counts as alike. Empty (null): as it fits the embedder."""
    shown: Annotated[int, Field(ge=1, le=3)] = 3
    """Solutions in one briefing: more of them distract a planner."""
    max_failures: Count = 20_000
    """Of one project. Beyond it go those that were not seen for longest, unsolved ones first."""
    max_facts: Count = 500
    """Of one project."""

    @model_validator(mode="after")
    def _names_its_folder(self) -> "MemorySettings":
        if self.embedder == "local" and not self.folder:
            raise ValueError("embedder is local, but folder is empty. Name the folder of the model")
        return self
