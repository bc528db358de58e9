"""Episodes that no longer get anywhere from iteration `since` on."""

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, gives_up, malformed, planned

NAMES = "amber birch cedar delta ember flint grove heron iris jade kelp lotus maple north onyx pearl quill"
WORDS = tuple(NAMES.split())


def word(n: int) -> str:
    """Another word in each of 17 iterations."""
    return WORDS[n % len(WORDS)]


@stuck(
    "the same timeout is written again and again, with another value each time",
    since=2,
    checks="! grep -q timeout client.ini || { echo 'ConnectTimeout: host ldap.internal did not answer'; exit 1; }",
    iterations=14,
    start={"client.ini": "[ldap]\ntimeout = 5\n"},
    plan=lambda n: f"raise the timeout to {n * 15} s",
)
def timeout_raised(n: int) -> Files:
    return {"client.ini": f"[ldap]\ntimeout = {n * 15}\n"}


@stuck(
    "the same line is appended to the same file",
    since=2,
    checks="grep -qs '^import' shim.py || { echo 'ImportError: no module named compat'; exit 1; }",
    iterations=12,
    start={"shim.py": "# shim\n"},
)
def same_line(n: int) -> Files:
    return {"shim.py": "# shim\n" + "sys_path.append('vendor')\n" * n}


@stuck(
    "ascending, descending, ascending, descending",
    since=3,
    checks="grep -q 'stable' rank.py || { echo 'AssertionError: ties are in the wrong order'; exit 1; }",
    iterations=12,
    start={"rank.py": "def rank(rows):\n    return rows\n"},
    plan=lambda n: "sort ascending" if n % 2 else "sort descending",
)
def up_and_down(n: int) -> Files:
    order = "key=score" if n % 2 else "key=score, reverse=True"
    return {"rank.py": f"def rank(rows):\n    return sorted(rows, {order})\n"}


@stuck(
    "three libraries for the same thing in rotation",
    since=4,
    checks="case $(cat http.py) in *requests*) echo 'SSLError: verify failed';; *httpx*) echo 'ConnectError: "
    "self-signed certificate';; *ca_bundle*) exit 0;; *urllib3*) echo 'MaxRetryError: bad handshake';; esac; exit 1",
    iterations=14,
    start={"http.py": "# none yet\n"},
    plan=lambda n: f"use {('requests', 'httpx', 'urllib3')[n % 3]}",
)
def three_libraries(n: int) -> Files:
    name = ("requests", "httpx", "urllib3")[n % 3]
    return {"http.py": f"import {name}\n\nclient = {name}.Session()\n", "requirements.txt": f"{name}\n"}


@stuck(
    "five approaches are tried, and then all of them once more, over and over",
    since=6,
    checks="case $(cat round.c) in *round*) t=100.02;; *floor*) t=99.91;; *ceil*) t=100.37;; *long*) t=99.64;;"
    ' *exact*) exit 0;; *) t=99.99;; esac; echo "total $t, wanted 100.00"; exit 1',
    iterations=18,
    start={"round.c": "double total;\n"},
)
def five_approaches(n: int) -> Files:
    body = ("round(x)", "floor(x + 0.5)", "ceil(x)", "(long)(x * 100) / 100.0", "strtod(text(x), 0)")[n % 5]
    return {"round.c": f"double add(double x)\n{{\n    total += {body};\n    return total;\n}}\n"}


@stuck(
    "a test after the other breaks, and nothing is repaired",
    since=1,
    checks="sh suite.sh",
    iterations=12,
    start={
        **{f"lib/{name}.py": f"def {name}():\n    return '{name}'\n" for name in WORDS},
        "suite.sh": 'f=1; for x in lib/*.py; do grep -q return $x || { echo "FAILED ${x}"; f=$((f + 1)); }; done;'
        ' echo "FAILED lib/parser.py"; echo "$f failed"; exit 1\n',
    },
)
def more_broken(n: int) -> Files:
    return {f"lib/{word(n)}.py": f"def {word(n)}():\n    pass  # parser decides, see {n}\n"}


@stuck(
    "after good work the number of failures climbs and climbs",
    since=8,
    checks='n=$(cat state.txt | grep -c bad); echo "$n of 40 pages do not render"; test $n -eq 0',
    iterations=18,
    start={"state.txt": "page bad\n" * 30 + "page good\n" * 10},
)
def good_then_damage(n: int) -> Files:
    bad = 30 - 3 * n if n < 8 else 9 + 3 * (n - 7)
    return {
        "state.txt": "page bad\n" * min(bad, 40) + "page good\n" * (40 - min(bad, 40)),
        "theme/layout.html": "<main>\n" + f"<div class='{word(n)}'>\n" * n + "</main>\n",
    }


@stuck(
    "the executor says that it cannot do it, in other words each time",
    since=1,
    checks="test -f signed.apk || { echo 'signed.apk is missing'; exit 1; }",
    iterations=10,
    ending=lambda n: {
        "status": "no_change",
        "summary": ("I cannot sign without the key.", "There is no key.", "I am unable to find a key store.")[n % 3],
    },
)
def cannot_sign(n: int) -> Files:
    return {}


@stuck(
    "the executor writes down that it cannot do it",
    since=1,
    checks="test -f model.bin || { echo 'model.bin: no such file'; exit 1; }",
    iterations=12,
)
def writes_that_it_cannot(n: int) -> Files:
    reason = ("there is no GPU", "the data are missing", "the download is not allowed", "memory is too small")[n % 4]
    return {"STATUS.md": f"I cannot train the model: {reason}. Attempt {n}.\n"}


@stuck(
    "the planner gives up again and again",
    since=4,
    checks="grep -qs decrypt vault.py || { echo 'vault: ciphertext of unknown format'; exit 1; }",
    iterations=12,
    plan=lambda n: planned(f"look at header {n}") if n < 4 else gives_up("the format is not documented"),
)
def planner_gives_up(n: int) -> Files:
    return {f"probe/header_{n}.py": f"print(open('vault.bin', 'rb').read({n * 16}))\n"} if n < 4 else {}


@stuck(
    "the planner claims that all is done while the check fails",
    since=4,
    checks='n=$(ls pages 2>/dev/null | wc -l); echo "$n of 6 pages exist"; test $n -ge 6',
    iterations=12,
    plan=lambda n: planned(f"write page {n}") if n < 4 else claims_done(),
)
def claims(n: int) -> Files:
    return {f"pages/{word(n)}.html": f"<h1>{word(n)}</h1>\n"} if n < 4 else {}


@stuck(
    "the planner's answers can no longer be read",
    since=5,
    checks='n=$(ls rules 2>/dev/null | wc -l); echo "$n of 12 rules"; test $n -ge 12',
    iterations=13,
    plan=lambda n: planned(f"add rule {n}") if n < 5 else malformed(),
)
def unreadable(n: int) -> Files:
    return {f"rules/{word(n)}.yml": f"id: {n}\nmatch: {word(n)}\n"} if n < 5 else {}


@stuck(
    "the executor fails with the same error each time and leaves nothing",
    since=1,
    checks="test -f out/report.pdf || { echo 'out/report.pdf does not exist'; exit 1; }",
    iterations=10,
    ending=lambda _n: {"status": "failed", "error": "exit 127: latexmk: not found"},
)
def not_found(n: int) -> Files:
    return {}


@stuck(
    "the executor runs out of time each time and leaves another scratch file",
    since=2,
    checks="grep -qs '^done' index.db || { echo 'the index is not complete'; exit 1; }",
    iterations=12,
    ending=lambda n: {"status": "timed_out", "error": f"no answer within {900 + n} s"},
)
def scratch(n: int) -> Files:
    return {f"tmp/index.{n * 7919 % 10007}.part": f"segment 0\noffset {n * 311}\n"}


@stuck(
    "comments are rewritten above code that stays as it is",
    since=1,
    checks="grep -q 'lock' pool.py || { echo 'RuntimeError: pool was changed during iteration'; exit 1; }",
    iterations=12,
    start={"pool.py": "# The pool.\ndef drain(pool):\n    for item in pool:\n        pool.remove(item)\n"},
)
def comments(n: int) -> Files:
    text = f"# Note {n}: the {word(n)} variant drains a pool {('safely', 'in order', 'carefully', 'at once')[n % 4]}.\n"
    return {
        "pool.py": f"{text}# See {word(n + 5)}.\ndef drain(pool):\n    for item in pool:\n        pool.remove(item)\n"
    }


@stuck(
    "unrelated files are added while the check fails in the same words",
    since=1,
    checks="grep -qs 'fn main' src/main.rs || { echo 'error: no bin target named server'; exit 1; }",
    iterations=14,
)
def unrelated(n: int) -> Files:
    kind = ("CODE_OF_CONDUCT", "SECURITY", "SUPPORT", "AUTHORS", "ROADMAP", "GOVERNANCE", "FUNDING")[n % 7]
    return {f".github/{kind}_{n}.md": f"# {kind.title()}\n\nThanks to {word(n)} and {word(n + 3)}.\n" * 2}


@stuck(
    "good work first, then unrelated files, while a run id and a duration change in the output",
    since=6,
    checks="sh run.sh",
    iterations=16,
    start={
        "run.sh": "s=$(cat extras/* src/* 2>/dev/null | cksum); s=${s%% *}; n=$(ls src 2>/dev/null | wc -l)\n"
        'echo "run $s started"; echo "$n passed, $((9 - n)) failed in 0.$((s % 997)) s"; test $n -ge 9\n'
    },
)
def run_ids(n: int) -> Files:
    if n < 6:
        return {f"src/{word(n)}.py": f"def {word(n)}(x):\n    return x ** {n}\n"}
    return {f"extras/{word(n)}.txt": f"{word(n + 2)} {n * 31}\n"}


@stuck(
    "unrelated examples are added, and only the number of collected files goes up",
    since=1,
    checks='n=$(ls examples 2>/dev/null | wc -l); echo "collected $((40 + n)) files"; echo "1 error: schema.json is not'
    ' valid at /items/0"; exit 1',
    iterations=14,
)
def collected(n: int) -> Files:
    return {f"examples/{word(n)}.json": f'{{"name": "{word(n)}", "items": [{n}, {n * 2}, {n * 3}]}}\n'}


@stuck(
    "the message of the test is edited instead of the code",
    since=1,
    checks="python3 -S -B test_tax.py",
    iterations=13,
    start={
        "tax.py": "def tax(x):\n    return x * 0.19\n",
        "test_tax.py": "from tax import tax\n\nassert tax(100) == 7, 'wrong tax'\n",
    },
)
def message(n: int) -> Files:
    text = f"{word(n)}: the tax of {word(n + 4)} goods is not the one that was agreed in paragraph {n}"
    return {"test_tax.py": f"from tax import tax\n\nassert tax(100) == 7, '{text}'\n"}


@stuck(
    "a function is renamed back and forth",
    since=3,
    checks="! grep -q 'def ' api.py || { echo \"AttributeError: no attribute 'fetch_user'\"; exit 1; }",
    iterations=12,
    start={"api.py": "def user():\n    return None\n"},
    plan=lambda n: f"rename it to {('get_user', 'load_user')[n % 2]}",
)
def renamed_back(n: int) -> Files:
    name = ("get_user", "load_user")[n % 2]
    return {"api.py": f"def {name}():\n    return None\n", "calls.py": f"from api import {name}\n\n{name}()\n"}


@stuck(
    "a function gets a new name each time, and the error has the name in it",
    since=2,
    checks='awk \'/^def/ { sub(/\\(.*/, "", $2); print "TypeError: " $2 "() got an unexpected argument"; exit 1 }\' '
    "task.py",
    iterations=13,
    start={"task.py": "def run(job):\n    return job\n"},
)
def new_names(n: int) -> Files:
    return {"task.py": f"def {word(n)}_{('run', 'handle', 'process')[n % 3]}(job):\n    return job\n"}


@stuck(
    "more and more debug prints, which all end up in the output",
    since=3,
    checks="python3 -S -B decode.py",
    iterations=14,
    start={"decode.py": "raise SystemExit('UnicodeDecodeError: byte 0xff at 0')\n"},
)
def prints(n: int) -> Files:
    lines = "".join(f"print('debug {k}: {word(k)} =', {k * k})\n" for k in range(n * 2))
    return {"decode.py": lines + "raise SystemExit('UnicodeDecodeError: byte 0xff at 0')\n"}


@stuck(
    "more retries and longer waits against a service that refuses",
    since=2,
    checks='awk \'$1 == "retries" { n = $3 } END { print "403 Forbidden after " n " tries"; exit 1 }\' upload.conf',
    iterations=12,
    start={"upload.conf": "retries = 1\nwait = 1\n"},
    plan=lambda n: f"retry {n * 5} times",
)
def retries(n: int) -> Files:
    return {"upload.conf": f"retries = {n * 5}\nwait = {2 ** min(n, 10)}\n"}


@stuck(
    "copies of the same module under new names",
    since=2,
    checks="grep -qs 'def total_with_tax' cart*.py || { echo 'cart: total_with_tax is not defined'; exit 1; }",
    iterations=12,
)
def copies(n: int) -> Files:
    suffix = ("", "_v2", "_new", "_final", "_final2", "_fixed", "_clean", "_tmp", "_old", "_ok", "_real", "_last")[
        n - 1
    ]
    text = "class Cart:\n    rows = []\n    tax = 19\n\n    def total(self):\n        return sum(self.rows)\n"
    return {f"cart{suffix}.py": text}


@stuck(
    "another error of its own making each time, and nothing gets better",
    since=2,
    checks="python3 -S -B job.py",
    iterations=14,
    start={"job.py": "raise SystemExit('job: no input')\n"},
)
def made_up(n: int) -> Files:
    error = ("ValueError", "KeyError", "TypeError", "OSError", "LookupError", "ArithmeticError", "RuntimeError")[n % 7]
    return {"job.py": f"def {word(n)}():\n    raise {error}('{word(n + 3)} {n * 13} is not ready')\n\n\n{word(n)}()\n"}


@stuck(
    "waiting for something that does not come",
    since=2,
    checks="test -f approval.txt || { echo 'waiting for approval.txt'; exit 1; }",
    iterations=12,
    plan=lambda _n: "wait for the approval",
)
def waiting(n: int) -> Files:
    return {"wait.log": "".join(f"checked {k} times, not yet\n" for k in range(1, n + 1))}


@stuck(
    "what one iteration does, the next one takes back",
    since=3,
    checks="test $(cat menu.js | wc -l) -ge 20 || { echo 'menu.js: entries are missing'; exit 1; }",
    iterations=12,
    start={"menu.js": "export default [];\n"},
    plan=lambda n: "add the entries" if n % 2 else "revert the last change",
)
def taken_back(n: int) -> Files:
    if n % 2:
        return {"menu.js": "export default [\n  file,\n  edit,\n  view,\n];\n", "icons/edit.svg": "<svg></svg>\n"}
    return {"menu.js": "export default [];\n", "icons/edit.svg": None}


@stuck(
    "each second iteration reverts, and what is tried in between has another name only",
    since=3,
    checks="grep -q 'debounce' search.ts || { echo 'expected 1 request, got 4'; exit 1; }",
    iterations=14,
    start={"search.ts": "input.on('key', send);\n"},
)
def other_names(n: int) -> Files:
    if n % 2 == 0:
        return {"search.ts": "input.on('key', send);\n"}
    return {"search.ts": f"const {word(n)} = send;\ninput.on('key', {word(n)});\n"}


@stuck(
    "whoever repairs the reader breaks the writer, and the other way round",
    since=3,
    checks=(
        "grep -q 'endian big' codec.cfg || { echo 'reader: bad magic number'; exit 1; }",
        "grep -q 'endian little' codec.cfg || { echo 'writer: checksum differs'; exit 1; }",
    ),
    iterations=12,
    start={"codec.cfg": "endian none\n"},
)
def reader_writer(n: int) -> Files:
    return {"codec.cfg": f"endian {'big' if n % 2 else 'little'}\n"}


@stuck(
    "three tests of which the repair of one breaks the next, round and round",
    since=4,
    checks=(
        "! grep -q 'mode [12]' mode.txt || { echo 'test_cold_start failed'; exit 1; }",
        "! grep -q 'mode [02]' mode.txt || { echo 'test_warm_start failed'; exit 1; }",
        "! grep -q 'mode [01]' mode.txt || { echo 'test_restart failed'; exit 1; }",
    ),
    iterations=14,
    start={"mode.txt": "mode 0 1 2\nmode 1\nmode 2\n"},
    plan=lambda n: f"repair the {('cold start', 'warm start', 'restart')[n % 3]}",
)
def three_tests(n: int) -> Files:
    return {"mode.txt": f"mode {n % 3}\n", "boot.py": f"def boot():\n    return start(mode={n % 3})\n"}


@stuck(
    "good work, and then the same constant to the end",
    since=8,
    checks='n=$(ls src 2>/dev/null | wc -l); echo "$n of 9 stages run"; test $n -ge 9',
    iterations=18,
)
def constant_after_work(n: int) -> Files:
    if n < 8:
        return {f"src/{word(n)}.py": f"def {word(n)}(rows):\n    return [row + {n} for row in rows]\n"}
    return {"settings.py": f"BATCH = {n * 8}\n"}


@stuck(
    "a measured value improves and then stays where it is, with noise, while the same number is changed",
    since=8,
    checks="awk '/^took/ { printf \"%.1f s for the import, 20.0 allowed\\n\", $2; exit $2 > 20 }' import.cfg",
    iterations=20,
    start={"import.cfg": "threads 1\ntook 95.0\n"},
)
def plateau(n: int) -> Files:
    took = 95 - 8 * n if n < 8 else 39 + (0.4, 0.9, 0.1, 0.6, 0.3)[n % 5]
    return {"import.cfg": f"threads {n * 2}\ntook {took}\n"}


@stuck(
    "a fudge factor is drawn at random, and the result is never nearer",
    since=2,
    checks="awk '/^factor/ { printf \"total is off by %.2f\\n\", ($2 - 1) * 640 + 11; exit $2 != 1 }' invoice.cfg",
    iterations=14,
    start={"invoice.cfg": "factor 1.5\n"},
)
def fudge(n: int) -> Files:
    return {
        "invoice.cfg": f"factor {(1.3, 1.9, 1.4, 2.2, 1.35, 1.7, 2, 1.45, 1.6, 1.38, 2.1, 1.5, 1.8, 1.42)[n - 1]}\n"
    }


@stuck(
    "a paragraph is worded in other words each time, while a heading is missing",
    since=1,
    checks="grep -q '^## Security' README.md || { echo 'README.md: section Security is missing'; exit 1; }",
    iterations=12,
    start={"README.md": "# Tool\n\nA tool.\n"},
)
def other_words(n: int) -> Files:
    tone = ("fast", "small", "friendly", "modern", "robust")[n % 5]
    return {"README.md": f"# Tool\n\nA {tone} tool, named {word(n)}, that helps {word(n + 6)} teams to be {tone}.\n"}


@stuck(
    "a file is indented by two, by four and by two again",
    since=3,
    checks="grep -q 'apiVersion' deploy.yaml || { echo 'error validating deploy.yaml: apiVersion not set'; exit 1; }",
    iterations=12,
    start={"deploy.yaml": "kind: Service\n"},
)
def indentation(n: int) -> Files:
    space = " " * (2 if n % 2 else 4)
    return {"deploy.yaml": f"kind: Service\nspec:\n{space}ports:\n{space * 2}- port: 80\n{space}type: NodePort\n"}


@stuck(
    "one index after another on the same column, and the plan of the query stays",
    since=2,
    checks="grep -qs 'ON orders (placed_at, state)' db/*.sql || { echo 'SCAN orders: 4200000 rows'; exit 1; }",
    iterations=12,
    plan=lambda n: f"add index {n}",
)
def indexes(n: int) -> Files:
    return {f"db/{n:03}_index.sql": f"CREATE INDEX orders_id_{n} ON orders (id);\n"}


@stuck(
    "semicolons, quotes and equals signs of a script change, and its test fails as before",
    since=2,
    checks="grep -q 'await' save.js || { echo 'expected \"saved\", received a pending Promise'; exit 1; }",
    iterations=13,
    start={"save.js": "function save() { return put('x') }\n"},
)
def styling(n: int) -> Files:
    quote, end = ("'", '"', "`")[n % 3], (";", "")[n % 2]
    head = ("function save()", "const save = () =>", "const save = function ()", "export function save()")[n % 4]
    return {"save.js": f"{head} {{\n  return put({quote}x{quote}){end}\n}}\n"}


@stuck(
    "casts and includes are shuffled in a program that crashes each time",
    since=2,
    checks="grep -q 'malloc' list.c || { echo 'Segmentation fault (core dumped)'; exit 139; }",
    iterations=12,
    start={"list.c": "struct node *head;\n"},
)
def casts(n: int) -> Files:
    heads = ("stdio.h", "stdlib.h", "string.h", "stdint.h")
    top = "".join(f"#include <{heads[(n + k) % 4]}>\n" for k in range(4))
    kind = ("char *", "void *", "struct node *", "uintptr_t")[n % 4]
    return {"list.c": f"{top}\nvoid push(int x)\n{{\n    (({kind})head)->value = x;\n}}\n"}


@stuck(
    "a pin goes to one version after another and back again",
    since=5,
    checks='awk -F== \'$2 != "1.10.13" { print $1 " " $2 " conflicts with sqlmodel"; exit 1 }\' requirements.txt',
    iterations=14,
    start={"requirements.txt": "pydantic\n"},
    plan=lambda n: f"pin version {('1.10', '2.0', '2.4', '2.8')[n % 4]}",
)
def pins(n: int) -> Files:
    return {"requirements.txt": f"pydantic=={('1.10', '2.0', '2.4', '2.8')[n % 4]}\n"}


@stuck(
    "the code is wrapped in one more exception handler each time",
    since=2,
    checks="grep -q 'utf-16' load.py || { echo 'load: 0 rows read, 812 wanted'; exit 1; }",
    iterations=13,
    start={"load.py": "rows = read()\n"},
)
def handlers(n: int) -> Files:
    text = "".join("    " * k + "try:\n" for k in range(n)) + "    " * n + "rows = read()\n"
    text += "".join("    " * k + "except Exception:\n" + "    " * (k + 1) + "rows = []\n" for k in reversed(range(n)))
    return {"load.py": text}


@stuck(
    "one more analysis of the problem per iteration, and no code",
    since=3,
    checks="grep -qs 'release' worker.py || { echo 'deadlock: worker 2 waits for worker 1'; exit 1; }",
    iterations=14,
    plan=lambda n: f"analyse the deadlock more deeply, part {n}",
)
def analyses(n: int) -> Files:
    text = f"# Analysis {n}\n\nThe lock of {word(n)} may be the cause. Next, look at {word(n + 1)}.\n"
    return {f"analysis/ANALYSIS_{n}.md": text + f"It was seen {n * 3} times.\n"}


@stuck(
    "the same plan each time, and no change in the tree",
    since=1,
    checks="grep -qs 'theme' app.css || { echo 'app.css: no theme'; exit 1; }",
    iterations=10,
    plan=lambda _n: "implement the dark theme",
)
def same_plan(n: int) -> Files:
    return {}


@stuck(
    "a new plan each time that is said to be the last step, and no change in the tree",
    since=1,
    checks="grep -qs 'rollback' deploy.sh || { echo 'deploy.sh cannot roll back'; exit 1; }",
    iterations=11,
    plan=lambda n: f"final step {n}: {word(n)} and {word(n + 7)}",
)
def last_steps(n: int) -> Files:
    return {}


@stuck(
    "the code is reformatted in one style after another",
    since=2,
    checks="grep -q 'commit()' store.py || { echo 'store: the row is gone after a restart'; exit 1; }",
    iterations=12,
    start={"store.py": "def store(db, row): db.add(row)\n"},
)
def reformatted(n: int) -> Files:
    gap, space = "\n" * (n % 4 + 1), " " * (n % 3 * 2 + 2)
    return {"store.py": f"def store(\n{space}db,\n{space}row,\n):{gap}{space}db.add(row)\n"}


@stuck(
    "the version and the changelog go up, and nothing else",
    since=1,
    checks="grep -qs 'pagination' list.go || { echo 'GET /items?page=2: 404'; exit 1; }",
    iterations=12,
    plan=lambda n: f"release 1.{n}.0",
)
def releases(n: int) -> Files:
    log = "".join(f"## 1.{k}.0\n\n- Improved {word(k)}.\n\n" for k in range(n, 0, -1))
    return {"VERSION": f"1.{n}.0\n", "CHANGELOG.md": f"# Changelog\n\n{log}"}


@stuck(
    "seeds are changed, and one of three tests fails by chance",
    since=2,
    checks="k=$(awk '{ print $2 * 7 % 3 }' pytest.cfg); case $k in 0) t=merge;; 1) t=split;; *) t=shuffle;; esac;"
    ' echo "FAILED test_$t"; exit 1',
    iterations=13,
    start={"pytest.cfg": "seed 0\n"},
)
def seeds(n: int) -> Files:
    return {"pytest.cfg": f"seed {(0, 4, 2, 9, 13, 5, 8, 7, 11, 18, 1, 3, 20, 16)[n]}\n"}


@stuck(
    "an off-by-one error is moved to one side and to the other",
    since=3,
    checks="awk '/slice/ { d = $3; print \"expected 10 rows, got \" 10 + d; exit d != 0 }' page.cfg",
    iterations=13,
    start={"page.cfg": "slice = 2\n"},
)
def off_by_one(n: int) -> Files:
    return {"page.cfg": f"slice = {1 if n % 2 else -1}\n"}


@stuck(
    "more and more rules of the linter are ignored, which the check does not accept",
    since=2,
    checks="! grep -q 'import os' ui.py || { echo 'ui.py:2: unused import os'; exit 1; }",
    iterations=12,
    start={"ui.py": "# unused\nimport os\n"},
)
def ignored(n: int) -> Files:
    return {"lint.toml": "ignore = [\n" + "".join(f'  "W{k * 101}",\n' for k in range(1, n + 1)) + "]\n"}


@stuck(
    "a file is deleted and made again",
    since=3,
    checks="grep -qs 'CN=' cert.pem || { echo 'cert.pem: no subject'; exit 1; }",
    iterations=12,
)
def made_again(n: int) -> Files:
    return {"cert.pem": "-----BEGIN-----\nAAAA\n-----END-----\n" if n % 2 else None}


@stuck(
    "one more layer of abstraction per iteration over a function that is still missing",
    since=2,
    checks="grep -rqs 'def send_mail' app || { echo \"NameError: name 'send_mail' is not defined\"; exit 1; }",
    iterations=12,
)
def layers(n: int) -> Files:
    kind = ("Factory", "Provider", "Manager", "Adapter", "Registry", "Facade", "Proxy")[n % 7]
    name = f"Abstract{word(n).title()}{kind}"
    return {
        f"app/{word(n)}_{kind.lower()}.py": f"class {name}:\n    def make(self):\n        raise NotImplementedError\n"
    }


@stuck(
    "tricks against a device that is not there",
    since=2,
    checks="test -c dev/ttyUSB0 || { echo 'cannot open dev/ttyUSB0: no such device'; exit 1; }",
    iterations=12,
    plan=lambda n: f"open the port with another mode ({n})",
)
def no_device(n: int) -> Files:
    mode = ("0666", "0777", "0660", "a+rw")[n % 4]
    return {"open_port.sh": f"chmod {mode} dev/ttyUSB0 || true\nstty -F dev/ttyUSB0 {9600 * n}\n"}


@stuck(
    "the program is written from scratch in another language each time, and none of them reads the file",
    since=2,
    checks="grep -qs 'skip the header' convert.* || { echo 'row 1: \"price\" is not a number'; exit 1; }",
    iterations=13,
)
def from_scratch(n: int) -> Files:
    endings = ("py", "js", "rb", "go", "pl", "lua", "php")
    old, new = endings[(n - 1) % 7], endings[n % 7]
    return {
        f"convert.{old}": None,
        f"convert.{new}": f"read input.csv in {new}\nfor each row: price = number(row[2])\n",
    }


@stuck(
    "a fixture grows by random rows, and the count in the output with it",
    since=2,
    checks="n=$(cat fixture.csv | wc -l); echo \"read $n rows in $((n * 3)) ms\"; grep -q 'total_cents' fixture.csv ||"
    " { echo 'column total: type mismatch'; exit 1; }",
    iterations=14,
    start={"fixture.csv": "id,total\n"},
)
def growing_fixture(n: int) -> Files:
    return {"fixture.csv": "id,total\n" + "".join(f"{k * 7919 % 1009},{k * 31 % 97}.00\n" for k in range(n * 6))}


@stuck(
    "a gate of eight tests: six turn green, and then the last two are traded for each other",
    since=9,
    checks=(
        'n=$(ls done 2>/dev/null | wc -l); echo "$n of 6 small tests pass"; test $n -ge 6',
        "grep -qs 'isolation serializable' db.conf || { echo 'phantom rows'; exit 1; }",
        "grep -qs 'isolation read' db.conf || { echo 'lock wait timeout'; exit 1; }",
    ),
    iterations=18,
)
def traded(n: int) -> Files:
    if n <= 6:
        return {f"done/{word(n)}.txt": f"passes since {n}\n", f"src/{word(n)}.java": f"class {word(n).title()} {{}}\n"}
    return {"db.conf": f"isolation {'serializable' if n % 2 else 'read committed'}\n"}


@stuck(
    "long honest work, and then an executor that refuses",
    since=10,
    checks='n=$(ls units 2>/dev/null | wc -l); echo "$n of 14 units are converted"; test $n -ge 14',
    iterations=18,
    ending=lambda n: {"status": "refused", "error": "I will not convert this unit."} if n >= 10 else {},
)
def refuses(n: int) -> Files:
    return {f"units/{word(n)}.txt": f"1 {word(n)} = {n * 3} cm\n"} if n < 10 else {}


@stuck(
    "unrelated notes are added, and a log with times of the day is printed before the same error",
    since=1,
    checks='s=$(cat ideas/* 2>/dev/null | cksum); s=${s%% *}; echo "$((s % 24)):$((s % 60)):$((s / 7 % 60)) connect";'
    " echo \"[trace $s] password authentication failed for user app\"; grep -qs '^password' db.env",
    iterations=14,
    start={"db.env": "user=app\n"},
)
def times_of_day(n: int) -> Files:
    return {f"ideas/{word(n)}.md": f"Think about {word(n + 2)} and {word(n + 9)}, {n * 41} words.\n"}


@stuck(
    "three of four checks turn green, and the last one only gets longer sleeps",
    since=7,
    checks=(
        "test -f api.py || { echo 'no api'; exit 1; }",
        "test -f db.py || { echo 'no db'; exit 1; }",
        "test -f ui.py || { echo 'no ui'; exit 1; }",
        "grep -qs 'wait_for' e2e.sh || { echo 'element #total never appeared'; exit 1; }",
    ),
    iterations=16,
)
def longer_sleeps(n: int) -> Files:
    if n <= 5:
        name = ("db", "api", "models", "ui", "routes")[n - 1]
        return {f"{name}.py": f"def {name}():\n    return [{n}, {n + 1}]\n"}
    return {"e2e.sh": f"open /cart\nsleep {(n - 5) * 10}\nclick '#pay'\n"}


@stuck(
    "a skip mark moves from one failing test to another",
    since=2,
    checks="sh skips.sh",
    iterations=14,
    start={
        "skip.txt": "none\n",
        "skips.sh": 'for t in zoom pan tilt; do grep -q $t skip.txt || echo "FAILED test_$t"; done\n'
        "grep -qs 'matrix' camera.py\n",
    },
    plan=lambda n: f"skip test_{('zoom', 'pan', 'tilt')[n % 3]}",
)
def moving_skip(n: int) -> Files:
    return {"skip.txt": f"{('zoom', 'pan', 'tilt')[n % 3]}\n"}
