"""Takes one turn: from the journal, or from the model and then into the journal."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from activities.artifacts.port import ArtifactStore
from activities.coder.port import Message, ModelReply, ProposedCall, ToolSpec, TurnModels
from activities.coder.requests import TurnRequest
from activities.coder.session import session_folder
from activities.coder.turns.conversation import (
    Conversation,
    Node,
    count_tokens,
    opened,
    put_node,
    read_conversation,
)
from activities.coder.turns.judging import judge
from activities.coder.turns.stored import StoredTurn, discard_turns, find_turn, write_turn
from activities.workspace.folders import state_folder_of
from tightloop.coder.model import CallHead, Turn
from tightloop.errors import ArtifactError
from tightloop.executor.model import WorkOrder
from tightloop.settings import CoderSettings, PrivacySettings

NOT_MADE = "This call was not made."


class Tools(Protocol):
    """The tools that there are."""

    def specs(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return what a model is told of some tools, in the order of the names."""
        ...

    def heads(self, calls: Iterable[ProposedCall]) -> tuple[CallHead, ...]:
        """Return what the history keeps of calls."""
        ...


class _Asked(NamedTuple):
    """What a model is asked with."""

    key: str
    """Digest of everything that makes this turn another one."""
    conversation: Conversation
    added: tuple[Message, ...]
    """What is new since the node of the request."""
    specs: tuple[ToolSpec, ...]
    """Always the same for a role, in the same order: they are the first part of what providers cache."""
    tokens: int
    compacted: bool


@dataclass(frozen=True, kw_only=True)
class TurnTaker:
    """Takes the turns of all roles."""

    models: TurnModels
    tools: Tools
    settings: CoderSettings
    privacy: PrivacySettings

    async def take(
        self, request: TurnRequest, order: WorkOrder, store: ArtifactStore, *, beat: Callable[[], None]
    ) -> Turn:
        """Return the model's next step; idempotent: what is in the journal is not asked again.

        A turn of this number that answers something else is of a future that was given up: it is removed, with all that
        followed it. What is wrong with an answer is `Turn.problem`, never an error.

        Raises:
            PlannerError: the model service refuses, or the project keeps its code to itself; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
            ArtifactError: the conversation or the journal cannot be read, or another run went on; not retryable.
            StorageFullError: no room is left; not retryable.
        """
        folder = session_folder(state_folder_of(request.scope), request.session)
        key = _digest(request)
        done = await asyncio.to_thread(_find, folder, request.number, key)
        if done is not None:
            return done.turn
        asked = await asyncio.to_thread(self._prepare, request, order, store, key)
        model = self.models(
            self.settings.role(request.role),
            request.session,
            self.privacy.prompt_privacy_of(request.scope.workspace),
        )
        reply = await model.reply(asked.conversation.prompt, asked.specs, beat=beat)
        return await asyncio.to_thread(self._keep, request, asked, reply, store, folder)

    def _prepare(self, request: TurnRequest, order: WorkOrder, store: ArtifactStore, key: str) -> _Asked:
        role = self.settings.role(request.role)
        before = read_conversation(store, request.node) if request.node else opened(role, order.prompt)
        added = (*_results(request, before, store), *_said(request, store))
        whole = before.added(added)
        specs = self.tools.specs(role.tools)
        fits = count_tokens(whole.prompt, specs) <= self.settings.context_tokens
        asked = whole if fits else whole.compacted(self.settings.keep_tokens)
        return _Asked(key, asked, added, specs, count_tokens(asked.prompt, specs), compacted=asked is not whole)

    def _keep(self, request: TurnRequest, asked: _Asked, reply: ModelReply, store: ArtifactStore, folder: Path) -> Turn:
        # An attempt that was given up for dead may have been faster; its answer is the one that others have seen.
        earlier = find_turn(folder, request.number)
        if earlier is not None and earlier.input != asked.key:
            raise ArtifactError(
                f"turn {request.number} of session {request.session} was taken by another run meanwhile, which goes on "
                "with it; this run was given up"
            )
        if earlier is not None:
            return earlier.turn
        verdict = judge(reply, asked.specs, number=request.number)
        answer = Message("assistant", verdict.text, verdict.calls)
        goes_on = request.node is not None and not asked.compacted
        added = Node(parent=request.node, messages=(*asked.added, answer))
        turn = Turn(
            number=request.number,
            node=put_node(store, added if goes_on else asked.conversation.added([answer]).root),
            calls=self.tools.heads(verdict.calls),
            problem=verdict.problem,
            usage=reply.usage,
            prompt_tokens=asked.tokens,
            model=reply.model,
            compacted=asked.compacted,
        )
        write_turn(folder, StoredTurn(input=asked.key, turn=turn, calls=verdict.calls))
        return turn


def _digest(request: TurnRequest) -> str:
    # Not the delivery and the scope: a delivery that goes on with a session asks for the same again.
    asked = request.model_dump_json(exclude={"scope", "key"})
    return hashlib.sha256(asked.encode()).hexdigest()


def _find(folder: Path, number: int, key: str) -> StoredTurn | None:
    found = find_turn(folder, number)
    if found is not None and found.input == key:
        return found
    discard_turns(folder, number)
    return None


def _results(request: TurnRequest, before: Conversation, store: ArtifactStore) -> list[Message]:
    """Return an answer to every call of the last answer: services refuse a conversation that leaves one open."""
    calls = before.messages[-1].calls if before.messages else ()
    given = request.results[: len(calls)]
    found = [
        Message("tool", store.get(result).decode("utf-8", "replace"), (), call.id, result.sha256)
        for call, result in zip(calls, given, strict=False)
    ]
    return [*found, *(Message("tool", NOT_MADE, (), call.id) for call in calls[len(given) :])]


def _said(request: TurnRequest, store: ArtifactStore) -> list[Message]:
    texts = [store.get(message).decode("utf-8", "replace") for message in request.said]
    return [Message("user", text) for text in (*texts, request.correction) if text]
