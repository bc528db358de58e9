"""A session of the coder without its workflow: turns of a role against a fake model, results made up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.artifacts.port import ArtifactStore
from activities.artifacts.stores import open_local_store
from activities.coder.model import OpenAIModel
from activities.coder.port import CoderScope, ToolSpec, TurnModel, TurnRequest
from activities.coder.turns import TurnTaker
from activities.model.client import ModelService
from activities.model.gateway.wire import Wire
from activities.model.observed import ProposedCall
from activities.workspace.folders import state_folder_of
from tests.support.fake_model import FakeModel
from tightloop.coder.model import CallHead, Turn, session_of, session_path
from tightloop.settings import Settings, parse_settings
from tightloop.value import ArtifactRef

TASK = "Make `pytest -q` pass: total() in src/shop.py adds the tax twice."


def strict(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a strict schema."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
SPECS = (
    ToolSpec("read_file", "Show a file.", strict(path=TEXT, start={"type": ["integer", "null"]})),
    ToolSpec("edit_file", "Replace text that stands in a file once.", strict(path=TEXT, old=TEXT, new=TEXT)),
    ToolSpec("run_tests", "Run the checks.", strict(names={"type": "array", "items": TEXT})),
    ToolSpec("finish", "End your part.", strict(summary=TEXT)),
)
TOOLS = [spec.name for spec in SPECS]


class FewTools:
    """The tools of `SPECS`, whatever a role asks for."""

    def specs(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return those that there are."""
        wanted = set(names)
        return tuple(spec for spec in SPECS if spec.name in wanted)

    def heads(self, calls: Iterable[ProposedCall]) -> tuple[CallHead, ...]:
        """Return what the history keeps."""
        return tuple(
            CallHead(tool=call.tool, reads=call.tool == "read_file", runs=call.tool == "run_tests") for call in calls
        )


def settings_for(**coder: Any) -> Settings:
    """Return settings with the four tools and these fields of `coder`."""
    import yaml

    roles = {"coder": {"tools": TOOLS}} | coder.pop("roles", {})
    return parse_settings(yaml.safe_dump({"coder": {"models": ["m1", "m2"], "roles": roles, **coder}}), {})


def service_at(model: FakeModel, wire: Wire = Wire.CHAT, **options: Any) -> ModelService:
    """Return the service that a fake is."""
    api = "responses" if wire is Wire.RESPONSES else "chat"
    given = {"api_key": "key-1", "base_url": model.base_url(wire), "api": api, "models": ("m1", "m2"), **options}
    return ModelService(**given)


@dataclass
class Conversing:
    """Takes one turn after the other."""

    workspace: Path
    model: TurnModel
    settings: Settings = field(default_factory=settings_for)
    role: str = "coder"
    number: int = 0
    node: ArtifactRef | None = None
    store_of: Any = open_local_store
    task: str = TASK

    @property
    def scope(self) -> CoderScope:
        """The scope of all requests."""
        key = "delivery-1"
        return CoderScope(episode_id="e1", workspace=str(self.workspace), key=key, session=session_of(key))

    @property
    def folder(self) -> Path:
        """The journal."""
        return state_folder_of(self.scope) / session_path(self.scope.session)

    @property
    def store(self) -> ArtifactStore:
        """The store of the project."""
        store: ArtifactStore = self.store_of(self.workspace)
        return store

    def request(self, *results: str, said: tuple[str, ...] = (), correction: str = "") -> TurnRequest:
        """Return the request for the next turn, with texts of results and messages."""
        return TurnRequest(
            scope=self.scope,
            role=self.role,
            number=self.number + 1,
            node=self.node,
            results=tuple(self.put(text) for text in results),
            said=tuple(self.put(text) for text in said),
            correction=correction,
        )

    async def take(self, request: TurnRequest, **options: Any) -> Turn:
        """Take a turn without going on from it."""
        taker = TurnTaker(
            model=self.model, tools=FewTools(), settings=self.settings.coder, privacy=self.settings.privacy
        )
        return await taker.take(request, self.task, self.store, **{"beat": lambda: None, **options})

    async def turn(self, *results: str, said: tuple[str, ...] = (), correction: str = "") -> Turn:
        """Take the next turn."""
        turn = await self.take(self.request(*results, said=said, correction=correction))
        self.number, self.node = turn.number, turn.node
        return turn

    def put(self, text: str) -> ArtifactRef:
        """Store a text."""
        return self.store.put(text.encode(), name="result", media_type="text/plain")


def conversing(workspace: Path, model: FakeModel, wire: Wire = Wire.CHAT, **coder: Any) -> Conversing:
    """Return a session against a fake model, with these settings of `coder`."""
    return Conversing(workspace, OpenAIModel(service_at(model, wire)), settings_for(**coder))
