"""The memory as texts, for a model that asks for it by a tool."""

from activities.memory.spared import SparedMemory
from tightloop.memory.model import Entry, Fact, Kind, Query, Recollection

FEWEST_FACTS = 1


class ToldMemory:
    """What is remembered of one project, told in texts. Blocking; what is wrong with it costs the memory only."""

    def __init__(self, memory: SparedMemory, source: str) -> None:
        """Take the memory, and who writes to it."""
        self._memory, self._source = memory, source

    def search(self, query: str, limit: int) -> list[str]:
        """Return failures with what solved them, then facts, the best of each first."""
        asked = Query(text=query, limit=limit, in_words=True)
        failures = [_told(one) for one in self._memory.recall(asked)]
        facts = [_fact(one) for one in self._memory.search(query, kind=Kind.FACT, limit=limit)]
        # Facts are few: the best one is worth more than one failure more.
        kept = failures[: max(limit - min(len(facts), FEWEST_FACTS), 0)]
        return [*kept, *facts[: limit - len(kept)]]

    def remember(self, key: str, text: str) -> None:
        """Keep a fact under a name, in place of what is there.

        Raises:
            InvalidRequestError: it has no key or no text.
        """
        self._memory.remember(Fact(key=key, text=text, source=self._source))


def _told(found: Recollection) -> str:
    pattern = found.pattern
    lines = [f"failure: {found.line} ({found.shown})"]
    if pattern is not None:
        lines += [f"what helped: {'; '.join(pattern.steps) or pattern.title}"]
        lines += [f"$ {' '.join(command)}" for command in pattern.commands]
        lines += [] if pattern.commands else [text for text in (pattern.code_template, pattern.test_template) if text]
    return "\n".join(lines)


def _fact(found: Entry) -> str:
    return f"fact {found.id}: {found.text}"
