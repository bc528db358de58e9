"""Base class of settings sections, and the types that several of them use."""

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from tightloop.value import Document


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern.replace("{project}", "x"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


Address = Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$")]
HostRule = Annotated[str, Field(pattern=r"^(?:\*|(?:\*\.)?[\w.-]+|(?:[\w.-]+|\[[\da-fA-F:]+\]):[0-9]{1,5})$")]
Seconds = Annotated[float, Field(gt=0)]
Pattern = Annotated[str, AfterValidator(_compiled)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """A group of settings; infinity and NaN are not numbers here."""

    # YAML has `.inf` and `.nan`: as a bound they would never be reached.
    model_config = ConfigDict(allow_inf_nan=False)
