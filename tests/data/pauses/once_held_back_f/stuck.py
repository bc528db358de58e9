"""Work that no longer gets anywhere, in many languages and with many kinds of checks."""

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, malformed, planned


@stuck(
    "a time limit goes up and down between the same two values",
    since=3,
    checks="sh e2e.sh",
    iterations=14,
    plan=lambda n: "Raise the time limit" if n % 2 else "Lower the time limit again",
    start={
        "e2e.config.js": "module.exports = { timeout: 10000 };\n",
        "e2e.sh": """t=$(awk '/timeout/ { print $5 + 0 }' e2e.config.js)
echo "TimeoutError: locator('#checkout') not visible after ${t} ms"
exit 1
""",
    },
)
def time_limit(n: int) -> Files:
    return {"e2e.config.js": f"module.exports = {{ timeout: {60000 if n % 2 else 30000} }};\n"}


@stuck(
    "pytest fails at the same assertion while only comments change",
    since=3,
    checks="python3 -BS check.py",
    iterations=12,
    plan=lambda n: f"Clarify the rounding, attempt {n}",
    start={
        "src/tax.py": "def tax(net):\n    return net * 0.2\n",
        "check.py": """import sys
space = {}
exec(open("src/tax.py").read(), space)
got = space["tax"](9.99)
print(f"E       assert {got!r} == 2.0")
print("FAILED tests/test_tax.py::test_rounds_to_cents - assert")
print("1 failed, 17 passed in 0.21s")
sys.exit(got != 2.0)
""",
    },
)
def comments(n: int) -> Files:
    if n < 3:
        return {"src/tax.py": f"def tax(net):\n    return round(net * 0.2, {5 - n})\n"}
    said = ("rounds to cents", "must round half up", "rounding: see the spec", "NOTE: cents", "round correctly here")[
        n % 5
    ]
    return {"src/tax.py": f"def tax(net):\n    # {said}\n    return round(net * 0.2, 3)\n"}


@stuck(
    "only a journal of attempts grows",
    since=3,
    checks="sh build.sh",
    iterations=12,
    plan=lambda n: f"Investigate the linker error ({n})",
    start={
        "build.sh": "grep -q -- -lssl Makefile && exit 0\necho 'ld: undefined reference to `SSL_new`'\nexit 1\n",
        "Makefile": "LIBS = -lz\n",
    },
)
def journal(n: int) -> Files:
    if n <= 2:
        return {"Makefile": f"LIBS = -lz -l{('crypt', 'crypto')[n - 1]}\n"}
    return {
        "JOURNAL.md": "".join(
            f"Attempt {k}: the linker still does not find SSL_new. Will look again.\n" for k in range(3, n + 1)
        )
    }


@stuck(
    "a fix of the one test breaks the other, and back",
    since=3,
    checks=("sh decode.sh", "sh encode.sh"),
    iterations=14,
    start={
        "codec.go": "const order = none\n",
        "decode.sh": "grep -q little codec.go && { echo ok; exit; }\necho '--- FAIL: TestDecode'\nexit 1\n",
        "encode.sh": "grep -q big codec.go && { echo ok; exit; }\necho '--- FAIL: TestEncode'\nexit 1\n",
    },
)
def byte_order(n: int) -> Files:
    return {"codec.go": f"const order = {'little' if n % 2 else 'big'}\n"}


@stuck(
    "nothing is changed any more, the plan is to verify",
    since=5,
    checks="sh verify.sh",
    iterations=14,
    plan=lambda n: f"Implement rule {n}" if n < 5 else "Verify that everything works",
    start={"verify.sh": 'n=$(cat rules.yml | grep -c when)\necho "$n of 7 rules"\n[ $n -ge 7 ]\n', "rules.yml": ""},
)
def verify(n: int) -> Files:
    return {"rules.yml": "".join(f"- when: {k}\n  then: {k * 3}\n" for k in range(n))} if n < 5 else {}


@stuck(
    "the executor ends with the same error each time",
    since=1,
    checks="sh present.sh",
    iterations=10,
    plan=lambda _n: "Install the toolchain",
    ending=lambda _n: {"status": "failed", "error": "sudo: a password is required"},
    start={"present.sh": "test -x tools/protoc || { echo 'protoc: not found'; exit 127; }\n"},
)
def no_password(n: int) -> Files:
    return {}


@stuck(
    "more and more sleeps, the same failure with another duration",
    since=3,
    checks="sh race.sh",
    iterations=13,
    plan=lambda n: f"Wait {n * 100} ms longer",
    start={
        "worker.rb": "Thread.new { publish }\n",
        "race.sh": """n=$(cat worker.rb | grep -c sleep)
took=$(cat worker.rb | cksum | awk -v n=$n '{ printf "%.4f", n * 0.1 + $1 % 1000 / 20000 }')
echo "Failure/Error: expect(inbox.size).to eq 3"
echo "     got: 2"
echo "Finished in $took seconds"
exit 1
""",
    },
)
def sleeps(n: int) -> Files:
    return {"worker.rb": "Thread.new { publish }\n" + "sleep 0.1\n" * n}


NAMES = ["value", "item", "entry", "node", "record", "thing", "element", "datum", "object", "field"]


@stuck(
    "one function is written again with other names",
    since=2,
    checks="python3 -BS median.py",
    iterations=12,
    plan=lambda n: f"Rewrite median() more clearly, version {n}",
    start={
        "stats.py": "def median(xs):\n    return 0\n",
        "median.py": """import sys
space = {}
exec(open("stats.py").read(), space)
got = space["median"]([4, 1, 3, 2])
print("test_median_of_even_count ... FAIL")
print(f"AssertionError: {got} != 2.5")
sys.exit(got != 2.5)
""",
    },
)
def median(n: int) -> Files:
    x = NAMES[n % 10]
    return {
        "stats.py": f"def median({x}s):\n    sorted_{x}s = sorted({x}s)\n    middle_{x} = len(sorted_{x}s) // 2\n"
        f"    return sorted_{x}s[middle_{x}]\n"
    }


@stuck(
    "the borrow checker is answered with a clone, a reference and a clone again",
    since=4,
    checks="sh borrow.sh",
    iterations=13,
    start={
        "src/main.rs": "fn main() { let s = String::new(); }\n",
        "borrow.sh": """case $(cat src/main.rs) in
*clone*) echo 'error[E0308]: mismatched types: expected `&mut String`, found `String`';;
*\\&s*) echo 'error[E0502]: cannot borrow `s` as mutable because it is also borrowed as immutable';;
*) echo 'error[E0382]: borrow of moved value: `s`';;
esac
exit 101
""",
    },
)
def borrow(n: int) -> Files:
    how = ("&s", "s.clone()", "s")[n % 3]
    return {
        "src/main.rs": "fn main() {\n    let mut s = String::new();\n"
        f"    let r = view({how});\n    push(&mut t, r);\n}}\n"
    }


@stuck(
    "a suppression moves around and the number of warnings stays",
    since=2,
    checks="sh eslint.sh",
    iterations=12,
    plan=lambda n: f"Silence the warning on line {n % 5 + 1}",
    start={
        "a.js": "".join(f"var v{k} = {k};\n" for k in range(5)),
        "eslint.sh": """awk '/disable-line/ { next } { print "  " NR ":1  error  Unexpected var  no-var"; n++ }
  END { print "✖ " n " problems (" n " errors, 0 warnings)"; exit n > 0 }' a.js
""",
    },
)
def suppression(n: int) -> Files:
    line = n % 5
    return {"a.js": "".join(f"var v{k} = {k};{' // eslint-disable-line' if k == line else ''}\n" for k in range(5))}


@stuck(
    "a buffer size is tuned at random and the benchmark only shows noise",
    since=4,
    checks="sh bench.sh",
    iterations=14,
    plan=lambda n: f"Tune the size of the buffer ({n})",
    start={
        "conf.h": "#define BUF 4096\n",
        "bench.sh": """cat conf.h | cksum | awk '{ printf "throughput %.1f MB/s (goal 900.0)\\n", 402 + $1 % 140 / 10 }'
exit 1
""",
    },
)
def tuning(n: int) -> Files:
    return {"conf.h": f"/* run {n} */\n#define BUF {(4096, 16384, 8192)[n % 3]}\n"}


@stuck(
    "new scripts to look into the problem, never a change of the code",
    since=4,
    checks="sh parse.sh",
    iterations=12,
    plan=lambda n: "Fix the date format" if n < 4 else "Write another script to debug the parser",
    start={
        "parse.js": "const format = 'D';\n",
        "parse.sh": "echo \"expected '2024-02-29', got 'Invalid Date'\"\nexit 1\n",
    },
)
def debug_scripts(n: int) -> Files:
    if n < 4:
        return {"parse.js": f"const format = '{('YYYY-M-D', 'YYYY-MM-D', 'YYYY-MM-DD')[n - 1]}';\n"}
    return {f"debug_{n}.js": f"const p = require('./parse');\nconsole.log('debug {n}', p.parse('2024-02-29'));\n"}


@stuck(
    "a golden file is generated in another order each time",
    since=3,
    checks="python3 -BS golden.py",
    iterations=12,
    plan=lambda _n: "Regenerate the output",
    start={
        "want.txt": "".join(f"{x}\n" for x in sorted(NAMES)),
        "got.txt": "",
        "golden.py": """import difflib, sys
want, got = (open(f).read().splitlines() for f in ("want.txt", "got.txt"))
diff = list(difflib.unified_diff(want, got, "want.txt", "got.txt", lineterm="", n=0))
print("\\n".join(diff))
sys.exit(bool(diff))
""",
    },
)
def golden_order(n: int) -> Files:
    turn = (n * 3 + 1) % 9 + 1
    order = sorted(NAMES)[::-1] if n % 2 else sorted(NAMES)
    return {"got.txt": "".join(f"{x}\n" for x in order[turn:] + order[:turn])}


@stuck(
    "rows are drawn anew at random and about as many are not valid as before",
    since=3,
    checks="awk -f valid.awk rows.csv",
    iterations=14,
    plan=lambda n: f"Generate the sample with seed {n * 17}",
    start={
        "rows.csv": "0,0\n",
        "valid.awk": """BEGIN { FS = "," }
$2 < $1 { bad++ }
END { print bad + 0 " of " NR " rows end before they begin"; exit bad > 0 || NR < 40 }
""",
    },
)
def random_rows(n: int) -> Files:
    return {
        "rows.csv": "".join(f"{(k * 7919 * n + 31 * n) % 97},{(k * 104729 + n * n * 57) % 89}\n" for k in range(40))
    }


@stuck(
    "another port is tried each time and the connection is always refused",
    since=4,
    checks="sh ping.sh",
    iterations=14,
    plan=lambda n: f"Use port {8000 + n}",
    start={
        "server.toml": "port = 80\n",
        "ping.sh": """p=$(awk '{ print $3 }' server.toml)
echo "dial tcp 127.0.0.1:$p: connect: connection refused"
exit 1
""",
    },
)
def ports(n: int) -> Files:
    return {"server.toml": f"port = {8000 + n}\n"}


@stuck(
    "one migration is numbered again and again",
    since=3,
    checks="sh migrate.sh",
    iterations=13,
    plan=lambda n: f"Renumber the migration to {n + 20}",
    start={
        "migrate.sh": """for f in db/*.sql; do [ -f $f ] && echo "running ${f#db/}"; done
echo 'ERROR: relation "orders" does not exist'
exit 3
"""
    },
)
def renumber(n: int) -> Files:
    return {f"db/{n + 19:03d}_totals.sql": None, f"db/{n + 20:03d}_totals.sql": "ALTER TABLE orders ADD total int;\n"}


@stuck(
    "a link is mended on one page by breaking it on the next, in a circle of three",
    since=4,
    checks="sh links.sh",
    iterations=14,
    plan=lambda n: f"Mend the link on page {'abc'[(n - 1) % 3]}",
    start={
        **{f"docs/{p}.md": "[next](guide.md)\n" for p in "abc"},
        "links.sh": """grep -l 'gone.md' docs/*.md | awk '{ print "WARNING: " $1 ": link to gone.md" }'
grep -q gone.md docs/*.md || { grep -q new.md docs/*.md && exit 0; echo 'WARNING: guide.md was renamed'; }
exit 1
""",
    },
)
def link_circle(n: int) -> Files:
    return {f"docs/{p}.md": f"[next]({'gone' if k == n % 3 else 'new'}.md)\n" for k, p in enumerate("abc")}


@stuck(
    "the planner claims that all is done, the check denies it",
    since=4,
    checks="sh total.sh",
    iterations=12,
    plan=lambda n: planned(f"Write part {n}") if n < 4 else claims_done(),
    start={
        "total.sh": 'n=$(cat parts.txt | grep -c part)\necho "$n parts, 5 are needed"\n[ $n -ge 5 ]\n',
        "parts.txt": "",
    },
)
def claims(n: int) -> Files:
    return {"parts.txt": "".join(f"part {k} of the plan\n" for k in range(n))} if n < 4 else {}


@stuck(
    "no answer of the planner can be used any more",
    since=5,
    checks="sh spec.sh",
    iterations=13,
    plan=lambda n: planned(f"Describe endpoint {n}") if n < 5 else malformed(),
    start={"spec.sh": 'n=$(cat openapi.yml | grep -c path)\necho "$n of 9 paths"\n[ $n -ge 9 ]\n', "openapi.yml": ""},
)
def no_answers(n: int) -> Files:
    return {"openapi.yml": "".join(f"path: /{x}\n" for x in NAMES[:n])} if n < 5 else {}


@stuck(
    "a pin goes round three versions that do not fit",
    since=4,
    checks="sh resolve.sh",
    iterations=15,
    plan=lambda n: f"Pin numpy to 1.{24 + n % 3}",
    start={
        "requirements.txt": "numpy\npandas==2.9\n",
        "resolve.sh": """v=$(awk -F== '/numpy/ { print $2 }' requirements.txt)
echo "ERROR: Cannot install numpy==$v and pandas==2.9 because these package versions have conflicting dependencies."
exit 1
""",
    },
)
def pins(n: int) -> Files:
    return {"requirements.txt": f"numpy==1.{24 + n % 3}\npandas==2.9\n"}


@stuck(
    "one file is deleted and made again with the same text",
    since=3,
    checks="sh config.sh",
    iterations=12,
    plan=lambda n: "Delete the broken configuration" if n % 2 else "Create the configuration",
    start={
        "app.ini": "[db]\nhost=\n",
        "config.sh": "[ -f app.ini ] || { echo 'app.ini: no such file'; exit 2; }\necho 'db.host is empty'; exit 1\n",
    },
)
def recreate(n: int) -> Files:
    return {"app.ini": None if n % 2 else "[db]\nhost=\n"}


@stuck(
    "a change is made, reverted and made again",
    since=7,
    checks="sh cc.sh",
    iterations=16,
    plan=lambda n: f"Port module {n}" if n < 6 else ("Revert the last change", "Apply the change once more")[n % 2],
    start={
        "cc.sh": """n=0
for f in src/*.c; do [ -f $f ] && grep -q c11 $f && n=$((n + 1)); done
echo "$((7 - n)) files do not compile with -std=c11"
[ $n -ge 7 ]
"""
    },
)
def reverts(n: int) -> Files:
    if n < 5:
        return {f"src/{NAMES[n]}.c": f'/* c11 */\n_Static_assert(sizeof(int) == 4, "{NAMES[n]}");\n'}
    return {"src/pool.c": "/* c11 */\n_Atomic int used;\n" if n % 2 else "volatile int used;\n"}


@stuck(
    "a crash is looked at with prints that come and go",
    since=3,
    checks="sh ctest.sh",
    iterations=13,
    plan=lambda n: f"Print the state at {NAMES[n % 10]}" if n % 2 else "Remove the prints",
    start={
        "tree.cpp": "Node* next(Node* n) { return n->right; }\n",
        "ctest.sh": """echo '    Start 4: tree_iterates'
echo '4/9 Test #4: tree_iterates ....***Exception: SegFault'
echo '89% tests passed, 1 tests failed out of 9'
exit 8
""",
    },
)
def prints(n: int) -> Files:
    line = f'  printf("{NAMES[n % 10]} %p\\n", n);\n' if n % 2 else ""
    return {"tree.cpp": f"Node* next(Node* n) {{\n{line}  return n->right;\n}}\n"}


@stuck(
    "coverage stays where it is because each new test runs the same lines",
    since=5,
    checks="sh cover.sh",
    iterations=14,
    plan=lambda n: f"Add test {n}",
    start={
        "cover.sh": """awk '/open_/ { split($0, w, "_"); if (!(w[2] in seen)) { seen[w[2]] = 1; n++ } }
  END { printf "TOTAL coverage: %.1f%%, required 90.0%%\\n", 60 + n * 3.8; exit 60 + n * 3.8 < 90 }' test_all.py
""",
        "test_all.py": "",
    },
)
def same_lines(n: int) -> Files:
    return {
        "test_all.py": "".join(
            f"def test_{k}():\n    assert open_{NAMES[min(k, 4)]}_({k})\n\n" for k in range(1, n + 1)
        )
    }


@stuck(
    "only the seed of a flaky test is changed",
    since=3,
    checks="sh flaky.sh",
    iterations=14,
    plan=lambda n: f"Try seed {n * 1000 + 7}",
    start={
        "seed.txt": "1\n",
        "flaky.sh": """p=$(cat seed.txt | cksum | awk '{ print 9 + $1 % 6 }')
echo "seed $(cat seed.txt): $p of 20 runs passed"
exit 1
""",
    },
)
def seeds(n: int) -> Files:
    return {"seed.txt": f"{n * 1000 + 7}\n"}


@stuck(
    "a model that guesses is trained again with other numbers",
    since=4,
    checks="sh train.sh",
    iterations=15,
    plan=lambda n: f"Train with a learning rate of {n % 4 + 1}e-{n % 3 + 2}",
    start={
        "params.yaml": "lr: 1.0\n",
        "train.sh": """cat params.yaml | cksum | awk '{
  printf "loss %.4f grad_norm 0.0000 accuracy %.3f (chance: 0.500, want: 0.800)\\n",
  0.69 + $1 % 71 / 10000, 0.48 + $1 % 43 / 1000 }'
exit 1
""",
    },
)
def guessing(n: int) -> Files:
    return {"params.yaml": f"lr: {n % 4 + 1}e-{n % 3 + 2}\nbatch: {2 ** (n % 5 + 3)}\nseed: {n}\n"}


@stuck(
    "each error that is fixed comes back three iterations later",
    since=4,
    checks="sh tsc.sh",
    iterations=16,
    plan=lambda _n: "Fix the error that tsc shows",
    start={
        "view.ts": "let mode = 0;\n",
        "tsc.sh": """case $(cat view.ts) in
*string*) echo "view.ts(4,9): error TS2345: Argument of type 'string' is not assignable to type 'number'.";;
*number*) echo "view.ts(9,3): error TS2322: Type 'number' is not assignable to type 'string | null'.";;
*unknown*) echo "view.ts(6,1): error TS18046: 'mode' is of type 'unknown'.";;
*) echo "view.ts(1,5): error TS7005: Variable 'mode' implicitly has an 'any' type.";;
esac
exit 2
""",
    },
)
def type_circle(n: int) -> Files:
    return {"view.ts": f"let mode: {('string', 'number', 'unknown')[n % 3]};\nshow(mode);\n"}


@stuck(
    "a silent check, and only a version is raised",
    since=3,
    checks="grep -q '^export default' widget.mjs",
    iterations=12,
    plan=lambda n: f"Release version 0.{n}.0" if n > 2 else "Fill the widget",
    start={"widget.mjs": "function widget() {}\n", "package.json": '{"version": "0.0.0"}\n'},
)
def versions(n: int) -> Files:
    if n < 3:
        return {"widget.mjs": "function widget(root) {\n" + "  root.append(label());\n" * n + "}\n"}
    return {"package.json": f'{{"version": "0.{n}.0"}}\n'}


@stuck(
    "a file is indented with tabs, then with spaces",
    since=3,
    checks="sh yaml.sh",
    iterations=12,
    plan=lambda n: "Indent with tabs" if n % 2 else "Indent with spaces",
    start={
        "ci.yml": "jobs:\n",
        "yaml.sh": """grep -q '\t' ci.yml && { echo "found character that cannot start any token, line 2"; exit 1; }
echo "jobs.test: unknown key 'step', did you mean 'steps'?"; exit 1
""",
    },
)
def indent(n: int) -> Files:
    pad = "\t" if n % 2 else "  "
    return {"ci.yml": f"jobs:\n{pad}test:\n{pad}{pad}step:\n{pad}{pad}{pad}- run: make\n"}


FOLDERS = ("src", "lib", "src/app", "app")


@stuck(
    "a module moves from folder to folder and the import fails everywhere",
    since=5,
    checks="sh imports.sh",
    iterations=16,
    plan=lambda n: f"Move core.py to {FOLDERS[n % 4]}/",
    start={
        "src/core.py": "def run():\n    return 42\n",
        "imports.sh": "echo \"ModuleNotFoundError: No module named 'core'\"\nexit 1\n",
    },
)
def folders(n: int) -> Files:
    return {f"{FOLDERS[(n - 1) % 4]}/core.py": None, f"{FOLDERS[n % 4]}/core.py": "def run():\n    return 42\n"}


@stuck(
    "an import goes into the function and out of it again",
    since=3,
    checks="sh circular.sh",
    iterations=13,
    start={
        "models.py": "from views import show\n",
        "circular.sh": """if grep -q '^from' models.py; then
  echo "ImportError: cannot import name 'show' (circular import)"; exit 1; fi
echo "NameError: name 'show' is not defined"; exit 1
""",
    },
)
def circular(n: int) -> Files:
    return {
        "models.py": "def save():\n    from views import show\n\nshow()\n"
        if n % 2
        else "from views import show\n\nshow()\n"
    }


@stuck(
    "a report of the state is written afresh instead of the code",
    since=4,
    checks="sh queue.sh",
    iterations=12,
    plan=lambda n: f"Implement job {n}" if n < 4 else f"Report the state ({n})",
    start={
        "queue.sh": 'n=0\nfor f in jobs/*.ex; do [ -f $f ] && n=$((n + 1)); done\necho "$n of 8 jobs"\n[ $n -ge 8 ]\n'
    },
)
def reports(n: int) -> Files:
    if n < 4:
        return {f"jobs/{NAMES[n]}.ex": f"defmodule {NAMES[n].title()} do\n  def run(x), do: x * {n}\nend\n"}
    tone = ("The work goes well.", "Good progress was made.", "We are nearly there.", "Only a few jobs are open.")[
        n % 4
    ]
    return {"STATUS.md": f"# State after iteration {n}\n\n{tone}\n\nNext: implement the open jobs.\n"}


@stuck(
    "an offset is tried hour by hour against a time that moves with it",
    since=3,
    checks="sh zone.sh",
    iterations=15,
    plan=lambda n: f"Set the offset to {(n * 5) % 12 - 6} hours",
    start={
        "zone.cfg": "offset=0\n",
        "zone.sh": """o=$(awk -F= '{ print $2 }' zone.cfg)
s=$(cat zone.cfg | cksum | awk '{ print $1 % 60 }')
echo "AssertionError: 2024-03-31T$((12 + o)):30:$s is naive, expected an aware datetime"
exit 1
""",
    },
)
def offset(n: int) -> Files:
    return {"zone.cfg": f"offset={(n * 5) % 12 - 6}\n"}


@stuck(
    "a key that nobody has is asked for again and again",
    since=3,
    checks="sh licence.sh",
    iterations=10,
    plan=lambda n: f"Look for the key, place {n}" if n < 3 else "Ask for the licence key",
    start={"licence.sh": "[ -s licence.key ] || { echo 'licence.key: not found'; exit 3; }\n"},
)
def missing_key(n: int) -> Files:
    return (
        {f"search_{n}.txt": f"place {n}: vault/{NAMES[n]} has no key\n"}
        if n < 3
        else {"request.txt": f"Request {n}: please send licence.key.\n"}
    )


@stuck(
    "frees are put in another order and the same bytes are lost",
    since=3,
    checks="sh asan.sh",
    iterations=14,
    plan=lambda n: f"Free {NAMES[n % 5]} first",
    start={
        "list.c": "void drop(List *l) {}\n",
        "asan.sh": """pid=$(cat list.c | cksum | awk '{ print $1 % 30000 + 2000 }')
echo "==$pid==ERROR: LeakSanitizer: detected memory leaks"
echo "SUMMARY: AddressSanitizer: 136 byte(s) leaked in 17 allocation(s)."
exit 1
""",
    },
)
def frees(n: int) -> Files:
    order = NAMES[n % 5 : 5] + NAMES[: n % 5]
    return {"list.c": "void drop(List *l) {\n" + "".join(f"  free(l->{x});\n" for x in order) + "}\n"}


WORDS = ("Speichern", "Sichern", "Ablegen", "Aufbewahren", "Merken")


@stuck(
    "one message is translated again with other words, thirteen stay without",
    since=5,
    checks="sh keys.sh",
    iterations=14,
    plan=lambda n: f"Translate message {n}" if n < 5 else f"Improve 'save' to {WORDS[n % 5]}",
    start={
        "de.json": "{\n}\n",
        "keys.sh": 'n=$(cat de.json | grep -c :)\necho "missing keys: $((17 - n))"\n[ $n -ge 17 ]\n',
    },
)
def wording(n: int) -> Files:
    first = "".join(f'  "{x}": "{x.upper()}",\n' for x in NAMES[: min(n, 4) - 1]) if n > 1 else ""
    return {"de.json": "{\n" + first + f'  "save": "{WORDS[n % 5]}"\n}}\n'}


@stuck(
    "a switch goes on and off and each time a line of history is left behind",
    since=3,
    checks="sh flag.sh",
    iterations=14,
    plan=lambda n: f"Switch strict mode {'on' if n % 2 else 'off'}",
    start={
        "flags.env": "STRICT=0\n",
        "flag.sh": """grep -q STRICT=1 flags.env && { echo 'strict: schema.graphql has 23 errors'; exit 1; }
echo 'lenient: query Cart returned null'; exit 1
""",
    },
)
def switch(n: int) -> Files:
    history = "".join(f"# {k}: was {k % 2}, did not help\n" for k in range(1, n))
    return {"flags.env": f"{history}STRICT={n % 2}\n"}


@stuck(
    "special cases are piled up and more and more tests fail",
    since=4,
    checks="sh worse.sh",
    iterations=13,
    plan=lambda n: f"Handle special case {n}",
    start={
        "Price.java": "class Price {}\n",
        "worse.sh": """n=$(cat Price.java | grep -c 'if (')
f=$((n < 3 ? 12 - n * 2 : 3 + n * 2))
echo "Tests run: 80, Failures: $f, Errors: 0, Skipped: 0"
exit 1
""",
    },
)
def special_cases(n: int) -> Files:
    body = "".join(f'    if (sku.equals("{NAMES[k % 10]}-{k}")) return {k * 13 % 7};\n' for k in range(n))
    return {"Price.java": f"class Price {{\n  int of(String sku) {{\n{body}    return 0;\n  }}\n}}\n"}


@stuck(
    "copies of one file with new names, none with the name that is wanted",
    since=2,
    checks="test -f handler.py",
    iterations=12,
    plan=lambda n: f"Write the handler, version {n}",
)
def copies(n: int) -> Files:
    return {f"handler_v{n}.py": "def handler(event, context):\n    return {'statusCode': 200}\n"}


@stuck(
    "a minifier is switched to and fro after the easy savings are made",
    since=7,
    checks="sh size.sh",
    iterations=17,
    plan=lambda n: f"Remove {NAMES[n - 1]}" if n < 5 else f"Use {('terser', 'esbuild')[n % 2]} to minify",
    start={
        "webpack.config.js": "".join(f"use('{x}');\n" for x in NAMES[:8]) + "minify('none');\n",
        "size.sh": """n=$(cat webpack.config.js | grep -c use)
grep -q terser webpack.config.js && x=3 || x=7
kb=$((n * 52 + x))
echo "asset main.js $kb.$((n + x)) KiB [emitted] exceeds the limit of 120 KiB"
exit 1
""",
    },
)
def minifier(n: int) -> Files:
    left = NAMES[min(n, 4) : 8]
    tool = "none" if n < 5 else ("terser", "esbuild")[n % 2]
    return {"webpack.config.js": "".join(f"use('{x}');\n" for x in left) + f"minify('{tool}');\n"}
