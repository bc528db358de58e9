"""The MCP server: tools, resources and HTTP transport."""

import asyncio
import inspect
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple, cast, get_type_hints

from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as Shown
from pydantic import BaseModel, ConfigDict, create_model
from starlette import requests
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access import scope
from gateway.access.scope import EPISODES, Services, WorkflowRef
from gateway.access.site import RefusedError
from gateway.mcp.report import Caller
from gateway.mcp.tools import FOR_AGENTS, TOOLS, Ack, Id
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.operations import DESTROYS, OPERATIONS, READS, Operation
from tightloop.operations.models import Request
from tightloop.run.commands import read_argument
from tightloop.safety.seal import Role
from tightloop.value import shorten


class Tool:
    """An MCP tool for an operation. Its description combines the operation's text and a function's docstring."""

    def __init__(self, operation: Operation) -> None:
        """Derive the arguments from the signature of the tool's function.

        If the tool has no function, derive them from the request model.
        """
        self.name, self._operation = operation.mcp, operation
        self.needs = Role.AGENT if self.name in FOR_AGENTS else Role(operation.role)
        self._run = TOOLS.get(self.name) or self._send
        hints = get_type_hints(self._run, include_extras=True)
        self._returns = hints.pop("return")
        self._arguments: type[BaseModel]
        if self.name not in TOOLS:
            self._arguments = create_model(self.name, __base__=operation.load(operation.request), id=(Id, ...))
            return
        # Without the first one: the caller comes from the transport, not from the client.
        parameters = list(inspect.signature(self._run).parameters.values())[1:]
        fields: dict[str, Any] = {
            parameter.name: (
                hints[parameter.name],
                ... if parameter.default is inspect.Parameter.empty else parameter.default,
            )
            for parameter in parameters
        }
        self._arguments = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def shown(self) -> Shown:
        """Tool definition that clients receive."""
        reads = self._operation.effect == READS
        more = inspect.getdoc(self._run) if self.name in TOOLS else ""
        is_model = isinstance(self._returns, type) and issubclass(self._returns, BaseModel)
        return Shown(
            name=self.name,
            description=f"{self._operation.text} {more or ''}".rstrip(),
            input_schema=self._arguments.model_json_schema(by_alias=False),
            output_schema=self._returns.model_json_schema(mode="serialization") if is_model else None,
            annotations=ToolAnnotations(
                read_only_hint=reads,
                destructive_hint=None if reads else self._operation.effect == DESTROYS,
                open_world_hint=False,
            ),
        )

    async def _send(self, caller: Caller, id: str, **arguments: Any) -> Ack:
        return Ack(ack=await caller.perform(self._operation, id, arguments))

    async def call(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the role and the arguments, then run the tool.

        Raises:
            RefusedError: the role is not sufficient.
            TightloopError: the arguments are invalid, or the operation failed.
        """
        caller.scope.require(self.needs)
        read = read_argument(arguments, self._arguments, what=self.name, example=self._example)
        call_arguments = read.arguments() if isinstance(read, Request) else dict(read)
        answer = await self._run(caller, **call_arguments)
        return answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer

    @property
    def _example(self) -> str:
        example: dict[str, Any] = {}
        for name, schema in self.shown.input_schema.get("properties", {}).items():
            if name in self.shown.input_schema.get("required", ()):
                example[name] = next(iter(schema.get("examples", schema.get("enum", ["..."]))))
        return json.dumps(example, ensure_ascii=False)


ALL_TOOLS = tuple(Tool(operation) for operation in OPERATIONS if operation.mcp)
MEDIA_TYPE = "application/json"
TIMELINE_EVENTS = 200
_URI = re.compile(r"tightloop://episodes/([^/]+)/([a-z]+)")


class Part(NamedTuple):
    """A kind of resource that every episode offers."""

    name: str
    description: str
    read: Callable[[Caller, WorkflowRef], Awaitable[Any]]


async def _timeline(caller: Caller, workflow: WorkflowRef) -> Any:
    events = await caller.scope.client.timeline(workflow.id, limit=TIMELINE_EVENTS)
    return [event.model_dump(mode="json") for event in events]


async def _checkpoints(caller: Caller, workflow: WorkflowRef) -> Any:
    records = await asyncio.to_thread(caller.scope.ledger.checkpoints, workflow.id)
    return [record.model_dump(mode="json", exclude_defaults=True) for record in records]


async def _status(caller: Caller, workflow: WorkflowRef) -> Any:
    return (await caller.scope.client.status(workflow.id)).model_dump(mode="json", exclude_defaults=True)


PARTS = (
    Part("timeline", f"The last {TIMELINE_EVENTS} events, oldest first.", _timeline),
    Part("checkpoints", "The checkpoints, oldest first, with their probability class.", _checkpoints),
    Part("status", "The state of the episode and the questions that are waiting for a person.", _status),
)


def uri_of(episode_id: str, part: str) -> str:
    """Return a resource's URI."""
    return f"tightloop://episodes/{episode_id}/{part}"


def of_episode(episode_id: str) -> list[Resource]:
    """Return all resources that an episode offers."""
    return [
        Resource(
            uri=uri_of(episode_id, part.name),
            name=f"{episode_id} {part.name}",
            description=part.description,
            mime_type=MEDIA_TYPE,
        )
        for part in PARTS
    ]


def templates() -> list[ResourceTemplate]:
    """Return the resources' URI templates."""
    return [
        ResourceTemplate(
            uri_template=uri_of("{id}", part.name), name=part.name, description=part.description, mime_type=MEDIA_TYPE
        )
        for part in PARTS
    ]


async def read(caller: Caller, uri: str) -> str:
    """Return a resource as JSON.

    Raises:
        InvalidRequestError: there is no such resource.
        TightloopError: the resource cannot be read.
    """
    match = _URI.fullmatch(uri)
    part = next((entry for entry in PARTS if match is not None and entry.name == match[2]), None)
    if match is None or part is None:
        names = ", ".join(uri_of("ID", entry.name) for entry in PARTS)
        raise InvalidRequestError(f"unknown resource {uri[:200]!r}. Available: {names}")
    workflow = await caller.find(match[1], EPISODES, now=True)
    return json.dumps(await part.read(caller, workflow), ensure_ascii=False)


logger = logging.getLogger("tightloop")

ERROR_CHARACTERS = 4_000
_ABOUT = (
    "Durable episodes of coding work. If you work on a plan, report with send_message(target='planner') and use "
    "the template in your rules file. To ask a person, call pause_episode. The episode creates checkpoints of the "
    "files automatically."
)
Context = ServerRequestContext[Any, Any]
CallerOf = Callable[[Context], Awaitable[Caller]]


def mcp_server(caller_of: CallerOf, version: str = "1") -> Server[Any]:
    """Build the MCP server with all tools and resources.

    Args:
        caller_of: returns the caller of a message, based on the transport's context.
        version: version to show to clients.
    """
    tools = {tool.name: tool for tool in ALL_TOOLS}

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.shown for tool in tools.values()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            return _failure(f"unknown tool {params.name[:80]!r}. Available: {', '.join(tools)}")
        return await _call_tool(tool, caller_of, context, params.arguments or {})

    async def list_resources(context: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
        try:
            episode_id = (await (await caller_of(context)).own()).id
        except (TightloopError, RefusedError):
            # The connection has no episode; clients can use the templates instead.
            return ListResourcesResult(resources=[])
        return ListResourcesResult(resources=of_episode(episode_id))

    async def list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=templates())

    async def read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            text = await read(await caller_of(context), str(params.uri))
        except (TightloopError, RefusedError) as error:
            raise MCPError(INVALID_PARAMS, shorten(error.message, ERROR_CHARACTERS)) from None
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=MEDIA_TYPE, text=text)])

    return Server(
        "tightloop",
        version=version,
        instructions=_ABOUT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        get_tool_input_schema=lambda name: tools[name].shown.input_schema if name in tools else None,
    )


async def _call_tool(tool: Tool, caller_of: CallerOf, context: Context, arguments: dict[str, Any]) -> CallToolResult:
    try:
        answer = await tool.call(await caller_of(context), arguments)
    except (TightloopError, RefusedError) as error:
        return _failure(error.message)
    except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
        logger.error("the tool %s failed with %s", tool.name, type(error).__name__)
        return _failure(
            f"{tool.name} failed with {type(error).__name__}. Try again. If it fails again, report the error"
        )
    return CallToolResult(content=[TextContent(text=json.dumps(answer, ensure_ascii=False))], structured_content=answer)


def _failure(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=shorten(sentence, ERROR_CHARACTERS))], is_error=True)


PATH = "/mcp"
LARGEST_BYTES = 256 * 1024
EPISODE = "episode"
"""Query parameter that contains a connection's episode."""


class Endpoint:
    """The ASGI application for the MCP endpoint."""

    def __init__(self, services: Services) -> None:
        async def caller_of(context: Context) -> Caller:
            request = cast("requests.Request", context.request)
            return Caller(scope.Scope(request.state.person, services), request.query_params.get(EPISODE, ""))

        # The SDK logs each request at INFO.
        logging.getLogger("mcp").setLevel(logging.WARNING)
        # Stateless: each request brings its token, so that a revoked one loses access at once.
        self._manager = StreamableHTTPSessionManager(
            mcp_server(caller_of), json_response=True, stateless=True, max_request_body_size=LARGEST_BYTES
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Handle requests during the block."""
        async with self._manager.run():
            yield

    async def __call__(self, asgi_scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a message sent with POST.

        Other methods are refused, because the server never sends unsolicited messages.
        """
        if asgi_scope["method"] != "POST":
            await Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "POST"})(
                asgi_scope, receive, send
            )
            return
        await self._manager.handle_request(asgi_scope, receive, send)
