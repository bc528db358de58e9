"""Episodes that are stuck: each has to be noticed within five iterations."""

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, gives_up, malformed

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


TRACE = """n=$(cat seed.txt 2>/dev/null || echo 1)
echo "2026-03-01 10:0$((n % 10)):1$((n % 9)) worker[$((4000 + n * 37))] start"
echo "Traceback (most recent call last):"
echo "  File \\"/tmp/run$n/app.py\\", line $((10 + n)), in main"
echo "ValueError: <Thing object at 0x7f$((n * 1234))ab> is not ready"
exit 1
"""
SUITE = """f=$(cat failing.txt); p=$((60 - f)); [ $f -eq 0 ] && exit 0
echo "$f failed, $p passed in 1.20s"; exit 1
"""
SAME = "echo 'AssertionError: totals differ'; exit 1"


def by_period(states: tuple[str, ...], n: int) -> str:
    return states[(n - 1) % len(states)]


@stuck(
    "a no-op after some good iterations",
    since=4,
    checks="sh c.sh; test -f src/m9.py",
    start={"c.sh": "ls src"},
    iterations=12,
)
def noop_later(n: int) -> Files:
    return {f"src/m{n}.py": f"def m{n}():\n    return {n}\n"} if n < 4 else {}


@stuck("A-B-A-B with the same output", since=2, checks=SAME, iterations=12)
def abab(n: int) -> Files:
    return {
        "src/total.py": by_period(
            ("def total(rows):\n    return sum(rows)\n", "def total(rows):\n    return len(rows)\n"), n
        )
    }


@stuck("A-B-C-A-B-C with different errors", since=4, checks="cat src/error.py; exit 1", iterations=14)
def abcabc(n: int) -> Files:
    return {"src/error.py": by_period(("raise TypeError\n", "raise KeyError\n", "raise OSError\n"), n)}


@stuck("a circle of four states", since=5, checks="cat src/mode.py; exit 1", iterations=14)
def circle_of_four(n: int) -> Files:
    return {"src/mode.py": by_period(("MODE = 'fast'\n", "MODE = 'safe'\n", "MODE = 'slow'\n", "MODE = 'lazy'\n"), n)}


@stuck(
    "a file is deleted and written again", since=2, checks=SAME, start={"src/cache.py": "CACHE = {}\n"}, iterations=12
)
def delete_and_add(n: int) -> Files:
    return {"src/cache.py": None if n % 2 else "CACHE = {}\n"}


@stuck("only comments change", since=1, checks=SAME, start={"src/app.py": "x = 1\n"}, iterations=12)
def comments(n: int) -> Files:
    words = ("check", "maybe", "later", "fix", "why", "todo", "note", "hm", "really", "soon", "ask", "see")
    return {"src/app.py": f"# {words[n - 1]} whether this is right\nx = 1\n"}


@stuck(
    "only space changes", since=1, checks=SAME, start={"src/app.py": "def f(a, b):\n    return a + b\n"}, iterations=12
)
def space(n: int) -> Files:
    return {"src/app.py": f"def f(a,{' ' * n}b):\n{' ' * (n + 1)}return a{' ' * n}+ b\n" + "\n" * n}


@stuck(
    "the same error with other lines, times and addresses",
    since=2,
    checks="sh t.sh",
    start={"t.sh": TRACE},
    iterations=12,
)
def same_trace(n: int) -> Files:
    return {"seed.txt": f"{n}\n"}


@stuck("the constant is tried out", since=2, checks=SAME, iterations=12)
def constant(n: int) -> Files:
    return {"src/limit.py": f"LIMIT = {n * 17 % 23}\n"}


@stuck("one function is written again and again, the error stays", since=2, checks=SAME, iterations=12)
def rewritten(n: int) -> Files:
    ways = (
        "sum(rows)",
        "max(rows)",
        "min(rows)",
        "len(rows)",
        "rows[0]",
        "rows[-1]",
        "sorted(rows)",
        "list(rows)",
        "set(rows)",
        "tuple(rows)",
        "any(rows)",
        "all(rows)",
    )
    return {"src/total.py": f"def total(rows):\n    value = {ways[n - 1]}\n    return value\n"}


@stuck(
    "more tests fail in each iteration",
    since=3,
    checks="sh t.sh",
    start={"t.sh": SUITE, "failing.txt": "4\n"},
    iterations=14,
)
def damage(n: int) -> Files:
    return {
        "failing.txt": f"{4 - n if n < 3 else 2 + 3 * (n - 2)}\n",
        f"src/hack_{n}.py": f"import os\nos.hack_{n} = True\n",
    }


@stuck(
    "one more test fails in each iteration, by name",
    since=1,
    checks="cat broken.txt; exit 1",
    start={"broken.txt": "FAILED test_login\n"},
    iterations=12,
)
def damage_by_name(n: int) -> Files:
    words = ("cart", "price", "tax", "mail", "pdf", "stock", "order", "user", "role", "sync", "menu", "log")
    return {"broken.txt": "FAILED test_login\n" + "".join(f"FAILED test_{word}\n" for word in words[:n])}


@stuck(
    "the agent fails in the same way each time",
    since=1,
    checks="test -f result.txt",
    iterations=10,
    ending=lambda n: {"status": "failed", "error": f"exit 1: session {n * 7001} has expired"},
)
def agent_fails(_n: int) -> Files:
    return {}


@stuck(
    "the agent refuses each time",
    since=1,
    checks="test -f result.txt",
    iterations=10,
    ending=lambda _n: {"status": "refused", "error": "I cannot do this"},
)
def agent_refuses(_n: int) -> Files:
    return {}


@stuck(
    "the agent times out and leaves a line in its notes",
    since=1,
    checks="test -f result.txt",
    iterations=10,
    ending=lambda _n: {"status": "timed_out", "error": "no output for 900 s"},
)
def agent_times_out(n: int) -> Files:
    return {"attempts.txt": "".join(f"attempt {i}: started\n" for i in range(1, n + 1))}


@stuck(
    "the planner claims that all is done, the check says no",
    since=1,
    checks="test -f result.txt",
    iterations=10,
    plan=lambda _n: claims_done(),
)
def false_claim(_n: int) -> Files:
    return {}


@stuck(
    "the planner gives up",
    since=3,
    checks="test -f result.txt",
    iterations=10,
    plan=lambda n: gives_up() if n >= 3 else f"look at part {n}",
)
def give_up(n: int) -> Files:
    return {f"src/try_{n}.py": f"def attempt_{n}():\n    return {n}\n"} if n < 3 else {}


@stuck(
    "the planner's answers cannot be used",
    since=2,
    checks="test -f result.txt",
    iterations=10,
    plan=lambda n: malformed() if n >= 2 else "begin",
)
def unusable(n: int) -> Files:
    return {"src/begin.py": "BEGIN = True\n"} if n == 1 else {}


@stuck(
    "plans sound different each time, nothing is done",
    since=1,
    checks=SAME,
    iterations=12,
    plan=lambda n: ("read", "think", "ask", "measure", "draw", "list", "sort", "rank", "weigh", "test", "plan", "wait")[
        n - 1
    ],
)
def only_plans(_n: int) -> Files:
    return {}


@stuck("two errors by turns, each fix brings the other back", since=3, checks="cat src/which.py; exit 1", iterations=12)
def two_errors(n: int) -> Files:
    side = "left" if n % 2 else "right"
    return {"src/which.py": f"raise ValueError('{side} is missing')\n"}


@stuck("the same block is appended again and again", since=2, checks=SAME, iterations=12)
def same_block(n: int) -> Files:
    return {"src/retry.py": "def retry():\n    return connect()\n\n\n" * n}


@stuck("a file gets another name again and again", since=2, checks=SAME, iterations=12)
def renamed(n: int) -> Files:
    body = "".join(f"VALUE_{i} = {i}\n" for i in range(20))
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    old: Files = {f"src/{words[n - 2]}.py": None} if n > 1 else {}
    return {f"src/{words[n - 1]}.py": body, **old}


@stuck("a report is written again with another time", since=2, checks=SAME, iterations=12)
def report(n: int) -> Files:
    return {"REPORT.md": f"# Report of 2026-03-0{n % 9 + 1} 11:{n:02}\n\nTests are still red.\n"}


@stuck(
    "a flaky test, and nothing is done",
    since=1,
    checks="sh f.sh",
    start={
        "f.sh": "[ $(($(wc -l < run.log) % 3)) -eq 0 ] && echo 'FAILED test_net'; echo 'FAILED test_sum'; exit 1\n",
        "run.log": "",
    },
    iterations=12,
)
def flaky(n: int) -> Files:
    return {"run.log": "".join(f"10:{i:02}:00 ran\n" for i in range(n))}


@stuck(
    "the version is raised, nothing else",
    since=2,
    checks=SAME,
    start={"pyproject.toml": "version = '0.1.0'\n"},
    iterations=12,
)
def version(n: int) -> Files:
    return {"pyproject.toml": f"version = '0.1.{n}'\n"}


@stuck("numbers jump, the count gets no better", since=2, checks="cat state.txt; exit 1", iterations=12)
def jumping(n: int) -> Files:
    return {"state.txt": f"{(7, 9, 6, 9, 8, 7, 9, 8, 9, 7, 8, 9)[n - 1]} errors\n"}


@stuck("one name to and fro", since=3, checks=SAME, iterations=12)
def to_and_fro(n: int) -> Files:
    name = "user" if n % 2 else "account"
    return {"src/model.py": f"class Model:\n    {name} = None\n\n    def get(self):\n        return self.{name}\n"}


@stuck("numbered notes say the same", since=2, checks=SAME, iterations=12)
def notes(n: int) -> Files:
    return {f"notes/attempt_{n}.md": f"# Attempt {n}\n\nIt did not work.\n"}
