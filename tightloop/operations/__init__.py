"""Table of all operations, with each one's description, applicable runs, required role and form in each interface.

The HTTP API, the MCP tools and the web page are built from this table. `tests/unit/test_operations.py` checks the
command line, the typed client and the workflow handlers against it. Models are referenced by name and imported on first
use, so that this module only loads the standard library.
"""

from importlib import import_module
from typing import Any, NamedTuple

EPISODE = ("episode",)
PLAN = ("plan",)
LOOP = ("loop",)
PLANS = ("plan", "loop")
ALL = ("episode", "plan", "loop")

READS, STARTS, CHANGES, DESTROYS = "reads", "starts", "changes", "destroys"
VIEWER, AGENT, OPERATOR, APPROVER = "viewer", "agent", "operator", "approver"
KEYED = "keyed"
"""Idempotent by key: a repeated request with the same key has no further effect and returns the same response."""
NATURAL = "natural"
"""Idempotent without a key."""


class Http(NamedTuple):
    """HTTP endpoint of an operation."""

    method: str
    path: str
    """Path below `/api`. `{noun}` stands for `episodes` and for `plans`."""
    name: str = ""
    """Endpoint name, from which the operationId is derived. If empty, the operation's name is used."""
    status: int = 200
    result: str = ""
    """Result model. If empty, the operation's result model is used."""
    tags: tuple[str, ...] = ()
    """OpenAPI tags. If empty, the first path segment is used."""
    fields: tuple[tuple[str, str], ...] = ()
    """Pairs of client argument and path parameter."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths below `/api`. An operation on both episodes and plans has two paths."""
        nouns = ("episodes", "plans") if "{noun}" in self.path else ("",)
        return tuple(self.path.replace("{noun}", noun) for noun in nouns)


class Form(NamedTuple):
    """Form for an operation on the web page."""

    path: str
    confirmation: str = ""
    """Confirmation question with the placeholders `{title}` and `{checkpoint}`, or "" if the page builds it."""


class Operation(NamedTuple):
    """An operation that all interfaces offer. Each operation is a row of `OPERATIONS`."""

    name: str
    summary: str
    """Description for all interfaces."""
    kinds: tuple[str, ...] = ()
    """Kinds of runs that the operation applies to, or an empty tuple if it does not need a run."""
    role: str = VIEWER
    effect: str = READS
    repeat: str = NATURAL
    details: str = ""
    """Additional description for API and MCP users."""
    request: str = ""
    """Request model, or "" if the run is the only argument."""
    plan_request: str = ""
    """Request model for plans, if it differs."""
    result: str = ""
    """Result model of the HTTP API."""
    errors: tuple[str, ...] = ()
    """Error classes other than those implied by kinds, role and effect."""
    client: str = ""
    """Client method, or "" if there is none."""
    fixed: tuple[tuple[str, str], ...] = ()
    """Fixed arguments of the client method."""
    handler: str = ""
    """Name of the Temporal signal, update or query."""
    reply: str = ""
    """Response text for a signal, because signals return nothing."""
    when_closed: bool = False
    """True if closed runs accept the operation."""
    is_anonymous: bool = False
    """True if the workflow does not record the author."""
    http: tuple[Http, ...] = ()
    cli: str = ""
    """Command-line name."""
    mcp: str = ""
    """MCP tool name."""
    page: Form | None = None

    def load(self, model: str) -> Any:
        """Import a model, given the name that a row uses, such as `models:Pause`."""
        module, _, name = model.partition(":")
        return getattr(import_module(f"{__name__}.{module}"), name)

    @property
    def word(self) -> str:
        """Short name of the operation, which is the last segment of its path."""
        return self.http[0].path.rpartition("/")[2] if self.http else self.name.replace("_", "-")

    @property
    def text(self) -> str:
        """Description, including the details."""
        return f"{self.summary} {self.details}".rstrip()


_RUN = "/{noun}/{workflowId}"
_STARTS: dict[str, Any] = {"role": OPERATOR, "effect": STARTS, "repeat": KEYED, "result": "results:Started"}
_CHANGES: dict[str, Any] = {"role": OPERATOR, "effect": CHANGES, "repeat": KEYED, "result": "results:Done"}
_DESTROYS: dict[str, Any] = {**_CHANGES, "effect": DESTROYS}

OPERATIONS = (
    # -- start
    Operation(
        "start_episode",
        "Start an episode, which works on one goal until its checks pass.",
        **_STARTS,
        details="Omitted fields are filled from the settings.",
        request="models:EpisodeBody",
        errors=("IdTakenError", "ProjectNotFoundError", "WorkspaceError"),
        client="start",
        http=(
            Http("POST", "/episodes", status=201),
            Http("POST", "/projects/{projectId}/episodes", "start_episode_of_project", 201, tags=("episodes",)),
        ),
        cli="start",
        mcp="start_episode",
    ),
    Operation(
        "start_plan",
        "Start a plan from its source, a file in the workspace, or a goal.",
        **_STARTS,
        request="models:PlanBody",
        errors=("IdTakenError", "ProjectNotFoundError", "WorkspaceError"),
        client="start",
        http=(
            Http("POST", "/plans", status=201),
            Http("POST", "/projects/{projectId}/plans", "start_plan_of_project", 201, tags=("plans",)),
        ),
        cli="plan run",
    ),
    Operation(
        "plan_project",
        "Inspect the project and divide the work into tasks without starting them.",
        **{**_STARTS, "result": "results:LoopPlan"},
        request="models:PlanProject",
        errors=("IdTakenError", "WorkspaceError"),
        client="plan_project",
        http=(Http("POST", "/projects/{projectId}/plan", status=201, tags=("plans",)),),
        cli="loop plan",
        page=Form("/projects/{id}/plan"),
    ),
    Operation(
        "add_project",
        "Add a project, inspect it, and plan its work.",
        **{**_STARTS, "result": "results:LoopPlan"},
        details="Requires a token that covers all projects.",
        request="models:AddProject",
        client="plan_project",
        http=(Http("POST", "/projects", status=201, tags=("plans", "projects")),),
        page=Form("/projects"),
    ),
    # -- look
    Operation(
        "list",
        "List episodes and plans, newest first, and show what is waiting for a person.",
        kinds=ALL,
        result="results:Lines",
        client="list",
        http=(Http("GET", "/episodes", "episodes"), Http("GET", "/plans", "plans")),
        cli="list",
        mcp="list_workflows",
    ),
    Operation(
        "status",
        "Show the state, what is waiting for a person, and how to answer.",
        kinds=ALL,
        details="Returns the last recorded state.",
        result="results:Episode",
        client="status",
        handler="status",
        http=(
            Http("GET", "/episodes/{workflowId}", "episode"),
            Http("GET", "/plans/{workflowId}", "plan", result="results:AnyPlan"),
        ),
        cli="status",
        mcp="status",
    ),
    Operation(
        "watch",
        "Follow the events of a run.",
        kinds=ALL,
        client="watch",
        http=(Http("GET", "/events", "events"),),
        cli="watch",
    ),
    Operation(
        "timeline",
        "Show the events of a run, newest last.",
        kinds=ALL,
        details="Returns the events after the cursor, or the latest events if there is no cursor.",
        result="results:Timeline",
        client="timeline",
        handler="timeline",
        http=(Http("GET", f"{_RUN}/timeline"),),
        cli="timeline",
    ),
    Operation(
        "trail",
        "Show recorded events from the ledger, oldest first.",
        kinds=ALL,
        result="results:Trail",
        http=(Http("GET", f"{_RUN}/trail"),),
    ),
    Operation(
        "checkpoints",
        "List the checkpoints of an episode.",
        kinds=EPISODE,
        result="results:Checkpoints",
        client="checkpoints",
        handler="checkpoints",
        http=(Http("GET", "/episodes/{workflowId}/checkpoints"),),
        cli="checkpoints",
    ),
    Operation(
        "diff",
        "Show how an episode's files or plan changed between two checkpoints.",
        kinds=EPISODE,
        details="Works only if the workspace is on this host.",
        result="results:Diff",
        errors=("WorkspaceError",),
        http=(Http("GET", "/episodes/{workflowId}/diff"),),
        cli="diff",
        mcp="diff_and_classify",
    ),
    Operation(
        "output",
        "Print the full output of the last run of an episode's checks, or of one check.",
        kinds=EPISODE,
        errors=("ArtifactMissingError",),
        cli="output",
    ),
    Operation(
        "artifacts",
        "List stored artifacts: plans, reports, checks, proofs, and checkpoint states.",
        kinds=ALL,
        result="results:Artifacts",
        http=(Http("GET", f"{_RUN}/artifacts"),),
    ),
    Operation(
        "artifact",
        "Download a stored artifact.",
        kinds=ALL,
        details="Works only if the workspace is on the gateway's host.",
        errors=("ArtifactMissingError", "WorkspaceError"),
        http=(Http("GET", f"{_RUN}/artifacts/{{sha256}}"),),
    ),
    Operation(
        "request",
        "Show an episode's request, including its amendments.",
        kinds=ALL,
        details="Queries the worker while the run is open.",
        result="results:Asked",
        client="request",
        handler="request",
        http=(Http("GET", f"{_RUN}/request", "asked"),),
    ),
    Operation(
        "runs",
        "List the runs that Temporal still stores, oldest first.",
        kinds=ALL,
        details="Requires a token that covers all projects.",
        result="results:Runs",
        client="runs",
        http=(Http("GET", f"{_RUN}/runs"),),
    ),
    Operation(
        "history",
        "Show the history of a run in the format used by Temporal's own tools.",
        kinds=ALL,
        details="Requires a token that covers all projects.",
        client="history",
        http=(Http("GET", f"{_RUN}/runs/{{runId}}/history"),),
    ),
    Operation(
        "steps",
        "Show a plan and its steps in plan order.",
        kinds=PLANS,
        result="results:Steps",
        client="steps",
        handler="steps",
        http=(Http("GET", "/plans/{workflowId}/steps"),),
        cli="plan show",
        mcp="plan",
    ),
    Operation(
        "inbox",
        "Show every question that is waiting for a person, oldest first, with its options.",
        result="results:Inbox",
        http=(Http("GET", "/inbox"),),
        cli="inbox",
        mcp="inbox",
    ),
    Operation(
        "digest",
        "Summarize a time range: what is ready to merge, what needs an answer, what failed, what is still "
        "running, and the total cost.",
        result="results:Digest",
        errors=("ProjectNotFoundError",),
        http=(Http("GET", "/projects/{projectId}/digest"),),
        cli="digest",
    ),
    Operation(
        "metrics",
        "Show the success rate, iterations, tokens, cost, time, findings and interventions for a time range.",
        details="Each figure includes the number of known values (`n`), the median, the 90th percentile and the sum. "
        "Unreported values are counted only under `unknown`.",
        result="results:Metrics",
        http=(Http("GET", "/metrics"),),
        cli="metrics",
    ),
    Operation(
        "projects",
        "List the projects and their activity.",
        result="results:Projects",
        http=(Http("GET", "/projects"), Http("GET", "/projects/{projectId}", "project", result="results:Project")),
    ),
    Operation(
        "schemas",
        "Show the JSON Schema (2020-12) for a workflow type's input, with Python field names as in Temporal.",
        result="results:Schemas",
        http=(Http("GET", "/schemas"), Http("GET", "/schemas/{workflowType}", "schema", result="results:Schema")),
    ),
    Operation(
        "workers",
        "Show the workers and what an episode started now would have to wait for.",
        details="Requires a token that covers all projects.",
        result="results:Workers",
        client="topology",
        http=(Http("GET", "/workers"),),
    ),
    Operation(
        "proof",
        "Show how the result of an episode or a plan was proven.",
        kinds=EPISODE,
        details="Works only if the workspace is on this host.",
        errors=("ProofError", "ArtifactMissingError", "WorkspaceError"),
        http=(Http("GET", "/episodes/{workflowId}/proof"),),
        cli="proof",
    ),
    Operation("verify_proof", "Verify a proof offline.", cli="verify"),
    Operation(
        "export",
        "Export a run: its request, status, timeline, checkpoints or steps, and the history of each Temporal run.",
        cli="export",
    ),
    Operation(
        "keep",
        "Protect the data of an episode or a plan on this host from `tightloop gc`, regardless of age.",
        effect=CHANGES,
        is_anonymous=True,
        cli="keep",
    ),
    Operation(
        "validate",
        "Report every problem in a plan without starting it.",
        role=OPERATOR,
        request="models:PlanText",
        result="results:Examined",
        http=(Http("POST", "/plans/validate"),),
        cli="plan validate",
    ),
    # -- steer; the order is that of lists of what is possible
    Operation(
        "answer",
        "Answer a question with one of its options.",
        **_CHANGES,
        kinds=ALL,
        details="Approvals require the role `approver`.",
        request="models:Answer",
        client="answer",
        handler="answer",
        http=(Http("POST", f"{_RUN}/answer"),),
        cli="answer",
        mcp="answer",
        page=Form("/workflows/{id}/answer"),
    ),
    Operation(
        "pause",
        "Pause as soon as the running steps have ended.",
        **{**_CHANGES, "repeat": NATURAL},
        kinds=ALL,
        request="models:Pause",
        client="pause",
        handler="pause",
        reply="the run will pause at the next safe point, unless it is already waiting for an answer",
        http=(Http("POST", f"{_RUN}/pause", status=202),),
        cli="pause",
        mcp="pause_episode",
        page=Form("/workflows/{id}/pause", "“{title}” will pause at its next safe point."),
    ),
    Operation(
        "resume",
        "Resume a paused run. Open questions get the answers that keep all work. Edits made during the pause are kept.",
        **_CHANGES,
        kinds=ALL,
        request="models:Resume",
        client="resume",
        handler="resume",
        reply="the run continues unless a question needs a decision",
        http=(Http("POST", f"{_RUN}/resume", status=202),),
        cli="resume",
    ),
    Operation(
        "cancel",
        "Permanently end an episode or a plan. Files are kept, unless a plan with `on_failure: compensate` undoes "
        "its steps.",
        **{**_DESTROYS, "repeat": NATURAL},
        kinds=ALL,
        request="models:Cancel",
        client="cancel",
        handler="cancel",
        reply="the run will end after its running work has stopped",
        http=(Http("POST", f"{_RUN}/cancel", status=202),),
        cli="cancel",
        page=Form(
            "/workflows/{id}/cancel",
            "“{title}” will be ended permanently. Running work will be stopped first, and files will be left "
            "unchanged.",
        ),
    ),
    Operation(
        "top_up",
        "Raise the budget, and resume if the run was paused because the budget ran out.",
        **_CHANGES,
        kinds=ALL,
        request="models:EpisodeTopUp",
        plan_request="models:PlanTopUpBody",
        client="top_up",
        handler="top_up",
        http=(Http("POST", f"{_RUN}/top-up"),),
        cli="top-up",
    ),
    Operation(
        "respond",
        "Send a message to an episode's planner without answering a question.",
        **_CHANGES,
        kinds=EPISODE,
        details="Also ends a pause that does not need a decision.",
        request="models:Respond",
        client="respond",
        handler="respond",
        http=(Http("POST", "/episodes/{workflowId}/respond"),),
        cli="respond",
        mcp="respond",
        page=Form(
            "/workflows/{id}/respond",
            "The planner of “{title}” will read this message before its next plan. The message does not answer an "
            "open question.",
        ),
    ),
    Operation(
        "amend",
        "Change an episode's goal, definition of done, hidden scenarios, executor or planner.",
        **_CHANGES,
        kinds=EPISODE,
        request="models:Amend",
        client="amend",
        handler="amend_goal",
        http=(Http("POST", "/episodes/{workflowId}/amend"),),
        cli="amend",
    ),
    Operation(
        "restore",
        "Restore the state and files of a checkpoint and reopen the episode if it is closed.",
        **_DESTROYS,
        kinds=EPISODE,
        request="models:Restore",
        errors=("WorkspaceError",),
        client="restore",
        handler="restore_checkpoint",
        when_closed=True,
        http=(Http("POST", "/episodes/{workflowId}/restore"),),
        cli="restore",
        mcp="resume_episode",
        page=Form(
            "/workflows/{id}/restore",
            "The state and files of “{title}” will be restored from {checkpoint}. You can undo the restore later.",
        ),
    ),
    Operation(
        "fork",
        "Start a new episode from a checkpoint in its own git worktree.",
        **_STARTS,
        kinds=EPISODE,
        request="models:Fork",
        errors=("IdTakenError", "WorkspaceError"),
        client="fork",
        when_closed=True,
        http=(Http("POST", "/episodes/{workflowId}/fork", status=201),),
        cli="fork",
        page=Form("/workflows/{id}/fork", "A new episode will start from {checkpoint} of “{title}”."),
    ),
    Operation(
        "move",
        "Continue an episode on another host, for example if its current host is lost.",
        **_CHANGES,
        kinds=EPISODE,
        request="models:Move",
        client="move",
        handler="move",
        cli="move",
    ),
    Operation(
        "run_step",
        "Start a step now, even during a pause, or retry a failed step.",
        **_CHANGES,
        kinds=PLAN,
        client="run_step",
        handler="run_step",
        http=(Http("POST", "/plans/{workflowId}/tasks/{taskId}/run", "run_task", fields=(("step", "taskId"),)),),
        cli="plan run-step",
    ),
    Operation(
        "replan",
        "Change a running plan without affecting completed or running steps.",
        **_CHANGES,
        kinds=PLAN,
        details="If no plan is given, a planner writes one.",
        request="models:Replan",
        client="replan",
        handler="replan",
        http=(Http("POST", "/plans/{workflowId}/replan"),),
        cli="plan replan",
    ),
    Operation(
        "approve",
        "Approve a gate, or all gates of a review window.",
        **{**_CHANGES, "role": APPROVER},
        kinds=PLANS,
        details="If several people must agree, each of them has to approve.",
        request="models:Approval",
        client="answer",
        handler="answer",
        http=(Http("POST", "/plans/{workflowId}/gates/{gateId}/approve", fields=(("question", "gateId"),)),),
        cli="approve",
    ),
    Operation(
        "reject",
        "Reject a gate. Its step then fails with the failure class `policy`.",
        **{**_CHANGES, "role": APPROVER},
        kinds=PLANS,
        request="models:Rejection",
        client="answer",
        fixed=(("option", "reject"),),
        handler="answer",
        http=(Http("POST", "/plans/{workflowId}/gates/{gateId}/reject", fields=(("question", "gateId"),)),),
        cli="reject",
    ),
    Operation(
        "dispatch",
        "Start the tasks of a plan, each as an episode in its own worktree.",
        **{**_CHANGES, "result": "results:Dispatched"},
        kinds=LOOP,
        errors=("WorkspaceBusyError",),
        request="models:Dispatch",
        client="dispatch",
        handler="dispatch",
        http=(Http("POST", "/plans/{workflowId}/dispatch"),),
        cli="loop dispatch",
        page=Form("/loops/{id}/dispatch"),
    ),
    Operation(
        "verify",
        "Run the gates of a plan whose tasks have ended. A failed gate is not retried.",
        **{**_CHANGES, "result": "results:Verified"},
        kinds=LOOP,
        errors=("WorkspaceBusyError",),
        request="models:Verify",
        client="verify",
        handler="verify",
        http=(Http("POST", "/plans/{workflowId}/verify"),),
        cli="loop verify",
        page=Form("/loops/{id}/verify", "tightloop will run the gates of “{title}”."),
    ),
    # -- an agent's own episode
    Operation(
        "record_checkpoint",
        "Save a scratchpad with the checkpoint of the current iteration.",
        kinds=EPISODE,
        role=AGENT,
        effect=CHANGES,
        mcp="record_checkpoint",
    ),
    Operation(
        "send_message",
        "Report to the planner, send it a message, or ask a person.",
        kinds=EPISODE,
        role=AGENT,
        effect=CHANGES,
        mcp="send_message",
    ),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}


def possible(kind: str, *, is_open: bool) -> tuple[str, ...]:
    """Return the names of the state-changing operations that a run accepts.

    The name of an operation is the last segment of its path.
    """
    return tuple(
        # Rows such as `approve` use the method of another row, which is listed itself.
        row.word
        for row in OPERATIONS
        if kind in row.kinds and row.http and row.effect != READS and row.client == row.name
        if is_open or row.when_closed
    )
