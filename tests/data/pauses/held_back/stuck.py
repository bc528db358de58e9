"""Episodes that are stuck: each has to be noticed within five iterations.

`since` is the iteration in which a fruitless move is made for the second time, where it shows at once that it is one:
the same diff, the first return to a state that failed before, nothing changed. It is the third where each try alone
would be reasonable, such as another value or another place, and later where figures have to be compared. Notes, plans
and debug output may take three iterations. A false claim and giving up count at once.
"""

import json

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, gives_up


def turn(states: tuple[str, ...], n: int) -> str:
    """Return the state of iteration n, from the first again after the last."""
    return states[(n - 1) % len(states)]


def modules(n: int, name: str = "part") -> Files:
    """Return the honest work of iteration n."""
    return {f"src/{name}{n}.py": f"def {name}{n}(rows):\n    return [row for row in rows if row.{name} == {n}]\n"}


SLUG = """import sys
sys.path.insert(0, "src")
try:
    from slug import slug
    got = slug("Ärger im Büro")
except Exception as error:
    got = f"{type(error).__name__}: {error}"
if got != "aerger-im-buero":
    sys.exit(f"FAILED test_slug.py::test_umlauts - AssertionError: {got!r} != 'aerger-im-buero'")
"""
SLUG_FILES = {"check.py": SLUG, "src/slug.py": "def slug(text):\n    return text.lower()\n"}
JOB = """echo "worker: connecting to queue"; echo "ConnectionRefusedError: [Errno 111] Connection refused"
grep -q '^port: 5672$' conf/queue.yaml
"""
JOB_FILES = {"check.sh": JOB, "conf/queue.yaml": "host: localhost\nport: 5671\n"}


# The same again, or to and fro.


@stuck(
    "the same wrong line is written again and again",
    since=2,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=10,
    plan=lambda _n: "handle umlauts in slug",
)
def same_line(_n: int) -> Files:
    return {"src/slug.py": "def slug(text):\n    return text.lower().replace(' ', '-')\n"}


@stuck(
    "two ways to strip accents by turns, each called the fix",
    since=3,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=12,
    plan=lambda n: f"fix the slug for good, attempt {n}",
)
def accents(n: int) -> Files:
    way = turn(("text.lower().replace('ä', 'a')", "text.casefold().replace(' ', '-')"), n)
    return {"src/slug.py": f"def slug(text):\n    return {way}\n"}


@stuck("three variants in a circle", since=4, checks="python3 -B check.py", start=SLUG_FILES, iterations=14)
def circle(n: int) -> Files:
    way = turn(("text.lower()[::1]", "text.title().lower()", "'-'.join(text.split())"), n)
    return {"src/slug.py": f"def slug(text):\n    return {way}\n"}


@stuck(
    "five modules are written, then an option is switched on and off",
    since=8,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=15,
    plan=lambda n: f"write part {n}" if n < 6 else "set ssl correctly",
)
def toggled(n: int) -> Files:
    return modules(n) if n < 6 else {"conf/queue.yaml": f"host: localhost\nport: 5671\nssl: {n % 2 == 0}\n".lower()}


@stuck(
    "a function is renamed to and fro with its callers",
    since=3,
    checks="echo 'NameError: name user_of is not defined'; grep -q 'def user_of' src/users.py",
    start={"src/users.py": "def get_user(i): ...\n", "src/main.py": "get_user(1)\n"},
    iterations=11,
    plan=lambda n: f"use a clearer name, {n}",
)
def names(n: int) -> Files:
    name = turn(("fetch_user", "load_user"), n)
    return {"src/users.py": f"def {name}(i): ...\n", "src/main.py": f"{name}(1)\n"}


@stuck(
    "a file is deleted and restored",
    since=3,
    checks="sh check.sh",
    iterations=10,
    start={
        "check.sh": "if [ -f src/legacy.py ]; then echo 'ImportError: circular import in src/legacy.py'; else "
        "echo 'ModuleNotFoundError: No module named legacy'; fi; exit 1\n",
        "src/legacy.py": "import main\nX = 1\n",
    },
)
def restored(n: int) -> Files:
    return {"src/legacy.py": None if n % 2 else "import main\nX = 1\n"}


PINS = """if grep -q 'numpy==1' requirements.txt; then echo "ERROR: pandas 2.2 requires numpy>=2, found 1.26"
else echo "ERROR: scikit-image 0.19 requires numpy<2, found 2.0"; fi; exit 1
"""


@stuck(
    "two pins that exclude each other are swapped, after three good upgrades",
    since=6,
    checks="sh check.sh",
    start={"check.sh": PINS, "requirements.txt": "numpy==1.24\n"},
    iterations=14,
    plan=lambda _n: "upgrade the dependencies",
)
def pins(n: int) -> Files:
    if n < 4:
        return {"requirements.txt": "numpy==1.24\n" + "".join(f"tool{i}==3.{i}\n" for i in range(n))}
    tools = "".join(f"tool{i}==3.{i}\n" for i in range(3))
    return {"requirements.txt": f"numpy=={turn(('1.26', '2.0'), n - 1)}\n{tools}"}


@stuck(
    "an index in SQL is created and dropped by turns",
    since=3,
    iterations=10,
    checks="echo 'query took 4812 ms, limit 500 ms'; grep -q 'PARTITION BY' schema.sql",
    start={"schema.sql": "CREATE TABLE events (id INT, at INT);\n"},
    plan=lambda n: ("add an index", "the index slows down writes, drop it")[(n - 1) % 2],
)
def index(n: int) -> Files:
    return {"schema.sql": "CREATE TABLE events (id INT, at INT);\n" + "CREATE INDEX by_at ON events (at);\n" * (n % 2)}


PLACES = ("setup.cfg", "tox.ini", "pytest.ini", ".coveragerc")


@stuck(
    "a setting wanders from file to file, and round again",
    since=5,
    iterations=14,
    checks="echo 'ERROR: unknown marker: slow'; grep -qs 'slow:' conftest.py",
    start={"setup.cfg": "[tool]\nmarkers = slow\n"},
    plan=lambda _n: "put the marker where it is read",
)
def wandering(n: int) -> Files:
    here = PLACES[n % 4]
    return {
        path: f"[tool:{path}]\nmarkers = slow\n" if path == here else None
        for path in PLACES
        if path in (here, PLACES[(n - 1) % 4])
    }


REDO = """left=$(grep -c 'var ' lib/app.js); echo "$left problems ($left errors, 0 warnings)"; [ $left -eq 0 ]
"""


def app_js(done: int) -> str:
    return "".join(f"{'let' if i < done else 'var'} x{i} = {i};\n" for i in range(20))


@stuck(
    "good work is reverted as a whole and begun anew in the same steps",
    since=8,
    checks="sh check.sh",
    start={"check.sh": REDO, "lib/app.js": app_js(0)},
    iterations=16,
    plan=lambda n: "start over" if n % 7 == 0 else "fix the next findings",
)
def again(n: int) -> Files:
    return {"lib/app.js": app_js(2 * (n % 7))}


@stuck(
    "arguments are swapped to and fro, with a new comment each time",
    since=3,
    iterations=13,
    checks="echo 'TypeError: unsupported operand type(s) for -: str and int'; grep -q 'int(' src/diff.py",
    start={"src/diff.py": "def diff(a, b):\n    return a - b\n"},
    plan=lambda n: f"correct the order of the arguments ({n})",
)
def swapped(n: int) -> Files:
    order = turn(("b - a", "a - b"), n)
    return {"src/diff.py": f"def diff(a, b):\n    # pass {n}: this is the right order\n    return {order}\n"}


@stuck(
    "three texts are translated back and forth between synonyms",
    since=3,
    iterations=9,
    checks="echo 'glossary: 3 terms differ from the glossary'; grep -q Bestellvorgang de.json",
    start={"de.json": "{}\n"},
    plan=lambda _n: "use the terms of the glossary",
)
def synonyms(n: int) -> Files:
    cart, order, user = (("Wagen", "Auftrag", "Nutzer"), ("Korb", "Order", "Benutzer"))[n % 2]
    return {"de.json": json.dumps({"cart": cart, "order": order, "user": user}, indent=1) + "\n"}


# A value is tried at random, or turned up.


@stuck(
    "a timeout is set to one value after the other",
    since=3,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=12,
    plan=lambda _n: "adjust the timeout",
)
def timeout(n: int) -> Files:
    return {"conf/queue.yaml": f"host: localhost\nport: 5671\ntimeout: {(n * 37) % 90 + 5}\n"}


@stuck(
    "a sleep before the assertion grows",
    since=3,
    iterations=10,
    plan=lambda _n: "wait a little longer",
    checks="echo 'FAILED test_mail.py::test_sent - assert [] == [1]'; grep -q 'flush()' test_mail.py",
    start={"test_mail.py": "def test_sent():\n    send(1)\n    assert box() == [1]\n"},
)
def sleeps(n: int) -> Files:
    return {"test_mail.py": f"def test_sent():\n    send(1)\n    time.sleep({n * 0.5})\n    assert box() == [1]\n"}


@stuck(
    "z-index is raised again and again",
    since=3,
    iterations=9,
    plan=lambda _n: "bring the dialog to the front",
    checks="echo 'visual: dialog is hidden behind header (diff 18.2%)'; grep -q 'isolation' dialog.css",
    start={"dialog.css": ".dialog { z-index: 1; }\n"},
)
def z_index(n: int) -> Files:
    return {"dialog.css": f".dialog {{ z-index: {10**n}; position: {turn(('relative', 'absolute', 'fixed'), n)}; }}\n"}


POOL = """ms=$((780 + $(cksum < pool.toml | awk '{ print $1 % 70 }'))); echo "p95 $ms ms, limit 300 ms"; exit 1
"""


@stuck(
    "a pool's size is guessed while the time only shows noise",
    since=5,
    checks="sh bench.sh",
    start={"bench.sh": POOL, "pool.toml": "workers = 4\n"},
    iterations=14,
    plan=lambda n: f"try {(n * 13) % 61 + 2} workers",
)
def pool(n: int) -> Files:
    return {"pool.toml": f"workers = {(n * 13) % 61 + 2}\n"}


@stuck(
    "the tolerance of a test is loosened, the value is wrong by far",
    since=3,
    iterations=10,
    checks="awk -F= '{ if (9000 - 12 > $2) { print \"AssertionError: 9000 != 12 within \" $2; exit 1 } }' tolerance",
    start={"tolerance": "abs=0.001\n"},
    plan=lambda _n: "allow for rounding",
)
def tolerance(n: int) -> Files:
    return {"tolerance": f"abs={(0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100)[n - 1]}\n"}


@stuck(
    "a regular expression is altered at random, the failures go up and down",
    since=6,
    iterations=15,
    checks="sh check.sh",
    start={
        "check.sh": "f=$((6 + $(cksum < src/date.py | awk '{ print $1 % 5 }'))); "
        'echo "$f failed, $((30 - f)) passed in 0.4s"; exit 1\n',
        "src/date.py": "DATE = r'.*'\n",
    },
    plan=lambda _n: "make the pattern of dates right",
)
def pattern(n: int) -> Files:
    parts = (r"\d+", r"\d{2}", r"[0-9]*", r"\d{1,4}", r"\w+", r"(\d\d)?")
    return {"src/date.py": f"DATE = r'{parts[n % 6]}-{parts[n * 5 % 6]}-{parts[n // 2 % 6]}'\n"}


@stuck(
    "casts are tried one after the other on one line of C",
    since=3,
    iterations=10,
    checks="echo 'src/ring.c:14:9: error: lvalue required as left operand'; grep -q 'ring->head =' src/ring.c",
    start={"src/ring.c": "head(ring) = 0;\n"},
    plan=lambda _n: "correct the cast",
)
def casts(n: int) -> Files:
    kind = ("int", "long", "unsigned", "size_t", "char *", "void *", "uintptr_t", "int *", "short", "ssize_t")[n - 1]
    return {"src/ring.c": f"({kind}) head(ring) = 0;\n"}


@stuck(
    "a learning rate is drawn at random after four useful changes",
    since=8,
    iterations=16,
    checks="sh train.sh",
    start={
        "train.sh": "a=$((71 + $(ls src/*.py 2>/dev/null | wc -l) * 3))\n"
        "j=$(cksum < run.yaml | awk '{ print $1 % 10 }'); "
        'echo "val accuracy 0.$a$j, target 0.950"; exit 1\n',
        "run.yaml": "lr: 0.1\n",
    },
    plan=lambda n: f"augmentation {n}" if n < 5 else "tune the learning rate",
)
def rate(n: int) -> Files:
    return modules(n, "augment") if n < 5 else {"run.yaml": f"lr: {(n * 29 % 31) / 100}\n"}


@stuck(
    "seed after seed for a flaky test",
    since=3,
    iterations=11,
    checks="sh suite.sh",
    start={
        "suite.sh": "k=$(cksum < seed.txt | awk '{ print $1 % 6 }'); "
        'echo "FAILED test_sim.py::test_case_$k - assert False"\n'
        'echo "1 failed, 11 passed in 0.$k s"; exit 1\n',
        "seed.txt": "1\n",
    },
    plan=lambda n: f"use the seed {n * 101}",
)
def seeds(n: int) -> Files:
    return {"seed.txt": f"{n * 101}\n"}


# What is seen changes, the cause stays.


@stuck(
    "the message of the assertion is edited, so the output differs each time",
    since=5,
    iterations=13,
    checks="python3 -B test_total.py",
    plan=lambda n: f"part {n}" if n < 4 else "make the test say what is wrong",
    start={"test_total.py": "assert sum([1, 2]) == 4, 'total'\n"},
)
def message(n: int) -> Files:
    if n < 4:
        return modules(n)
    text = ("total is wrong", "sum differs", "expected 4", "bad total", "three is not four", "see issue", "check sum")
    return {"test_total.py": f"assert sum([1, 2]) == 4, '{text[n % 7]} ({n})'\n"}


@stuck(
    "more and more comments explain the bug",
    since=3,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=10,
    plan=lambda _n: "clarify what slug does",
)
def comments(n: int) -> Files:
    remarks = "".join(f"    # Note {i}: umlauts need care, see the test.\n" for i in range(n))
    return {"src/slug.py": f"def slug(text):\n{remarks}    return text.lower()\n"}


STYLES = (
    "def slug( text ):\n  return text.lower( )\n",
    "def slug(\n    text,\n):\n    return text.lower()\n",
    'def slug(text):\n\n    """Slug."""\n\n    return text.lower()\n',
    "def slug(text):\n    result = text.lower()\n    return result\n",
    "def slug(text):\n    return (\n        text\n        .lower()\n    )\n",
    "def slug(text) :\n    return str.lower(text)\n",
)


@stuck(
    "one function is reformatted in ever other styles",
    since=3,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=11,
    plan=lambda n: f"tidy up slug.py, round {n}",
)
def reformatted(n: int) -> Files:
    return {"src/slug.py": turn(STYLES, n) + "\n" * (n // 6)}


@stuck(
    "imports are sorted anew each time",
    since=3,
    iterations=9,
    plan=lambda _n: "fix the import order",
    checks="echo \"ImportError: cannot import name 'app' from module 'web'\"; ! grep -q app web.py",
    start={"web.py": "import app, auth, db, mail\n"},
)
def imports(n: int) -> Files:
    order = ["app", "auth", "db", "mail"]
    return {"web.py": "import " + ", ".join(order[n % 4 :] + order[: n % 4]) + f"{'' if n < 4 else '  # noqa'}\n"}


@stuck(
    "prints are added in more places, nothing is drawn from them",
    since=4,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=12,
    plan=lambda _n: "add more debug output",
)
def prints(n: int) -> Files:
    body = "".join(f"    print('slug, place {i}:', text)\n" for i in range(n))
    return {"src/slug.py": f"def slug(text):\n{body}    return text.lower()\n"}


@stuck(
    "a cache is emptied by a new number, again and again",
    since=2,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=10,
    plan=lambda _n: "clear the cache and build again",
)
def cache(n: int) -> Files:
    return {".cache-version": f"{n}\n"}


@stuck(
    "a lock file is generated anew, after two honest steps",
    since=4,
    iterations=12,
    checks="sh install.sh",
    start={"install.sh": "echo 'npm ERR! ERESOLVE could not resolve peer react@17 from ui-kit@3'; exit 1\n"},
    plan=lambda n: f"write component {n}" if n < 3 else "regenerate package-lock.json",
)
def lock(n: int) -> Files:
    if n < 3:
        return {f"ui/Component{n}.jsx": f"export const Component{n} = () => <p>{n}</p>;\n"}
    return {
        "package-lock.json": "".join(f'"dep{i}": "sha512-{(n * 7919 + i * 104729) % 9999991}"\n' for i in range(30))
    }


@stuck(
    "a notebook is run again, only its counters change",
    since=2,
    iterations=9,
    plan=lambda _n: "run all cells",
    checks="echo \"KeyError: 'revenue'\"; grep -q 'rename(columns' report.ipynb",
    start={"report.ipynb": "{}\n"},
)
def counters(n: int) -> Files:
    cells = [{"source": ["frame['revenue']"], "execution_count": n * 3 + i} for i in range(3)]
    return {"report.ipynb": json.dumps({"cells": cells}, indent=1) + "\n"}


@stuck(
    "a snapshot that holds the time is accepted anew each time",
    since=3,
    iterations=10,
    checks="sh snap.sh",
    start={
        "snap.sh": "s=$(cksum < page.snap | awk '{ print $1 % 9000 }'); echo '- Snapshot'; echo '+ Received'; "
        'echo "+   rendered at 10:0$((s % 10)):1$((s / 10 % 10))"\n'
        "echo 'Snapshots: 1 failed, 1 total'; exit 1\n",
        "page.snap": "rendered at 09:00\n",
    },
    plan=lambda _n: "update the snapshot",
)
def snapshot(n: int) -> Files:
    return {"page.snap": f"rendered at 1{n % 10}:{n * 7 % 60:02}\n"}


@stuck(
    "the cause is swallowed by one more except",
    since=3,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=10,
    plan=lambda _n: "make slug robust",
)
def swallowed(n: int) -> Files:
    kinds = ("ValueError", "TypeError", "KeyError", "AttributeError", "UnicodeError", "OSError", "RuntimeError")
    layers = "".join(f"    except {kind}:\n        return ''\n" for kind in kinds[:n])
    return {
        "src/slug.py": f"def slug(text):\n    try:\n        return text.lower()\n{layers}"
        + "# robust\n" * max(0, n - 7)
    }


@stuck(
    "retries are wrapped around retries",
    since=3,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=11,
    plan=lambda n: f"retry with {('backoff', 'jitter', 'a circuit breaker')[n % 3]}",
)
def retries(n: int) -> Files:
    names = ("backoff", "jitter", "breaker", "deadline", "hedge")
    return {
        "src/connect.py": "".join(f"@retry_{names[i % 5]}(tries={i + 3})\n" for i in range(n)) + "def connect(): ...\n"
    }


# Much is written, nothing of it helps.


@stuck(
    "a new copy of the module under another name each time",
    since=3,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=10,
    plan=lambda _n: "rewrite slug from scratch",
)
def copies(n: int) -> Files:
    name = ("new", "v2", "fixed", "final", "final2", "clean", "real", "last", "ok", "done")[n - 1]
    return {f"src/slug_{name}.py": "def slug(text):\n    return text.lower().strip()\n"}


@stuck(
    "only the diary of the agent grows",
    since=3,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=10,
    plan=lambda _n: "investigate the refused connection",
)
def diary(n: int) -> Files:
    text = "".join(
        f"## Session {i}\n\nThe queue still refuses the connection. Next: look into it.\n\n" for i in range(n)
    )
    return {"PROGRESS.md": "# Progress\n\n" + text}


@stuck(
    "a plan is rewritten, no code follows",
    since=4,
    iterations=11,
    plan=lambda n: f"refine the plan (revision {n})",
    checks="test -f src/export.py",
)
def planning(n: int) -> Files:
    verbs = ("design", "outline", "structure", "define", "clarify", "specify")
    rows = "".join(f"{i}. [ ] {verbs[(i + n) % 6]} the export, phase {i}\n" for i in range(1, 6))
    return {"PLAN.md": f"# Plan, revision {n}\n\n{rows}"}


EXTRAS = (
    ("docs/badges.md", "[![build](badge.svg)]"),
    ("src/colors.py", "RED = 31"),
    ("src/version.py", "VERSION = 2"),
    (".editorconfig", "indent = 4"),
    ("docs/logo.svg", "<svg/>"),
    ("src/banner.py", "print('hello')"),
    ("CODE_OF_CONDUCT.md", "Be kind."),
    ("src/emoji.py", "OK = ':)'"),
    ("docs/faq.md", "Q: why? A: because."),
    ("src/theme.py", "DARK = True"),
    ("Makefile", "all:"),
    ("docs/history.md", "It began."),
)


@stuck(
    "embellishments that nobody asked for while one test fails",
    since=4,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=12,
    plan=lambda n: f"add {EXTRAS[n - 1][0]}",
)
def embellished(n: int) -> Files:
    path, text = EXTRAS[n - 1]
    return {path: text + "\n"}


@stuck(
    "one more package is required each time, the module's name is misspelt",
    since=3,
    iterations=11,
    checks="echo \"ModuleNotFoundError: No module named 'yamll'\"; grep -q '^import yaml$' main.py",
    start={"main.py": "import yamll\n", "requirements.txt": ""},
    plan=lambda _n: "install what is missing",
)
def packages(n: int) -> Files:
    names = (
        "pyyaml",
        "ruamel.yaml",
        "yamlloader",
        "oyaml",
        "strictyaml",
        "poyo",
        "yamlpy",
        "envyaml",
        "confuse",
        "dynaconf",
        "x",
    )
    return {"requirements.txt": "".join(f"{name}\n" for name in names[:n])}


@stuck(
    "an image gets one chmod after the other",
    since=3,
    iterations=10,
    plan=lambda _n: "fix the permissions",
    checks="echo 'Step 9/9 : CMD app'; echo 'exec /app: exec format error'; grep -q 'platform=linux' Dockerfile",
    start={"Dockerfile": "FROM scratch\n"},
)
def chmod(n: int) -> Files:
    modes = (
        "+x /app",
        "755 /app",
        "777 /app",
        "-R 777 /",
        "u+s /app",
        "a+rx /bin",
        "777 /bin/app",
        "0755 /",
        "g+x /app",
        "+r /app",
    )
    return {"Dockerfile": "FROM scratch\n" + "".join(f"RUN chmod {mode}\n" for mode in modes[:n])}


# It gets worse.

SUITE = """left=$(grep -c '^def ' src/shop.py); [ "$left" -ge 40 ] && exit 0
n=$left; while [ $n -lt 40 ]; do echo "FAILED tests/test_shop.py::test_$n - AttributeError"; n=$((n + 1)); done
echo "$((40 - left)) failed, $left passed in 1.1s"; exit 1
"""


def shop(functions: int, remark: str = "") -> str:
    return "".join(f"def f{i}(): return {i}\n" for i in range(functions)) + remark


@stuck(
    "with each fix more tests fail",
    since=2,
    checks="sh suite.sh",
    iterations=10,
    start={"suite.sh": SUITE, "src/shop.py": shop(38)},
    plan=lambda _n: "fix the failing tests",
)
def damage(n: int) -> Files:
    return {"src/shop.py": shop(38 - 3 * n, f"# simplified {n}\n")}


@stuck(
    "six modules gain tests, then each change breaks some",
    since=8,
    checks="sh suite.sh",
    iterations=14,
    start={"suite.sh": SUITE, "src/shop.py": shop(10)},
    plan=lambda n: "write the next functions" if n < 7 else "repair what the last step broke",
)
def damage_later(n: int) -> Files:
    return {"src/shop.py": shop(10 + 4 * n if n < 7 else 34 - 2 * (n - 6), f"# step {n}\n")}


@stuck(
    "failing tests are deleted instead of repaired",
    since=2,
    iterations=11,
    checks="sh count.sh",
    start={
        "count.sh": 'n=$(ls tests | wc -l); echo "$n of 24 required test files, 1 failed"; exit 1\n',
        **{f"tests/test_{i:02}.py": f"def test_{i}(): assert run({i})\n" for i in range(24)},
    },
    plan=lambda _n: "remove a test that is out of date",
)
def deleted(n: int) -> Files:
    return {f"tests/test_{n:02}.py": None}


@stuck(
    "marks to skip a test are added, the check does not allow them",
    since=2,
    iterations=10,
    checks="sh skipped.sh",
    start={
        "skipped.sh": "s=$(cat tests/*.py | grep -c '@skip')\n"
        'echo "FAILED tests/test_pay.py::test_refund - KeyError"; '
        'echo "1 failed, $((20 - s)) passed, $s skipped"; exit 1\n',
        "tests/test_pay.py": "def test_refund(): ...\n",
    },
    plan=lambda _n: "skip what is flaky",
)
def skipped(n: int) -> Files:
    return {
        "tests/test_pay.py": "".join(f"@skip\ndef test_{i}(): ...\n" for i in range(n)) + "def test_refund(): ...\n"
    }


TSC = """awk '/as any/ { a++ } /ts-ignore/ { t++ } END { e = 4 + (a + t) % 3
  for (i = 0; i < e; i++) printf "src/api.ts(%d,9): error TS2345: Argument is not assignable.\\n", 10 + i * 3 + a
  printf "Found %d errors.\\n", e; exit 1 }' src/api.ts
"""


@stuck(
    "errors of TypeScript are pushed from line to line with casts and ignores",
    since=5,
    checks="sh tsc.sh",
    start={"tsc.sh": TSC, "src/api.ts": "send(x);\n"},
    iterations=13,
    plan=lambda _n: "silence the type errors",
)
def silenced(n: int) -> Files:
    ways = ("send(x as any);", "// @ts-ignore", "send(x as unknown as Api);", "send(<any>x);", "// @ts-expect-error")
    return {"src/api.ts": "".join(f"{ways[(n * i) % 5]}\n" for i in range(1, 5 + n % 3)) + "send(x);\n"}


SEESAW = """import sys
sys.path.insert(0, "src")
from wrap import WIDTH
if WIDTH > 60:
    sys.exit("FAILED test_wrap.py::test_narrow - line is longer than 60")
if WIDTH <= 70:
    sys.exit("FAILED test_wrap.py::test_wide - line is broken before 70")
"""


@stuck(
    "what makes one test pass breaks the other, with other figures each time",
    since=5,
    checks="python3 -B check.py",
    start={"check.py": SEESAW, "src/wrap.py": "WIDTH = 80\n"},
    iterations=13,
    plan=lambda n: f"make {('test_wide', 'test_narrow')[n % 2]} pass",
)
def seesaw(n: int) -> Files:
    return {"src/wrap.py": f"WIDTH = {60 - n if n % 2 else 70 + n}\n"}


# Done, given up, broken off.


@stuck(
    "it is called done while nothing changes",
    since=2,
    checks="python3 -B check.py",
    start=SLUG_FILES,
    iterations=9,
    plan=lambda n: "slug handles umlauts" if n == 1 else claims_done(),
)
def claimed(n: int) -> Files:
    return {"src/slug.py": "def slug(text):\n    return text.lower().replace(' ', '-')\n"} if n == 1 else {}


@stuck(
    "a report of success is written each time, the check stays red",
    since=2,
    checks="sh check.sh",
    start=JOB_FILES,
    iterations=10,
    plan=lambda _n: "verify that everything works now",
)
def report(n: int) -> Files:
    return {"SUMMARY.md": f"# All done\n\nVerified in run {n}: the worker connects, all {n + 12} checks pass.\n"}


@stuck(
    "five modules are written, then nothing more",
    since=7,
    checks="test -f src/part9.py",
    iterations=13,
    plan=lambda n: f"write part {n}" if n < 6 else "check that all parts are there",
)
def nothing_more(n: int) -> Files:
    return modules(n) if n < 6 else {}


@stuck(
    "the planner gives up after four good steps",
    since=5,
    checks="test -f src/part9.py",
    iterations=11,
    plan=lambda n: f"write part {n}" if n < 5 else gives_up("the API for part 5 needs a key that I do not have"),
)
def given_up(n: int) -> Files:
    return modules(n) if n < 5 else {}


@stuck(
    "the executor breaks off before it writes anything",
    since=5,
    checks="test -f src/part9.py",
    iterations=12,
    plan=lambda n: f"write part {min(n, 4)}",
    ending=lambda n: {"status": "failed", "error": "prompt is too long: 214000 tokens > 200000"} if n > 3 else {},
)
def broken_off(n: int) -> Files:
    return modules(n) if n < 4 else {}


@stuck(
    "the executor dies in the same place and leaves the same half file",
    since=2,
    iterations=10,
    checks="python3 -B -c 'import ast; ast.parse(open(\"src/big.py\").read())'",
    start={"src/big.py": "def big(:\n"},
    plan=lambda _n: "write big.py in one go",
    ending=lambda _n: {"status": "failed", "error": "output limit of 8192 tokens reached"},
)
def half_file(_n: int) -> Files:
    return {"src/big.py": "".join(f"VALUE_{i} = {i}\n" for i in range(40)) + "def big(rows"}


@stuck(
    "for want of access the same question is asked in a file each time",
    since=2,
    iterations=9,
    checks="echo 'psql: error: FATAL: password authentication failed for user app'; exit 1",
    plan=lambda _n: "ask for the password",
)
def asked(n: int) -> Files:
    return {"QUESTIONS.md": f"I cannot go on without the password of the database. (asked {n} times)\n"}
