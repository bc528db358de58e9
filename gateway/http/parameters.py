"""Parameters of paths and queries."""

from typing import Annotated

from fastapi import Path, Query

WorkflowId = Annotated[
    str, Path(alias="workflowId", max_length=200, description="Id of an episode or a plan.", examples=["nightly-1"])
]
ProjectId = Annotated[
    str,
    Path(
        alias="projectId",
        max_length=80,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Id of a project.",
        examples=["orders-0123456789abcdef"],
    ),
]
ProjectFilter = Annotated[
    str,
    Query(
        max_length=80,
        pattern=r"^[A-Za-z0-9-]*$",
        description="Only of this project.",
        examples=["orders-0123456789abcdef"],
    ),
]
Wait = Annotated[
    int, Query(ge=0, le=60, description="Seconds to wait for what it started; then the answer says where it is.")
]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]
Cursor = Annotated[
    str,
    Query(
        max_length=1_000,
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="Where the page begins: `cursor` of the page before.",
    ),
]
