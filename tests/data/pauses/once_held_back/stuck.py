"""Episodes that are stuck: each has to be noticed within five iterations."""

from tests.data.pauses import Files, stuck
from tests.data.pauses.once_held_back.honest import NOUNS, SUITE, body, suite
from tests.support.doubles import claims_done, planned

PARTS = {"check.sh": 'n=$(ls src | wc -l); echo "ERROR: $n of 20 parts"; [ $n -ge 20 ]\n', "src/begin.py": ""}

GUESS = """import sys
value = int(open("guess.txt").read())
sys.exit(f"AssertionError: got {value * 31 % 9973}, expected 42")
"""
COMPILE_ALL = """import sys
bad = 0
for name in sys.argv[1:]:
    try:
        compile(open(name).read(), name, "exec")
    except SyntaxError:
        print(f"{name}: SyntaxError")
        bad += 1
print(f"{bad} errors")
sys.exit(bool(bad))
"""


@stuck(
    "nothing is changed, each plan has another title",
    since=1,
    checks="test -f out.bin",
    iterations=10,
    plan=lambda n: f"try the {NOUNS[n]} way",
)
def other_titles(_n: int) -> Files:
    return {}


@stuck("three settings by turns", since=4, checks="echo 'ERROR: cannot bind'; false", iterations=14)
def three_by_turns(n: int) -> Files:
    return {"server.ini": f"[net]\nmode = {('tcp', 'udp', 'unix')[n % 3]}\n"}


@stuck(
    "four versions of a dependency by turns",
    since=3,
    checks="grep -q solved lock.txt || { echo 'ResolutionImpossible'; false; }",
    iterations=16,
)
def four_versions(n: int) -> Files:
    return {"lock.txt": f"package=={(1, 4, 2, 3)[n % 4]}.0\n"}


@stuck(
    "a time limit is raised again and again, the test times out each time",
    since=2,
    checks="echo 'TimeoutError: no answer from worker'; false",
    iterations=14,
)
def time_limit(n: int) -> Files:
    return {"src/limits.py": f"TIMEOUT_S = {10 * n}\n"}


@stuck(
    "only comments change",
    since=1,
    checks="python3 -c 'import sys; sys.path.insert(0, \"src\"); import calc; assert calc.add(1, 2) == 3'",
    start={"src/calc.py": "def add(a, b):\n    return a - b\n"},
    iterations=12,
)
def comments(n: int) -> Files:
    return {"src/calc.py": f"# The {NOUNS[n]} is looked at here, see note {n}.\ndef add(a, b):\n    return a - b\n"}


@stuck(
    "only blank lines come in",
    since=1,
    checks="echo 'IndentationError in module'; false",
    start={"src/mod.py": "x = 1\n"},
    iterations=12,
)
def blank_lines(n: int) -> Files:
    return {"src/mod.py": "\n" * n + "x = 1\n"}


@stuck(
    "each iteration breaks two tests more",
    since=1,
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite({0})},
    iterations=10,
)
def damage(n: int) -> Files:
    return {"state.txt": suite(set(range(1 + 2 * n))), f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}


@stuck(
    "a diary of attempts grows and nothing else",
    since=1,
    checks="python3 -c 'raise SystemExit(\"ValueError: bad magic number\")'",
    iterations=12,
)
def diary(n: int) -> Files:
    return {"NOTES.md": "".join(f"- attempt {i}: looked at the {NOUNS[i]}, did not help\n" for i in range(1, n + 1))}


@stuck(
    "an empty line at the top moves the error down",
    since=1,
    checks='awk \'/boom/ { print "main.py:" NR ": NameError: boom"; exit 1 }\' main.py',
    start={"main.py": "boom\n"},
    iterations=12,
)
def moving(n: int) -> Files:
    return {"main.py": "\n" * n + "boom\n"}


@stuck(
    "every delivery fails",
    since=1,
    checks="test -f out.bin",
    iterations=10,
    ending=lambda _n: {"status": "failed", "error": "connection refused"},
)
def failing(_n: int) -> Files:
    return {}


@stuck(
    "the planner claims to be done while the check is red",
    since=1,
    checks="echo 'assert 2 == 3'; false",
    iterations=10,
    plan=lambda _n: claims_done(),
)
def claiming(_n: int) -> Files:
    return {}


@stuck(
    "a file is renamed to and fro",
    since=3,
    checks="echo 'ModuleNotFoundError: No module named parser'; false",
    start={"src/parse.py": body("order", 2)},
    iterations=12,
)
def renaming(n: int) -> Files:
    old, new = ("src/parse.py", "src/parsing.py") if n % 2 else ("src/parsing.py", "src/parse.py")
    return {old: None, new: body("order", 2)}


@stuck("a file comes and goes", since=3, checks="echo 'undefined symbol: init'; false", iterations=12)
def comes_and_goes(n: int) -> Files:
    return {"src/init.c": "int init(void) { return 0; }\n" if n % 2 else None}


@stuck(
    "mending one test breaks the other, with ever new code",
    since=4,
    checks="python3 check.py",
    start={"check.py": SUITE, "state.txt": suite({0, 1}, 6)},
    iterations=14,
)
def seesaw(n: int) -> Files:
    return {"state.txt": suite({n % 2}, 6), "src/core.py": f"ORDER = {'first' if n % 2 else 'last'!r}\nTRIED = {n}\n"}


@stuck(
    "the same file is copied under new names that nothing uses",
    since=2,
    checks="echo 'AssertionError: parse(\"1;2\") is None'; false",
    iterations=14,
)
def copies(n: int) -> Files:
    return {f"src/parser_v{n}.py": body("parcel", 4)}


@stuck(
    "more and more debug output, the same error",
    since=2,
    checks="echo \"TypeError: 'NoneType' object is not iterable\"; false",
    start={"src/run.py": "def run(x):\n    return list(x)\n"},
    iterations=14,
)
def debug_output(n: int) -> Files:
    return {
        "src/run.py": "def run(x):\n"
        + "".join(f"    print('here {i}', x)\n" for i in range(n))
        + "    return list(x)\n"
    }


@stuck("a longer sleep each time", since=2, checks="echo 'ConnectionRefusedError: [Errno 111]'; false", iterations=12)
def sleeping(n: int) -> Files:
    return {"src/wait.py": f"import time\n\ntime.sleep({n * 5})\n"}


@stuck(
    "tabs and blanks by turns",
    since=3,
    checks="echo 'E101 indentation contains mixed spaces and tabs'; false",
    start={"m.py": "if 1:\n    x = 1\n"},
    iterations=12,
)
def tabs(n: int) -> Files:
    return {"m.py": "if 1:\n\tx = 1\n" if n % 2 else "if 1:\n    x = 1\n"}


@stuck(
    "nothing changes while a flaky check prints something else each time",
    since=1,
    checks="sh -c 'echo \"FAILED request $$ after 0.$$ s\"; false'",
    iterations=10,
)
def flaky_and_idle(_n: int) -> Files:
    return {}


@stuck("five parts, then nothing any more", since=6, checks="sh check.sh", start=PARTS, iterations=16)
def then_nothing(n: int) -> Files:
    return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)} if n <= 5 else {}


@stuck(
    "six parts, then one of them is written in two ways by turns",
    since=9,
    checks="sh check.sh",
    start=PARTS,
    iterations=18,
)
def then_turns(n: int) -> Files:
    if n <= 6:
        return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}
    return {f"src/{NOUNS[6]}.py": body(NOUNS[6], 6 + n % 2)}


@stuck(
    "four parts, then it takes away what it made",
    since=5,
    checks="sh check.sh",
    start={**PARTS, **{f"src/old_{i}.py": body(NOUNS[i], i) for i in range(9)}},
    iterations=13,
)
def then_undoes(n: int) -> Files:
    return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)} if n <= 4 else {f"src/old_{n - 5}.py": None}


@stuck("five parts, then only comments", since=6, checks="sh check.sh", start=PARTS, iterations=16)
def then_comments(n: int) -> Files:
    if n <= 5:
        return {f"src/{NOUNS[n]}.py": body(NOUNS[n], n)}
    return {"src/begin.py": "".join(f"# thought {i} about the {NOUNS[i]}\n" for i in range(6, n + 1))}


@stuck(
    "a value is guessed, the test prints what came out",
    since=2,
    checks="python3 check.py",
    start={"check.py": GUESS, "guess.txt": "1\n"},
    iterations=14,
)
def guessing(n: int) -> Files:
    return {"guess.txt": f"{n * n * 37 + 11}\n"}


@stuck("the list of things to do is put into other words", since=1, checks="test -x build/app", iterations=12)
def todo(n: int) -> Files:
    return {"TODO.md": f"# To do\n\n1. Look at the {NOUNS[n]}\n2. Then build the app, {NOUNS[-n]} first\n"}


@stuck(
    "temporary folders are made and removed again",
    since=1,
    checks="echo 'make: *** No rule to make target all. Stop.'; false",
    iterations=12,
)
def temporary(n: int) -> Files:
    return {f"tmp_{n}/scratch.txt": "scratch\n"} if n % 2 else {f"tmp_{n - 1}/scratch.txt": None}


@stuck(
    "the version is raised, the feature stays away",
    since=1,
    checks="echo 'no such command: export'; false",
    start={"VERSION": "0.1.0\n"},
    iterations=12,
)
def version(n: int) -> Files:
    return {"VERSION": f"0.1.{n}\n"}


@stuck(
    "a big change is made and taken back, again and again",
    since=3,
    checks="echo 'RuntimeError: deadlock'; false",
    start={f"src/{noun}.py": body(noun, 1) for noun in NOUNS[:8]},
    iterations=12,
)
def big_undo(n: int) -> Files:
    return {f"src/{noun}.py": body(noun, 2 if n % 2 else 1) for noun in NOUNS[:8]}


@stuck(
    "each repair leaves a syntax error in one more file",
    since=1,
    checks="python3 check.py src/*.py",
    start={
        "check.py": COMPILE_ALL,
        "src/a0.py": "x = (\n",
        **{f"src/{noun}.py": body(noun, 1) for noun in NOUNS[:10]},
    },
    iterations=10,
)
def spreading(n: int) -> Files:
    return {f"src/{NOUNS[n - 1]}.py": body(NOUNS[n - 1], n) + "x = (\n"}


@stuck(
    "the same plan and the same text written again",
    since=2,
    checks="echo 'AssertionError: empty result'; false",
    iterations=10,
    plan=lambda _n: planned("write the result"),
)
def same_again(_n: int) -> Files:
    return {"src/result.py": "RESULT = []\n"}


@stuck(
    "a lock file with another stamp each time, nothing else",
    since=1,
    checks="echo 'E: build failed'; false",
    iterations=12,
)
def stamps(n: int) -> Files:
    return {"build.lock": f"generated 2026-11-{n:02}T08:{n:02}:11Z by build {n * 7919 % 100003:x}\n"}


@stuck(
    "another handler around the same failure each time",
    since=2,
    checks="echo 'OSError: [Errno 28] No space left on device'; false",
    start={"src/save.py": "def save(x):\n    write(x)\n"},
    iterations=13,
)
def handlers(n: int) -> Files:
    return {
        "src/save.py": "def save(x):\n"
        + "    try:\n        write(x)\n    except OSError:\n        pass\n" * n
        + "    write(x)\n"
    }
