"""The digest of turns that a prompt no longer has: a line each, made without a model."""

import json
from collections.abc import Iterable, Sequence

from activities.coder.port import Message, ProposedCall
from tightloop.value import shorten

DIGEST_BYTES = 6_000
"""About 1 500 tokens."""
ARGUMENT_CHARACTERS = 80
OUTCOME_CHARACTERS = 100
NOTE_CHARACTERS = 600
"""What people and the reflector said is worth more room than a result, which can be read again."""
ID_DIGITS = 12
"""`read_file` takes an artifact by `result:` and at least so many digits of its hash."""
HEAD = (
    "# Done so far\n\nOlder turns, the oldest first, a line each. `read_file` with `result:<id>` shows a result again."
)
MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "question")


def digest_text(lines: Sequence[str], left_out: int) -> str:
    """Return the digest as a model reads it."""
    gone = [f"- [{left_out} older lines left out]"] if left_out else []
    return "\n".join((HEAD, "", *gone, *lines))


def lines_of(before: Sequence[str], turns: Iterable[Sequence[Message]]) -> tuple[tuple[str, ...], int]:
    """Return the lines of a digest with more turns, and how many of the oldest there was no room for."""
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
        yield "- " + "; ".join(_called(call, results.get(call.id)) for call in calls)
    # An answer without calls was wrong, and what follows it says so: nobody needs that any more.
    told = [message.text for message in turn if message.role == "user"][0 if calls else 1 :]
    yield from (f"- told: {_one_line(text, NOTE_CHARACTERS)}" for text in told)


def _called(call: ProposedCall, result: Message | None) -> str:
    what = f"{call.tool} {_main_argument(call.arguments)}".strip()
    if result is None:
        return what
    outcome = _one_line(result.text, OUTCOME_CHARACTERS)
    where = f" (result:{result.result[:ID_DIGITS]})" if result.result else ""
    return f"{what}: {outcome}{where}"


def _main_argument(arguments: str) -> str:
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(given, dict):
        return ""
    texts = [given.get(name) for name in (*MAIN_ARGUMENTS, *given)]
    return next((_one_line(text, ARGUMENT_CHARACTERS) for text in texts if isinstance(text, str) and text), "")


def _one_line(text: str, limit: int) -> str:
    return shorten(" ".join(text.split()), limit)
