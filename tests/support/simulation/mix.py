"""What goes wrong in the simulated eight hours, how often, and the script that makes it go wrong; all from one seed."""

import random
from enum import StrEnum
from typing import Any, NamedTuple


class Fault(StrEnum):
    """What happens to one iteration."""

    NONE = "nothing"
    LIMIT = "limit once"
    LIMIT_TWICE = "limit twice in a row"
    LIMIT_THRICE = "limit three times in a row"
    AGENT_FAILED = "agent crashed"
    AGENT_TIMED_OUT = "agent timed out"
    KILLED_AFTER_WORK = "worker killed after the agent's work"
    KILLED_BEFORE_WORK = "worker killed before the agent's work"
    RESTARTED = "worker restarted while planning"
    INCOMPLETE_PLAN = "plan lacks parts, then corrected"
    UNUSABLE_PLAN = "plan unusable after all corrections"
    NO_CHANGE = "agent changed nothing"
    FRUITLESS = "agent's change fixed nothing"
    BREAKS = "agent broke a check that passed"


PER_MILLE = {
    Fault.LIMIT: 60,
    Fault.LIMIT_TWICE: 15,
    Fault.LIMIT_THRICE: 5,
    Fault.AGENT_FAILED: 30,
    Fault.AGENT_TIMED_OUT: 15,
    Fault.KILLED_AFTER_WORK: 15,
    Fault.KILLED_BEFORE_WORK: 10,
    Fault.RESTARTED: 15,
    Fault.INCOMPLETE_PLAN: 40,
    Fault.UNUSABLE_PLAN: 10,
    Fault.NO_CHANGE: 30,
    Fault.FRUITLESS: 60,
    Fault.BREAKS: 15,
}
"""Share of the iterations. The rest goes well: 68 %."""
FLAKY_PER_MILLE = 40
"""Share of the runs of the tests in which a test fails that passes the next time, whatever else happens."""
RETRY_AFTER_S = (60, 240, 600, 1_200)
"""What the provider asks for, one of these."""
WORK_S, PLANNING_S = (40.0, 160.0), (8.0, 40.0)
"""Simulated time of one delivery and of one plan, uniform."""
FIXES_NOTHING = frozenset(
    {
        Fault.AGENT_FAILED,
        Fault.AGENT_TIMED_OUT,
        Fault.UNUSABLE_PLAN,
        Fault.NO_CHANGE,
        Fault.FRUITLESS,
        Fault.BREAKS,
    }
)
ABSORBED = {
    Fault.LIMIT: "waited as long as the provider asked, same plan delivered again",
    Fault.LIMIT_TWICE: "waited as long as the provider asked, same plan delivered again",
    Fault.LIMIT_THRICE: "waited as long as the provider asked, same plan delivered again",
    Fault.AGENT_FAILED: "reflection, next plan",
    Fault.AGENT_TIMED_OUT: "reflection, next plan",
    Fault.KILLED_AFTER_WORK: "not delivered again: outcome unknown, checked, reflection",
    Fault.KILLED_BEFORE_WORK: "delivered again in the same iteration",
    Fault.RESTARTED: "asked again by the next worker",
    Fault.INCOMPLETE_PLAN: "sent back to the planner with what is missing",
    Fault.UNUSABLE_PLAN: "a failed iteration, next plan",
    Fault.NO_CHANGE: "reflection, next plan",
    Fault.FRUITLESS: "reflection, next plan",
    Fault.BREAKS: "class LOW, reflection, fixed by the next plan",
}
LIMITS = {Fault.LIMIT: 1, Fault.LIMIT_TWICE: 2, Fault.LIMIT_THRICE: 3}
ERRORS = (
    "exit 1: TypeError: cannot read properties of undefined",
    "exit 137: killed, out of memory",
    "exit 1: stream disconnected before completion",
    "exit 101: thread 'main' panicked at 'called unwrap on a None value'",
)


class Deal(NamedTuple):
    """What is dealt to an episode: a fault for each iteration, and the runs of the tests that are flaky."""

    seed: int
    faults: tuple[Fault, ...]
    flaky_runs: tuple[int, ...]

    def at(self, iteration: int) -> Fault:
        """Return the fault of an iteration, from 1; after the last one all goes well."""
        return self.faults[iteration - 1] if iteration <= len(self.faults) else Fault.NONE

    @property
    def fixed(self) -> int:
        """How many iterations fix something, so that many tests fail at first."""
        return sum(fault not in FIXES_NOTHING for fault in self.faults)


def deal(seed: int, iterations: int) -> Deal:
    """Shuffle the faults in their shares over so many iterations, and draw the flaky runs."""
    dealer = random.Random(seed)
    faults = [fault for fault, share in PER_MILLE.items() for _ in range(round(share * iterations / 1_000))]
    faults += [Fault.NONE] * (iterations - len(faults))
    dealer.shuffle(faults)
    runs = range(2, 2 * iterations)
    flaky = sorted(dealer.sample(runs, round(FLAKY_PER_MILLE * len(runs) / 1_000)))
    return Deal(seed, tuple(faults), tuple(flaky))


def simulated_s(seed: int, what: str, bounds: tuple[float, float]) -> float:
    """Return how long something takes in simulated seconds; the same for the same seed and name."""
    return round(random.Random(f"{seed}/{what}").uniform(*bounds), 3)


def steps(dealt: Deal, *, extra: int) -> list[dict[str, Any]]:
    """Return the script of the executor: a step for each iteration, and some more that go well."""
    dealer = random.Random(f"{dealt.seed}/steps")
    return [_step(fault, dealer) for fault in (*dealt.faults, *[Fault.NONE] * extra)]


_FIXES: dict[str, Any] = {
    "append": [{"path": "work.txt", "text": "{n}\n"}],
    "write": [{"path": "src/part_{n}.py", "text": "".join(f"VALUE_{n} = {{n}}\n" for n in range(8))}],
    "delete": [{"path": "broken.txt"}],
    "usage": {"input_tokens": 9_000, "output_tokens": 900, "cost_usd": 0.02},
}
_TRIES: dict[str, Any] = {"append": [{"path": "attempts.txt", "text": "attempt {n}\n"}]}


def _step(fault: Fault, dealer: random.Random) -> dict[str, Any]:
    if fault in LIMITS:
        wait = dealer.choice(RETRY_AFTER_S)
        return {**_FIXES, "limit_tries": LIMITS[fault], "retry_after_s": wait, "evidence": "429 Too Many Requests"}
    if fault is Fault.AGENT_FAILED:
        return {**_TRIES, "status": "failed", "error": dealer.choice(ERRORS)}
    special: dict[Fault, dict[str, Any]] = {
        Fault.AGENT_TIMED_OUT: {**_TRIES, "status": "timed_out", "error": "no output for 900 s"},
        Fault.KILLED_AFTER_WORK: {**_FIXES, "crash": True},
        Fault.KILLED_BEFORE_WORK: {**_FIXES, "crash": "before"},
        Fault.NO_CHANGE: {"summary": "nothing to do"},
        Fault.FRUITLESS: _TRIES,
        Fault.BREAKS: {"write": [{"path": "broken.txt", "text": "broken in {n}\n"}]},
    }
    return special.get(fault, _FIXES)


TESTS_SH = r"""# The test suite of the simulation: as many tests pass as `work.txt` has lines.
# $1: number of tests. $2: folder with the numbers of the flaky runs, outside of the tree.
passed=$(wc -l < work.txt); failed=$(($1 - passed)); [ "$failed" -ge 0 ] || failed=0
echo run >> "$2/runs"; run=$(wc -l < "$2/runs")
if grep -qx "$run" "$2/flaky"; then
    echo "FAILED tests/test_net.py::test_reconnects"; failed=$((failed + 1)); echo "$run" >> "$2/flaked"
fi
n=$((passed + 1)); last=$((passed + 10))
while [ "$n" -le "$1" ] && [ "$n" -le "$last" ]; do echo "FAILED tests/test_parts.py::test_part_$n"; n=$((n + 1)); done
echo "$failed failed, $passed passed in 0.10s"
[ "$failed" -eq 0 ]
"""
