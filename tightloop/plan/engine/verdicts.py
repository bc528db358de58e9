"""Incremental evaluation of the effects of a step's outcome on its dependents. Counters make each event cheap."""

from collections.abc import Mapping, Sequence
from typing import Final

from tightloop.plan.engine import state as code
from tightloop.plan.engine.graph import ON_CHOICE, ON_FAILURE, ON_SUCCESS, Graph
from tightloop.plan.engine.revision import StepIndex
from tightloop.plan.step import Join

OPEN: Final = 0
GOOD: Final = 1
SKIPPED: Final = 2
BAD: Final = 3
HELD: Final = 4
"""Outcomes of a step, as seen by its dependents. HELD means that it is blocked for now, but may still be skipped and
release others.
"""

_MEANING = {
    **dict.fromkeys((code.COMPLETED, code.RECOVERED, code.COMPENSATED, code.TOLERATED), GOOD),
    code.SKIPPED: SKIPPED,
    code.FAILED: BAD,
}
_FAILED_OVER: Final = 1
_DONE: Final = 2
_OTHERWISE: Final = 4
"""States of a step, as seen by its conditional edges: failed over, completed, or settled in another way."""
_SIGNALS = {
    **dict.fromkeys((code.COMPLETED, code.COMPENSATED), _DONE),
    **dict.fromkeys((code.SKIPPED, code.FAILED, code.TOLERATED), _OTHERWISE),
    **dict.fromkeys((code.FAILED_OVER, code.RECOVERED), _OTHERWISE | _FAILED_OVER),
}


class Verdicts:
    """Derives the codes of templates and unstarted steps from counters of the outcomes of their sources."""

    def __init__(
        self, graph: Graph, roster: StepIndex, codes: Sequence[str], selected_steps: Mapping[int, Sequence[str]]
    ) -> None:
        """Create the counters with all steps open.

        `codes` and `selected_steps` are shared with the owner and are never modified here.
        """
        self._graph, self._index, self._codes, self._chosen = graph, roster, codes, selected_steps
        size = len(graph.nodes)
        self._means = [OPEN] * len(roster)
        self._signals = [0] * size
        self._needs = [[0] * 5 for _ in range(size)]
        self._inside = {number: [0] * 5 for number, _ in roster.expansions}
        self._fired_edges = [0] * size
        # Undecided edges per step: a step whose edges are all decided without one that fired is skipped.
        self._undecided = [0] * size
        # Alternate -> failed steps whose recovery depends on it.
        self._over: dict[int, list[int]] = {}
        # Templates with a failed-over instance: the alternate of a template starts once for all instances.
        self._failed_over_templates: dict[int, bool] = {}
        for edges in graph.edges:
            for target, _ in edges:
                self._undecided[target] += 1
        self._conditional = [count > 0 for count in self._undecided]

    def means(self, number: int) -> int:
        """Return a step's outcome as seen by the steps that need it: OPEN, GOOD, SKIPPED, BAD or HELD."""
        return self._means[number]

    def is_unchosen(self, number: int) -> bool:
        """Return whether a step can only start after a choice, a success or a failure that has not happened."""
        return number < len(self._conditional) and self._conditional[number] and not self._fired_edges[number]

    def grow(self, count: int) -> None:
        """Add counters for the instances of the template that was expanded last."""
        self._means.extend([OPEN] * count)
        self._inside[self._index.expansions[-1][0]] = [0] * 5

    def mark_failed_over(self, number: int) -> None:
        """Record that the alternate of a step may start."""
        node = self._index.node(number)
        self._failed_over_templates[self._index.origin[number]] = True
        if node.recovers and node.alternate is not None:
            self._over.setdefault(node.alternate, []).append(number)

    def derive(self, number: int) -> tuple[str, bool]:
        """Return the derived code of a step (or its current code), and whether it may start."""
        letter = self._codes[number]
        if number in self._inside:
            return self._of_instances(number, letter), False
        if letter in (code.PENDING, code.BLOCKED) and not self._index.is_instance(number):
            node = self._graph.nodes[number]
            counts = self._needs[number]
            is_lenient = node.join is Join.ENDED
            all_skipped = counts[SKIPPED] == len(node.needs)
            skipped = not is_lenient and counts[SKIPPED] > 0 and (node.join is not Join.ANY or all_skipped)
            never = self._conditional[number] and not self._fired_edges[number] and not self._undecided[number]
            if skipped or never:
                return code.SKIPPED, False
            if (counts[BAD] or counts[HELD]) and not is_lenient:
                return code.BLOCKED, False
            # The remaining joins accept every outcome that is left.
            return code.PENDING, self._is_decided(number)
        if letter == code.FAILED_OVER and self._meaning(number, letter) == GOOD:
            return code.RECOVERED, False
        return letter, False

    def propagate(self, number: int) -> list[int]:
        """Propagate the current outcome of a step, and return the steps to evaluate again."""
        letter = self._codes[number]
        touched: list[int] = []
        meaning = self._meaning(number, letter)
        if meaning != self._means[number]:
            touched += self._update_dependents(number, meaning)
        # Instances have no edges of their own: those of their template fire once for all of them.
        if not self._index.is_instance(number) and self._graph.edges[number]:
            touched += self._update_targets(number, letter)
        return touched

    def _of_instances(self, number: int, letter: str) -> str:
        # Closing the plan abandons a template while its instances may still be open; the counters must not revive it.
        if letter == code.ABANDONED:
            return letter
        counts = self._inside[number]
        instances = self._index.instances(number) or ()
        if counts[GOOD] + counts[SKIPPED] + counts[BAD] < len(instances):
            return code.EXPANDED
        if counts[BAD]:
            return code.FAILED
        return code.COMPLETED if counts[GOOD] else code.SKIPPED

    def _is_decided(self, number: int) -> bool:
        """Return whether all needs of a step have ended and its conditional edges allow it to start."""
        counts, needs = self._needs[number], self._graph.nodes[number].needs
        has_ended = counts[GOOD] + counts[SKIPPED] + counts[BAD] == len(needs)
        return has_ended and (self._fired_edges[number] > 0 or not self._conditional[number])

    def _meaning(self, number: int, letter: str) -> int:
        if letter == code.BLOCKED:
            # With all needs ended, nothing can release the step any more; for its dependents it has failed.
            return BAD if self._is_decided(number) else HELD
        if letter != code.FAILED_OVER:
            return _MEANING.get(letter, OPEN)
        node = self._index.node(number)
        if not node.recovers or node.alternate is None:
            return BAD
        # A blocked alternate may still be released, so the outcome is open.
        meaning = OPEN if self._codes[node.alternate] == code.BLOCKED else self._means[node.alternate]
        # An alternate that was skipped has not done the work.
        return BAD if meaning == SKIPPED else meaning

    def _update_dependents(self, number: int, meaning: int) -> list[int]:
        # The counters are adjusted and not recounted: a join over 10 000 steps is updated 10 000 times.
        before, self._means[number] = self._means[number], meaning
        if self._index.is_instance(number):
            template = self._index.origin[number]
            counts = self._inside[template]
            counts[before] -= 1
            counts[meaning] += 1
            return [template]
        dependents = self._graph.dependents[number]
        for dependent in dependents:
            counts = self._needs[dependent]
            counts[before] -= 1
            counts[meaning] += 1
        return [*dependents, *self._over.get(number, ())]

    def _update_targets(self, number: int, letter: str) -> list[int]:
        signals = _SIGNALS.get(letter, 0)
        if number in self._inside and self._failed_over_templates.get(number):
            signals |= _FAILED_OVER
        before = self._signals[number]
        if signals == before:
            return []
        self._signals[number] = signals
        selected_steps = self._chosen.get(number, ())
        touched: list[int] = []
        for target, bits in self._graph.edges[number]:
            picked = bits & ON_CHOICE and self._graph.nodes[target].id in selected_steps
            was, now = _fires(before, bits, picked=bool(picked)), _fires(signals, bits, picked=bool(picked))
            self._fired_edges[target] += now - was
            # As a difference, because signals add up: a template fails over before it ends.
            self._undecided[target] -= _count_decisions(signals, now) - _count_decisions(before, was)
            touched.append(target)
        return touched


def _fires(signals: int, bits: int, *, picked: bool) -> int:
    if signals & _FAILED_OVER and bits & ON_FAILURE:
        return 1
    return 1 if signals & _DONE and (bits & ON_SUCCESS or picked) else 0


def _count_decisions(signals: int, fired: int) -> int:
    return 1 if fired or signals & (_DONE | _OTHERWISE) else 0
