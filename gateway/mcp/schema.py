"""A tool as the protocol shows it, made from the function that is its code."""

import inspect
import json
from functools import cached_property
from typing import Any, get_type_hints

from mcp_types import Tool as Shown
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, create_model

from gateway.mcp.caller import Caller
from gateway.mcp.tools import Tool
from tightloop.episode.control import read_argument
from tightloop.safety.person import Role


class Described:
    """A tool with its schemas."""

    def __init__(self, tool: Tool) -> None:
        """Read the function's signature."""
        self._run, self.needs = tool
        self.name = self._run.__name__
        hints = get_type_hints(self._run, include_extras=True)
        self._returns = hints.pop("return")
        parameters = list(inspect.signature(self._run).parameters.values())[1:]
        fields: dict[str, Any] = {
            one.name: (hints[one.name], ... if one.default is inspect.Parameter.empty else one.default)
            for one in parameters
        }
        self._arguments: type[BaseModel] = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def shown(self) -> Shown:
        """What clients see."""
        reads = self.needs is Role.VIEWER
        is_model = isinstance(self._returns, type) and issubclass(self._returns, BaseModel)
        return Shown(
            name=self.name,
            description=inspect.getdoc(self._run),
            input_schema=self._arguments.model_json_schema(),
            output_schema=self._returns.model_json_schema(mode="serialization") if is_model else None,
            annotations=ToolAnnotations(
                read_only_hint=reads,
                destructive_hint=self.name == "resume_episode" if not reads else None,
                open_world_hint=False,
            ),
        )

    async def call(self, caller: Caller, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments and the role, and run it.

        Raises:
            RefusedError: the role is not enough.
            TightloopError: the arguments are wrong, or it could not be done.
        """
        caller.scope.require(self.needs)
        read = read_argument(arguments, self._arguments, what=self.name, example=self._example)
        answer = await self._run(caller, **{name: getattr(read, name) for name in self._arguments.model_fields})
        return answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer

    @property
    def _example(self) -> str:
        given: dict[str, Any] = {}
        for name, schema in self.shown.input_schema.get("properties", {}).items():
            if name in self.shown.input_schema.get("required", ()):
                given[name] = next(iter(schema.get("examples", schema.get("enum", ["..."]))))
        return json.dumps(given, ensure_ascii=False)
