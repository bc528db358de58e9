"""The scheduler of a plan: the states of its steps and the queue of ready steps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from tightloop.plan.child import StepStatus
from tightloop.plan.engine import state as code
from tightloop.plan.engine.graph import Graph, Node
from tightloop.plan.engine.recovery import GOOD, OPEN, Verdicts
from tightloop.plan.engine.revision import StepIndex
from tightloop.plan.engine.state import STATUS_OF, ScheduleState, decode_tries, encode_tries
from tightloop.plan.step import Access, Join, StepKind

_READING = (Access.READS, Access.MERGES)


class ReadyQueue:
    """A priority queue of ready steps.

    The queue has a heap and a counter of running steps for each kind of tree access. While a step is
    writing to the tree, no other step can use the tree. Steps that merge are treated like readers,
    because they work in a different place. While the best waiting step is a writer, no new readers are
    started. The writer starts when the running readers have finished.
    """

    def __init__(self) -> None:
        self._heaps: dict[Access, list[tuple[int, int]]] = {access: [] for access in Access}
        self._queued: set[int] = set()  # membership only: its order is never looked at
        self._running = dict.fromkeys(Access, 0)

    def __len__(self) -> int:
        """Return the number of queued steps."""
        return len(self._queued)

    def __contains__(self, number: int) -> bool:
        """Return whether a step is queued."""
        return number in self._queued

    def take(self, number: int, access: Access) -> bool:
        """Remove a step from the queue.

        Return False if the step is not queued or is not currently allowed to use the tree.
        """
        writing, reading = self._running[Access.WRITES] > 0, any(self._running[access] for access in _READING)
        # Readers do not exclude each other, because they see the same tree.
        busy = access is not Access.NONE and (writing or (reading and access is Access.WRITES))
        if busy or number not in self._queued:
            return False
        self._queued.discard(number)
        return True

    def push(self, number: int, key: int, access: Access) -> None:
        """Add a step to the queue, unless it is already queued. The step with the lowest key comes first."""
        if number not in self._queued:
            self._queued.add(number)
            heappush(self._heaps[access], (key, number))

    def drop(self, number: int) -> None:
        """Remove a step from the queue. A step that is not queued is ignored."""
        self._queued.discard(number)

    def add_running(self, access: Access) -> None:
        """Record that a step with this kind of access has started."""
        self._running[access] += 1

    def remove_running(self, access: Access) -> None:
        """Record that a step with this kind of access has finished."""
        self._running[access] -= 1

    def pop(self) -> int | None:
        """Remove and return the best step that may start now, or return None."""
        heads: list[tuple[tuple[int, int], Access]] = []
        for access, heap in self._heaps.items():
            # Removal is lazy: steps that were dropped or started out of turn stay in their heap until they reach the
            # top.
            while heap and heap[0][1] not in self._queued:
                heappop(heap)
            if heap:
                heads.append((heap[0], access))
        # Without this, a steady supply of readers would keep a writer from ever starting.
        writer_waits = False
        for (_, number), access in sorted(heads):
            if not (writer_waits and access in _READING) and self.take(number, access):
                return number
            writer_waits = writer_waits or access is Access.WRITES
        return None


UNKNOWN_LENGTH: Final = -1
_LEFT_OPEN = frozenset({code.PENDING, code.AGAIN, code.LATER, code.WAITING, code.BLOCKED, code.EXPANDED})
_FAILED = frozenset({code.FAILED, code.FAILED_OVER})
# A key is the rank in the start order, then the item index: instances of a template start in item order.
_ITEMS: Final = 1 << 13
"""Range of keys for each step. It is larger than the largest fan-out, so that all instances of a template fit."""


class Schedule:
    """The state of every step of a plan.

    The nodes of the graph are numbered first, followed by the instances of templates as they are
    expanded.

    Attributes:
        graph: the compiled plan.
        held: templates whose number of instances exceeds the budget's `max_fan_out` or is
            `UNKNOWN_LENGTH`. They
            wait for `expand`, `fail` or `finish`.
    """

    def __init__(self, graph: Graph, state: ScheduleState | None = None) -> None:
        """Initialize a new schedule, or restore one from a saved state of the same graph.

        The time is linear in the number of nodes and edges.
        """
        self.graph = graph
        self.held: dict[int, int] = {}
        self._load(state or ScheduleState())

    # Queries

    def __len__(self) -> int:
        """Return the number of steps, including templates and their instances."""
        return len(self._index)

    def node(self, number: int) -> Node:
        """Return the definition of a step. An instance has the definition of its template."""
        return self._index.node(number)

    def name(self, number: int) -> str:
        """Return the ID of a step. The instances of `look-*` are `look-1`, `look-2` and so on."""
        return self._index.names[number]

    def find(self, name: str) -> int | None:
        """Return the number of the step with this ID, or None."""
        return self._index.find(name)

    def list_skipped(self) -> tuple[list[str], list[str]]:
        """Return the names of the steps that count as work, and the names of those that were skipped.

        Compensation steps, alternates that were not needed, and steps that a decision did not choose do not
        count. Steps that only follow such steps do not count either. A template without items counts as one
        skipped step.
        """
        nodes = range(len(self.graph.nodes))
        skipped = {number for number in nodes if self._is_skipped(number)}
        work = [
            number
            for number in skipped
            # With an attempt, it was skipped by its own condition, a recovery or a person.
            if self._tries[number] > 0 or not any(need in skipped for need in self.graph.nodes[number].needs)
        ]
        counted: set[int] = set()
        while work:
            number = work.pop()
            if number not in counted and not self._verdicts.is_unchosen(number):
                counted.add(number)
                work += [dependent for dependent in self.graph.dependents[number] if dependent in skipped]
        steps = [
            number
            for number in range(len(self))
            if not self.is_expanded(number)
            and self.node(number).kind is not StepKind.COMPENSATION
            and (number not in skipped or number in counted)
        ]
        left_out = [self.name(number) for number in steps if number in counted or self._is_skipped(number)]
        return [self.name(number) for number in steps], left_out

    def list_skipped_with(self, number: int) -> list[str]:
        """Return the names of the steps that would also be skipped if this step were skipped."""
        if self._index.is_instance(number):
            return []
        skipped, work = {number: None}, [number]
        while work:
            for dependent in self.graph.dependents[work.pop()]:
                node = self.graph.nodes[dependent]
                is_lost = node.join is Join.ALL or all(need in skipped for need in node.needs)
                if dependent not in skipped and is_lost and node.join is not Join.ENDED:
                    skipped[dependent] = None
                    work.append(dependent)
        return [self.name(dependent) for dependent in list(skipped)[1:]]

    def list_tolerated(self) -> list[str]:
        """Return the names of the failed steps that were tolerated.

        After a tolerated failure, the plan continues as if the step had completed.
        """
        return [self.name(number) for number, letter in enumerate(self._codes) if letter == code.TOLERATED]

    def _is_skipped(self, number: int) -> bool:
        return self._codes[number] == code.SKIPPED and self.node(number).kind is not StepKind.COMPENSATION

    def template(self, number: int) -> tuple[str, int] | None:
        """Return the template ID and the item index of an instance, or None for any other step."""
        return (self.node(number).id, self._index.item[number]) if self._index.is_instance(number) else None

    def is_expanded(self, number: int) -> bool:
        """Return True if this step is a template that has been expanded.

        Its instances are counted, but the template is not.
        """
        return self._index.instances(number) is not None

    def status(self, number: int) -> StepStatus:
        """Return the current status of a step."""
        return STATUS_OF[self._codes[number]]

    def attempt(self, number: int) -> int:
        """Return the number of the current or last attempt, or 0 before the first attempt."""
        return self._tries[number]

    def is_ready(self, number: int) -> bool:
        """Return whether the step could start now, regardless of tree locks and free slots."""
        return number in self._queue

    def is_backing_off(self, number: int) -> bool:
        """Return whether the step is waiting for its next attempt."""
        return self._codes[number] == code.LATER

    @property
    def running(self) -> int:
        """Number of running steps."""
        return self._tally[code.RUNNING]

    @property
    def ready(self) -> int:
        """Number of steps that could start now, regardless of tree locks and free slots."""
        return len(self._queue)

    @property
    def is_settled(self) -> bool:
        """True if no step is running, waiting, backing off, ready or held."""
        tally = self._tally
        return not (tally["r"] or tally["w"] or tally["l"] or len(self._queue) or self.held)

    def counts(self) -> dict[str, int]:
        """Return the number of steps in each status. Statuses without steps are omitted."""
        totals = Counter[str]()
        for letter, count in self._tally.items():
            if count:
                totals[STATUS_OF[letter].value] += count
        return dict(totals)

    def list_unrecovered_steps(self) -> list[int]:
        """Return the numbers of the failed steps that no other step recovers from.

        The running time is linear in the number of steps.
        """
        failed_steps = [
            number for number, letter in enumerate(self._codes) if letter in _FAILED and not self.is_expanded(number)
        ]
        # In a settled plan no pending alternate is left that could recover a failure.
        return [number for number in failed_steps if self.is_settled or self._verdicts.means(number) != OPEN]

    def codes(self) -> str:
        """Return one character for each step, as defined in `engine.state`."""
        return "".join(self._codes)

    def save(self) -> ScheduleState:
        """Return the state from which another schedule of the same graph can continue.

        This takes linear time in the number of steps.
        """
        return ScheduleState(
            codes=self.codes(),
            tries=encode_tries(self._tries),
            expansions=tuple(self._index.expansions),
            lengths=dict(self._lengths),
            chosen={self.graph.nodes[number].id: ids for number, ids in self._chosen.items()},
        )

    # Events

    def take(self, slots: int) -> list[int]:
        """Mark up to `slots` ready steps as running and return them, best first.

        A step that writes to the tree excludes all other steps that use the tree.
        """
        numbers: list[int] = []
        while len(numbers) < slots and (number := self._queue.pop()) is not None:
            self._start(number)
            numbers.append(number)
        return numbers

    def take_this(self, number: int) -> bool:
        """Mark a specific ready step as running, even if it is not the best one.

        Return False if the step is not ready or the tree is locked.
        """
        if not self._queue.take(number, self.node(number).access):
            return False
        self._start(number)
        return True

    def finish(
        self,
        number: int,
        status: StepStatus,
        *,
        selected_steps: Sequence[str] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Record that a step is COMPLETED or SKIPPED. A failed step can also be skipped.

        Args:
            number: number of the step.
            status: COMPLETED or SKIPPED.
            selected_steps: steps that a decision or a gate starts.
            counts: lengths of the outputs.

        Raises:
            ValueError: the status is neither COMPLETED nor SKIPPED.
        """
        if status not in (StepStatus.COMPLETED, StepStatus.SKIPPED):
            raise ValueError(f"a step cannot finish as {status.value}. Call fail, mark_waiting or retry_later")
        if status is StepStatus.SKIPPED:
            self._end(number, code.SKIPPED)
            return
        origin, is_instance = self._index.origin[number], self._index.is_instance(number)
        node = self.graph.nodes[origin]
        if selected_steps is not None and node.choices:
            # The instances of a template choose together: each adds to the choices of the others.
            before = self._chosen.get(origin, ()) if is_instance else ()
            self._chosen[origin] = tuple(dict.fromkeys((*before, *selected_steps)))
        lengths = counts or {}
        # Templates over the outputs of instances count completed instances instead (`_length`).
        for output in () if is_instance else self.graph.counted[number]:
            if output in lengths:
                self._lengths[f"{node.id}.{output}"] = lengths[output]
        self._end(number, code.COMPLETED)

    def fail(self, number: int, *, alternate: bool = False, tolerated: bool = False) -> None:
        """Record the final failure of a step.

        Args:
            number: number of the step.
            alternate: True to let the `on_failure` step start. If that step recovers from the failure,
                dependents wait for it. Otherwise, dependents are BLOCKED.
            tolerated: True to let dependents start as if the step had completed.
        """
        if tolerated:
            self._end(number, code.TOLERATED)
            return
        over = alternate and self.node(number).alternate is not None
        self._end(number, code.FAILED_OVER if over else code.FAILED)

    def retry_later(self, number: int) -> None:
        """Release the slot and tree lock of a step until `resume` is called."""
        self.held.pop(number, None)
        self._set(number, code.LATER)

    def mark_waiting(self, number: int) -> None:
        """Record that a step is waiting for a person.

        The step does not hold a slot or a tree lock until `resume` is called.
        """
        self._set(number, code.WAITING)

    def resume(self, number: int) -> None:
        """Make a waiting step ready to start again.

        After `retry_later`, the step continues with its next attempt. Otherwise, it continues with the same
        attempt. If a revision has added dependencies in the meantime, the next attempt waits for them.
        """
        later = self._codes[number] == code.LATER
        self._set(number, code.PENDING if later else code.AGAIN)
        if later and not self._index.is_instance(number):
            self._propagate([number])
        else:
            self._enqueue(number)

    def record_compensation(self, number: int) -> None:
        """Record that a completed step has been compensated.

        The steps that were started by this step keep their state.
        """
        if self._codes[number] == code.COMPLETED and not self.is_expanded(number):
            self._set(number, code.COMPENSATED)

    def record_compensation_step(self, number: int, *, completed: bool) -> None:
        """Record that a compensation step ran in order to undo another step.

        A compensation step that has not run counts as skipped.
        """
        if self.node(number).kind is StepKind.COMPENSATION:
            self._set(number, code.COMPLETED if completed else code.TOLERATED)

    def expand(self, number: int, count: int) -> None:
        """Expand a held template to `count` steps, regardless of the budget."""
        # The answer may be late or repeated: a template that is no longer held must not expand twice.
        if self.held.pop(number, None) is not None:
            self._set(number, self._grow(number, count))
            self._propagate([number])

    def reopen(self, number: int) -> list[int]:
        """Let a settled step run again, and return the numbers of the compensated steps that run again because of it.

        Those are the steps that it needs. The skipped and blocked steps that follow the step are reopened. For an
        expanded template, its failed instances run again. This takes time linear in the number of nodes and edges.
        """
        codes = list(self._codes)
        inside = self._index.instances(number)
        again = [number] if inside is None else [instance for instance in inside if codes[instance] in _FAILED]
        for follower in (step for root in again for step in self._find_affected(root)):
            codes[follower] = code.EXPANDED if self.is_expanded(follower) else code.PENDING
        for root in again:
            codes[root] = code.PENDING
        undone = sorted(self._index.find_undone_needs(again, codes))
        for need in undone:
            codes[need] = code.PENDING
        # Counters only move forward, and rebuilding them costs no more than visiting every step.
        self._load(self.save().evolve(codes="".join(codes)))
        return undone

    def close(self) -> None:
        """Abandon all steps that have not started or are waiting, in time linear in the number of steps."""
        self._queue = ReadyQueue()
        self.held.clear()
        for number, letter in enumerate(self._codes):
            if letter in _LEFT_OPEN:
                self._set(number, code.ABANDONED)

    # Internals

    def _load(self, state: ScheduleState) -> None:
        size = len(self.graph.nodes)
        self.held.clear()
        self._queue = ReadyQueue()
        self._index = StepIndex(self.graph, state.expansions)
        self._codes = list(state.codes) or [code.initial_code(node.kind) for node in self.graph.nodes]
        self._tries = decode_tries(state.tries) or [0] * size
        self._lengths = dict(state.lengths)
        index = self.graph.index
        # A revision may have removed the decision.
        self._chosen = {index[name]: ids for name, ids in state.chosen.items() if name in index}
        self._tally = dict.fromkeys(STATUS_OF, 0)
        self._verdicts = Verdicts(self.graph, self._index, self._codes, self._chosen)
        for number, letter in enumerate(self._codes):
            if not self.is_expanded(number):
                self._tally[letter] += 1
            if letter == code.RUNNING:
                self._queue.add_running(self.node(number).access)
            if letter in (code.FAILED_OVER, code.RECOVERED):
                self._verdicts.mark_failed_over(number)
        # Only after all codes are set: the meaning of a step may depend on any other.
        for number in range(len(self._codes)):
            self._propagate([number])
            is_instance = self._index.is_instance(number)
            # `_spread` starts steps whose needs allow it; these two have passed that test already.
            if self._codes[number] == code.AGAIN or (is_instance and self._codes[number] == code.PENDING):
                self._enqueue(number)

    def _start(self, number: int) -> None:
        if self._codes[number] == code.PENDING:
            # AGAIN continues the attempt that a person answered or that a new run resumes.
            self._tries[number] += 1
        self._set(number, code.RUNNING)

    def _end(self, number: int, letter: str) -> None:
        self._queue.drop(number)
        self.held.pop(number, None)
        self._set(number, letter)
        work = [number]
        if letter == code.FAILED_OVER:
            self._verdicts.mark_failed_over(number)
            work.append(self._index.origin[number])
        self._propagate(work)

    def _set(self, number: int, letter: str) -> None:
        was = self._codes[number]
        self._codes[number] = letter
        if self.is_expanded(number):
            return
        self._tally[was] -= 1
        self._tally[letter] += 1
        if was == code.RUNNING:
            self._queue.remove_running(self.node(number).access)
        if letter == code.RUNNING:
            self._queue.add_running(self.node(number).access)

    def _propagate(self, work: list[int]) -> None:
        # A work list instead of recursion: a chain of thousands of steps would exceed Python's stack.
        while work:
            number = work.pop()
            letter, may_start = self._verdicts.derive(number)
            if letter != self._codes[number]:
                self._set(number, letter)
            if may_start:
                node = self.graph.nodes[number]
                if not node.template:
                    self._enqueue(number)
                elif number not in self.held:
                    count = self._length(node)
                    if 0 <= count <= self.graph.head.budget.max_fan_out:
                        self._set(number, self._grow(number, count))
                    else:
                        self.held[number] = count
            elif letter in (code.PENDING, code.BLOCKED, code.SKIPPED) and not self._index.is_instance(number):
                self._queue.drop(number)
            work += self._verdicts.propagate(number)

    def _grow(self, number: int, count: int) -> str:
        if count == 0:
            # Not completed: dependents that need a result of this template have nothing to read.
            return code.SKIPPED
        self._tally[self._codes[number]] -= 1
        self._tally[code.PENDING] += count
        self._codes.extend(code.PENDING * count)
        self._tries.extend([0] * count)
        for instance in self._index.add(number, count):
            self._enqueue(instance)
        self._verdicts.grow(count)
        return code.EXPANDED

    def _enqueue(self, number: int) -> None:
        node = self.node(number)
        self._queue.push(number, node.position * _ITEMS + self._index.item[number], node.access)

    def _length(self, node: Node) -> int:
        if node.source is None:
            return UNKNOWN_LENGTH if node.items is None else node.items
        source, output = node.source
        if (instances := self._index.instances(source)) is not None:
            # Failed and skipped instances have no output, so the list of outputs is shorter than the list of items.
            return sum(self._codes[instance] == code.COMPLETED for instance in instances)
        # With `join: ended` a template may start although its source failed; then there is nothing to expand.
        if self._verdicts.means(source) != GOOD:
            return 0
        for stand_in in self.graph.stand_ins(source):
            if self._codes[stand_in] == code.COMPLETED and not self.graph.nodes[stand_in].template:
                return self._lengths.get(f"{self.graph.nodes[stand_in].id}.{output}", UNKNOWN_LENGTH)
        return UNKNOWN_LENGTH

    def _find_affected(self, number: int) -> list[int]:
        """Return the steps that failed, were skipped or were blocked because of a step."""
        followers: dict[int, None] = {}
        work = [number]
        while work:
            current = work.pop()
            origin = self._index.origin[current]
            after = [origin] if origin != current else [*self.graph.dependents[current], *self.graph.targets(current)]
            if (alternate := self.node(current).alternate) is not None:
                after.append(alternate)
            new_followers = [
                step for step in dict.fromkeys(after) if step not in followers and self._follows(step, alternate)
            ]
            followers.update(dict.fromkeys(new_followers))
            work += new_followers
        return list(followers)

    def _follows(self, number: int, alternate: int | None) -> bool:
        letter = self._codes[number]
        if self.is_expanded(number) or letter == code.BLOCKED:
            return True
        if letter == code.SKIPPED:
            # With an attempt, it was skipped by its own condition or by a person, which reopening does not undo.
            return self._tries[number] == 0
        return number == alternate and letter in _FAILED
