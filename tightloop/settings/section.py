"""Base class of settings sections, and the types that several of them use."""

from typing import Annotated

from pydantic import ConfigDict, Field

from tightloop.value import Document

Address = Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$")]
HostRule = Annotated[str, Field(pattern=r"^(?:\*|(?:\*\.)?[\w.-]+|(?:[\w.-]+|\[[\da-fA-F:]+\]):[0-9]{1,5})$")]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """A group of settings; infinity and NaN are not numbers here."""

    # YAML has `.inf` and `.nan`: as a bound they would never be reached.
    model_config = ConfigDict(allow_inf_nan=False)
