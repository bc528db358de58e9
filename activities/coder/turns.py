"""The coder's turns: prompts, conversations and the journal."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from pydantic import ValidationError

from activities.artifacts.port import ArtifactStore, get_model, put_model, write_durably
from activities.coder.calls import ToolExecutor
from activities.coder.judging import judge
from activities.coder.port import Message, ToolSpec, TurnModel, TurnRequest
from activities.model.observed import ModelAnswer, ProposedCall
from activities.workspace.folders import state_folder_of
from tightloop.coder.model import Role, Turn, result_name, session_path
from tightloop.errors import ArtifactCorruptError, ArtifactError, ArtifactMissingError
from tightloop.host import private_folder
from tightloop.settings import CoderSettings, PrivacySettings
from tightloop.value import ArtifactRef, Sparse, Value, shorten

DIGEST_BYTES = 6_000
"""Maximum size of the digest, about 1 500 tokens."""
ARGUMENT_CHARACTERS = 80
OUTCOME_CHARACTERS = 100
NOTE_CHARACTERS = 600
"""Maximum length of messages from people and the reflector. They get more space than a result, which can be read again.
"""
HEAD = (
    "# Done so far\n\nOlder turns, oldest first, one per line. To see a result again, use `read_file` with "
    "`result:<id>`."
)
MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "question")


def digest_text(lines: Sequence[str], left_out: int) -> str:
    """Format the digest of earlier turns for the model."""
    omitted = [f"- [{left_out} older lines omitted]"] if left_out else []
    return "\n".join((HEAD, "", *omitted, *lines))


def lines_of(before: Sequence[str], turns: Iterable[Sequence[Message]]) -> tuple[tuple[str, ...], int]:
    """Append turns to the digest, dropping the oldest lines if it becomes too long.

    Return the remaining lines and the number of dropped lines.
    """
    lines = [*before, *(line for turn in turns for line in _lines(turn))]
    size = sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
    left_out = 0
    while size > DIGEST_BYTES:
        size -= len(lines[left_out].encode("utf-8", "replace")) + 1
        left_out += 1
    return tuple(lines[left_out:]), left_out


def _lines(turn: Sequence[Message]) -> Iterable[str]:
    results = {message.call_id: message for message in turn if message.role == "tool"}
    calls = [call for message in turn for call in message.calls]
    if calls:
        yield "- " + "; ".join(_describe_call(call, results.get(call.id)) for call in calls)
    # An answer without calls was malformed and the next message says so, so both are obsolete.
    texts = [message.text for message in turn if message.role == "user"][0 if calls else 1 :]
    yield from (f"- told: {_one_line(text, NOTE_CHARACTERS)}" for text in texts)


def _describe_call(call: ProposedCall, result: Message | None) -> str:
    what = f"{call.tool} {_main_argument(call.arguments)}".strip()
    if result is None:
        return what
    outcome = _one_line(result.text, OUTCOME_CHARACTERS)
    where = f" ({result_name(result.result)})" if result.result else ""
    return f"{what}: {outcome}{where}"


def _main_argument(arguments: str) -> str:
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(decoded, dict):
        return ""
    texts = [decoded.get(name) for name in (*MAIN_ARGUMENTS, *decoded)]
    return next((_one_line(text, ARGUMENT_CHARACTERS) for text in texts if isinstance(text, str) and text), "")


def _one_line(text: str, limit: int) -> str:
    return shorten(" ".join(text.split()), limit)


_ENVIRONMENT = jinja2.Environment(
    # A misspelt name in a prompt must fail in a test, not render as nothing.
    undefined=jinja2.StrictUndefined,
    # Prompts are Markdown, not HTML.
    autoescape=False,  # noqa: S701
    trim_blocks=True,
    lstrip_blocks=True,
)


def system_prompt(role: Role) -> str:
    """Return the system prompt for a role. The prompt does not change within a session."""
    values = {"tools": role.tools, "max_turns": role.max_turns, "answer": role.answer}
    return _ENVIRONMENT.from_string(role.prompt).render(values).strip() + "\n"


BYTES_PER_TOKEN = 4
"""Estimated number of bytes per token.

OpenAI's tokenizers yield 3.5 to 4.5 characters per token for English and code. Bytes are counted rather than
characters, because in other scripts a token has fewer characters with more bytes each.
"""
TOKENS_PER_MESSAGE = 4
"""Overhead for each message in tokens."""
OPENING = 2
"""Number of messages that open a conversation: the system prompt and the task."""


class Node(Sparse):
    """Stored step of a conversation."""

    parent: ArtifactRef | None = None
    """Previous node. None for a root, whose messages start with the opening."""
    messages: tuple[Message, ...]
    digest: tuple[str, ...] = ()
    """One line per dropped turn, oldest first. Only set in a root."""
    left_out: int = 0
    """Number of digest lines that were dropped. Only set in a root."""


class Conversation(NamedTuple):
    """A complete conversation."""

    opening: tuple[Message, ...]
    messages: tuple[Message, ...] = ()
    digest: tuple[str, ...] = ()
    left_out: int = 0
    stored: ArtifactRef | None = None
    """The last stored node. If None, the conversation is stored as a root."""
    new: tuple[Message, ...] = ()
    """Messages that have not been stored yet."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages to send to the model. The digest is part of the task, so compaction keeps both."""
        if not self.digest:
            return self.opening + self.messages
        *first, task = self.opening
        task_with_digest = task._replace(text=f"{task.text}\n\n{digest_text(self.digest, self.left_out)}")
        return (*first, task_with_digest, *self.messages)

    def with_messages(self, messages: Iterable[Message]) -> "Conversation":
        new = tuple(messages)
        return self._replace(messages=self.messages + new, new=self.new + new)

    def compact(self, keep_tokens: int) -> "Conversation":
        """Shorten the conversation.

        The newest turns are kept in full. Each older turn is replaced with a single line. The very last turn is
        always kept, because the model expects its results.
        """
        blocks: list[list[Message]] = []
        for message in self.messages:
            # An answer stays with its results: services reject a result without its call.
            if message.role == "assistant" or not blocks:
                blocks.append([])
            blocks[-1].append(message)
        recent: list[Message] = []
        while blocks and (not recent or count_tokens([*blocks[-1], *recent]) <= keep_tokens):
            recent = [*blocks.pop(), *recent]
        if not blocks:
            return self
        lines, left_out = lines_of(self.digest, blocks)
        return Conversation(self.opening, tuple(recent), lines, self.left_out + left_out)

    @property
    def node(self) -> Node:
        if self.stored is not None:
            return Node(parent=self.stored, messages=self.new)
        return Node(messages=self.opening + self.messages, digest=self.digest, left_out=self.left_out)


def start_conversation(role: Role, task: str) -> Conversation:
    """Start a conversation in which a role works on a task."""
    return Conversation((Message("system", system_prompt(role)), Message("user", task)))


def read_conversation(store: ArtifactStore, node: ArtifactRef) -> Conversation:
    """Read a conversation by following its nodes back to the root.

    Raises:
        ArtifactError: a node is missing or damaged.
    """
    last = get_model(store, node, Node)
    nodes = [last]
    while last.parent is not None:
        last = get_model(store, last.parent, Node)
        nodes.append(last)
    messages = [message for entry in reversed(nodes) for message in entry.messages]
    return Conversation(tuple(messages[:OPENING]), tuple(messages[OPENING:]), last.digest, last.left_out, node)


def count_tokens(messages: Iterable[Message], tools: Sequence[ToolSpec] = ()) -> int:
    """Estimate the number of tokens in a prompt, assuming four bytes per token."""
    total = 0
    for message in messages:
        texts = (message.text, *(text for call in message.calls for text in (call.tool, call.arguments)))
        total += TOKENS_PER_MESSAGE * (1 + len(message.calls)) + sum(map(_tokens, texts))
    return total + sum(_tokens(json.dumps(tool_as_dict(tool))) for tool in tools)


def tool_as_dict(tool: ToolSpec) -> dict[str, Any]:
    """Convert a tool to the function-calling format, with a strict schema."""
    return {**tool._asdict(), "parameters": dict(tool.parameters), "strict": True}


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def render_conversation(store: ArtifactStore, node: ArtifactRef) -> bytes:
    """Format a conversation as readable text.

    Raises:
        ArtifactError: a node is missing or damaged.
    """
    parts = []
    for message in read_conversation(store, node).prompt:
        calls = "".join(f"\n> {call.tool} {call.arguments}" for call in message.calls)
        parts.append(f"# {message.role}\n{message.text}{calls}\n")
    return "\n".join(parts).encode("utf-8", "replace")


NOT_MADE = "This call was not made."
_ENTRY = re.compile(r"(?P<kind>turn|call)-(?P<turn>[0-9]{4,})(?:-[0-9]+)?\.json")


class StoredTurn(Value):
    """Journal entry for one turn."""

    input: str
    """The request's digest."""
    turn: Turn
    calls: tuple[ProposedCall, ...] = ()
    """Calls with arguments that match their tools' schemas, in the same order as `turn.calls`."""


def find_turn(session_folder: Path, number: int) -> StoredTurn | None:
    """Read a turn from the journal. Return None if the journal does not contain the turn.

    Raises:
        ArtifactCorruptError: the turn cannot be read.
    """
    path = _path(session_folder, number)
    try:
        return StoredTurn.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ArtifactCorruptError(
            f"{path} is damaged ({error.error_count()} problems). To restart the coder, remove the folder "
            f"{session_folder}"
        ) from None


def write_turn(session_folder: Path, stored: StoredTurn) -> None:
    """Durably write a turn to the journal."""
    private_folder(session_folder)
    write_durably(_path(session_folder, stored.turn.number), stored.model_dump_json().encode())


def discard_turns(session_folder: Path, first: int) -> None:
    """Delete turn `first` and all later turns, with their calls.

    These turns belong to an abandoned branch of the session.
    """
    entries = [(match, path) for path in session_folder.glob("*.json") if (match := _ENTRY.fullmatch(path.name))]
    # The first turn is deleted last: after a crash in between, the next attempt finds it and deletes the rest.
    for match, path in sorted(entries, key=lambda entry: (-int(entry[0]["turn"]), entry[0]["kind"])):
        if int(match["turn"]) >= first:
            path.unlink(missing_ok=True)


def _path(session_folder: Path, number: int) -> Path:
    return session_folder / f"turn-{number:04}.json"


@dataclass(frozen=True, kw_only=True)
class TurnTaker:
    """Requests model turns for all roles."""

    model: TurnModel
    tools: ToolExecutor
    settings: CoderSettings
    privacy: PrivacySettings

    async def take(
        self, request: TurnRequest, task: str, store: ArtifactStore, *, model: str = "", beat: Callable[[], None]
    ) -> Turn:
        """Return the model's next turn. Idempotent: a turn that is already in the journal is not requested again.

        A turn with this number but a different input belongs to an abandoned branch. The turn and all later
        turns are deleted. A malformed response is reported as `Turn.problem` and never raised.

        Args:
            request: the turn. A request without a node starts a conversation.
            task: the first message in a new conversation.
            store: the project's artifact store.
            model: the model to ask. If empty, the settings decide.
            beat: called for each chunk of the response.

        Raises:
            PlannerError: the model service refuses, or the project's privacy forbids prompts with code. Not
                retryable.
            PlannerUnavailableError: the service is busy or down. Retryable.
            ArtifactError: the conversation or the journal cannot be read, or another run took the turn. Not
                retryable.
            StorageFullError: the disk is full. Not retryable.
        """
        earlier = await asyncio.to_thread(self._find, request)
        if earlier is not None:
            return earlier
        role = self.settings.role(request.role)
        if model:
            role = role.evolve(models=(model,))
        specs = self.tools.specs(role.tools)
        conversation = await asyncio.to_thread(self._prepare, request, task, store, role, specs)
        privacy = self.privacy.prompt_privacy_of(request.scope.workspace)
        reply = await self.model.reply(
            conversation.prompt, specs, role=role, session=request.scope.session, privacy=privacy, beat=beat
        )
        return await asyncio.to_thread(self._keep, request, conversation, specs, reply, store)

    @staticmethod
    def read(session_folder: Path, number: int) -> StoredTurn:
        """Read a turn that must be in the journal.

        Raises:
            ArtifactMissingError: the turn does not exist.
            ArtifactCorruptError: the turn cannot be read.
        """
        stored = find_turn(session_folder, number)
        if stored is None:
            raise ArtifactMissingError(f"turn {number} is not in the journal {session_folder}. Run the turn again")
        return stored

    def _find(self, request: TurnRequest) -> Turn | None:
        folder = _folder(request)
        stored = find_turn(folder, request.number)
        if stored is not None and stored.input == _digest(request):
            return stored.turn
        discard_turns(folder, request.number)
        return None

    def _prepare(
        self, request: TurnRequest, task: str, store: ArtifactStore, role: Role, specs: Sequence[ToolSpec]
    ) -> Conversation:
        before = read_conversation(store, request.node) if request.node else start_conversation(role, task)
        # Every call of the last answer needs a reply: services reject a conversation with an open call.
        calls = before.messages[-1].calls if before.messages else ()
        replies = [
            Message("tool", store.get(result).decode("utf-8", "replace"), (), call.id, result.sha256)
            # There are fewer results than calls if a question or a limit stopped the rest.
            for call, result in zip(calls, request.results, strict=False)
        ]
        replies += [Message("tool", NOT_MADE, (), call.id) for call in calls[len(replies) :]]
        texts = [store.get(message).decode("utf-8", "replace") for message in request.said]
        whole = before.with_messages(
            (*replies, *(Message("user", text) for text in (*texts, request.correction) if text))
        )
        fits = count_tokens(whole.prompt, specs) <= self.settings.context_tokens
        # Compacted far below the limit, because each compaction invalidates the provider's cached prompt.
        return whole if fits else whole.compact(self.settings.keep_tokens)

    def _keep(
        self,
        request: TurnRequest,
        conversation: Conversation,
        specs: Sequence[ToolSpec],
        reply: ModelAnswer,
        store: ArtifactStore,
    ) -> Turn:
        folder, key = _folder(request), _digest(request)
        # An attempt that was presumed dead may have finished first; others have already seen its answer.
        earlier = find_turn(folder, request.number)
        if earlier is not None and earlier.input != key:
            raise ArtifactError(
                f"another run has taken turn {request.number} of session {request.scope.session} and is "
                "continuing the session, so this run stops"
            )
        if earlier is not None:
            return earlier.turn
        answer, problem = judge(reply, specs, number=request.number)
        turn = Turn(
            number=request.number,
            node=put_model(store, conversation.with_messages([answer]).node, name="conversation"),
            calls=self.tools.heads(answer.calls),
            problem=problem,
            usage=reply.usage,
            prompt_tokens=count_tokens(conversation.prompt, specs),
            model=reply.model,
            compacted=request.node is not None and conversation.stored is None,
        )
        # Last: a turn in the journal must find its conversation in the store.
        write_turn(folder, StoredTurn(input=key, turn=turn, calls=answer.calls))
        return turn


def _folder(request: TurnRequest) -> Path:
    return state_folder_of(request.scope) / session_path(request.scope.session)


def _digest(request: TurnRequest) -> str:
    # Without the scope, which names the delivery: the session's next delivery repeats the same request.
    return hashlib.sha256(request.model_dump_json(exclude={"scope"}).encode()).hexdigest()
