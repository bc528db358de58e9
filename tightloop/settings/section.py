"""What the groups of settings are made of: their base and the types that more than one of them uses."""

from typing import Annotated

from pydantic import ConfigDict, Field

from tightloop.value import Document

Address = Annotated[str, Field(pattern=r"^[^\s/]+:\d{1,5}$")]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """A group of settings; infinity and NaN are not numbers here."""

    model_config = ConfigDict(allow_inf_nan=False)
