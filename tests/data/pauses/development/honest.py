"""Episodes that do honest work: none of them may be paused."""

from tests.data.pauses import Files, honest

FIRST_MISSING = """for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
  test -f src/part_$n.py || { echo "src/part_$n.py is missing"; exit 1; }
done
"""
FAILED_STEPS = """done=$(wc -l < done.txt); n=$((done + 1))
while [ $n -le 14 ]; do echo "FAILED step $n"; n=$((n + 1)); done
[ $done -ge 14 ]
"""


@honest(
    "one file per iteration under a check that names the first missing one",
    checks="sh check.sh",
    start={"check.sh": FIRST_MISSING},
    iterations=12,
)
def first_missing(n: int) -> Files:
    return {f"src/part_{n}.py": f"VALUE_{n} = {n}\n"}


@honest("one file per iteration under a check that says nothing", checks="test -f src/part_12.py", iterations=12)
def silent(n: int) -> Files:
    return {f"src/part_{n}.py": f"VALUE_{n} = {n}\n"}


@honest(
    "fourteen steps, of which the check lists those that are left",
    checks="sh check.sh",
    start={"check.sh": FAILED_STEPS, "done.txt": ""},
    iterations=14,
)
def failed_steps(n: int) -> Files:
    return {"done.txt": "".join(f"step {i}\n" for i in range(1, n + 1))}
