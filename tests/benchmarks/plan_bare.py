"""A graph of steps in a bare Temporal workflow: a window of activities that do nothing, and nothing else."""

from collections import deque
from datetime import timedelta

from temporalio import activity, workflow

from workflows.run.activities import new_activity_id

TIMEOUT = timedelta(minutes=1)
WINDOW = 100
PAYLOAD = "x" * 100


@activity.defn
def pass_node(text: str) -> str:
    """Do nothing, in a thread as the activities of plans do."""
    return text


@workflow.defn
class BareGraph:
    """Runs the nodes of a graph, at most `WINDOW` at once, each after those that it needs."""

    def __init__(self) -> None:
        self._ended: deque[int] = deque()
        self._woken = False

    @workflow.run
    async def run(self, needs: list[list[int]], done: str = "", per_run: int = 0) -> int:
        """Run all nodes; with `per_run` a new run follows when so many were started and none is under way."""
        import asyncio

        flags = list(done) or ["0"] * len(needs)
        dependents: list[list[int]] = [[] for _ in needs]
        missing = [0] * len(needs)
        for node, sources in enumerate(needs):
            for source in sources:
                dependents[source].append(node)
                missing[node] += flags[source] == "0"
        ready = deque(node for node, count in enumerate(missing) if count == 0 and flags[node] == "0")
        running = started = 0
        while ready or running:
            while ready and running < WINDOW and not (per_run and started >= per_run):
                asyncio.create_task(self._node(ready.popleft()))  # noqa: RUF006 - it ends before the run
                running, started = running + 1, started + 1
            if not running:
                workflow.continue_as_new(args=[needs, "".join(flags), per_run])
            await workflow.wait_condition(lambda: self._woken)
            self._woken = False
            while self._ended:
                node = self._ended.popleft()
                running -= 1
                flags[node] = "1"
                for each in dependents[node]:
                    missing[each] -= 1
                    if missing[each] == 0:
                        ready.append(each)
        return flags.count("1")

    async def _node(self, node: int) -> None:
        # With an id: what an activity is given is sealed for it, and a workflow knows no other id than its own.
        await workflow.execute_activity(
            pass_node, PAYLOAD, start_to_close_timeout=TIMEOUT, activity_id=new_activity_id()
        )
        self._ended.append(node)
        self._woken = True
