"""Episodes that are stuck: each has to be noticed within five iterations."""

from tests.data.pauses import Files, stuck

PARSER = """import sys
sys.path.insert(0, "src")
from parse import parse
assert parse("1,2") == [1, 2], f"AssertionError: {parse('1,2')!r}"
"""


@stuck("the executor changes nothing", since=1, checks="test -f result.txt", iterations=10)
def nothing(_n: int) -> Files:
    return {}


@stuck(
    "two wrong fixes by turns",
    since=3,
    checks="python3 check.py",
    start={"check.py": PARSER, "src/parse.py": "def parse(text): return None\n"},
    iterations=12,
)
def by_turns(n: int) -> Files:
    fix = "text.split(',')" if n % 2 else "list(text)"
    return {"src/parse.py": f"def parse(text): return {fix}\n"}


@stuck("only a log grows", since=1, checks="echo 'ERROR no result'; test -f result.txt", iterations=12)
def log(n: int) -> Files:
    return {"agent.log": "".join(f"2026-03-01T10:{i:02}:00 tried again\n" for i in range(n))}
