"""Which step starts next. Pure and incremental: an event costs the edges of its step, and a heap's logarithm.

The status of a step that has not started is a function of the steps it depends on, never of the order in which these
ended; so a schedule that is rebuilt from the codes of all steps goes on exactly as the one before.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tightloop.plan import state as code
from tightloop.plan.engine.graph import Graph, Node
from tightloop.plan.engine.ready import ReadyQueue
from tightloop.plan.engine.roster import Roster
from tightloop.plan.engine.verdicts import GOOD, OPEN, Verdicts
from tightloop.plan.result import StepStatus
from tightloop.plan.state import STATUS_OF, PlanState, decode_tries, encode_tries

UNKNOWN_LENGTH: Final = -1
_LEFT_OPEN = frozenset({code.PENDING, code.AGAIN, code.LATER, code.WAITING, code.BLOCKED, code.EXPANDED})
_FAILED = frozenset({code.FAILED, code.FAILED_OVER})
_ITEMS: Final = 1 << 13
"""More than the largest fan-out: the place of a template leaves room for its items."""


class Schedule:
    """The state of every step of one plan. Steps are numbered as in the graph, then as templates grow.

    Attributes:
        graph: what the plan was compiled to.
        held: templates whose number of steps is above the budget's `max_fan_out`, or `UNKNOWN_LENGTH`;
            they wait until `expand`, `fail` or `finish` is called.
    """

    def __init__(self, graph: Graph, state: PlanState | None = None) -> None:
        """Begin anew, or where another schedule of the same graph stood. Linear in nodes and edges."""
        self.graph = graph
        self.held: dict[int, int] = {}
        self._load(state or PlanState())

    # What others ask

    def __len__(self) -> int:
        """Return the number of steps, templates and the steps made from them included."""
        return len(self._roster)

    def node(self, number: int) -> Node:
        """Return the definition: for a step made from a template that of the template."""
        return self._roster.node(number)

    def name(self, number: int) -> str:
        """Return the step's id; of a step made from `look-*` that is `look-1`, `look-2` ..."""
        return self._roster.name(number)

    def find(self, name: str) -> int | None:
        """Return the number of the step with this id."""
        return self._roster.find(name)

    def template(self, number: int) -> tuple[str, int] | None:
        """Return the template's id and the index of the item, for a step made from one."""
        return (self.node(number).id, self._roster.item(number)) if self._roster.made(number) else None

    def grown(self, number: int) -> bool:
        """Return whether this is a template that became steps: they stand for it, and it is not counted."""
        return self._roster.instances(number) is not None

    def status(self, number: int) -> StepStatus:
        """Return where the step stands."""
        return STATUS_OF[self._codes[number]]

    def attempt(self, number: int) -> int:
        """Return the number of the current or last attempt; 0 before the first."""
        return self._tries[number]

    def is_ready(self, number: int) -> bool:
        """Return whether the step could start now, but for the tree and the number of slots."""
        return number in self._queue

    def backs_off(self, number: int) -> bool:
        """Return whether the step waits for its next attempt."""
        return self._codes[number] == code.LATER

    @property
    def running(self) -> int:
        """Steps that run now."""
        return self._tally[code.RUNNING]

    @property
    def ready(self) -> int:
        """Steps that could start now, but for the tree and the number of slots."""
        return len(self._queue)

    @property
    def settled(self) -> bool:
        """Whether nothing runs, waits or backs off, nothing can start and nothing is held."""
        tally = self._tally
        return not (tally["r"] or tally["w"] or tally["l"] or len(self._queue) or self.held)

    def counts(self) -> dict[str, int]:
        """Return how many steps have each status, those of none left out."""
        found: dict[str, int] = {}
        for letter, count in self._tally.items():
            if count:
                name = STATUS_OF[letter].value
                found[name] = found.get(name, 0) + count
        return found

    def unrecovered(self) -> list[int]:
        """Return the failed steps that no other step recovers, by number. Linear in the number of steps."""
        found = [number for number, letter in enumerate(self._codes) if letter in _FAILED and not self.grown(number)]
        # In a settled plan nothing more comes that could make a failure good.
        return [number for number in found if self.settled or self._verdicts.means(number) != OPEN]

    def codes(self) -> str:
        """Return one character for each step; `tightloop.plan.state` tells their meaning."""
        return "".join(self._codes)

    def save(self, state: PlanState) -> PlanState:
        """Return `state` with all that this schedule knows."""
        return state.model_copy(
            update={
                "codes": self.codes(),
                "tries": encode_tries(self._tries),
                "expansions": tuple(self._roster.expansions),
                "lengths": dict(self._lengths),
                "chosen": {self.graph.nodes[number].id: ids for number, ids in self._chosen.items()},
            }
        )

    # What happens

    def take(self, slots: int) -> list[int]:
        """Mark at most `slots` ready steps as running and return them, best first.

        A step that writes the tree runs alone among those that touch it.
        """
        taken: list[int] = []
        while len(taken) < slots and (number := self._queue.pop()) is not None:
            self._start(number)
            taken.append(number)
        return taken

    def take_this(self, number: int) -> bool:
        """Mark one ready step as running out of its turn; False where it is not ready or the tree is not free."""
        if not self._queue.take(number, self.node(number).access):
            return False
        self._start(number)
        return True

    def finish(
        self,
        number: int,
        status: StepStatus,
        *,
        chosen: Sequence[str] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Note that a step is COMPLETED or SKIPPED; a failed one too can be passed over.

        Args:
            number: the step.
            status: COMPLETED or SKIPPED.
            chosen: steps that a decision or a gate lets start.
            counts: lengths of the step's outputs.

        Raises:
            ValueError: for any other status.
        """
        if status not in (StepStatus.COMPLETED, StepStatus.SKIPPED):
            raise ValueError(f"a step does not finish as {status.value}; call fail, waiting or retry_later")
        if status is StepStatus.COMPLETED:
            self._note_results(number, chosen, counts or {})
        self._end(number, code.COMPLETED if status is StepStatus.COMPLETED else code.SKIPPED)

    def fail(self, number: int, *, alternate: bool = False) -> None:
        """Note that a step has failed for good.

        With `alternate` its `on_failure` step is let go; where that recovers, the step's dependents wait for it. Else
        they are BLOCKED.
        """
        over = alternate and self.node(number).alternate is not None
        self._end(number, code.FAILED_OVER if over else code.FAILED)

    def retry_later(self, number: int) -> None:
        """Give the step's slot and tree back until `ready_again`."""
        self.held.pop(number, None)
        self._set(number, code.LATER)

    def waiting(self, number: int) -> None:
        """Note that the step waits for a person; until `ready_again` it holds neither slot nor tree."""
        self._set(number, code.WAITING)

    def ready_again(self, number: int) -> None:
        """Let a step go on: after `retry_later` with its next attempt, else with the same one.

        A revision may have given it new needs meanwhile: a next attempt waits for them.
        """
        later = self._codes[number] == code.LATER
        self._set(number, code.PENDING if later else code.AGAIN)
        if later and not self._roster.made(number):
            self._spread([number])
        else:
            self._enqueue(number)

    def compensated(self, number: int) -> None:
        """Note that a completed step was taken back. What it let start stays as it is."""
        if self._codes[number] == code.COMPLETED and not self.grown(number):
            self._set(number, code.COMPENSATED)

    def expand(self, number: int, count: int) -> None:
        """Make `count` steps of a held template, whatever the budget says."""
        if self.held.pop(number, None) is not None:
            self._set(number, self._grow(number, count))
            self._spread([number])

    def reopen(self, number: int) -> None:
        """Let a settled step run again, and let go what was skipped or blocked behind it.

        Of a template that became steps, those that failed run again. Linear in nodes and edges.
        """
        codes = list(self._codes)
        inside = self._roster.instances(number)
        again = [number] if inside is None else [each for each in inside if codes[each] in _FAILED]
        for each in (step for root in again for step in self._behind(root)):
            codes[each] = code.EXPANDED if self.grown(each) else code.PENDING
        for root in again:
            codes[root] = code.PENDING
        self._load(self.save(PlanState()).model_copy(update={"codes": "".join(codes)}))

    def close(self) -> None:
        """Abandon all that has not started or waits. Linear in the number of steps."""
        self._queue = ReadyQueue()
        self.held.clear()
        for number, letter in enumerate(self._codes):
            if letter in _LEFT_OPEN:
                self._set(number, code.ABANDONED)

    # How it is done

    def _load(self, state: PlanState) -> None:
        size = len(self.graph.nodes)
        self.held.clear()
        self._queue = ReadyQueue()
        self._roster = Roster(self.graph)
        for template, count in state.expansions:
            self._roster.add(template, count)
        self._codes = list(state.codes) or [code.first(node.kind) for node in self.graph.nodes]
        self._tries = decode_tries(state.tries) or [0] * size
        self._lengths = dict(state.lengths)
        index = self.graph.index
        self._chosen = {index[name]: ids for name, ids in state.chosen.items() if name in index}
        self._tally = dict.fromkeys(STATUS_OF, 0)
        self._verdicts = Verdicts(self.graph, self._roster, self._codes, self._chosen)
        for number, letter in enumerate(self._codes):
            if not self.grown(number):
                self._tally[letter] += 1
            if letter == code.RUNNING:
                self._queue.started(self.node(number).access)
            if letter in (code.FAILED_OVER, code.RECOVERED):
                self._verdicts.failed_over(number)
        for number in range(len(self._codes)):
            self._spread([number])
            if self._codes[number] == code.AGAIN or (self._codes[number] == code.PENDING and self._roster.made(number)):
                self._enqueue(number)

    def _start(self, number: int) -> None:
        if self._codes[number] == code.PENDING:
            self._tries[number] += 1
        self._set(number, code.RUNNING)

    def _end(self, number: int, letter: str) -> None:
        self._queue.drop(number)
        self.held.pop(number, None)
        self._set(number, letter)
        work = [number]
        if letter == code.FAILED_OVER:
            self._verdicts.failed_over(number)
            work.append(self._roster.origin(number))
        self._spread(work)

    def _set(self, number: int, letter: str) -> None:
        was = self._codes[number]
        self._codes[number] = letter
        if self.grown(number):
            return
        self._tally[was] -= 1
        self._tally[letter] += 1
        if was == code.RUNNING:
            self._queue.ended(self.node(number).access)
        if letter == code.RUNNING:
            self._queue.started(self.node(number).access)

    def _spread(self, work: list[int]) -> None:
        """Bring all up to date that depends on these steps; the order makes no difference."""
        while work:
            number = work.pop()
            letter, may_start = self._verdicts.derived(number)
            if letter != self._codes[number]:
                self._set(number, letter)
            if may_start:
                self._let_go(number)
            elif letter in (code.PENDING, code.BLOCKED, code.SKIPPED):
                self._drop(number)
            work += self._verdicts.tell(number)

    def _drop(self, number: int) -> None:
        if not self._roster.made(number):
            self._queue.drop(number)

    def _let_go(self, number: int) -> None:
        node = self.graph.nodes[number]
        if not node.template:
            self._enqueue(number)
        elif number not in self.held:
            count = self._length(node)
            if 0 <= count <= self.graph.head.budget.max_fan_out:
                self._set(number, self._grow(number, count))
            else:
                self.held[number] = count

    def _grow(self, number: int, count: int) -> str:
        if count == 0:
            return code.SKIPPED
        self._tally[self._codes[number]] -= 1
        self._tally[code.PENDING] += count
        self._codes.extend(code.PENDING * count)
        self._tries.extend([0] * count)
        for each in self._roster.add(number, count):
            self._enqueue(each)
        self._verdicts.grow(count)
        return code.EXPANDED

    def _enqueue(self, number: int) -> None:
        node = self.node(number)
        self._queue.push(number, node.position * _ITEMS + self._roster.item(number), node.access)

    def _length(self, node: Node) -> int:
        if node.source is None:
            return UNKNOWN_LENGTH if node.items is None else node.items
        source, output = node.source
        if (instances := self._roster.instances(source)) is not None:
            return sum(self._codes[each] == code.COMPLETED for each in instances)
        if self._verdicts.means(source) != GOOD:
            return 0
        for each in self.graph.stand_ins(source):
            if self._codes[each] == code.COMPLETED and not self.graph.nodes[each].template:
                return self._lengths.get(f"{self.graph.nodes[each].id}.{output}", UNKNOWN_LENGTH)
        return UNKNOWN_LENGTH

    def _note_results(self, number: int, chosen: Sequence[str] | None, counts: Mapping[str, int]) -> None:
        origin = self._roster.origin(number)
        node = self.graph.nodes[origin]
        if chosen is not None and node.choices:
            before = self._chosen.get(origin, ()) if self._roster.made(number) else ()
            self._chosen[origin] = tuple(dict.fromkeys((*before, *chosen)))
        if not self._roster.made(number):
            for output in self.graph.counted[number]:
                if output in counts:
                    self._lengths[f"{node.id}.{output}"] = counts[output]

    def _behind(self, number: int) -> list[int]:
        """Return what was skipped, blocked or failed because of a step."""
        found: dict[int, None] = {}
        work = [number]
        while work:
            each = work.pop()
            origin = self._roster.origin(each)
            after = [origin] if origin != each else [*self.graph.dependents[each], *self.graph.targets(each)]
            if (alternate := self.node(each).alternate) is not None:
                after.append(alternate)
            fresh = [step for step in dict.fromkeys(after) if step not in found and self._follows(step, alternate)]
            found.update(dict.fromkeys(fresh))
            work += fresh
        return list(found)

    def _follows(self, number: int, alternate: int | None) -> bool:
        letter = self._codes[number]
        if self.grown(number) or letter == code.BLOCKED:
            return True
        if letter == code.SKIPPED:
            return self._tries[number] == 0
        return number == alternate and letter in _FAILED
