"""Episodes that are stuck: each has to be noticed within five iterations."""

from tests.data.pauses import Files, stuck
from tests.support.doubles import PlannerAnswer, claims_done, gives_up, malformed, planned


def pick(n: int, *ways: str) -> str:
    """Return the way of iteration n, going round."""
    return ways[(n - 1) % len(ways)]


@stuck(
    "an import is spelled in ever new ways",
    since=2,
    checks="echo \"ModuleNotFoundError: No module named 'billing_core'\"; test -d vendor/billing_core",
    iterations=12,
)
def spelled(n: int) -> Files:
    way = pick(
        n,
        "import billing_core",
        "from . import billing_core",
        "from billing import core as billing_core",
        "billing_core = __import__('billing_core')",
        "from .. import billing_core",
        "import importlib; billing_core = importlib.import_module('billing_core')",
    )
    return {"app/invoice.py": f"{way}\n\n\ndef invoice(order):\n    return billing_core.total(order)\n"}


LINK = """echo "[100%] Linking CXX executable viewer"
echo "/usr/bin/ld: viewer.o: undefined reference to \\`vkCreateInstance'"
echo "collect2: error: ld returned 1 exit status"; exit 2
"""


@stuck(
    "compiler flags are shuffled under the same link error",
    since=2,
    checks="sh link.sh",
    start={"link.sh": LINK},
    iterations=12,
)
def flags(n: int) -> Files:
    flag = pick(
        n, "-O2", "-O0 -g", "-fPIC", "-std=c++20", "-Wl,--as-needed", "-march=native", "-flto", "-static", "-pthread"
    )
    return {"CMakeLists.txt": f'project(viewer)\nadd_executable(viewer viewer.cpp)\nset(CMAKE_CXX_FLAGS "{flag}")\n'}


@stuck(
    "the test waits longer and longer for a button that never comes",
    since=2,
    checks="echo \"TimeoutError: locator('#pay') not visible after $(cat wait.txt)ms\"; exit 1",
    start={"wait.txt": "5000\n"},
    iterations=12,
)
def waiting(n: int) -> Files:
    return {
        "wait.txt": f"{5000 + 5000 * n}\n",
        "e2e/pay.spec.ts": f"await page.locator('#pay').click({{ timeout: {5000 + 5000 * n} }});\n",
    }


@stuck(
    "debug prints pile up above the same assertion",
    since=2,
    checks="cat debug.out; echo 'assertion `left == right` failed: left: 3, right: 4'; exit 101",
    start={"debug.out": ""},
    iterations=12,
)
def debug_prints(n: int) -> Files:
    prints = "".join(f'    eprintln!("DEBUG {i}: cursor = {{}}", self.cursor);\n' for i in range(1, n + 1))
    return {
        "debug.out": "".join(f"DEBUG {i}: cursor = 3\n" for i in range(1, n + 1)),
        "src/cursor.rs": f"pub fn next(&mut self) -> usize {{\n{prints}    self.cursor\n}}\n",
    }


HELPER = "export function slug(text) {\n  return text.toLowerCase().split(' ').join('-');\n}\n"


@stuck(
    "the same helper is copied to another file each time",
    since=2,
    checks="echo \"expected 'aepfel', received 'äpfel'\"; exit 1",
    start={"src/slug.js": HELPER},
    iterations=12,
)
def copies(n: int) -> Files:
    return {
        f"src/{pick(n, 'slug2', 'slugNew', 'slugFixed', 'slugFinal', 'slugV3', 'slugOk', 'slugBest')}{n}.js": HELPER
    }


@stuck(
    "the pipeline's cache key and retries are bumped",
    since=1,
    checks="echo 'Error: secret DEPLOY_TOKEN is not set'; exit 1",
    start={".ci.yml": "deploy:\n  retry: 0\n  cache: v0\n"},
    iterations=12,
)
def cache_key(n: int) -> Files:
    return {".ci.yml": f"deploy:\n  retry: {n}\n  cache: v{n}\n"}


@stuck(
    "a feature is added, extended, cut back and removed, round and round",
    since=3,
    checks="echo 'FAIL: session survives restart'; exit 1",
    iterations=14,
)
def round_and_round(n: int) -> Files:
    small, large = (
        "def save(s):\n    disk.put(s)\n",
        "def save(s):\n    disk.put(s)\n\n\ndef load():\n    return disk.get()\n",
    )
    return {"session.py": (small, large, small, None)[(n - 1) % 4]}


MODULES = ("lexer", "parser", "scope", "codegen", "linker")


@stuck(
    "after five modules only the wording of the introduction changes",
    since=6,
    checks='r=0; for m in lexer parser scope codegen linker optimizer; do test -f $m.hs || { echo "missing $m.hs"; '
    "r=1; }; done; exit $r",
    iterations=14,
)
def wording(n: int) -> Files:
    if n <= 5:
        name = MODULES[n - 1]
        return {f"{name}.hs": f"module {name.title()} where\n\n{name} :: Input -> Output\n{name} = fold step_{name}\n"}
    word = pick(n, "small", "tiny", "compact", "lean", "modern", "simple", "friendly", "fast", "neat")
    return {"README.md": f"# Tiny C\n\nTiny C is a {word} compiler.\n"}


@stuck(
    "eight good steps, then a skip mark wanders between three red tests",
    since=9,
    checks="sh t.sh",
    start={
        "t.sh": 'd=$(ls ok | wc -l); i=0; while [ $i -lt $((8 - d)) ]; do echo "FAILED test_c$i"; i=$((i + 1)); done\n'
        'for t in merge rebase stash; do echo "FAILED test_$t"; done; exit 1\n',
        "ok/.keep": "",
    },
    iterations=16,
)
def wandering_skip(n: int) -> Files:
    if n <= 8:
        return {f"ok/command_{n}.py": f"class Command{n}:\n    def run(self, repo):\n        return repo.apply({n})\n"}
    names = ("merge", "rebase", "stash")
    marked = names[n % 3]
    tests = (f"{'@skip' if name == marked else ''}\ndef test_{name}(): ...\n" for name in names)
    return {"tests/test_hard.py": "".join(tests)}


@stuck(
    "each cast to any brings more type errors",
    since=2,
    checks='e=$(cat tsc.txt); echo "src/store.ts(14,9): error TS2345"; echo "Found $e errors."; exit 2',
    start={"tsc.txt": "3\n"},
    iterations=12,
)
def any_casts(n: int) -> Files:
    casts = "".join(f"const slice{i} = (state as any).part{i} as any;\n" for i in range(n))
    return {"tsc.txt": f"{3 + 4 * n + n * n}\n", "src/store.ts": casts}


@stuck(
    "line length and quotes: one rule is met at the other's cost", since=3, checks="cat lint.out; exit 1", iterations=12
)
def two_rules(n: int) -> Files:
    if n % 2:
        return {
            "lint.out": "E501 line too long (131 > 100)\n",
            "m.py": "message = 'a' 'long' 'text' 'on' 'one' 'line'\n",
        }
    return {"lint.out": "ISC001 implicitly concatenated string\n", "m.py": "message = (\n    'a long'\n    'text'\n)\n"}


@stuck("metrics in JSON are all that is written", since=1, checks="grep -qs '\"done\": true' state.json", iterations=12)
def metrics(n: int) -> Files:
    rows = (
        f'{{"ts": {1767225600 + 61 * i}, "level": "info", "cpu": {(i * 37) % 90}, "msg": "poll"}}\n' for i in range(n)
    )
    return {"logs/metrics.jsonl": "".join(rows)}


@stuck(
    "the lock file is made anew, the conflict stays",
    since=2,
    checks="echo 'npm ERR! code ERESOLVE'; echo 'npm ERR! Could not resolve dependency: peer react@17'; exit 1",
    start={"package.json": '{"dependencies": {"react": "19.0.0", "old-grid": "2.1.0"}}\n'},
    iterations=12,
)
def lock_file(n: int) -> Files:
    return {"package-lock.json": f'{{"lockfileVersion": 3, "integrity": "sha512-{n * 982451653 % 10**9:09}"}}\n'}


@stuck(
    "the agent may not write its scratch folder",
    since=1,
    checks="grep -q stable VERSION 2>/dev/null",
    iterations=10,
    ending=lambda n: {"status": "failed", "error": f"EACCES: permission denied, mkdir '/scratch/{n * 48271:x}'"},
)
def no_scratch(_n: int) -> Files:
    return {}


@stuck(
    "the agent by turns crashes and hangs",
    since=1,
    checks="echo 'no artifact'; test -f out.whl",
    iterations=10,
    ending=lambda n: {"status": "failed", "error": "exit 139"} if n % 2 else {"status": "timed_out", "error": "silent"},
)
def crash_or_hang(_n: int) -> Files:
    return {}


@stuck(
    "three drivers are written, then the planner has no more ideas",
    since=4,
    checks="test -f drivers/lcd.c",
    iterations=10,
    plan=lambda n: (
        f"driver {n}" if n < 4 else gives_up(pick(n, "no data sheet", "the bus is unknown", "I am at a loss"))
    ),
)
def no_ideas(n: int) -> Files:
    bus = ("spi", "i2c", "uart")
    return {f"drivers/{bus[n - 1]}.c": f"int {bus[n - 1]}_init(void) {{ return bus_probe({n}); }}\n"} if n < 4 else {}


@stuck(
    "six pages, then the planner insists that the site is complete",
    since=7,
    checks='r=0; for p in 1 2 3 4 5 6 7 8; do test -f site/p$p.html || { echo "404 /p$p.html"; r=1; }; done; exit $r',
    iterations=14,
    plan=lambda n: claims_done() if n >= 7 else f"page {n}",
)
def complete(n: int) -> Files:
    return {f"site/p{n}.html": f"<h1>Page {n}</h1>\n<p>About topic {n}.</p>\n"} if n < 7 else {}


@stuck(
    "answers are unusable or a surrender",
    since=1,
    checks="test -f answer.json",
    iterations=10,
    plan=lambda n: malformed() if n % 2 else gives_up("the task is unclear"),
)
def unusable_or_surrender(_n: int) -> Files:
    return {}


def insists(n: int) -> PlannerAnswer:
    return claims_done() if n % 2 else planned("tidy up")


@stuck(
    "claims of success between touches of blank lines",
    since=1,
    checks="echo 'expected exit code 0, got 3'; exit 1",
    start={"run.sh": "set -e\nexit 3\n"},
    iterations=12,
    plan=insists,
)
def blank_lines(n: int) -> Files:
    return {} if n % 2 else {"run.sh": "set -e\n" + "\n" * n + "exit 3\n"}


JAVA = """n=$(cat .run 2>/dev/null || echo 0)
echo "Exception in thread \\"pool-$n-thread-$((n % 4))\\" java.lang.NullPointerException"
echo "	at shop.Basket@$((n * 7907 + 11)).price(Basket.java:$((30 + n)))"
echo "	at java.base/java.lang.Thread.run(Thread.java:833)"; exit 1
"""


@stuck(
    "null checks are put everywhere but where it helps",
    since=2,
    checks="sh java.sh",
    start={"java.sh": JAVA},
    iterations=12,
)
def null_checks(n: int) -> Files:
    subject = pick(n, "item", "this", "user", "tax", "shop", "list", "rate", "code", "coupon", "cart")
    body = f"class Basket {{\n  int p() {{\n    if ({subject} == null) return 0;\n    return rule(item);\n  }}\n}}\n"
    return {".run": f"{n}\n", "Basket.java": body}


NOISE = (512, 509, 515, 511, 514, 508, 513, 510, 516, 512, 509, 514)


@stuck(
    "buffer sizes are guessed, the benchmark only trembles",
    since=2,
    checks='t=$(cat t); echo "mean: $t ms, must be below 300 ms"; [ $t -lt 300 ]',
    start={"t": "511\n"},
    iterations=12,
)
def trembling(n: int) -> Files:
    size = pick(n, "1024", "65536", "4096", "8192", "333", "16384", "2048", "12288", "512")
    return {"t": f"{NOISE[n - 1]}\n", "src/io.c": f"#define BUFFER {size}\n"}


@stuck(
    "tests without a claim do not lift the coverage",
    since=2,
    checks="echo 'TOTAL 1840 528 71.3%'; echo 'FAIL Required test coverage of 80% not reached'; exit 2",
    iterations=12,
)
def no_claim(n: int) -> Files:
    return {"tests/test_more.py": "".join(f"def test_ok_{i}():\n    assert True\n\n\n" for i in range(n))}


@stuck(
    "imports change their order",
    since=2,
    checks="echo 'ReferenceError: Cannot access config before initialization'; exit 1",
    iterations=12,
)
def order(n: int) -> Files:
    orders = ("abc", "acb", "bac", "bca", "cab", "cba")
    return {"main.mjs": "".join(f"import './{c}.mjs';\n" for c in orders[(n - 1) % 6])}


@stuck(
    "a variable goes through all synonyms",
    since=2,
    checks="echo '--- FAIL: TestMedian (0.00s)'; echo '    median_test.go:9: got 4, want 3.5'; exit 1",
    iterations=12,
)
def synonyms(n: int) -> Files:
    name = pick(n, "mid", "middle", "center", "half", "pivot", "medianIndex", "m", "pos", "idx", "centre")
    return {"median.go": f"func Median(v []int) int {{\n\t{name} := len(v) / 2\n\treturn v[{name}]\n}}\n"}


@stuck(
    "the expected value runs after the result",
    since=2,
    checks='read a b < pair; echo "expected: <$a> but was: <$b>"; [ $a -eq $b ]',
    start={"pair": "41 42\n"},
    iterations=12,
)
def runs_after(n: int) -> Files:
    code = f"fun total() = items.sumOf {{ it.price }} + {n + 1}\n"
    return {"pair": f"{41 + n} {42 + n}\n", "Total.kt": code, "TotalTest.kt": f"assertEquals({41 + n}, total())\n"}


@stuck(
    "twelve failures, five failures, twelve failures",
    since=3,
    checks='f=$(grep -c strict compat.ini); echo "$((12 - 7 * f)) examples failed"; exit 1',
    start={"compat.ini": "mode = none\n"},
    iterations=12,
)
def twelve_five(n: int) -> Files:
    return {"compat.ini": "mode = strict\n" if n % 2 else "mode = loose\n"}


BUGS = ("TestDial", "TestListen", "TestClose", "TestRedial")


@stuck(
    "the bug wanders in a circle through four tests",
    since=5,
    checks='echo "--- FAIL: $(cat red)"; exit 1',
    start={"red": "TestStart\n"},
    iterations=14,
)
def circle(n: int) -> Files:
    place = pick(n, "before dial", "after dial", "in close", "on redial")
    return {
        "red": f"{pick(n, *BUGS)}\n",
        "net.go": f"func (c *Conn) lock() {{\n\t// {place}\n\tc.mu{n % 4 or 4}.Lock()\n}}\n",
    }


@stuck(
    "snapshots are taken anew with today's date",
    since=1,
    checks="echo '1 snapshot obsolete, 1 snapshot failed: footer'; exit 1",
    start={"snap/footer.snap": "taken 2026-01-01\n"},
    iterations=12,
)
def snapshots(n: int) -> Files:
    return {"snap/footer.snap": f"taken 2026-01-{n + 1:02} 0{n % 10}:3{n % 6}:00\n"}


DEADLOCK = """p=$(cat .pid 2>/dev/null || echo 100); echo "ERROR:  deadlock detected"
echo "DETAIL:  Process $p waits for ShareLock on transaction $((p * 31)); blocked by process $((p + 1))."; exit 3
"""


@stuck(
    "an index comes and goes, the deadlock stays",
    since=2,
    checks="sh psql.sh",
    start={"psql.sh": DEADLOCK},
    iterations=12,
)
def comes_and_goes(n: int) -> Files:
    verb = "CREATE INDEX jobs_state ON jobs (state);" if n % 2 else "DROP INDEX jobs_state;"
    return {".pid": f"{8000 + 173 * n}\n", "schema.sql": f"CREATE TABLE jobs (state TEXT);\n{verb}\n"}


@stuck(
    "a rule of a makefile is indented by ever more blanks",
    since=1,
    checks="grep -q \"^$(printf '\\t')\" Makefile || { echo 'Makefile:2: *** missing separator.  Stop.'; exit 2; }",
    start={"Makefile": "all:\n  cc main.c\n"},
    iterations=12,
)
def blanks(n: int) -> Files:
    return {"Makefile": f"all:\n{' ' * (n + 2)}cc main.c\n"}


@stuck(
    "eleven endpoints, then the agent does nothing",
    since=12,
    checks="n=$(grep -c '^  /' api.yaml); echo \"$n of 15 paths are described\"; [ $n -ge 15 ]",
    start={"api.yaml": "paths:\n"},
    iterations=18,
)
def endpoints(n: int) -> Files:
    nouns = ["users", "roles", "teams", "keys", "files", "tags", "jobs", "logs", "hooks", "plans", "invoices"]
    if n > len(nouns):
        return {}
    return {"api.yaml": "paths:\n" + "".join(f"  /{noun}:\n    get: {{summary: list {noun}}}\n" for noun in nouns[:n])}


FIRST, SECOND = "def load(p):\n    return open(p).read()\n", "def dump(p, t):\n    open(p, 'w').write(t)\n"


@stuck(
    "a module is split and joined and split",
    since=2,
    checks="echo \"UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe4\"; exit 1",
    start={"io_all.py": FIRST + SECOND},
    iterations=12,
)
def split_and_join(n: int) -> Files:
    if n % 2:
        return {"io_all.py": None, "io_load.py": FIRST, "io_dump.py": SECOND}
    return {"io_all.py": FIRST + SECOND, "io_load.py": None, "io_dump.py": None}


DESIGN = "# Design\n\n1. Read the input\n2. Handle the input\n3. Write the output\n\nThe code follows later.\n"


@stuck("the design is filed once more, code never follows", since=2, checks="test -x bin/tool", iterations=12)
def designs(n: int) -> Files:
    return {f"docs/DESIGN_v{n}.md": DESIGN}


POD = """h=$(cksum < deploy.yaml | cut -c1-5)
echo "web-7d$h-x2x$((h % 7))  0/1  CrashLoopBackOff  $((h % 40))s"
echo "Error: exec /srv/web: exec format error"; exit 1
"""


@stuck(
    "replicas and memory are turned, the binary cannot run",
    since=2,
    checks="sh pods.sh",
    start={"pods.sh": POD, "deploy.yaml": "replicas: 1\n"},
    iterations=12,
)
def replicas(n: int) -> Files:
    return {"deploy.yaml": f"replicas: {pick(n, '2', '8', '3', '5', '1', '4', '6')}\nmemory: {64 * n}Mi\n"}


def suite(left: int) -> str:
    return "".join(f"it('keeps rule {i}', () => check({i}));\n" for i in range(left))


@stuck(
    "tests are deleted until ever fewer pass",
    since=2,
    checks="n=$(grep -c '^it' rules.spec.js); echo \"$n of 30 rules are tested, 1 failing\"; exit 1",
    start={"rules.spec.js": suite(28)},
    iterations=12,
)
def deleted_tests(n: int) -> Files:
    return {"rules.spec.js": suite(28 - 2 * n)}


@stuck(
    "solvers are promised, none is written",
    since=2,
    checks="echo 'NotImplementedError: solve'; exit 1",
    start={"solve.py": "def solve(board):\n    raise NotImplementedError('solve')\n"},
    iterations=12,
)
def promised(n: int) -> Files:
    stubs = (f"def solve_v{i}(board):\n    raise NotImplementedError('solve')\n" for i in range(1, n + 1))
    return {"solve.py": "\n\n".join(stubs) + f"\n\nsolve = solve_v{n}\n"}


@stuck(
    "the settings are put into every folder but the right one",
    since=2,
    checks="test -f share/app/settings.toml || { echo 'fatal: settings.toml not found in search path'; exit 78; }",
    iterations=12,
)
def every_folder(n: int) -> Files:
    folder = pick(n, "etc", "conf", "config", "app", "var", "opt", "home", "run", "data", "local", "lib", "srv")
    return {f"{folder}/settings.toml": "[server]\nport = 9000\n"}


@stuck(
    "after four steps all is reset and the four steps begin again",
    since=5,
    checks="ls steps; echo 'not complete'; exit 1",
    start={"steps/.keep": ""},
    iterations=18,
)
def begins_again(n: int) -> Files:
    names = ("fetch", "clean", "train", "score")
    step = (n - 1) % 5
    if step == 4:
        return {f"steps/{name}.jl": None for name in names}
    return {f"steps/{names[step]}.jl": f"function {names[step]}(data)\n    map(row -> row.{names[step]}, data)\nend\n"}


@stuck(
    "magic numbers for a layer that another one still covers",
    since=2,
    checks="echo 'visual diff: dialog.png differs by 3.2% (threshold 0.1%)'; exit 1",
    iterations=12,
)
def layers(n: int) -> Files:
    return {
        "dialog.scss": f".dialog {{\n  z-index: {pick(n, '10', '100', '999', '9999', '50', '1000', '77', '500')};\n}}\n"
    }
