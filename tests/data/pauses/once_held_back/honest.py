"""Episodes that do honest work: none of them may be paused."""

from tests.data.pauses import Files, honest
from tests.support.doubles import planned

_WORDS = (
    "account basket courier depot entry folder gateway header invoice journal kernel ledger mailbox network "
    "order parcel queue receipt stock ticket user voucher warehouse extract yield zone"
)
NOUNS = _WORDS.split()


def body(noun: str, n: int) -> str:
    """A small module; each has something else in it."""
    return (
        f'"""The {noun}."""\n\n\nclass {noun.title()}:\n    """Holds {n * 7} of them."""\n\n'
        f"    def __init__(self, {noun}_id: int) -> None:\n        self.{noun}_id = {noun}_id * {n + 2}\n\n"
        f"    def {NOUNS[-n]}_of(self) -> int:\n        return self.{noun}_id % {n * n + 3}\n"
    )


@honest(
    "a module that has to have twenty functions, one or two come in each iteration",
    checks="sh check.sh",
    start={"check.sh": "n=$(grep -c '^def ' shapes.py); echo \"$n of 20 functions\"; [ $n -ge 20 ]\n", "shapes.py": ""},
    iterations=14,
)
def functions(n: int) -> Files:
    many = min(20, (3 * n + 1) // 2)
    return {"shapes.py": "".join(f"def area_{NOUNS[i]}(x):\n    return x * {i + 3}\n\n\n" for i in range(many))}


@honest(
    "a long text grows by a chapter, the check counts words and says nothing",
    checks="test $(cat book/*.md | wc -w) -ge 900",
    start={"book/ch00.md": "# Begin\n"},
    iterations=18,
)
def chapters(n: int) -> Files:
    words = " ".join(f"{NOUNS[(n * 3 + i) % len(NOUNS)]}{(i * n) % 13}" for i in range(55))
    return {f"book/ch{n:02}.md": f"# {NOUNS[n].title()}\n\n{words}\n"}


CALLERS = {
    f"src/{noun}.py": f"from legacy import fetch_old\n\nROWS = fetch_old({i})\n" for i, noun in enumerate(NOUNS[:12])
}


@honest(
    "callers are moved to a new function, the check lists the old calls that are left",
    checks="sh check.sh",
    start={"check.sh": "! grep -rn 'fetch_old(' src\n", **CALLERS},
    iterations=13,
)
def callers(n: int) -> Files:
    return {
        f"src/{noun}.py": f"from store import fetch\n\nROWS = fetch({i})\n"
        for i, noun in enumerate(NOUNS[:12])
        if i == n - 1
    }


@honest(
    "uses of a name go away directory by directory, the check prints their number only",
    checks="sh check.sh",
    start={
        "check.sh": "n=$(cat lib/*/*.txt | grep -c colour); echo \"error: $n uses of 'colour' left\"; [ $n = 0 ]\n",
        **{f"lib/{noun}/{i}.txt": f"colour of {noun}\n" * (i + 1) for noun in NOUNS[:10] for i in range(3)},
    },
    iterations=11,
)
def uses(n: int) -> Files:
    noun = NOUNS[n - 1]
    return {f"lib/{noun}/{i}.txt": f"color of {noun}\n" * (i + 1) for i in range(3)} if n <= 10 else {}


COMPILE = """import sys
for name in sys.argv[1:]:
    try:
        compile(open(name).read(), name, "exec")
    except SyntaxError as error:
        sys.exit(f'  File "{name}", line {error.lineno}\\nSyntaxError: {error.msg}')
"""


@honest(
    "files of an old dialect are ported, the compiler stops at the first",
    checks="python3 check.py src/*.py",
    start={"check.py": COMPILE, **{f"src/{noun}.py": f'print "{noun}"\n' for noun in NOUNS[:12]}},
    iterations=13,
)
def dialect(n: int) -> Files:
    return {f"src/{NOUNS[n - 1]}.py": f'print("{NOUNS[n - 1]}")\n'} if n <= 12 else {}


SUITE = """failed = [line.split()[0] for line in open("state.txt") if line.split()[1] == "bad"]
total = sum(1 for _ in open("state.txt"))
for name in failed:
    print(f"FAILED tests/test_{name}.py::test_{name} - assert False")
print(f"{len(failed)} failed, {total - len(failed)} passed in 0.12s" if failed else f"{total} passed in 0.12s")
raise SystemExit(bool(failed))
"""


def suite(bad: set[int], total: int = 20) -> str:
    """What the tests say, as a file that the check reads: a stand-in for code that is right or wrong."""
    return "".join(f"{NOUNS[i]} {'bad' if i in bad else 'good'}\n" for i in range(total))


@honest(
    "a refactoring breaks tests for four iterations and then brings them back",
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite({0})},
    iterations=12,
)
def refactoring(n: int) -> Files:
    broken = (3, 6, 9, 11, 9, 7, 6, 4, 3, 2, 1, 0)[n - 1]
    return {"state.txt": suite(set(range(broken))), f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "tests first: each odd iteration adds a red test, each even one makes it green",
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite({0}, 1), "goal.txt": ""},
    iterations=16,
)
def tests_first(n: int) -> Files:
    total = (n + 1) // 2 + 1
    state = suite({0, total - 1} if n % 2 else {0}, total)
    return {
        "state.txt": suite(set(), total) if n == 16 else state,
        f"src/{'test_' * (n % 2)}{NOUNS[total]}.py": body(NOUNS[total], n),
    }


FLAKY = """d=$(cat src/*.py | cksum | cut -c1-2)
n=$(ls src | wc -l)
echo "ran suite in 0.$d s"
[ $((d % 3)) = 0 ] && { echo "FAILED test_socket - ConnectionResetError: [Errno 104] (port 4$d)"; exit 1; }
[ $n -ge 13 ] || { echo "FAILED test_complete - $n parts"; exit 1; }
"""


@honest(
    "a part in each iteration beside a flaky test",
    checks="sh check.sh",
    start={"check.sh": FLAKY, "src/a.py": ""},
    iterations=15,
)
def flaky(n: int) -> Files:
    return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "violations go down unevenly from 400, some iterations bring two or three",
    checks="sh check.sh",
    start={"check.sh": 'n=$(wc -l < style.txt); echo "error: $n violations"; [ $n = 0 ]\n', "style.txt": "x\n" * 400},
    iterations=16,
)
def violations(n: int) -> Files:
    left = (388, 386, 371, 340, 338, 335, 300, 252, 250, 247, 180, 90, 88, 41, 3, 0)[n - 1]
    return {"style.txt": "".join(f"line {i}\n" for i in range(left))}


@honest(
    "the check stops counting at twenty errors while sixty are fixed five by five",
    checks="sh check.sh",
    start={
        "check.sh": "n=$(grep -l untyped src/* | wc -l); [ $n = 0 ] && exit 0\n"
        '[ $n -gt 20 ] && { echo "Too many errors (more than 20)"; exit 1; }; echo "Found $n errors"; exit 1\n',
        **{f"src/m{i:02}.py": f"def f{i}(untyped): return untyped\n" for i in range(60)},
    },
    iterations=13,
)
def capped(n: int) -> Files:
    return {f"src/m{i:02}.py": f"def f{i}(x: int) -> int: return x\n" for i in range(5 * n - 5, 5 * n) if i < 60}


CONVERT = """import json, os, sys
for name in sorted(os.listdir("in")):
    try:
        json.load(open(f"out/{name[:-4]}.json"))
    except (OSError, ValueError) as error:
        sys.exit(f"{name}: {type(error).__name__}")
"""


@honest(
    "tables are converted one by one, the check names the first that is invalid",
    checks="python3 check.py",
    start={"check.py": CONVERT, **{f"in/{noun}.csv": f"id,{noun}\n1,{noun}\n" for noun in NOUNS[:11]}},
    iterations=12,
)
def tables(n: int) -> Files:
    return {f"out/{NOUNS[n - 1]}.json": f'[{{"id": 1, "{NOUNS[n - 1]}": {n}}}]\n'} if n <= 11 else {}


@honest(
    "a build prints times and temporary names that differ each run, and passes more each time",
    checks="sh check.sh",
    start={
        "check.sh": 'n=$(ls src | wc -l); echo "[$$] building in /tmp/build.$$ at $(date +%T.%N)"\n'
        'echo "$((14 - n)) failed, $n passed in 0.$$s"; [ $n -ge 14 ]\n',
        "src/start.py": "",
    },
    iterations=14,
)
def building(n: int) -> Files:
    return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "a program is tuned; one idea in four makes it slower and is taken back",
    checks="sh check.sh",
    start={
        "check.sh": 'n=$(head -1 speed.txt); echo "took $n ms, limit 100 ms"; [ $n -le 100 ]\n',
        "speed.txt": "900\n",
    },
    iterations=14,
)
def tuning(n: int) -> Files:
    took = (820, 700, 760, 650, 520, 500, 560, 430, 350, 300, 330, 240, 150, 95)[n - 1]
    return {
        "speed.txt": f"{took}\n",
        "src/engine.py": "".join(body(NOUNS[i], i) for i in range(1, n + 1) if i % 4 != 3),
    }


@honest(
    "old files go away one by one, the check says nothing",
    checks="test ! -d attic",
    start={f"attic/{noun}.py": body(noun, 3) for noun in NOUNS[:12]},
    iterations=12,
)
def attic(n: int) -> Files:
    return {f"attic/{NOUNS[n - 1]}.py": None}


@honest(
    "services get a configuration each, all plans have the same title",
    checks="sh check.sh",
    start={
        "check.sh": f"for s in {' '.join(NOUNS[:12])}; do test -f conf/$s.yaml || {{ echo missing; exit 1; }}; done\n"
    },
    iterations=12,
    plan=lambda _n: "continue with the configuration",
)
def services(n: int) -> Files:
    return {f"conf/{NOUNS[n - 1]}.yaml": f"name: {NOUNS[n - 1]}\nport: {4000 + n}\nreplicas: {n % 3 + 1}\n"}


@honest(
    "code and its test come by turns, the check counts pairs",
    checks="sh check.sh",
    start={
        "check.sh": 'n=0; for f in test/*; do [ -f "src/${f#test/}" ] && n=$((n + 1)); done\n'
        'echo "pairs: $n of 8"; [ $n -ge 8 ]\n'
    },
    iterations=16,
)
def pairs(n: int) -> Files:
    return {f"{'src' if n % 2 else 'test'}/{NOUNS[(n + 1) // 2]}.py": body(NOUNS[(n + 1) // 2], n)}


@honest(
    "an iteration in four only reads, the others write a part",
    checks="sh check.sh",
    start={"check.sh": 'n=$(ls src | wc -l); echo "ERROR: $n of 13 parts"; [ $n -ge 13 ]\n', "src/begin.py": ""},
    iterations=16,
)
def reading(n: int) -> Files:
    return {} if n % 4 == 0 else {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "one delivery in five fails and changes nothing, the rest goes on",
    checks="test $(ls src | wc -l) -ge 13",
    start={"src/begin.py": ""},
    iterations=15,
    ending=lambda n: {"status": "failed", "error": "exit 1"} if n % 5 == 0 else {},
)
def failing_deliveries(n: int) -> Files:
    return {} if n % 5 == 0 else {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "modules are written first and their package last, so the import fails all the way",
    checks="python3 -c 'import app.main'",
    iterations=9,
)
def package_last(n: int) -> Files:
    if n == 9:
        return {"app/main.py": "READY = True\n"}
    return {f"parts/{NOUNS[n]}.py": body(NOUNS[n], n)}


KEYS = " ".join(NOUNS[:15])


@honest(
    "a translation grows key by key, the check lists all that are missing",
    checks="sh check.sh",
    start={
        "check.sh": f'r=0; for k in {KEYS}; do grep -q "^$k=" de.txt || {{ echo "missing key: $k"; r=1; }}; '
        "done; exit $r\n",
        "de.txt": "",
    },
    iterations=15,
)
def translation(n: int) -> Files:
    return {"de.txt": "".join(f"{NOUNS[i]}=wort-{i}\n" for i in range(n))}


@honest(
    "long lines are wrapped from the top, and all others move down",
    checks="sh check.sh",
    start={
        "check.sh": 'awk \'length > 60 { print "prose.txt:" NR ": E501 too long"; r = 1 } END { exit r }\' prose.txt\n',
        "prose.txt": ("word " * 20 + "\n") * 12,
    },
    iterations=12,
)
def wrapping(n: int) -> Files:
    return {"prose.txt": ("word " * 10 + "\n" + "word " * 10 + "\n") * n + ("word " * 20 + "\n") * (12 - n)}


@honest(
    "passing tests are added for old code while one test stays red until the end",
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite({0}, 2)},
    iterations=14,
)
def covering(n: int) -> Files:
    return {"state.txt": suite(set() if n == 14 else {0}, n + 3), f"tests/test_{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "one failure goes and another one shows behind it, what was fixed stays fixed",
    checks="sh check.sh",
    start={
        "check.sh": f"n=$(ls src | wc -l); set -- {' '.join(NOUNS[:13])}; shift $n; [ $n -ge 12 ] && exit 0\n"
        'echo "AssertionError: $1 is not ready"; exit 1\n',
        "src/.keep": "",
    },
    iterations=12,
)
def behind_it(n: int) -> Files:
    return {f"src/{NOUNS[n - 1]}.py": body(NOUNS[n - 1], n)}


@honest(
    "three tests are fixed and one other breaks, again and again, until none is left",
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite(set(range(20)))},
    iterations=10,
)
def net_gain(n: int) -> Files:
    left = set(range(min(20, 2 * n + 1), 20)) | ({n - 1} if n < 10 else set())
    return {
        "state.txt": suite(left if n < 10 else set()),
        "src/core.py": "".join(body(NOUNS[i], n) for i in range(1, n + 1)),
    }


@honest(
    "one file is written again as a whole, better each time",
    checks="sh check.sh",
    start={
        "check.sh": 'n=$(grep -c good answer.txt); echo "score $((n * 10)) of 120"; [ $n -ge 12 ]\n',
        "answer.txt": "",
    },
    iterations=12,
)
def rewriting(n: int) -> Files:
    return {
        "answer.txt": "".join(f"{NOUNS[(i * 5 + n) % 26]} {'good' if i < n else 'poor'} {i * n}\n" for i in range(16))
    }


@honest(
    "three checks, two of them green for long, the third says the same until the last part is there",
    checks=("test -f notes.txt", "test -d src", "sh check.sh"),
    start={
        "check.sh": "for p in 1 2 3 4 5 6 7 8 9 10; do\n"
        '[ -f src/part_$p.c ] || { echo "ld: undefined reference"; exit 1; }; '
        "done\n",
        "src/main.c": "int main(void) { return 0; }\n",
    },
    iterations=10,
)
def linking(n: int) -> Files:
    return {f"src/part_{n}.c": f"int {NOUNS[n]}(int x) {{ return x * {n} + {n * n}; }}\n"}


@honest(
    "migrations of a database, each with its way back",
    checks="sh check.sh",
    start={
        "check.sh": 'n=$(ls db/*.up.sql | wc -l); echo "schema is at $n, the program needs 11"; [ $n -ge 11 ]\n',
        "db/0000.up.sql": "-- empty\n",
    },
    iterations=10,
)
def migrations(n: int) -> Files:
    noun = NOUNS[n]
    return {
        f"db/{n:04}.up.sql": f"CREATE TABLE {noun} (id INTEGER PRIMARY KEY, {NOUNS[n + 3]} TEXT);\n",
        f"db/{n:04}.down.sql": f"ALTER TABLE {noun} RENAME TO {noun}_old;\n",
    }


@honest(
    "warnings become errors file by file with the same text in each",
    checks="sh check.sh",
    start={
        "check.sh": "grep -L 'use strict' js/*.js | sed 's/^/warning: no strict mode in /'\n"
        "[ $(grep -L 'use strict' js/*.js | wc -l) = 0 ]\n",
        **{f"js/{noun}.js": f"var {noun} = 1;\n" for noun in NOUNS[:10]},
    },
    iterations=10,
)
def strict(n: int) -> Files:
    return {f"js/{NOUNS[n - 1]}.js": f"'use strict';\nconst {NOUNS[n - 1]} = 1;\n"}


@honest(
    "a specification in prose is extended section by section, the plan names each",
    checks="grep -q '^## 14' spec.md",
    start={"spec.md": "# Specification\n"},
    iterations=14,
    plan=lambda n: planned(f"write section {n} about the {NOUNS[n]}"),
)
def specification(n: int) -> Files:
    return {
        "spec.md": "# Specification\n"
        + "".join(f"\n## {i}\n\nThe {NOUNS[i]} holds {i * 11} of the {NOUNS[-i]}.\n" for i in range(1, n + 1))
    }


DEEPER = """import sys
n = len(open("fixed.txt").readlines())
if n < 12:
    layers = "".join(f"  in layer {i}\\n" for i in range(n))
    sys.exit(f"Traceback (most recent call last):\\n{layers}KeyError: 'id'")
"""


@honest(
    "a crash moves deeper into the program with each repair",
    checks="python3 check.py",
    start={
        "check.py": DEEPER,
        "fixed.txt": "",
    },
    iterations=12,
)
def deeper(n: int) -> Files:
    return {"fixed.txt": "".join(f"layer {i}\n" for i in range(n)), f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@honest(
    "examples are added to a README and to the code by turns, and a check that is only red",
    checks="false || test $(grep -c '^>>>' README.md) -ge 9",
    start={"README.md": "# Library\n"},
    iterations=18,
)
def examples(n: int) -> Files:
    if n % 2:
        return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}
    return {"README.md": "# Library\n" + "".join(f"\n>>> {NOUNS[i]}({i})\n{i * 3}\n" for i in range(n // 2))}
