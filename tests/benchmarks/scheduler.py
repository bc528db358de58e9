"""The scheduler of plans: CPU time of one event (a step ends, what follows starts), at 1 000 and at 10 000 steps."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable

from tests.benchmarks.figures import Report, progress
from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import Graph, compile_graph
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.step import Access, Step

RUNS = 5
SIZES = (1_000, 10_000)
SLOTS = 100
WIDTH = 100
FAN_IN = 1_000
WIDE = 2_500
AIM_US = 50

COLUMNS = (
    "graph", "1k: us/event", "10k: us/event", "10k/1k", "compile ms", "unpack ms", "resume ms", "packed kB", "aim",
)  # fmt: skip

Shape = Callable[[int], Iterable[Step]]


def _deep(size: int) -> Iterable[Step]:
    return (Step(id=f"s{n}", needs=(f"s{n - 1}",) if n else ()) for n in range(size))


def _layered(size: int) -> Iterable[Step]:
    chance = random.Random(size)
    for n in range(size):
        before = range(n - n % WIDTH - WIDTH, n - n % WIDTH) if n >= WIDTH else range(0)
        needs = chance.sample(before, min(3, len(before)))
        yield Step(id=f"s{n}", needs=tuple(f"s{k}" for k in needs), estimate_s=chance.choice((1, 2, 5)))


def _on_the_tree(size: int) -> Iterable[Step]:
    """Layers of which every tenth step writes the tree and the others read it."""
    for step in _layered(size):
        writes = step.id.endswith("7")
        yield step.evolve(access=Access.WRITES if writes else Access.READS)


def _wide(size: int, width: int = WIDE) -> Iterable[Step]:
    """Many steps that are ready at once, in front of one that needs them all, again and again."""
    wide = min(width, size - 1)
    meeting = ""
    for n in range(size):
        if n % (wide + 1) == wide:
            first = n - wide
            meeting = f"s{n}"
            yield Step(id=meeting, needs=tuple(f"s{k}" for k in range(first, n)))
        else:
            yield Step(id=f"s{n}", needs=(meeting,) if meeting else ())


def _fan_in(size: int) -> Iterable[Step]:
    return _wide(size, FAN_IN - 1)


def _fan_out(size: int) -> Iterable[Step]:
    """Templates that become a hundred steps each, one after the other."""
    templates = size // (WIDTH + 1)
    for n in range(templates):
        yield Step(id=f"t{n}-*", needs=(f"t{n - 1}-*",) if n else (), for_each=tuple(range(WIDTH)))


SHAPES: dict[str, Shape] = {
    "deep (one after the other)": _deep,
    f"layered, {WIDTH} wide, random": _layered,
    "layered, readers and writers": _on_the_tree,
    f"width {WIDE}": _wide,
    f"fan-in {FAN_IN}": _fan_in,
    f"templates of {WIDTH}": _fan_out,
}


async def measure() -> Report:
    """Run each graph through the scheduler alone, its steps taking no time."""
    report = Report("Scheduler of plans, CPU time", COLUMNS)
    for name, shape in SHAPES.items():
        progress(name)
        small, large = (Plan(id="p", steps=tuple(shape(size))) for size in SIZES)
        at_1k, at_10k = _in_turns(compile_graph(small), compile_graph(large))
        report.add(name, at_1k, at_10k, at_10k / at_1k, *_once(large), aim=f"<= {AIM_US} us, flat")
    report.notes.append(
        f"median of {RUNS} runs in turns, {SLOTS} slots; an event is one step that starts and one that ends. The rest "
        "is of the larger graph. Resume: from a stored state in which half of the steps have ended"
    )
    return report


def _in_turns(small: Graph, large: Graph) -> tuple[float, float]:
    samples = [(_event_us(small), _event_us(large)) for _ in range(RUNS)]
    return statistics.median(each[0] for each in samples), statistics.median(each[1] for each in samples)


def _event_us(graph: Graph) -> float:
    schedule = Schedule(graph)
    gc.collect()
    begun = time.process_time()
    events = _run(schedule, len(graph.nodes) * 1_000)
    return (time.process_time() - begun) / events * 1e6


def _run(schedule: Schedule, most: int) -> int:
    running: list[int] = []
    events = 0
    while events < most and not schedule.is_settled:
        running += schedule.take(SLOTS - len(running))
        schedule.finish(running.pop(len(running) // 2), StepStatus.COMPLETED)
        events += 1
    return events


def _once(plan: Plan) -> tuple[float, float, float, float]:
    """Return what is done once in a run: ms to compile, to unpack and to resume, and the kB of the packed graph."""
    begun = time.process_time()
    packed = compile_graph(plan).pack()
    compiled = time.process_time()
    graph = Graph.unpack(packed)
    unpack = time.process_time()
    schedule = Schedule(graph)
    _run(schedule, SIZES[1] // 2)
    state = schedule.save()
    before = time.process_time()
    Schedule(graph, state)
    resumed = time.process_time()
    return (compiled - begun) * 1e3, (unpack - compiled) * 1e3, (resumed - before) * 1e3, len(packed) / 1e3
