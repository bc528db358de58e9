"""Conversations: chains of nodes in the artifact store, as commits are in git.

What was said stays where it is: every node but a root only adds to the one before, so that providers find the prompt of
the turn before as a prefix. A compaction makes a new root.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from activities.artifacts.port import ArtifactStore, get_model, put_model
from activities.coder.port import Message, ToolSpec
from activities.coder.turns.digest import digest_text, lines_of
from activities.coder.turns.prompt import system_prompt
from tightloop.coder.role import Role
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef

BYTES_PER_TOKEN = 4
"""English text and code have 3.5 to 4.5 characters a token in the tokenizers of OpenAI. Bytes, not characters: in other
scripts a token has fewer characters, which have more bytes."""
TOKENS_PER_MESSAGE = 4
"""What a message costs beside its text."""
OPENING = 2
"""A conversation opens with the system prompt and the task."""


class Node(Sparse):
    """One step of a conversation, as it is stored."""

    parent: ArtifactRef | None = None
    """None: a root. Its messages begin with the opening."""
    messages: tuple[Message, ...]
    digest: tuple[str, ...] = ()
    """Of a root: a line for each turn that it has not, the oldest first."""
    left_out: int = 0
    """Of a root: how many lines of the digest there was no room for."""


class Conversation(NamedTuple):
    """A conversation, read as a whole."""

    opening: tuple[Message, ...]
    messages: tuple[Message, ...] = ()
    digest: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What a model is sent. The digest is part of the task, which is why both stay in place."""
        if not self.digest:
            return self.opening + self.messages
        *first, task = self.opening
        told = task._replace(text=f"{task.text}\n\n{digest_text(self.digest, self.left_out)}")
        return (*first, told, *self.messages)

    def added(self, messages: Iterable[Message]) -> "Conversation":
        """Return it with more messages at its end."""
        return self._replace(messages=(*self.messages, *messages))

    def compacted(self, keep_tokens: int) -> "Conversation":
        """Return it with the newest turns whole, and a line for each older one.

        The newest turn stays in any case: its results are what the model waits for.
        """
        blocks = _blocks(self.messages)
        kept: list[Message] = []
        while blocks and (not kept or count_tokens([*blocks[-1], *kept]) <= keep_tokens):
            kept = [*blocks.pop(), *kept]
        if not blocks:
            return self
        lines, left_out = lines_of(self.digest, blocks)
        return Conversation(self.opening, tuple(kept), lines, self.left_out + left_out)

    @property
    def root(self) -> Node:
        """The node that holds all of it."""
        return Node(messages=self.opening + self.messages, digest=self.digest, left_out=self.left_out)


def opened(role: Role, task: str) -> Conversation:
    """Return the beginning of a conversation of a role about a task."""
    return Conversation((Message("system", system_prompt(role)), Message("user", task)))


def put_node(store: ArtifactStore, node: Node) -> ArtifactRef:
    """Store a node."""
    return put_model(store, node, name="conversation")


def read_conversation(store: ArtifactStore, node: ArtifactRef) -> Conversation:
    """Read a conversation from its last node back to its root.

    Raises:
        ArtifactError: a node is missing or damaged.
    """
    last = get_model(store, node, Node)
    nodes = [last]
    while last.parent is not None:
        last = get_model(store, last.parent, Node)
        nodes.append(last)
    messages = [message for each in reversed(nodes) for message in each.messages]
    return Conversation(tuple(messages[:OPENING]), tuple(messages[OPENING:]), last.digest, last.left_out)


def count_tokens(messages: Iterable[Message], tools: Sequence[ToolSpec] = ()) -> int:
    """Estimate the size of a prompt in tokens: a quarter of its bytes."""
    total = 0
    for message in messages:
        texts = (message.text, *(text for call in message.calls for text in (call.tool, call.arguments)))
        total += TOKENS_PER_MESSAGE * (1 + len(message.calls)) + sum(map(_tokens, texts))
    return total + sum(_tokens(json.dumps(tool_as_dict(tool))) for tool in tools)


def tool_as_dict(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as function calling has it, with a strict schema."""
    return {**tool._asdict(), "parameters": dict(tool.parameters), "strict": True}


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def _blocks(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the turns: an answer with its results and what was said before the next answer."""
    blocks: list[list[Message]] = []
    for message in messages:
        if message.role == "assistant" or not blocks:
            blocks.append([])
        blocks[-1].append(message)
    return blocks


def rendered(store: ArtifactStore, node: ArtifactRef) -> bytes:
    """Return a conversation as people read it.

    Raises:
        ArtifactError: a node is missing or damaged.
    """
    parts = []
    for message in read_conversation(store, node).prompt:
        calls = "".join(f"\n> {call.tool} {call.arguments}" for call in message.calls)
        parts.append(f"# {message.role}\n{message.text}{calls}\n")
    return "\n".join(parts).encode("utf-8", "replace")
