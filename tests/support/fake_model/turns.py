"""A fake model for conversations that are compacted: it counts prompts, not results, and keeps what it was sent."""

import itertools
import json
import threading

from tests.support.fake_model.exchange import Asked, Tokens
from tests.support.fake_model.fault import Fault
from tests.support.fake_model.script import Step
from tests.support.fake_model.server import FakeModel, Seen

STABLE = ("instructions", "messages", "input")

Prompt = tuple[str, ...]


def canonical(seen: Seen) -> Prompt:
    """Return what providers cache of a request: model, tools, then messages, a text each."""
    parts = [seen.body.get("model"), *(seen.body.get("tools") or [])]
    for name in STABLE:
        given = seen.body.get(name) or []
        parts += given if isinstance(given, list) else [given]
    return tuple(json.dumps(part, ensure_ascii=False) for part in parts)


class FakeCoderModel(FakeModel):
    """A fake whose step is the number of different prompts so far: a request that comes again gets its answer again.

    `prompts` holds how often each was answered, in the order in which they came first; refused requests do not count.
    """

    def __init__(self, *steps: Step, fault: Fault | None = None, tokens: Tokens | None = None) -> None:
        """Take what every fake takes."""
        super().__init__(*steps, fault=fault, tokens=tokens)
        self._answering = threading.Lock()
        self.prompts: dict[Prompt, int] = {}

    def step_of(self, asked: Asked, seen: Seen) -> int:
        """Return the place of a prompt among all different ones."""
        prompt = canonical(seen)
        with self._answering:
            self.prompts[prompt] = self.prompts.get(prompt, 0) + 1
            return list(self.prompts).index(prompt)

    @property
    def paid(self) -> tuple[int, ...]:
        """How often each turn was answered."""
        return tuple(self.prompts.values())

    @property
    def shared(self) -> list[float]:
        """By turn, from the second on: which part of the prompt before it begins with."""
        return [_shared(before, after) for before, after in itertools.pairwise(self.prompts)]


def _shared(before: Prompt, after: Prompt) -> float:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    return sum(len(part) for part, _ in same) / sum(map(len, before))
