"""Takes one turn: from the journal, or from the model and then into the journal."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from activities.artifacts.port import ArtifactStore
from activities.coder.port import Message, ModelReply, Tool, ToolSpec, TurnModel
from activities.coder.turns.conversation import Conversation, Node, count_tokens, put_node, read_conversation
from activities.coder.turns.judging import Verdict, judge
from activities.coder.turns.stored import StoredTurn, discard_turns, find_turn, write_turn
from tightloop.coder.model import CallHead, Turn, TurnInput

NOT_MADE = "This call was not made."


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the turns of one role in one session share."""

    folder: Path
    """The journal."""
    store: ArtifactStore
    model: TurnModel
    tools: Sequence[Tool]
    """Always the same, in the same order: they are the first part of what providers cache."""
    context_tokens: int = 40_000
    """Size of a prompt above which older turns become a digest."""
    keep_tokens: int = 15_000
    """Newest turns that stay as they are then."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model is told of them."""
        return tuple(tool.spec for tool in self.tools)


class _Prepared(NamedTuple):
    conversation: Conversation
    added: tuple[Message, ...]
    """What is new since the node of the input."""
    tokens: int
    compacted: bool


async def take_turn(asked: TurnInput, session: Session, *, beat: Callable[[], None] = lambda: None) -> Turn:
    """Return the model's next step; idempotent: what is in the journal is not asked again.

    A turn of this number that answers something else is of a future that was given up: it is removed, and all that
    followed it. What is wrong with an answer is `Turn.problem`, which the conversation holds, too.

    Raises:
        PlannerError: the model service refuses; not retryable.
        PlannerUnavailableError: it is busy or down; retryable.
        ArtifactError: the conversation or the journal cannot be read; not retryable.
        StorageFullError: no room is left; not retryable.
    """
    key = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    done = await asyncio.to_thread(_find, session.folder, asked.number, key)
    if done is not None:
        return done.turn
    prepared = await asyncio.to_thread(_prepare, asked, session)
    reply = await session.model.reply(prepared.conversation.prompt, session.specs, beat=beat)
    return await asyncio.to_thread(_keep, asked, key, prepared, reply, session)


def _find(folder: Path, number: int, key: str) -> StoredTurn | None:
    found = find_turn(folder, number)
    if found is not None and found.input == key:
        return found
    discard_turns(folder, number)
    return None


def _prepare(asked: TurnInput, session: Session) -> _Prepared:
    before = read_conversation(session.store, asked.node)
    added = (*_results(asked, before, session.store), *_notes(asked, session.store))
    conversation = before.added(added)
    tokens = count_tokens(conversation.prompt, session.specs)
    if tokens <= session.context_tokens:
        return _Prepared(conversation, added, tokens, compacted=False)
    smaller = conversation.compacted(session.keep_tokens)
    return _Prepared(smaller, added, count_tokens(smaller.prompt, session.specs), compacted=smaller is not conversation)


def _results(asked: TurnInput, before: Conversation, store: ArtifactStore) -> list[Message]:
    """Return an answer to every call of the last answer: services refuse a conversation that leaves one open."""
    last = before.messages[-1] if before.messages else Message("user")
    messages = []
    for index, call in enumerate(last.calls):
        if index < len(asked.results):
            given = asked.results[index]
            text = store.get(given.result).decode("utf-8", "replace")
            messages.append(Message("tool", text, (), call.id, given.result.sha256, given.failed))
        else:
            messages.append(Message("tool", NOT_MADE, (), call.id, failed=True))
    return messages


def _notes(asked: TurnInput, store: ArtifactStore) -> list[Message]:
    return [Message("user", store.get(note).decode("utf-8", "replace")) for note in asked.notes]


def _keep(asked: TurnInput, key: str, prepared: _Prepared, reply: ModelReply, session: Session) -> Turn:
    # An attempt that was given up for dead may have been faster; its answer is the one that others have seen.
    earlier = _find(session.folder, asked.number, key)
    if earlier is not None:
        return earlier.turn
    verdict = judge(reply, session.specs, number=asked.number)
    answer = [Message("assistant", verdict.text, verdict.calls)]
    if verdict.problem:
        answer.append(Message("user", verdict.problem))
    if prepared.compacted:
        node = prepared.conversation.added(answer).root
    else:
        node = Node(parent=asked.node, messages=(*prepared.added, *answer))
    turn = Turn(
        number=asked.number,
        node=put_node(session.store, node),
        calls=_heads(verdict, session.tools),
        problem=verdict.problem,
        usage=reply.usage,
        prompt_tokens=prepared.tokens,
        model=reply.model,
        compacted=prepared.compacted,
    )
    write_turn(session.folder, StoredTurn(input=key, turn=turn, calls=verdict.calls))
    return turn


def _heads(verdict: Verdict, tools: Sequence[Tool]) -> tuple[CallHead, ...]:
    by_name = {tool.spec.name: tool for tool in tools}
    named = [by_name[call.tool] for call in verdict.calls]
    return tuple(CallHead(tool=tool.spec.name, reads=tool.reads, runs=tool.runs) for tool in named)
