"""The MCP server: the tools and resources for whoever is at a connection."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server import Server, ServerRequestContext
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
    TextContent,
    TextResourceContents,
)

from gateway.access.body import RefusedError
from gateway.mcp import resources
from gateway.mcp.caller import Caller
from gateway.mcp.schema import Described
from gateway.mcp.tools import TOOLS
from tightloop.errors import TightloopError
from tightloop.value import shorten

logger = logging.getLogger("tightloop")

ERROR_CHARACTERS = 4_000
_ABOUT = (
    "Durable episodes of coding work. An agent that works on a plan: report with send_message(target='planner'), in "
    "the template that its rules file shows; ask a person with pause_episode. The episode checkpoints the files itself."
)
Context = ServerRequestContext[Any, Any]
CallerOf = Callable[[Context], Awaitable[Caller]]


def mcp_server(caller_of: CallerOf, version: str = "1") -> Server[Any]:
    """Return the server.

    Args:
        caller_of: tells who sends a message, by its transport.
        version: as clients see it.
    """
    tools = {tool.name: tool for tool in map(Described, TOOLS)}

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.shown for tool in tools.values()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            return _failure(f"no tool is named {params.name[:80]!r}. There are: {', '.join(tools)}")
        return await _called(tool, caller_of, context, params.arguments or {})

    async def list_resources(context: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
        try:
            own = (await (await caller_of(context)).own()).id
        except (TightloopError, RefusedError):
            # It is about no single episode: the templates say what there is.
            return ListResourcesResult(resources=[])
        return ListResourcesResult(resources=resources.of_episode(own))

    async def list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=resources.templates())

    async def read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            text = await resources.read(await caller_of(context), str(params.uri))
        except (TightloopError, RefusedError) as error:
            raise MCPError(INVALID_PARAMS, shorten(error.message, ERROR_CHARACTERS)) from None
        return ReadResourceResult(
            contents=[TextResourceContents(uri=params.uri, mime_type=resources.MEDIA_TYPE, text=text)]
        )

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


async def _called(tool: Described, caller_of: CallerOf, context: Context, arguments: dict[str, Any]) -> CallToolResult:
    try:
        answer = await tool.call(await caller_of(context), arguments)
    except (TightloopError, RefusedError) as error:
        return _failure(error.message)
    except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
        logger.error("the tool %s failed with %s", tool.name, type(error).__name__)
        return _failure(f"{tool.name} failed with {type(error).__name__}. Try again, and report it if it stays")
    return CallToolResult(content=[TextContent(text=json.dumps(answer, ensure_ascii=False))], structured_content=answer)


def _failure(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=shorten(sentence, ERROR_CHARACTERS))], is_error=True)
