"""Episodes that do honest work: none of them may be paused."""

import json

from tests.data.pauses import Files, honest


def each(names: tuple[str, ...] | range, n: int, text: str) -> str:
    """Return `text` filled in for the first n names."""
    return "".join(text.format(name) for name in tuple(names)[:n])


def at(values: tuple[int, ...], n: int) -> int:
    """Return the value of iteration n, or the last one."""
    return values[min(n, len(values)) - 1]


# Moves from one language version, library or layout to another.

COMPILES = """import pathlib, sys
for path in sorted(pathlib.Path("app").glob("*.py")):
    try:
        compile(path.read_text(), str(path), "exec")
    except SyntaxError as error:
        print(f'  File "{path}", line {error.lineno}')
        sys.exit(f"SyntaxError: {error.msg}")
"""
OLD_MODULES = (
    *("accounts", "billing", "carts", "dates", "emails", "forms", "groups", "hooks", "images", "jobs", "keys"),
    *("labels", "mails", "notes", "orders"),
)


@honest(
    "Python 2 modules are ported one by one, the check stops at the first syntax error",
    checks="python3 -B check.py",
    start={"check.py": COMPILES, **{f"app/{m}.py": f'def show(x):\n    print "{m}", x\n' for m in OLD_MODULES}},
    iterations=15,
    plan=lambda _n: "port the next module to Python 3",
)
def python_two(n: int) -> Files:
    name = OLD_MODULES[n - 1]
    return {f"app/{name}.py": f'def show(x):\n    print("{name}", x)\n'}


TSC = """awk '/[(,] *[a-z]+[,)]/ && !/: *[a-z]+[,)]/ {
  printf "%s(%d,22): error TS7006: Parameter implicitly has an any type.\\n", FILENAME, FNR; bad++ }
  END { if (bad) printf "Found %d errors.\\n", bad; exit bad > 0 }' src/*.ts
"""


def typescript(name: str, typed: int) -> str:
    kinds = ("string" if i < typed else "" for i in range(4))
    return "".join(
        f"export function {name}{i}(x{': ' + kind if kind else ''}) {{ return x; }}\n" for i, kind in enumerate(kinds)
    )


TS_FILES = ("cart", "menu", "price", "store", "tax", "user", "vault", "wish")


@honest(
    "a TypeScript project is made strict, two functions per iteration",
    checks="sh tsc.sh",
    start={"tsc.sh": TSC, **{f"src/{name}.ts": typescript(name, 0) for name in TS_FILES}},
    iterations=16,
    plan=lambda n: f"annotate {TS_FILES[(n - 1) // 2]}.ts, part {1 + (n - 1) % 2}",
)
def strict(n: int) -> Files:
    name = TS_FILES[(n - 1) // 2]
    return {f"src/{name}.ts": typescript(name, 2 if n % 2 else 4)}


LINK = """for f in init push pop peek size clear free map fold find sort iter; do
  grep -q "^[a-z].* queue_$f(" src/*.c || {
    echo "cc -O2 -Wall -o queue main.o queue.o"
    echo "/usr/bin/ld: main.o: in function \\`main':"
    echo "main.c:(.text+0x1f): undefined reference to \\`queue_$f'"
    echo "collect2: error: ld returned 1 exit status"; echo "make: *** [Makefile:9: queue] Error 1"; exit 1; }
done
"""
C_NAMES = ("init", "push", "pop", "peek", "size", "clear", "free", "map", "fold", "find", "sort", "iter")


@honest(
    "functions of a C library, the linker names the first that is undefined",
    checks="sh link.sh",
    start={"link.sh": LINK, "src/queue.c": '#include "queue.h"\n'},
    iterations=12,
    plan=lambda n: f"implement queue_{C_NAMES[n - 1]}",
)
def c_library(n: int) -> Files:
    body = each(C_NAMES, n, "\nint queue_{0}(struct queue *q)\n{{\n    return q->{0}_state++;\n}}\n")
    return {"src/queue.c": '#include "queue.h"\n' + body}


SCRIPTS = ("backup", "build", "clean", "deploy", "env", "fetch", "lint", "logs", "purge", "run", "seed", "sync", "tag")


@honest(
    "bash scripts become portable, a silent check looks for what only bash knows",
    checks="! grep -q '\\[\\[' bin/*.sh",
    start={f"bin/{s}.sh": f'#!/bin/bash\nif [[ -n "$1" ]]; then\n  echo {s} "$1"\nfi\n' for s in SCRIPTS},
    iterations=13,
    plan=lambda n: f"make {SCRIPTS[n - 1]}.sh portable",
)
def portable(n: int) -> Files:
    name = SCRIPTS[n - 1]
    return {f"bin/{name}.sh": f'#!/bin/sh\nif [ -n "$1" ]; then\n  echo {name} "$1"\nfi\n'}


MIGRATE = """import pathlib, sqlite3, sys
database = sqlite3.connect(":memory:")
for path in sorted(pathlib.Path("migrations").glob("*.sql")):
    database.executescript(path.read_text())
for line in open("queries.sql"):
    try:
        database.execute(line)
    except sqlite3.OperationalError as error:
        sys.exit(f"sqlite3.OperationalError: {error}")
"""
TABLES = (
    *("customers", "addresses", "products", "prices", "stocks", "orders", "lines", "invoices", "payments"),
    *("refunds", "coupons", "reviews", "suppliers", "deliveries"),
)


@honest(
    "SQL migrations table by table, the queries stop at the first table that is missing",
    checks="python3 -B check.py",
    start={
        "check.py": MIGRATE,
        "queries.sql": each(TABLES, 14, "SELECT id, name FROM {}\n"),
        "migrations/000.sql": "CREATE TABLE version (id INTEGER);\n",
    },
    iterations=14,
)
def migrations(n: int) -> Files:
    return {f"migrations/{n:03}.sql": f"CREATE TABLE {TABLES[n - 1]} (id INTEGER PRIMARY KEY, name TEXT);\n"}


NOTEBOOKS = """import json, pathlib, sys
for path in sorted(pathlib.Path("nb").glob("*.ipynb")):
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["outputs"] or cell["execution_count"]:
            sys.exit(f"{path}: cell {number} has outputs")
"""


def notebook(name: str, cleaned: int) -> str:
    cells = [
        {
            "source": [f"{name}.step({i})"],
            "outputs": [] if i < cleaned else [{"text": [f"<Frame {i}>"]}],
            "execution_count": None if i < cleaned else i + 1,
        }
        for i in range(4)
    ]
    return json.dumps({"cells": cells, "nbformat": 4}, indent=1) + "\n"


@honest(
    "notebooks are stripped of their outputs, some in two goes",
    checks="python3 -B check.py",
    start={"check.py": NOTEBOOKS, **{f"nb/{i:02}.ipynb": notebook(f"part{i}", 0) for i in range(8)}},
    iterations=16,
    plan=lambda _n: "strip outputs from the next cells",
)
def notebooks(n: int) -> Files:
    book = (n - 1) // 2
    return {f"nb/{book:02}.ipynb": notebook(f"part{book}", 2 if n % 2 else 4)}


WORDS = tuple(f"{area}.{part}" for area in ("menu", "cart", "user", "mail", "help", "shop") for part in range(12))


@honest(
    "a translation grows by five texts per iteration, the check says nothing",
    checks="python3 -B -c 'import json,sys; sys.exit(len(json.load(open(\"de.json\"))) < 72)'",
    start={"de.json": "{}\n", "en.json": json.dumps({w: f"text {w}" for w in WORDS}, indent=1)},
    iterations=15,
    plan=lambda n: f"translate texts {5 * n - 4} to {5 * n}",
)
def translation(n: int) -> Files:
    return {"de.json": json.dumps({w: f"Text {w}" for w in WORDS[: 5 * n]}, indent=1, ensure_ascii=False) + "\n"}


ROWS = 'awk -F, \'$3 !~ /^[0-9][0-9][0-9][0-9]-/ { print "data.csv:" FNR ": bad date " $3; exit 1 }\' data.csv'


def table(good: int) -> str:
    dates = (f"2024-{1 + i % 12:02}-1{i % 9}" if i < good else f"1{i % 9}.{1 + i % 12}.24" for i in range(60))
    return "".join(f"{i},customer {i},{date}\n" for i, date in enumerate(dates))


@honest(
    "data is cleaned after two iterations that only write the cleaning script",
    checks=ROWS,
    start={"data.csv": table(0)},
    iterations=14,
    plan=lambda n: "write clean.py" if n < 3 else f"clean batch {n - 2}",
)
def cleaning(n: int) -> Files:
    script = "import csv, sys\n" + each(
        ("day_first", "month_names", "two_digits"), n, "def {}(text): return text[::-1]\n"
    )
    return {"clean.py": script} if n < 3 else {"data.csv": table(5 * (n - 2))}


# Figures that are noisy, flaky or slow.

STAGES = tuple(f"stage_{i}" for i in range(16))
BENCH = """slow=$(grep -c 'for pixel in' src/render.py); noise=$(cksum < src/render.py | awk '{ print $1 % 90 }')
ms=$((110 + slow * 45 + noise)); echo "render: p95 $ms ms over 200 frames (limit 200 ms)"; [ $ms -le 200 ]
"""


def render(fast: int) -> str:
    return "".join(
        f"def {name}(frame):\n    "
        + (f"return frame * GAIN[{i}]\n" if i < fast else f"return [pixel * GAIN[{i}] for pixel in frame]\n")
        for i, name in enumerate(STAGES)
    )


@honest(
    "rendering gets faster stage by stage, in noisy milliseconds",
    checks="sh bench.sh",
    start={"bench.sh": BENCH, "src/render.py": render(0)},
    iterations=16,
    plan=lambda n: f"vectorise {STAGES[n - 1]}",
)
def rendering(n: int) -> Files:
    return {"src/render.py": render(n)}


FLAKY = """left=$(grep -c 'TODO' src/api.py); luck=$(cksum < src/api.py | awk '{ print $1 % 3 }')
failed=$((left + luck)); n=0
while [ $n -lt $left ]; do echo "FAILED tests/test_api.py::test_route_$n"; n=$((n + 1)); done
[ $luck -gt 0 ] && echo "FAILED tests/test_socket.py::test_reconnect - TimeoutError"
[ $luck -gt 1 ] && echo "FAILED tests/test_socket.py::test_close - ConnectionResetError"
echo "$failed failed, $((64 - failed)) passed in 4.$((luck + 2))1s"; [ $failed -eq 0 ]
"""


def routes(done: int) -> str:
    return "".join(
        f"def route_{i}(request):\n    {'return store.get(' + str(i) + ')' if i < done else 'raise TODO'}\n"
        for i in range(16)
    )


@honest(
    "routes are written while two socket tests fail by chance",
    checks="sh suite.sh",
    start={"suite.sh": FLAKY, "src/api.py": routes(0)},
    iterations=16,
    plan=lambda n: f"implement route {n - 1}",
)
def flaky(n: int) -> Files:
    return {"src/api.py": routes(n)}


RACE = """locks=$(grep -c 'with lock' src/pool.py); noise=$(cksum < src/pool.py | awk '{ print $1 % 4 }')
lost=$(((9 - locks) * 3 + noise)); [ $locks -ge 9 ] && exit 0
echo "stress: $lost of 100 runs lost a job"; exit 1
"""


@honest(
    "a race is closed place by place, the share of bad runs falls with noise",
    checks="sh stress.sh",
    start={"stress.sh": RACE, "src/pool.py": "import threading\n"},
    iterations=9,
    plan=lambda n: f"guard access {n} with the lock",
)
def race(n: int) -> Files:
    return {
        "src/pool.py": "import threading\nlock = threading.Lock()\n" + each(range(9), n, "with lock: jobs[{}] += 1\n")
    }


COVERED = """t=$(cat tests/*.py 2>/dev/null | grep -c '^def test'); p=$((610 + t * 7))
echo "TOTAL 4821 $((4821 - t * 34)) $((p / 10)).$((p % 10))%"
[ $p -ge 800 ] || {
  echo "FAIL Required test coverage of 80% not reached. Total coverage: $((p / 10)).$((p % 10))%"; exit 1; }
"""
PARTS = ("auth", "bill", "cart", "date", "edit", "feed", "gate", "host", "item", "join", "kind", "lock", "mail", "news")


@honest(
    "coverage climbs slowly, one test module per iteration",
    checks="sh coverage.sh",
    start={"coverage.sh": COVERED},
    iterations=14,
    plan=lambda n: f"test the module {PARTS[n - 1]}",
)
def coverage(n: int) -> Files:
    name = PARTS[n - 1]
    return {f"tests/test_{name}.py": f"def test_{name}():\n    assert {name}(1)\n\n\ndef test_{name}_no():\n    pass\n"}


LINT = """n=$(cat src/*.py | grep -c ' $'); cat src/*.py | grep -n ' $' | head -5 | sed 's/^/W291: line /'
echo "Found $n errors."; [ "$n" -eq 0 ]
"""


def untidy(kept: int) -> str:
    return "".join(f"value_{i} = {i}{' ' if i < kept else ''}\n" for i in range(240))


@honest(
    "two hundred and forty findings of a linter, the first five are shown",
    checks="sh lint.sh",
    start={"lint.sh": LINT, "src/a.py": untidy(240)},
    iterations=12,
    plan=lambda _n: "fix the next twenty findings",
)
def lint(n: int) -> Files:
    return {"src/a.py": untidy(240 - 20 * n)}


FIT = """import json
points = [(x, 3.7 * x) for x in range(1, 9)]
rate = json.load(open("model.json"))["rate"]
loss = sum((y - rate * x) ** 2 for x, y in points) / len(points)
print(f"loss {loss:.5f}, wanted below 0.00001")
raise SystemExit(loss >= 0.00001)
"""


def halved(n: int) -> float:
    low, high = 0.0, 16.0
    for _ in range(n - 1):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < 3.7 else (low, middle)
    return (low + high) / 2


@honest(
    "one constant is found by halving, the loss falls though not each time",
    checks="python3 -B fit.py",
    start={"fit.py": FIT, "model.json": '{"rate": 1}\n'},
    iterations=14,
    plan=lambda n: f"halve the interval, try {halved(n)}",
)
def halving(n: int) -> Files:
    log = "".join(f"- tried {halved(i)}: {'too low' if halved(i) < 3.7 else 'too high'}\n" for i in range(1, n + 1))
    return {"model.json": json.dumps({"rate": halved(n)}) + "\n", "experiments.md": log}


# Searching for a cause.

PLUGINS = """k=$(wc -l < plugins.txt)
if grep -q '^plugin21$' plugins.txt && grep -q 'strcpy' src/plugin21.c; then
  echo "loading $k plugins"; echo "Segmentation fault (core dumped)"; exit 139
fi
[ $k -eq 32 ] || { echo "loading $k plugins"; echo "startup ok, but $((32 - k)) plugins are disabled"; exit 1; }
"""


def bisected(n: int) -> tuple[int, int]:
    low, high = 0, 32
    for _ in range(n):
        middle = (low + high) // 2
        low, high = (low, middle) if low <= 21 < middle else (middle, high)
    return low, high


@honest(
    "half of the suspects are switched off until one is left, which is then fixed",
    checks="sh start.sh",
    start={
        "start.sh": PLUGINS,
        "plugins.txt": each(range(32), 32, "plugin{}\n"),
        "src/plugin21.c": "strcpy(buffer, name);\n",
    },
    iterations=8,
    plan=lambda n: f"bisect the plugins, round {n}" if n < 6 else "fix what the bisection found",
)
def bisecting(n: int) -> Files:
    if n == 6:
        return {"bisect.md": "The crash comes with plugin21 alone.\n", "src/plugin21.md": "buffer holds 16 bytes\n"}
    if n == 7:
        return {"src/plugin21.c": "snprintf(buffer, sizeof buffer, name);\n"}
    if n == 8:
        return {"plugins.txt": each(range(32), 32, "plugin{}\n")}
    low, high = bisected(n - 1)
    middle = (low + high) // 2
    log = "".join("crash within {}..{}\n".format(*bisected(i)) for i in range(n))
    return {"plugins.txt": "".join(f"plugin{i}\n" for i in range(low, middle)), "bisect.md": log}


BUGS = """import sys
sys.path.insert(0, "src")
import money
cases = {"add": (money.add(1, 2), 3), "tax": (money.tax(100), 119), "round": (money.cut(2.345), 2.35),
         "split": (money.split(10, 3), [4, 3, 3])}
bad = {name: pair for name, pair in cases.items() if pair[0] != pair[1]}
for name, (got, wanted) in bad.items():
    print(f"FAILED test_money.py::test_{name} - assert {got!r} == {wanted!r}")
print(f"{len(bad)} failed, {len(cases) - len(bad)} passed in 0.01s")
sys.exit(bool(bad))
"""
FIXES = (
    ("def add(a, b):{debug}\n    return a - b\n", "def add(a, b):{debug}\n    return a + b\n"),
    ("def tax(x):{debug}\n    return x * 1.9\n", "def tax(x):{debug}\n    return x * 119 // 100\n"),
    ("def cut(x):{debug}\n    return round(x, 1)\n", "def cut(x):{debug}\n    return int(x * 100 + 0.501) / 100\n"),
    (
        "def split(x, n):{debug}\n    return [x // n] * n\n",
        "def split(x, n):{debug}\n    return [x // n + (i < x % n) for i in range(n)]\n",
    ),
)


def money(fixed: int, traced: int) -> str:
    parts = (
        pair[i < fixed].format(debug="\n    import sys; sys.stderr.write('here\\n')" if i == traced else "")
        for i, pair in enumerate(FIXES)
    )
    return "".join(parts)


@honest(
    "for each of four bugs a trace is put in, then taken out with the fix",
    checks="python3 -B check.py",
    start={"check.py": BUGS, "src/money.py": money(0, -1)},
    iterations=8,
    plan=lambda n: f"trace bug {(n + 1) // 2}" if n % 2 else f"fix bug {n // 2} and take the trace out",
)
def traced(n: int) -> Files:
    return {"src/money.py": money(n // 2, n // 2 if n % 2 else -1)}


TOUR = """for part in config loader router session cache views errors metrics admin; do
  grep -q "^class" src/$part.py 2>/dev/null || { echo "ModuleNotFoundError: No module named 'src.$part'"; exit 1; }
done
"""
TOUR_PARTS = ("config", "loader", "router", "session", "cache", "views", "errors", "metrics", "admin")


@honest(
    "three iterations of reading and notes, then nine modules",
    checks="sh tour.sh",
    start={"tour.sh": TOUR},
    iterations=12,
    plan=lambda n: (
        ("read the old code", "note how requests flow", "write down the plan")[n - 1]
        if n < 4
        else f"write {TOUR_PARTS[n - 4]}"
    ),
)
def reading(n: int) -> Files:
    found = ("The old code has one global state.", "Requests pass through six hooks.", "Nine modules, config first.")
    if n < 4:
        return {"NOTES.md": "# Notes\n\n" + "\n\n".join(found[:n]) + "\n"}
    name = TOUR_PARTS[n - 4]
    return {f"src/{name}.py": f"class {name.title()}:\n    def __init__(self, app):\n        self.app = app\n"}


CRASHES = (
    *("IndexError in parse_header", "KeyError: 'length'", "UnicodeDecodeError in read_text", "ValueError in read_size"),
    *("RecursionError in parse_list", "ZeroDivisionError in ratio", "OverflowError in to_int", "TypeError in merge"),
    *("AssertionError in seek", "struct.error: unpack requires 4 bytes", "MemoryError in grow", "EOFError in peek"),
)
FUZZ = """fixed=$(grep -c '^if ' src/decode.py); [ "$fixed" -ge 12 ] && exit 0
echo "executed $((5000 + fixed * 31007)) inputs"; echo "crash-$fixed: $(sed -n "$((fixed + 1))p" crashes.txt)"; exit 1
"""


@honest(
    "a fuzzer finds another crash after each fix",
    checks="sh fuzz.sh",
    start={"fuzz.sh": FUZZ, "crashes.txt": "\n".join(CRASHES) + "\n", "src/decode.py": "# decoder\n"},
    iterations=12,
    plan=lambda n: f"guard against: {CRASHES[n - 1]}",
)
def fuzzing(n: int) -> Files:
    body = "".join(f"if data[{i}:] == b'': raise Malformed('{CRASHES[i].split()[0]}')\n" for i in range(n))
    return {"src/decode.py": "# decoder\n" + body, f"corpus/crash-{n - 1}.bin": f"{n * 7919:x}\n"}


MEMORY = """e=$(grep -c 'malloc' src/tree.c); f=$(grep -c 'free(' src/tree.c); left=$((e - f))
echo "==$((4100 + f * 13))== LEAK SUMMARY: definitely lost: $((left * 48)) bytes in $left blocks"
echo "==$((4100 + f * 13))== ERROR SUMMARY: $left errors from $left contexts"; [ $left -eq 0 ]
"""


@honest(
    "leaks in C are closed one by one, process ids change in the output",
    checks="sh memory.sh",
    start={"memory.sh": MEMORY, "src/tree.c": each(range(13), 13, "p{0} = malloc(48);\n")},
    iterations=13,
)
def leaks(n: int) -> Files:
    return {"src/tree.c": each(range(13), 13, "p{0} = malloc(48);\n") + each(range(13), n, "free(p{0});\n")}


# Large changes in small steps.

USERS = tuple(f"src/use_{i:02}.py" for i in range(15))


@honest(
    "a class is renamed file by file, a silent check looks for the old name",
    checks="! grep -rq 'UserMgr' src",
    start={path: f"from core import UserMgr\n\nmgr = UserMgr({i})\n" for i, path in enumerate(USERS)},
    iterations=15,
    plan=lambda _n: "rename UserMgr to UserStore in the next file",
)
def renaming(n: int) -> Files:
    return {USERS[n - 1]: f"from core import UserStore\n\nmgr = UserStore({n - 1})\n"}


UPGRADES = (
    ("flask", "ImportError: cannot import name 'escape' from 'flask'"),
    ("werkzeug", "AttributeError: module 'werkzeug' has no attribute 'cached_property'"),
    ("jinja2", "ImportError: cannot import name 'Markup' from 'jinja2'"),
    ("sqlalchemy", "TypeError: select() takes 1 positional argument but 2 were given"),
    ("marshmallow", "TypeError: __init__() got an unexpected keyword argument 'missing'"),
    ("celery", "ModuleNotFoundError: No module named 'celery.task'"),
    ("redis", "redis.exceptions.DataError: Invalid input of type: 'NoneType'"),
    ("requests", "ImportError: cannot import name 'urlencode' from 'requests.compat'"),
    ("click", "TypeError: get_os_args() is gone"),
    ("pyyaml", "TypeError: load() missing 1 required positional argument: 'Loader'"),
)
UPGRADE = """n=0; while read -r name error; do
  grep -q "^$name==2" requirements.txt && test -f src/compat_$name.py && continue
  echo "$error"; exit 1
done < errors.txt
"""


@honest(
    "dependencies are raised, each first breaks an import and then its use is adapted",
    checks="sh imports.sh",
    start={
        "imports.sh": UPGRADE,
        "errors.txt": "".join(f"{name} {error}\n" for name, error in UPGRADES),
        "requirements.txt": each(tuple(u[0] for u in UPGRADES), 10, "{}==1.0\n"),
    },
    iterations=20,
    plan=lambda n: f"{'raise' if n % 2 else 'adapt to'} {UPGRADES[(n - 1) // 2][0]}",
)
def upgrades(n: int) -> Files:
    raised, name = (n + 1) // 2, UPGRADES[(n - 1) // 2][0]
    if n % 2:
        return {"requirements.txt": "".join(f"{u[0]}=={2 if i < raised else 1}.0\n" for i, u in enumerate(UPGRADES))}
    return {f"src/compat_{name}.py": f"from {name} import api\n\n\ndef call(*args):\n    return api(*args)\n"}


def monolith(moved: int) -> str:
    kept = "".join(f"def view_{i}(request):\n    data = load({i})\n    return page(data)\n\n" for i in range(moved, 16))
    return "".join(f"from views.view_{i} import view_{i}\n" for i in range(moved)) + kept


@honest(
    "a monolith is split into modules, the check only measures its length",
    checks="[ $(wc -l < app.py) -le 20 ]",
    start={"app.py": monolith(0)},
    iterations=16,
    plan=lambda n: f"move view_{n - 1} out of app.py",
)
def splitting(n: int) -> Files:
    view = f"def view_{n - 1}(request):\n    data = load({n - 1})\n    return page(data)\n"
    return {"app.py": monolith(n), f"views/view_{n - 1}.py": view}


SIGNATURE = """bad=0; if grep -q 'def send(to, body, \\*, retry)' src/core.py; then
  for f in src/call_*.py; do
    grep -q 'retry=' $f || { echo "$f:3: error: Missing named argument \\"retry\\""; bad=$((bad + 1)); }
  done
else echo "src/core.py:1: error: Function is missing the argument \\"retry\\""; bad=1; fi
[ $bad -eq 0 ] || { echo "Found $bad errors in $bad files (checked 17 source files)"; exit 1; }
"""


@honest(
    "a signature changes: one error becomes sixteen, and each caller takes one away",
    checks="sh types.sh",
    start={
        "types.sh": SIGNATURE,
        "src/core.py": "def send(to, body): ...\n",
        **{f"src/call_{i:02}.py": f"import core\n\ncore.send({i}, 'x')\n" for i in range(16)},
    },
    iterations=9,
    plan=lambda n: "change the signature of send" if n == 1 else "adapt two callers",
)
def signature(n: int) -> Files:
    if n == 1:
        return {"src/core.py": "def send(to, body, *, retry): ...\n"}
    return {f"src/call_{i:02}.py": f"import core\n\ncore.send({i}, 'x', retry=3)\n" for i in (2 * n - 4, 2 * n - 3)}


@honest(
    "shims are made, callers moved, and the shims deleted again",
    checks=("test -f new/cart.py", "! ls old/*.py 2>/dev/null | grep -q .", "sh callers.sh"),
    start={
        "callers.sh": "! grep -rl 'from old' src | sort | head -1 | grep .\n",
        **{f"old/{name}.py": f"def {name}(): return 1\n" for name in TS_FILES},
        **{f"src/{name}.py": f"from old import {name}\n" for name in TS_FILES},
    },
    iterations=20,
    plan=lambda n: ("write the new module", "move its callers", "delete the old one")[min(2, (n - 1) // 8)],
)
def shims(n: int) -> Files:
    if n <= 8:
        name = TS_FILES[n - 1]
        return {f"new/{name}.py": f"def {name}(): return 2\n", f"old/{name}.py": f"from new.{name} import {name}\n"}
    if n <= 16:
        return {f"src/{TS_FILES[n - 9]}.py": f"from new import {TS_FILES[n - 9]}\n"}
    return {f"old/{name}.py": None for name in TS_FILES[2 * n - 34 : 2 * n - 32]}


@honest(
    "dead modules are deleted, the check names the first that nobody imports",
    checks="sh dead.sh",
    start={
        "dead.sh": 'for f in src/*.py; do b=$(basename $f .py); grep -q "import $b$" main.py || '
        '{ echo "unused: $f"; exit 1; }; done\n',
        "main.py": "import keep\n",
        "src/keep.py": "X = 1\n",
        **{f"src/dead_{i:02}.py": f"def unused_{i}():\n    return {i}\n" for i in range(11)},
    },
    iterations=11,
    plan=lambda _n: "remove the next unused module",
)
def dead_code(n: int) -> Files:
    return {f"src/dead_{n - 1:02}.py": None}


@honest(
    "one approach is tried for four iterations, dropped, and another one carried through",
    checks="sh goal.sh",
    start={
        "goal.sh": "n=$(grep -c '^  case' src/lexer.js); echo \"$n of 14 token kinds are read\"; [ $n -ge 14 ]\n",
        "src/lexer.js": "// lexer\n",
    },
    iterations=12,
    plan=lambda n: (
        f"regular expressions, part {n}" if n < 5 else "drop them" if n == 5 else f"state machine, part {n - 5}"
    ),
)
def second_approach(n: int) -> Files:
    if n < 5:
        return {"src/lexer.js": "// lexer\n" + each(range(9), n, "const TOKEN_{0} = /t{0}[a-z]+/y;\n")}
    return {"src/lexer.js": "// lexer\n" + each(range(14), 2 * (n - 5), "  case {0}: return state{0}(input);\n")}


RULES = """for r in E1 E2 E3 E4 E5 E6 E7; do
  grep -q "^$r$" rules.txt || { echo "rule $r is not enabled"; exit 1; }
  bad=$(grep -c "$r" src/legacy.py); [ $bad -eq 0 ] || { echo "$r: $bad findings"; exit 1; }
done
"""


@honest(
    "rules are switched on one after the other, each brings findings that are then fixed",
    checks="sh rules.sh",
    start={"rules.sh": RULES, "rules.txt": "", "src/legacy.py": each(range(1, 8), 7, "a = 1  # E{0}\nb = 2  # E{0}\n")},
    iterations=14,
    plan=lambda n: f"{'enable' if n % 2 else 'satisfy'} rule E{(n + 1) // 2}",
)
def rules(n: int) -> Files:
    if n % 2:
        return {"rules.txt": each(range(1, 8), (n + 1) // 2, "E{}\n")}
    left = "".join(f"a = 1  # E{i}\nb = 2  # E{i}\n" if i > n // 2 else f"a{i} = b{i} = 1\n" for i in range(1, 8))
    return {"src/legacy.py": left}


# Tests and executors that give little to go by.

PORTED = """cases=40; ok=$(cat py/*.py 2>/dev/null | grep -c '^    case')
echo "parity with the JavaScript version: $ok of $cases cases agree"; [ $ok -ge $cases ]
"""
GAINS = (0, 3, 3, 7, 6, 11, 15, 15, 18, 22, 21, 26, 31, 31, 36, 38, 40)


@honest(
    "a port from JavaScript, some steps gain nothing and two lose a case",
    checks="sh parity.sh",
    start={"parity.sh": PORTED},
    iterations=17,
    plan=lambda n: f"port module {n} and compare",
)
def port(n: int) -> Files:
    cases = each(range(40), at(GAINS, n), "    case({})\n")
    return {
        "py/main.py": f"def run():\n{cases}    return {n}\n",
        f"py/part{n}.py": f"def part{n}(x):\n    return x + {n}\n",
    }


TAP = """n=0; echo "1..18"
for f in t/*.t; do n=$((n + 1)); s=$(basename $f .t)
  if grep -q "^sub $s " lib/Parse.pm; then echo "ok $n - $s"; else echo "not ok $n - $s"; bad=1; fi
done; [ -z "$bad" ]
"""
SUBS = (
    *("alpha", "block", "comma", "digit", "equal", "float", "group", "hexa", "ident", "join", "key", "line", "minus"),
    *("null", "octal", "plus", "quote", "range"),
)


@honest(
    "a parser in Perl, tests are reported as TAP",
    checks="sh tap.sh",
    start={"tap.sh": TAP, "lib/Parse.pm": "package Parse;\n", **{f"t/{s}.t": f"ok({s}());\n" for s in SUBS}},
    iterations=18,
    plan=lambda _n: "make the next test pass",
)
def tap(n: int) -> Files:
    return {"lib/Parse.pm": "package Parse;\n" + each(SUBS, n, "sub {0} {{ return shift =~ /^{0}/ }}\n")}


LIMITED = {3: "429 Too Many Requests", 4: "429 Too Many Requests", 9: "exit 1: connection reset", 13: "exit 137"}


@honest(
    "the executor breaks off four times after part of the work, which then goes on",
    checks="[ $(cat docs/*.md 2>/dev/null | wc -l) -ge 80 ]",
    iterations=16,
    plan=lambda n: f"document command {n}",
    ending=lambda n: {"status": "failed", "error": LIMITED[n]} if n in LIMITED else {},
)
def broken_off(n: int) -> Files:
    rows = 2 if n in LIMITED else 6
    return {
        f"docs/command_{n:02}.md": f"# command {n}\n" + each(range(1, 9), rows - 1, f"Option {{0}} of command {n}.\n")
    }


@honest(
    "two checks: the first turns green half way, the second at the end",
    checks=("sh names.sh", "sh sizes.sh"),
    start={
        "names.sh": 'for i in 1 2 3 4 5 6 7; do test -f web/page$i.html || { echo "page$i: 404"; exit 1; }; done\n',
        "sizes.sh": "for i in 1 2 3 4 5 6 7; do grep -q 'alt=' web/page$i.html 2>/dev/null || "
        '{ echo "page$i.html: image without a text"; exit 1; }; done\n',
    },
    iterations=14,
    plan=lambda n: f"write page {n}" if n < 8 else f"give the image of page {n - 7} a text",
)
def pages(n: int) -> Files:
    if n < 8:
        return {f"web/page{n}.html": f"<h1>Page {n}</h1>\n<img src='{n}.png'>\n"}
    return {f"web/page{n - 7}.html": f"<h1>Page {n - 7}</h1>\n<img src='{n - 7}.png' alt='view {n - 7}'>\n"}


STEPS = (
    *("FROM debian:12", "RUN apt-get install gcc", "RUN apt-get install cmake", "COPY src /src", "RUN cmake /src"),
    *("RUN make", "RUN make install", "RUN ldconfig", "COPY conf /etc/app", "USER app", "HEALTHCHECK CMD app --ping"),
    *("EXPOSE 8080", "ENTRYPOINT app"),
)
DOCKER = """n=0; while read -r step; do n=$((n + 1)); echo "Step $n/13 : $step"
  grep -qx "$step" Dockerfile || { echo "The command '/bin/sh -c app' returned a non-zero code: 127"; exit 1; }
done < wanted.txt
"""


@honest(
    "an image is built, each time one step further with the same last line",
    checks="sh image.sh",
    start={"image.sh": DOCKER, "wanted.txt": "\n".join(STEPS) + "\n", "Dockerfile": "# image\n"},
    iterations=13,
    plan=lambda _n: "get the image to build",
)
def image(n: int) -> Files:
    return {"Dockerfile": "# image\n" + "\n".join(STEPS[:n]) + "\n"}


TERRAFORM = """n=$(grep -c '^resource' *.tf); echo "Plan: $((15 - n)) to import, 0 to change."; [ "$n" -ge 15 ]
"""


@honest(
    "cloud resources are described one by one, with a pause for a module in between",
    checks="sh plan.sh",
    start={"plan.sh": TERRAFORM, "main.tf": 'provider "aws" {}\n'},
    iterations=17,
    plan=lambda n: "extract a module" if n in (7, 8) else "import the next resource",
)
def terraform(n: int) -> Files:
    if n in (7, 8):
        part = ("variables", "outputs")[n - 7]
        return {f"modules/bucket/{part}.txt": f"{part} of the bucket: name, region, owner\n"}
    done = n if n < 7 else n - 2
    return {
        "main.tf": 'provider "aws" {}\n' + each(range(15), done, 'resource "aws_s3_bucket" "b{0}" {{\n  id = {0}\n}}\n')
    }


PAPER = """for l in model data loss train grid ablation limits ethics proof setup cost; do
  grep -q "label{$l}" paper/*.tex || { echo "LaTeX Warning: Reference \\`$l' on page 3 undefined."
  echo "LaTeX Warning: There were undefined references."; exit 1; }
done
"""
SECTIONS = ("model", "data", "loss", "train", "grid", "ablation", "limits", "ethics", "proof", "setup", "cost")


@honest(
    "sections of a paper, written in one iteration and revised in the next",
    checks="sh paper.sh",
    start={"paper.sh": PAPER},
    iterations=22,
    plan=lambda n: f"{'draft' if n % 2 else 'revise'} the section {SECTIONS[(n - 1) // 2]}",
)
def paper(n: int) -> Files:
    name = SECTIONS[(n - 1) // 2]
    draft = f"\\section{{{name}}}\nWe describe the {name}.\n"
    revised = f"\\section{{{name}}}\\label{{{name}}}\nThe {name} follows prior work.\nFigure {n} shows it.\n"
    return {f"paper/{name}.tex": draft if n % 2 else revised}


ENDPOINTS = tuple(f"/{a}/{b}" for a in ("users", "teams", "files", "plans") for b in ("list", "get", "put", "drop"))


@honest(
    "an OpenAPI file, the check names the first endpoint without a description",
    checks="sh api.sh",
    start={
        "api.sh": 'while read -r e; do grep -q "^  $e:" openapi.yaml || { echo "undocumented: $e"; exit 1; }; '
        "done < endpoints.txt\n",
        "endpoints.txt": "\n".join(ENDPOINTS) + "\n",
        "openapi.yaml": "paths:\n",
    },
    iterations=16,
    plan=lambda n: f"describe {ENDPOINTS[n - 1]}",
)
def openapi(n: int) -> Files:
    return {"openapi.yaml": "paths:\n" + each(ENDPOINTS, n, "  {}:\n    get:\n      responses: [200, 404]\n")}


CI = ("lint", "types", "unit", "build", "scan", "pack", "sign", "stage", "smoke", "release", "notify")


@honest(
    "a pipeline in YAML stage by stage, the error has always the same words",
    checks="sh ci.sh",
    start={
        "ci.sh": "n=$(grep -c '^  script:' .ci.yaml); [ $n -ge 11 ] || { echo 'pipeline is incomplete'; exit 1; }\n",
        ".ci.yaml": "stages: all\n",
    },
    iterations=11,
    plan=lambda n: f"add the stage {CI[n - 1]}",
)
def pipeline(n: int) -> Files:
    return {".ci.yaml": "stages: all\n" + each(CI, n, "{0}:\n  stage: {0}\n  script: make {0}\n")}


BACKPORT = tuple(f"patches/{i:04}.patch" for i in range(1, 16))


@honest(
    "fifteen fixes are ported back to an old branch, nothing is printed until all are there",
    checks="[ $(grep -l '^Backported' patches/*.patch 2>/dev/null | wc -l) -eq 15 ]",
    iterations=15,
    plan=lambda _n: "port the next fix back and adapt it",
)
def backport(n: int) -> Files:
    body = "".join(f"-old line {n * i}\n+new line {n * i}\n" for i in range(1, 4))
    return {
        BACKPORT[n - 1]: f"Backported: fix {n}\n{body}",
        f"src/area{n % 4}.c": f"/* with fix {n} */\nint area = {n};\n",
    }


SAME_TRACE = """Traceback (most recent call last):
  File "main.py", line 3, in <module>
    app.run()
RuntimeError: application is not configured
"""


@honest(
    "nine settings sections are needed before the application starts, until then one same traceback",
    checks="sh run.sh",
    start={"run.sh": f"[ $(ls conf/*.ini 2>/dev/null | wc -l) -ge 9 ] || {{ cat <<'X'\n{SAME_TRACE}X\nexit 1; }}\n"},
    iterations=9,
    plan=lambda n: f"configure the section {n} of 9",
)
def configured(n: int) -> Files:
    return {f"conf/{n}.ini": f"[section{n}]\nhost = host{n}.example\nport = {8000 + n}\n"}


SNAPSHOT = """import json, pathlib, sys
wanted = json.loads(pathlib.Path("snapshots.json").read_text())
got = {p.stem: p.read_text().strip() for p in sorted(pathlib.Path("ui").glob("*.jsx"))}
bad = [name for name in wanted if got.get(name) != wanted[name]]
for name in bad[:3]:
    print(f"  * {name} renders correctly\\n    - {wanted[name]}\\n    + {got.get(name)}")
print(f"Snapshots:   {len(bad)} failed, {len(wanted) - len(bad)} passed, {len(wanted)} total")
sys.exit(bool(bad))
"""
WIDGETS = ("Avatar", "Badge", "Card", "Dialog", "Entry", "Field", "Grid", "Hint", "Icon", "Job", "Knob", "List", "Menu")


@honest(
    "React components are matched to their snapshots one by one",
    checks="python3 -B check.py",
    start={
        "check.py": SNAPSHOT,
        "snapshots.json": json.dumps({w: f"<div class='{w.lower()}'>{{title}}</div>" for w in WIDGETS}),
        **{f"ui/{w}.jsx": f"<span>{w}</span>\n" for w in WIDGETS},
    },
    iterations=13,
    plan=lambda n: f"rewrite {WIDGETS[n - 1]}",
)
def snapshots(n: int) -> Files:
    return {f"ui/{WIDGETS[n - 1]}.jsx": f"<div class='{WIDGETS[n - 1].lower()}'>{{title}}</div>\n"}


AUDIT = """high=$(grep -c '@0' package.txt); echo "$high holes ($((high / 3)) critical, $((high - high / 3)) high)"
[ $high -eq 0 ] || { echo "To address issues that do not require attention, run: npm audit fix"; exit 1; }
"""


@honest(
    "packages with known holes are replaced, twice the new one brings another",
    checks="sh audit.sh",
    start={"audit.sh": AUDIT, "package.txt": each(range(12), 12, "lib{0}@0.9\n")},
    iterations=14,
    plan=lambda n: f"replace package {n}",
)
def audit(n: int) -> Files:
    brought = [f"extra{i}" for i, since in enumerate((4, 8)) if since <= n < 13 + i]
    old = [f"lib{i}" for i in range(n, 12)] + brought
    return {"package.txt": each(range(12), n, "lib{0}@2.1\n") + "".join(f"{name}@0.9\n" for name in old)}


INTERPRETER = """import sys
sys.path.insert(0, "src")
from calc import run
cases = [("1", 1), ("1+2", 3), ("7-4", 3), ("2*3", 6), ("8/2", 4), ("1+2*3", 7), ("(1+2)*3", 9), ("-4", -4),
         ("2^3", 8), ("7%4", 3), ("max(1,5)", 5), ("min(4,2)", 2)]
bad = 0
for text, wanted in cases:
    try:
        got = run(text)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    if got != wanted:
        bad += 1
        print(f"FAILED test_calc.py::test_run[{text}] - assert {got!r} == {wanted!r}")
print(f"{bad} failed, {len(cases) - bad} passed in 0.0{bad}s")
sys.exit(bool(bad))
"""
ABILITIES = (
    ("DIGITS", "+"),
    ("MINUS", "-"),
    ("TIMES", "*"),
    ("OVER", "/"),
    ("GROUP", "()"),
    ("POWER", "^"),
    ("REST", "%"),
    ("CALLS", "maxin,"),
)


def calc(abilities: int, unfinished: bool) -> str:
    known = "0123456789" + "".join(signs for _, signs in ABILITIES[:abilities])
    parts = "".join(
        f"def parse_{name.lower()}(text):\n    return {signs!r} in text\n\n\n" for name, signs in ABILITIES[:abilities]
    )
    todo = f"def parse_next_{abilities}(text):\n    raise NotImplementedError\n\n\n" if unfinished else ""
    return (
        f"{parts}{todo}KNOWN = {known!r}\n\n\ndef run(text):\n    for sign in text:\n        if sign not in KNOWN:\n"
        "            raise SyntaxError(f'unexpected {sign}')\n    return eval(text.replace('^', '**'))\n"
    )


@honest(
    "a calculator is written test first, every ability takes two iterations",
    checks="python3 -B check.py",
    start={"check.py": INTERPRETER, "src/calc.py": "def run(text):\n    raise NotImplementedError\n"},
    iterations=16,
    plan=lambda n: f"{'prepare' if n % 2 else 'parse'} {ABILITIES[(n - 1) // 2][0].lower()}",
)
def calculator(n: int) -> Files:
    return {"src/calc.py": calc(n // 2, bool(n % 2))}


LEVELS = """import json, pathlib, sys
levels = [json.loads(path.read_text()) for path in sorted(pathlib.Path("levels").glob("*.json"))]
for level in levels:
    if len(level["grid"]) != 4:
        sys.exit("a level has the wrong height")
sys.exit(len(levels) < 20)
"""


@honest(
    "twenty levels of a game, one file of the same shape after the other",
    checks="python3 -B check.py",
    start={"check.py": LEVELS},
    iterations=20,
    plan=lambda _n: "design the next level",
)
def levels(n: int) -> Files:
    grid = ["".join("#.o "[(n * 5 + row * 3 + column) % 4] for column in range(12)) for row in range(4)]
    return {f"levels/{n:02}.json": json.dumps({"name": f"level {n}", "grid": grid}) + "\n"}


HEAP = """a=$(grep -c 'copy(' src/load.go); mb=$((180 + a * 38)); j=$(cksum < src/load.go | awk '{ print $1 % 40 }')
echo "peak rss: $((mb + j)) MB"; [ $((mb + j)) -lt 256 ]
"""
COPIES = (13, 12, 12, 12, 11, 9, 8, 8, 7, 5, 4, 3, 2, 0)


@honest(
    "memory use falls slowly, with notes on a profile between the changes",
    checks="sh heap.sh",
    start={"heap.sh": HEAP, "src/load.go": "package load\n" + each(range(14), 14, "copy(buf{})\n")},
    iterations=14,
    plan=lambda n: "profile" if n in (3, 4, 8) else "avoid a copy",
)
def heap(n: int) -> Files:
    if n in (3, 4, 8):
        return {"profile.md": each(range(1, 20), n * 2, "- buf{0}: {0}7 MB held by the reader\n")}
    kept = at(COPIES, n)
    return {
        "src/load.go": "package load\n"
        + each(range(14), kept, "copy(buf{})\n")
        + each(range(14), 14 - kept, "view{} := 1\n")
    }


LOCALE = ("fr", "es", "it", "pt", "nl", "sv", "da", "fi", "pl", "cs")


@honest(
    "message catalogues in ten languages, first made and then corrected after a review",
    checks="sh po.sh",
    start={
        "po.sh": "for l in fr es it pt nl sv da fi pl cs; do ! grep -qs fuzzy po/$l.po && test -f po/$l.po || "
        '{ echo "msgfmt: po/$l.po: fatal errors"; exit 1; }; done\n'
    },
    iterations=20,
    plan=lambda n: f"{'translate to' if n <= 10 else 'review'} {LOCALE[(n - 1) % 10]}",
)
def catalogues(n: int) -> Files:
    name = LOCALE[(n - 1) % 10]
    mark = "#, fuzzy\n" if n <= 10 else ""
    return {f"po/{name}.po": "".join(f'{mark}msgid "text {i}"\nmsgstr "{name} {i}"\n' for i in range(5))}


PROMISES = """n=$(cat lib/*.js | grep -c 'callback'); [ $n -eq 0 ] || {
  echo "    at Timeout._onTimeout (lib/client.js:$((n + 3)):11)"; echo "Error: callback was called twice"; exit 1; }
"""


@honest(
    "callbacks become promises in one large file, the same error until the last is gone",
    checks="sh node.sh",
    start={
        "node.sh": PROMISES,
        "lib/client.js": each(range(30), 30, "exports.call{0} = (x, callback) => go(x, callback);\n"),
    },
    iterations=15,
    plan=lambda n: f"convert calls {2 * n - 2} and {2 * n - 1}",
)
def promises(n: int) -> Files:
    old = (f"exports.call{i} = (x, callback) => go(x, callback);\n" for i in range(2 * n, 30))
    return {"lib/client.js": each(range(30), 2 * n, "exports.call{0} = async (x) => await go(x);\n") + "".join(old)}


INDEXES = ("customer_id", "created_at", "status", "sku", "region", "email", "parent_id", "paid_at", "total", "state")
SLOW = """n=$(cat sql/*.sql | grep -c '^CREATE INDEX'); noise=$(cat sql/*.sql | cksum | awk '{ print $1 % 120 }')
ms=$((1400 - n * 130 + noise)); echo "nightly report: $ms ms"; [ $n -ge 10 ]
"""


@honest(
    "a report in SQL is sped up by an index per iteration, each with its query plan",
    checks="sh report.sh",
    start={"report.sh": SLOW, "sql/000.sql": "SELECT 1;\n"},
    iterations=10,
    plan=lambda n: f"index the column {INDEXES[n - 1]}",
)
def indexes(n: int) -> Files:
    column = INDEXES[n - 1]
    return {
        f"sql/{n:03}.sql": f"CREATE INDEX by_{column} ON orders ({column});\n",
        "plans.md": each(INDEXES, n, "- {0}: SEARCH orders USING INDEX by_{0}\n"),
    }


@honest(
    "after a merge 26 conflicts are resolved, two per iteration",
    checks="sh markers.sh",
    start={
        "markers.sh": "n=$(cat src/*.txt | grep -c '^<<<<<<<'); [ $n -eq 0 ] || "
        "{ echo 'fatal: Exiting because of an unresolved conflict.'; exit 128; }\n",
        **{f"src/f{i:02}.txt": "<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n" * 2 for i in range(13)},
    },
    iterations=13,
    plan=lambda _n: "resolve the next file",
)
def conflicts(n: int) -> Files:
    return {f"src/f{n - 1:02}.txt": f"a and b, merged for file {n}\n"}


WARM = ("read the protocol", "sketch the states")
STATES = tuple(
    f"state_{name}" for name in ("idle", "syn", "ack", "open", "data", "wait", "fin", "last", "shut", "done")
)


@honest(
    "two iterations of reading, five states, one more of reading, five states",
    checks="sh states.sh",
    start={
        "states.sh": "for s in idle syn ack open data wait fin last shut done; do "
        'grep -qs "fn state_$s" src/fsm.rs || { echo "error[E0425]: cannot find function \\`state_$s\'"; '
        "echo 'error: could not compile the crate due to 1 previous error'; exit 1; }; done\n"
    },
    iterations=13,
    plan=lambda n: WARM[n - 1] if n < 3 else "compare with the standard" if n == 8 else "write the next state",
)
def states(n: int) -> Files:
    if n < 3 or n == 8:
        chapter = 3 if n == 8 else n
        return {
            "protocol.md": each(
                range(1, 4), chapter, "## Chapter {0}\n\nThe flags of chapter {0} and their meaning.\n\n"
            )
        }
    done = n - 2 if n < 8 else n - 3
    return {"src/fsm.rs": each(STATES, done, "fn {0}(input: &[u8]) -> State {{\n    next(input)\n}}\n")}
