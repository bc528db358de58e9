"""Episodes that do honest work: none of them may be paused."""

from tests.data.pauses import Files, honest
from tightloop.episode.check import Check

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


ALL_MISSING = 'ok=0; for n in $(seq 12); do test -f lib/m$n.py || { echo "missing: lib/m$n.py"; ok=1; }; done; exit $ok'
COUNT_DEFS = "n=$(cat src/*.py | grep -c '^def '); echo \"$n functions, 24 are needed\"; [ $n -ge 24 ]"
PYTEST = """passed=$(wc -l < passed.txt); failed=$((20 - passed)); n=$((passed + 1))
while [ $n -le 20 ]; do echo "FAILED tests/test_shop.py::test_case_$n - AssertionError"; n=$((n + 1)); done
echo "$failed failed, $passed passed in 0.$((passed * 7 % 10))3s"; [ $failed -eq 0 ]
"""
SUITE = """f=$(cat failing.txt); p=$((40 - f)); [ $f -eq 0 ] && exit 0
echo "=== $f failed, $p passed in 1.2$f s ==="; echo "$f failed, $p passed in 1.20s"; exit 1
"""
IMPORT = "echo \"ImportError: cannot import name 'Engine' from 'engine'\"; grep -q '^class Engine' src/engine.py"
COMPILE = """for f in a b c d e f g h i j; do
  grep -q typed src/$f.c 2>/dev/null || { echo "src/$f.c:12:7: error: unknown type name 'u32'"; exit 1; }
done
"""


def lines(text: str, n: int) -> str:
    return "".join(text.format(i=i) for i in range(1, n + 1))


def functions(n: int, name: str = "part") -> str:
    return "".join(f"def {name}_{i}(x):\n    return x + {i}\n\n\n" for i in range(1, n + 1))


@honest("one module per iteration, the check lists all that are missing", checks=ALL_MISSING, iterations=12)
def all_missing(n: int) -> Files:
    return {f"lib/m{n}.py": f"def main():\n    return {n}\n"}


@honest("two functions per iteration in one module, 24 are demanded", checks=COUNT_DEFS, iterations=12)
def functions_counted(n: int) -> Files:
    return {"src/all.py": functions(2 * n)}


@honest(
    "one function per iteration, the check is silent", checks="[ $(grep -c '^def ' src/all.py) -ge 24 ]", iterations=24
)
def functions_silent(n: int) -> Files:
    return {"src/all.py": functions(n)}


@honest(
    "tests turn green one after the other", checks="sh t.sh", start={"t.sh": PYTEST, "passed.txt": ""}, iterations=20
)
def one_test_each(n: int) -> Files:
    return {"passed.txt": lines("case {i}\n", n), f"src/case_{n}.py": f"def case():\n    return {n}\n"}


@honest(
    "two steps on, one without an effect on the tests",
    checks="sh t.sh",
    start={"t.sh": PYTEST, "passed.txt": ""},
    iterations=24,
)
def slow(n: int) -> Files:
    return {
        "passed.txt": lines("case {i}\n", 2 * n // 3),
        f"src/mod_{n}.py": f"class Part{n}:\n    size = {n}\n\n    def area(self):\n        return self.size\n",
    }


BROKEN = (0, 3, 7, 11, 9, 12, 8, 8, 5, 3, 1, 0)


@honest(
    "a refactoring breaks tests for some iterations",
    checks=("sh t.sh", "test -f done.txt"),
    start={"t.sh": SUITE, "failing.txt": "0\n"},
    iterations=12,
)
def refactoring(n: int) -> Files:
    done: Files = {"done.txt": "done\n"} if n == 12 else {}
    moved = f"from core.names import NAME_{n}\n\n\ndef use_{n}(value):\n    return NAME_{n}[value]\n"
    return {"failing.txt": f"{BROKEN[n - 1]}\n", f"core/user_{n}.py": moved, **done}


@honest("a new engine is written below a test that cannot import it", checks=IMPORT, iterations=10)
def import_error(n: int) -> Files:
    parts = ("Lexer", "Token", "Parser", "Node", "Scope", "Frame", "Stack", "Loader", "Runner", "Engine")
    text = "".join(f"class {part}:\n    def run(self):\n        return '{part.lower()}'\n\n\n" for part in parts[:n])
    return {"src/engine.py": text}


@honest("a compiler stops at the first file that is not migrated", checks=COMPILE, iterations=10)
def compile_errors(n: int) -> Files:
    return {f"src/{'abcdefghij'[n - 1]}.c": "#include <stdint.h>\n// typed\nuint32_t size = 4;\n"}


@honest(
    "tests first, then the code",
    checks="sh t.sh",
    start={
        "t.sh": 't=$(ls tests | wc -l); c=$(ls src 2>/dev/null | wc -l); echo "$((t - c)) failed, $c passed in '
        '0.1s"; [ $t -ge 6 ] && [ $t -eq $c ]',
        "tests/test_0.py": "def test(): pass\n",
    },
    iterations=13,
)
def tests_first(n: int) -> Files:
    if n <= 5:
        return {f"tests/test_{n}.py": f"from src.m{n} import f\n\n\ndef test_f():\n    assert f() == {n}\n"}
    return {f"src/m{n - 6}.py": f"def f():\n    return {n - 6}\n"}


@honest(
    "red test and green code by turns",
    checks="sh t.sh",
    start={
        "t.sh": 't=$(ls tests | wc -l); c=$(ls src 2>/dev/null | wc -l); echo "$((t - c)) failed, $c passed in '
        '0.1s"; [ $t -ge 8 ] && [ $t -eq $c ]',
        "tests/test_0.py": "def test(): pass\n",
    },
    iterations=16,
)
def red_green(n: int) -> Files:
    k = n // 2
    if n % 2:
        return {f"src/m{k}.py": f"def f():\n    return {k}\n"}
    return {f"tests/test_{k}.py": f"from src.m{k} import f\n\n\ndef test_f():\n    assert f() == {k}\n"}


FLAKY = """n=$(ls parts 2>/dev/null | wc -l); hash=$(ls parts 2>/dev/null | cksum | cut -c1-1)
[ $hash -lt 3 ] && echo "FAILED tests/test_net.py::test_reconnects - TimeoutError"
echo "FAILED tests/test_all.py::test_complete"; [ $n -ge 16 ]
"""


@honest("a flaky test beside slow work", checks="sh t.sh", start={"t.sh": FLAKY}, iterations=16)
def flaky(n: int) -> Files:
    return {f"parts/part_{n}.py": f"def handle_{n}(event):\n    return event.kind == {n}\n"}


@honest(
    "the message stays, its count sinks",
    checks='n=$(grep -c deprecated src/calls.py); echo "Error: $n deprecated calls"; [ $n -eq 0 ]',
    start={"src/calls.py": "".join(f"deprecated_{i}()\n" for i in range(1, 16))},
    iterations=15,
)
def count_sinks(n: int) -> Files:
    return {"src/calls.py": "".join(f"{'deprecated' if i > n else 'modern'}_{i}()\n" for i in range(1, 16))}


@honest(
    "dead code goes file by file below a silent check",
    checks="! ls old/*.py >/dev/null 2>&1",
    start={f"old/legacy_{i}.py": f"def legacy_{i}():\n    return {i}\n" for i in range(1, 13)},
    iterations=12,
)
def dead_code(n: int) -> Files:
    return {f"old/legacy_{n}.py": None}


@honest(
    "a check that times out until the work is small",
    checks=Check(run="sleep $(cat src/load.txt)", timeout_s=0.3),
    start={"src/load.txt": "9\n"},
    iterations=8,
)
def time_outs(n: int) -> Files:
    index = f"class Index{n}:\n    def find(self, key):\n        return self.rows[key % {n}]\n"
    return {f"src/index_{n}.py": index, "src/load.txt": f"{0 if n == 8 else 9 - n}\n"}


@honest(
    "a benchmark gets faster by tuning",
    checks="cat bench.txt; v=$(cut -d' ' -f4 bench.txt); [ $v -lt 100 ]",
    start={"bench.txt": "latency p95 too_high: 900 ms, remaining problem\n"},
    iterations=10,
)
def tuning(n: int) -> Files:
    return {
        "bench.txt": f"latency p95 too_high: {900 - 82 * n} ms, remaining problem\n",
        "src/pool.py": f"POOL = {n * 4}\nBATCH = {n * 32}\n",
    }


@honest(
    "the planner repeats its title while work goes on",
    checks="sh check.sh",
    start={"check.sh": FIRST_MISSING},
    iterations=12,
    plan=lambda _n: "make the missing part",
)
def same_title(n: int) -> Files:
    return {f"src/part_{n}.py": f"class Part{n}:\n    pass\n"}


@honest(
    "documentation between the steps",
    checks="[ $(ls src/*.py 2>/dev/null | wc -l) -ge 8 ]",
    iterations=12,
)
def docs_between(n: int) -> Files:
    if n % 3 == 0:
        return {"README.md": "".join(f"## Part {i}\n\nHow part number {i} is used.\n\n" for i in range(1, n + 1))}
    return {f"src/handler_{n}.py": f"def handler_{n}(request):\n    return request.path\n"}


@honest(
    "an iteration without a change now and then",
    checks="[ $(ls src/*.py 2>/dev/null | wc -l) -ge 9 ]",
    iterations=13,
    plan=lambda n: "read the code" if n % 4 == 1 else f"write reader {n}",
)
def reading(n: int) -> Files:
    return {} if n % 4 == 1 else {f"src/reader_{n}.py": f"def read_{n}(stream):\n    return stream.read({n})\n"}


@honest(
    "the agent is cut off now and then, its work stays",
    checks="[ $(ls src/*.py 2>/dev/null | wc -l) -ge 12 ]",
    iterations=12,
    ending=lambda n: {"status": "timed_out", "error": "no output for 900 s"} if n % 2 else {},
)
def cut_off(n: int) -> Files:
    return {f"src/view_{n}.py": f"def view_{n}(page):\n    return page.render('{n}')\n"}


@honest(
    "a wrong way is taken back once, then another is taken",
    checks="[ $(ls src/*.py 2>/dev/null | wc -l) -ge 9 ]",
    iterations=11,
)
def taken_back(n: int) -> Files:
    if n == 4:
        return {"src/wrong.py": "import legacy\n"}
    if n == 5:
        return {"src/wrong.py": None}
    return {f"src/store_{n}.py": f"def store_{n}(row):\n    return [row, {n}]\n"}


@honest(
    "errors of one function change while it is debugged",
    checks="python3 -c \"import sys; sys.path.insert(0, 'src'); import calc; assert calc.run() == 42\" 2>&1",
    start={"src/calc.py": "def run(: pass\n"},
    iterations=8,
)
def debugging(n: int) -> Files:
    bodies = (
        "return valu",
        "return int('x')",
        "return [][0]",
        "return {}['a']",
        "return None + 1",
        "raise OSError('no file')",
        "return '42'",
        "return 42",
    )
    return {"src/calc.py": f"def run():\n    {bodies[n - 1]}\n"}


@honest(
    "a table of data grows, the check counts the rows",
    checks='n=$(wc -l < data/rates.csv); echo "$n of 200 rows"; [ $n -ge 200 ]',
    start={"data/rates.csv": ""},
    iterations=20,
)
def table(n: int) -> Files:
    return {"data/rates.csv": "".join(f"{i},{i * i % 97}\n" for i in range(10 * n))}


@honest(
    "a plain list grows, the check names it",
    checks="[ $(cat items.txt | wc -l) -ge 15 ]",
    iterations=15,
)
def named_list(n: int) -> Files:
    return {"items.txt": lines("item {i}\n", n)}


@honest(
    "one line grows below a silent check",
    checks="grep -q hotel src/names.py",
    iterations=8,
)
def one_line(n: int) -> Files:
    names = ("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")[:n]
    return {"src/names.py": f"NAMES = [{', '.join(map(repr, names))}]\n"}


@honest(
    "functions move from one module to others",
    checks="! grep -q '^def ' src/big.py",
    start={"src/big.py": functions(10)},
    iterations=10,
)
def moving(n: int) -> Files:
    rest = functions(10).split("\n\n\n")[n:]
    return {
        "src/big.py": "\n\n\n".join(rest),
        f"src/small_{n}.py": f"def part_{n}(x):\n    return x + {n}\n",
    }


@honest(
    "two checks break one after the other and are mended",
    checks=("[ $(cat a.state) = ok ]", "[ $(cat b.state) = ok ]", "test -f src/final.py"),
    start={"a.state": "ok\n", "b.state": "ok\n"},
    iterations=9,
)
def two_break(n: int) -> Files:
    files: Files = {f"src/step_{n}.py": f"def step_{n}(state):\n    return state.advance()\n"}
    states: Files = {
        2: {"a.state": "broken\n"},
        3: {"b.state": "broken\n"},
        7: {"a.state": "ok\n"},
        8: {"b.state": "ok\n"},
    }.get(n, {})
    final: Files = {"src/final.py": "DONE = True\n"} if n == 9 else {}
    return {**files, **states, **final}


@honest(
    "lint findings vanish rule by rule",
    checks="sh lint.sh",
    start={
        "lint.sh": 'n=$(cat open.txt); [ $n -eq 0 ] && exit 0; echo "src/app.py:3:1: F401 unused import"; '
        'echo "Found $n errors."; exit 1\n',
        "open.txt": "60\n",
    },
    iterations=15,
)
def lint(n: int) -> Files:
    return {"open.txt": f"{60 - 4 * n}\n", "src/app.py": "".join(f"import used_{i}\n" for i in range(n))}


@honest(
    "a long document is written section by section",
    checks="grep -q '^## Appendix' docs/manual.md",
    start={"docs/manual.md": "# Manual\n"},
    iterations=10,
)
def document(n: int) -> Files:
    topics = ("Install", "Start", "Stop", "Backup", "Restore", "Upgrade", "Limits", "Costs", "Help", "Appendix")
    return {
        "docs/manual.md": "# Manual\n"
        + "".join(f"\n## {topic}\n\nAll about {topic.lower()}.\n" for topic in topics[:n])
    }


@honest(
    "types are added module by module, errors go up and down",
    checks="sh types.sh",
    start={
        "types.sh": 'n=$(cat errors.txt); [ $n -eq 0 ] && exit 0; echo "Found $n errors in 7 files"; exit 1\n',
        "errors.txt": "30\n",
    },
    iterations=12,
)
def types(n: int) -> Files:
    course = (31, 28, 29, 25, 22, 24, 19, 15, 11, 12, 5, 0)
    return {
        "errors.txt": f"{course[n - 1]}\n",
        f"src/typed_{n}.py": f"def typed_{n}(value: int) -> str:\n    return str(value)\n",
    }
