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
NewId = Annotated[
    str | None,
    Query(max_length=100, description="Id of the new one; only with a token for all projects.", examples=["nightly-1"]),
]
Replace = Annotated[bool, Query(description="Take the `id` of a closed one; its checkpoints and its timeline stay.")]
Fresh = Annotated[bool, Query(description="Ask the workflow itself, which needs a worker.")]
FreshList = Annotated[
    bool,
    Query(description="Ask Temporal, which also knows what no worker has opened yet; the newest, without a cursor."),
]
Checkpoint = Annotated[str, Query(max_length=20, pattern=r"^(ckpt-)?[0-9]{1,7}$", examples=["ckpt-1"])]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the bytes.")]
After = Annotated[int, Query(ge=0, le=2**62, description="Only what follows this line.")]
Status = Annotated[str, Query(max_length=40, pattern=r"^[A-Za-z_]*$", examples=["paused"])]
Part = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Part of the id or the goal.")]
Parent = Annotated[
    str | None,
    Query(max_length=200, pattern=r"^[^\x00]*$", description="Id of the plan that started them; empty: without one."),
]
RunId = Annotated[
    str,
    Path(
        alias="runId",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        examples=["01979c1e-7a31-7b52-8f3e-5a4d3c2b1a09"],
    ),
]
IN_PATH = {
    name: Annotated[
        str,
        Path(alias=name, max_length=200, pattern=r"^[^\x00]*$", description="Id of a step, or of its question."),
    ]
    for name in ("taskId", "gateId")
}
"""Parts of the path that are arguments of a message."""
