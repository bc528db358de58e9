"""Roles of the coder, and how its work is shown."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from tightloop.coder.model import CoderProgress, CoderStatus
from tightloop.errors import SettingsError, did_you_mean
from tightloop.value import Document, counted, first_problem, shorten

FINISH = "finish"
"""The tool that ends a part of the work. Every role has it: a model without it could only be stopped."""

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class Role(Document):
    """One role: what it is asked with, and what it may use."""

    name: str
    prompt: str
    """Template of the system prompt: the part that stays the same for the whole session."""
    tools: tuple[str, ...]
    """Names, in the order in which a model is shown them; the order is part of what providers cache."""
    models: tuple[str, ...] = ()
    """The first that the service has is used; empty: those of the settings."""
    temperature: Temperature | None = None
    """None: what the service takes by itself."""
    top_p: TopP | None = None
    max_output_tokens: Positive = 8_000
    """For one answer."""
    max_turns: Positive = 50
    """Answers for one part of the work."""
    answer: tuple[str, ...] = ()
    """Headings of what the role says when it finishes."""

    @model_validator(mode="before")
    @classmethod
    def _can_finish(cls, value: Any) -> Any:
        tools = value.get("tools") if isinstance(value, dict) else None
        if isinstance(tools, list | tuple) and FINISH not in tools:
            return {**value, "tools": (*tools, FINISH)}
        return value


def read_role(name: str, text: str) -> Role:
    """Read the file of a role: YAML between two lines `---`, then the prompt.

    Raises:
        SettingsError: it has no such head, or a field is unknown or not allowed.
    """
    # Roles are read where work is done; a client that only starts episodes needs no YAML.
    import yaml

    from tightloop.value.documents import load_yaml

    opening, _, rest = text.partition("---\n")
    head, ending, prompt = rest.partition("\n---\n")
    if opening.strip() or not ending or not prompt.strip():
        raise SettingsError(f"role {name}: write `---`, fields such as `tools: [read_file]`, `---`, then the prompt")
    try:
        fields = load_yaml(head)
        if not isinstance(fields, dict):
            raise SettingsError(f"role {name}: between the lines `---` stand fields such as `tools: [read_file]`")
        return Role.model_validate({**fields, "name": name, "prompt": prompt.strip()})
    except yaml.YAMLError as error:
        raise SettingsError(f"role {name}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        near = (
            f". {did_you_mean(str(first['loc'][0]), Role.model_fields)}" if first["type"] == "extra_forbidden" else ""
        )
        raise SettingsError(f"role {name}: {first_problem(error)}{near}") from None


@cache
def known_roles() -> Mapping[str, Role]:
    """Return the roles by name, as their files say."""
    # The settings import this module; only who works with the coder reads the files.
    from importlib import resources

    files = sorted(resources.files("tightloop.coder").joinpath("roles").iterdir(), key=lambda file: file.name)
    named = [(file.name.removesuffix(".md"), file) for file in files if file.name.endswith(".md")]
    return {name: read_role(name, file.read_text("utf-8")) for name, file in named}


def known_tools() -> frozenset[str]:
    return frozenset(tool for role in known_roles().values() for tool in role.tools)


TITLE_CHARACTERS = 200


def details_markdown(status: CoderStatus) -> str:
    """Return the current details, for Temporal's Web UI."""
    return f"**{status.state.value}** - {shorten(status.title, TITLE_CHARACTERS)}\n- {status.line}"


def path_line(progress: CoderProgress) -> str:
    """Return the states that a coder went through, such as `PLANNING (3 turns) > CODING (9 turns) > TESTING`."""
    ends = [*(turns for _, turns in progress.path[1:]), progress.turns]
    parts = []
    for (state, began), end in zip(progress.path, ends, strict=True):
        parts.append(state.value + (f" ({counted(end - began, 'turn')})" if end > began else ""))
    return " > ".join(parts)


LINE_CHARACTERS = 500
"""Longer lines are cut: they are generated, not written."""


def numbered(lines: list[str], first: int = 1) -> str:
    """Return lines, which have no line ends, each behind its number and a tab."""
    width = len(str(first + len(lines)))
    return "\n".join(f"{number:>{width}}\t{cut(line)}" for number, line in enumerate(lines, start=first))


def cut(line: str) -> str:
    """Return a line, marked where it was cut."""
    surplus = len(line) - LINE_CHARACTERS
    return line if surplus <= 0 else f"{line[:LINE_CHARACTERS]} [... {surplus} more]"
