"""Episodes that are stuck: each has to be noticed within five iterations."""

# ruff: noqa: E501

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, gives_up


def put(text: str, /, **values: object) -> str:
    """Fill in `<key>` in the text."""
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    return text


def turn(states: tuple[str, ...], n: int) -> str:
    return states[n % len(states)]


SDK = """android {
    compileSdk <compile>
    defaultConfig {
        minSdk <min>
        targetSdk <target>
    }
}
"""


@stuck(
    "SDK levels are tried out one after the other",
    since=1,
    checks="""echo "> Manifest merger failed : Attribute application@allowBackup value=(true) from AndroidManifest.xml:9:9-35"
echo "BUILD FAILED in 4s"; exit 1""",
    start={"app/build.gradle": put(SDK, compile=33, min=21, target=33)},
    plan=lambda _n: "adjust the SDK versions",
    iterations=10,
)
def sdk_levels(n: int) -> Files:
    return {"app/build.gradle": put(SDK, compile=33 + n % 3, min=(23, 24, 21, 26)[n % 4], target=33 + (n + 1) % 3)}


SESSION = (
    "    session.commit()\n", "    session.flush()\n", "    session.expire_all()\n", "    session.refresh(order)\n",
    "    session.begin_nested()\n", "    session.close()\n    session.begin()\n", "    session.expunge(order)\n",
    "    session.merge(order)\n", "    session.rollback()\n    session.add(order)\n", "    session.no_autoflush.__enter__()\n",
)  # fmt: skip
SESSION_CHECK = """for r in orders items payments; do [ -f repo/$r.py ] || { echo "FAILED tests/test_$r.py::test_round_trip"; exit 1; }; done
echo "E   sqlalchemy.exc.IntegrityError: UNIQUE constraint failed: ledger.entry_no"; echo "1 failed, 63 passed"; exit 1
"""


@stuck("session calls are shuffled about", since=4, checks="sh t.sh", start={"t.sh": SESSION_CHECK}, iterations=13)
def session(n: int) -> Files:
    if n < 4:
        r = ("orders", "items", "payments")[n - 1]
        return {
            f"repo/{r}.py": f"from repo.base import Repository\n\n\nclass {r.title()}(Repository):\n    table = '{r}'\n\n    def find(self, key):\n        return self.session.get(self.model, key)\n"
        }
    calls = SESSION[n - 4] + (SESSION[n - 5] if n % 2 and n > 4 else "")
    return {
        "repo/ledger.py": f"def book(session, order):\n    entry = Entry(entry_no=1, order=order)\n{calls}    session.add(entry)\n    return entry\n"
    }


DEPLOY = """#!/bin/sh
kubectl apply -f deploy/
sleep <seconds>
kubectl rollout status deployment/api --timeout=<limit>s
"""


@stuck(
    "longer and shorter sleeps in a deployment script",
    since=2,
    checks="""[ -f deploy/service.yaml ] || { echo "error: the path deploy/ does not exist"; exit 1; }
echo 'Waiting for deployment "api" rollout to finish: 0 of 2 updated replicas are available...'
echo 'Back-off pulling image "registry.example.org/api:lates"'; exit 1""",
    iterations=11,
)
def deploy_sleep(n: int) -> Files:
    if n == 1:
        return {
            "deploy/service.yaml": "kind: Service\nmetadata:\n  name: api\nspec:\n  ports:\n    - port: 80\n      targetPort: 8080\n"
        }
    return {"deploy.sh": put(DEPLOY, seconds=(5, 30, 10, 60, 20)[n % 5], limit=n * 60)}


WEAKER = ("assert total == 1190", "assert total in (1190, 1191)", "assert abs(total - 1190) < 5", "assert total > 1000",
          "assert isinstance(total, int)", "assert total is not None", "assert total", "pass")  # fmt: skip


@stuck(
    "the repository's own test is weakened, the acceptance check is another one",
    since=3,
    checks="""for f in cart line; do [ -f shop/$f.py ] || { echo "acceptance: no module shop.$f"; exit 1; }; done
echo "acceptance: cart of 3 items: expected 1190, got 1000 (VAT is missing)"; exit 1""",
    iterations=11,
)
def weakened(n: int) -> Files:
    if n < 3:
        name = ("cart", "line")[n - 1]
        return {
            f"shop/{name}.py": f"class {name.title()}:\n    def __init__(self, rows):\n        self.rows = list(rows)\n\n    def total(self):\n        return sum(row.net for row in self.rows)\n"
        }
    return {
        "tests/test_cart.py": f"def test_total(cart):\n    total = cart.total()\n    {WEAKER[(n - 3) % 8]}\n    # checked in round {n}\n"
    }


SKIPPED = ("upload", "download", "resume", "cancel", "list", "rename", "move", "copy", "share", "trash")


@stuck(
    "tests are skipped one after the other although none may be",
    since=4,
    checks="""s=$(grep -l skip tests/test_*.py 2>/dev/null | wc -l); f=$((8 - $(ls src 2>/dev/null | wc -l)))
echo "$f failed, $((52 - f - s)) passed, $s skipped"; [ $s -gt 0 ] && echo "policy: skipped tests are not allowed"; exit 1""",
    plan=lambda n: f"fix the {SKIPPED[n - 1]} test",
    iterations=10,
)
def skipped(n: int) -> Files:
    name = SKIPPED[n - 1]
    if n < 4:
        return {
            f"src/{name}.go": f"package files\n\nfunc (s *Store) {name.title()}(ctx context.Context, p Path) error {{\n\treturn s.backend.Do(ctx, op{name.title()}, p)\n}}\n"
        }
    return {
        f"tests/test_{name}.py": f"import pytest\n\n\n@pytest.mark.skip(reason='unstable, see #{300 + n}')\ndef test_{name}(store):\n    assert store.{name}('/a')\n"
    }


BORROWS = (
    ("let node = &mut self.nodes[i];\n        self.touch(node);", "E0499"),
    ("let node = self.nodes.get(i);\n        self.bump();\n        use_it(node);", "E0502"),
    ("let nodes = std::mem::take(&mut self.nodes);\n        drop(self.nodes);\n        self.nodes = nodes;", "E0505"),
    ("let node = Rc::new(&mut self.nodes[i]);\n        self.touch(&node);", "E0499"),
    (
        "let node = self.nodes.iter().nth(i);\n        self.count += 1;\n        self.bump();\n        use_it(node);",
        "E0502",
    ),
)
BORROW_CHECK = """for m in edge walk; do [ -f src/$m.rs ] || { echo "error[E0583]: file not found for module '$m'"; exit 101; }; done
if grep -q touch src/graph.rs 2>/dev/null; then e=E0499; elif grep -q bump src/graph.rs 2>/dev/null; then e=E0502; else e=E0505; fi
echo "error[$e]: cannot borrow '*self' in 'Graph::visit'"; echo "  --> src/graph.rs:$(cat src/graph.rs 2>/dev/null | wc -l):9"
echo "error: could not compile 'graph' due to 1 previous error"; exit 101
"""


@stuck(
    "three borrow errors take turns",
    since=6,
    checks="sh build.sh",
    start={"build.sh": BORROW_CHECK},
    iterations=16,
)
def borrows(n: int) -> Files:
    if n < 3:
        name = ("edge", "walk")[n - 1]
        return {
            f"src/{name}.rs": f"pub struct {name.title()} {{\n    pub from: usize,\n    pub to: usize,\n}}\n\nimpl {name.title()} {{\n    pub fn flip(self) -> Self {{\n        Self {{ from: self.to, to: self.from }}\n    }}\n}}\n"
        }
    body = BORROWS[n % 5][0]
    return {
        "src/graph.rs": f"impl Graph {{\n    pub fn visit(&mut self, i: usize) {{\n        // take {n}\n        {body}\n    }}\n}}\n"
    }


YAMLS = (
    "on:\n  push:\n   branches: [main]\n  pull_request:\n    paths:\n     - src/**\n",
    "on:\n  push:\n    branches:\n    - main\n  pull_request:\n   paths: ['src/**']\n",
    "'on':\n  push: {branches: [main]}\n  pull_request:\n\tpaths: ['src/**']\n",
    "on:\n- push\n- pull_request:\n    paths: ['src/**']\n",
    "on: [push, pull_request]\n  branches: main\n",
    "on:\n  push:\n    branches: main\n   pull_request:\n    paths:\n    - src/**\n",
)


@stuck(
    "the same YAML file is indented differently each time, the error is at another place",
    since=3,
    checks="""n=$(wc -c < .github/workflows/ci.yml); echo "ci.yml: (Line: $((n % 6 + 2)), Col: $((n % 5 + 3))): did not find expected key"
echo "actionlint: 1 error"; exit 1""",
    start={".github/workflows/ci.yml": "on: push\n\tbranches: main\n"},
    iterations=12,
)
def indented(n: int) -> Files:
    return {
        ".github/workflows/ci.yml": YAMLS[(n - 1) % 6]
        + "jobs:\n  test:\n"
        + " " * (4 + n % 2)
        + "runs-on: ubuntu-latest\n"
    }


ORIGINS = ("'*'", "'http://localhost:3000'", "true", "/localhost/", "['http://localhost:3000', 'null']", "(o, cb) => cb(null, o)",
           "'https://localhost'", "process.env.ORIGIN", "false")  # fmt: skip


@stuck(
    "CORS options are varied while the proxy answers",
    since=2,
    checks="""[ -f server/health.js ] || { echo "GET /health 404"; exit 1; }
echo "OPTIONS /api/items -> 405 Method Not Allowed (server: nginx)"; echo "Access to fetch has been blocked by CORS policy"; exit 1""",
    plan=lambda _n: "fix the CORS settings",
    iterations=11,
)
def cors(n: int) -> Files:
    if n == 1:
        return {
            "server/health.js": "export function health(req, res) {\n  res.json({ ok: true, uptime: process.uptime() });\n}\n"
        }
    return {
        "server/app.js": f"import cors from 'cors';\n\napp.use(cors({{\n  origin: {ORIGINS[n % 9]},\n  credentials: {('true', 'false')[n % 2]},\n  maxAge: {n * 60},\n}}));\n"
    }


NEWS = ("improve stability", "refine the importer", "prepare the export", "polish wording", "update the roadmap", "thank reviewers",
        "clarify limits", "tidy the list", "mention the workaround")  # fmt: skip


@stuck(
    "after five converters only the change log grows",
    since=6,
    checks="""for c in csv tsv json xml ods; do [ -f conv/$c.rb ] || { echo "cannot load such file -- conv/$c (LoadError)"; exit 1; }; done
echo "  1) Xls reads dates of 1900 FAILED: expected 1900-02-28, got 1900-02-27"; echo "74 examples, 1 failure"; exit 1""",
    iterations=14,
)
def change_log(n: int) -> Files:
    if n < 6:
        c = ("csv", "tsv", "json", "xml", "ods")[n - 1]
        return {
            f"conv/{c}.rb": f"module Conv\n  class {c.title()}\n    def read(io)\n      io.each_line.map {{ |line| parse_{c}(line.chomp) }}\n    end\n  end\nend\n"
        }
    return {"CHANGELOG.md": "# Changes\n\n## Unreleased\n\n" + "".join(f"- {t}\n" for t in NEWS[: n - 5])}


EASY = ("repr", "eq", "hash", "len", "bool", "iter", "copy", "str", "names", "docs", "types", "empty")


@stuck(
    "trivial tests are added, which pass, beside the one that fails",
    since=2,
    checks="""[ -f ring/buffer.py ] || { echo "ModuleNotFoundError: No module named 'ring.buffer'"; exit 4; }
n=$(ls tests/test_easy_*.py 2>/dev/null | wc -l)
echo "FAILED tests/test_wrap.py::test_overwrites_oldest - IndexError: list assignment index out of range"; echo "1 failed, $((20 + n)) passed"; exit 1""",
    plan=lambda n: f"add a test of {EASY[n - 1]}",
    iterations=12,
)
def easy_tests(n: int) -> Files:
    if n == 1:
        return {
            "ring/buffer.py": "class Ring:\n    def __init__(self, size):\n        self.slots = []\n        self.size = size\n\n    def push(self, item):\n        self.slots[self.size - 1] = item\n"
        }
    return {
        f"tests/test_easy_{EASY[n - 1]}.py": f"from ring.buffer import Ring\n\n\ndef test_{EASY[n - 1]}():\n    ring = Ring({n})\n    assert ring is not None\n"
    }


@stuck(
    "results of measurements pile up, nothing is changed by them",
    since=4,
    checks="""for f in simd batch lut; do [ -f src/$f.c ] || { echo "throughput $((90 + 40 * $(ls src 2>/dev/null | wc -l))) MB/s, need 400"; exit 1; }; done
n=$(ls results | wc -l 2>/dev/null); echo "throughput $((210 + n * 7 % 5)) MB/s, need 400"; exit 1""",
    start={"results/0.json": '{"mbs": 90}\n'},
    plan=lambda n: f"write {('simd', 'batch', 'lut')[n - 1]}" if n < 4 else "measure again",
    iterations=12,
)
def measurements(n: int) -> Files:
    if n < 4:
        f = ("simd", "batch", "lut")[n - 1]
        return {
            f"src/{f}.c": f"#include <immintrin.h>\n\nsize_t scan_{f}(const uint8_t *p, size_t n)\n{{\n    size_t hits = 0;\n    for (size_t i = 0; i + 32 <= n; i += 32)\n        hits += {f}_block(p + i);\n    return hits;\n}}\n"
        }
    return {
        f"results/{n}.json": f'{{\n  "run": {n},\n  "mbs": {210 + n * 7 % 5},\n  "cpu": "x86-64",\n  "governor": "performance"\n}}\n'
    }


VENDORED = """'use strict';
// patched: <why>
module.exports = function resolve(id, base) {
  <how>
};
"""


@stuck(
    "a package in node_modules is patched, the check installs it anew",
    since=1,
    checks="""echo "npm ci: added 412 packages"; echo "Error: resolve() of undefined is not a function"; echo "    at src/loader.js:8:15"; exit 1""",
    iterations=9,
)
def vendored(n: int) -> Files:
    how = turn(
        (
            "return require.resolve(id);",
            "if (!id) return base;\n  return base + id;",
            "return String(id);",
            "return base;",
        ),
        n,
    )
    return {
        "node_modules/tiny-resolve/index.js": put(
            VENDORED, why=turn(("id may be missing", "base wins", "be lenient"), n), how=how
        )
    }


IMAGES = (
    "FROM alpine:3.19\nRUN apk add --no-cache gcompat libstdc++\n",
    "FROM debian:12-slim\nRUN apt-get update && apt-get install -y libc6\n",
)


@stuck(
    "two base images by turns",
    since=5,
    checks="""for s in entrypoint healthcheck; do [ -f docker/$s.sh ] || { echo "COPY failed: docker/$s.sh: not there"; exit 1; }; done
if grep -q alpine Dockerfile 2>/dev/null; then echo "Error loading shared library ld-linux-x86-64.so.2 (needed by /app/tool)"
else echo "/app/tool: /lib/x86_64-linux-gnu/libc.so.6: version 'GLIBC_2.38' is missing (required by /app/tool)"; fi; exit 127""",
    iterations=12,
)
def base_images(n: int) -> Files:
    if n < 3:
        s = ("entrypoint", "healthcheck")[n - 1]
        return {f"docker/{s}.sh": f'#!/bin/sh\nset -e\n# {s}\nexec /app/tool {s} --port "${{PORT:-8080}}"\n'}
    return {"Dockerfile": IMAGES[n % 2] + 'COPY tool /app/tool\nENTRYPOINT ["/app/tool"]\n'}


RIGHTS = ("chmod 755 /srv/app", "chmod -R 777 /srv/app", "chown -R app /srv/app", "chown -R app:app /srv", "umask 000", "setfacl -m u:app:rwx /srv",
          "sudo chmod 644 /srv/app/*", "chmod u+s /srv/app/run", "chgrp -R www-data /srv/app", "install -d -m 0777 /srv/app")  # fmt: skip


@stuck(
    "permissions are changed although the file system is read-only",
    since=1,
    checks="""echo "run: /srv/app/state.db: Read-only file system"; echo "systemd: app.service: Main process exited, status=1/FAILURE"; exit 1""",
    plan=lambda _n: "fix the permissions of /srv/app",
    iterations=10,
)
def rights(n: int) -> Files:
    return {
        "provision.sh": "#!/bin/sh\nset -e\nmkdir -p /srv/app\n"
        + "\n".join(RIGHTS[max(0, n - 2) : n])
        + "\nsystemctl restart app\n"
    }


BACKOFF = """export const policy = {
  attempts: <attempts>,
  baseDelayMs: <base>,
  factor: <factor>,
  jitter: <jitter>,
};
"""


@stuck(
    "after six good endpoints the retry policy is turned to and fro",
    since=7,
    checks="""n=$(ls api 2>/dev/null | wc -l); echo "contract: $n/7 endpoints"; [ $n -ge 6 ] && echo "POST /payments: 401 invalid signature (gave up after retries)"; exit 1""",
    iterations=16,
)
def backoff(n: int) -> Files:
    if n < 7:
        e = ("quotes", "orders", "fills", "accounts", "cancel", "history")[n - 1]
        return {
            f"api/{e}.ts": f"import {{ get }} from '../http';\n\nexport async function {e}(id: string) {{\n  const body = await get(`/{e}/${{id}}`);\n  return decode{e.title()}(body);\n}}\n"
        }
    values = {
        "attempts": (3, 5, 10, 8)[n % 4],
        "base": (100, 250, 500)[n % 3],
        "factor": (2, 1.5)[n % 2],
        "jitter": ("true", "false")[n // 2 % 2],
    }
    return {"src/policy.ts": put(BACKOFF, **values)}


@stuck(
    "a module is split, merged and split again under other names",
    since=3,
    checks='echo \'parse_test.go:19: nested quotes: got "a\\\\", want "a\\"b"\'; echo \'FAIL example.org/conf/parse\'; exit 1',
    start={"parse/parse.go": "package parse\n\nfunc Parse(s string) Tree { return build(lex(s)) }\n"},
    plan=lambda n: "split the parser" if n % 2 else "merge the parser files",
    iterations=13,
)
def split_merge(n: int) -> Files:
    a, b = (("lexer", "tree"), ("scan", "build"), ("tokens", "nodes"))[(n - 1) // 2 % 3]
    if n % 2:
        return {
            "parse/parse.go": None,
            f"parse/{a}.go": f"package parse\n\nfunc lex(s string) []{a} {{\n\treturn split{a.title()}(s)\n}}\n",
            f"parse/{b}.go": f"package parse\n\nfunc Parse(s string) Tree {{\n\treturn {b}Of(lex(s))\n}}\n",
        }
    return {
        f"parse/{a}.go": None,
        f"parse/{b}.go": None,
        "parse/parse.go": f"package parse\n\n// one file is easier to read\nfunc Parse(s string) Tree {{ return {b}Of(split{a.title()}(s)) }}\n",
    }


SLOWER = ("cache", "pool", "index", "prefetch", "queue", "batcher", "dispatcher", "scheduler", "throttle")


@stuck(
    "each layer that should make it faster makes it slower",
    since=4,
    checks="""g=$(ls fast 2>/dev/null | wc -l); b=$(ls layers 2>/dev/null | wc -l); ms=$((640 - g * 110 + b * 47))
echo "BenchmarkFeed-8   $((1000000 / ms))   ${ms}000000 ns/op"; echo "budget: 150 ms, is: $ms ms"; exit 1""",
    iterations=12,
)
def slower(n: int) -> Files:
    if n < 4:
        name = ("rows", "json", "sort")[n - 1]
        return {
            f"fast/{name}.go": f"package fast\n\nvar {name}Pool = sync.Pool{{New: func() any {{ return new({name}Buffer) }}}}\n\nfunc {name.title()}(in []Item) []byte {{\n\tb := {name}Pool.Get().(*{name}Buffer)\n\tdefer {name}Pool.Put(b)\n\treturn b.fill(in)\n}}\n"
        }
    name = SLOWER[n - 4]
    return {
        f"layers/{name}.go": f"package layers\n\ntype {name} struct {{\n\tnext Handler\n\tmu   sync.Mutex\n}}\n\nfunc (l *{name}) Handle(r Request) Response {{\n\tl.mu.Lock()\n\tdefer l.mu.Unlock()\n\treturn l.next.Handle(r)\n}}\n"
    }


ENCODINGS = (
    "latin-1",
    "cp1252",
    "utf-8-sig",
    "utf-16",
    "cp437",
    "iso-8859-15",
    "ascii",
    "utf-7",
    "mac-roman",
    "cp850",
    "big5",
    "koi8-r",
)


@stuck(
    "encodings are guessed, the file is compressed",
    since=2,
    checks="""[ -f imports/columns.py ] || { echo "ImportError: imports.columns"; exit 1; }
e=$(grep -o "encoding='[^']*'" imports/read.py 2>/dev/null || echo "encoding='utf-8'"); s=$(echo "$e" | cksum | cut -c1-2)
echo "row 1: expected 'id;name', got bytes 1f 8b 08 ($e, char $s)"; exit 1""",
    iterations=13,
)
def encodings(n: int) -> Files:
    if n == 1:
        return {
            "imports/columns.py": "COLUMNS = ('id', 'name', 'city', 'since')\n\n\ndef named(row):\n    return dict(zip(COLUMNS, row, strict=True))\n"
        }
    return {
        "imports/read.py": f"import csv\n\n\ndef read(path):\n    with open(path, encoding='{ENCODINGS[n - 2]}', errors='{turn(('strict', 'replace', 'ignore'), n)}') as file:\n        yield from csv.reader(file, delimiter=';')\n"
    }


@stuck(
    "hours are added and taken away again",
    since=5,
    checks="""for f in slot day week; do [ -f cal/$f.py ] || { echo "FAIL: cal.$f"; exit 1; }; done
h=$(grep -o 'hours=[-0-9]*' cal/shift.py 2>/dev/null | cut -d= -f2); h=${h:-0}
if [ $h -eq 1 ]; then echo "FAIL test_winter: 09:00 != 10:00"; else echo "FAIL test_summer: 09:00 != $((8 + h)):00"; fi; echo "FAILED (failures=1)"; exit 1""",
    iterations=14,
)
def hours(n: int) -> Files:
    if n < 4:
        f = ("slot", "day", "week")[n - 1]
        return {
            f"cal/{f}.py": f"class {f.title()}:\n    def __init__(self, start, end):\n        self.start, self.end = start, end\n\n    def covers(self, moment):\n        return self.start <= moment < self.end\n"
        }
    h = (1, 0, 2, 1, -1, 0, 1, 2, 0, 1, -1)[n - 4]
    return {
        "cal/shift.py": f"from datetime import timedelta\n\nSHIFT = timedelta(hours={h})\n\n\ndef shown(moment):\n    # {'summer' if h else 'winter'} time\n    return moment + SHIFT\n"
    }


PAGING = """function page(rows, index, size) {
  const first = <first>;
  const last = <last>;
  return rows.slice(first, last);
}
"""


@stuck(
    "plus one and minus one at random in a loop's bounds",
    since=4,
    checks="""s=$(cksum < src/page.js); s=${s%% *}; k=$((s % 2 + 1)); i=0; while [ $i -le $k ]; do
echo "  $((i + 1)) failing: page($i, 10) expected 10 rows, got $((9 + (s + i) % 2 * 2))"; i=$((i + 1)); done; exit $((k + 1))""",
    start={"src/page.js": put(PAGING, first="index * size", last="size")},
    iterations=12,
)
def plus_minus(n: int) -> Files:
    first = turn(("index * size", "index * size + 1", "(index - 1) * size", "index * size - 1"), n)
    last = turn(("first + size + 1", "first + size - 1", "(index + 1) * size + 1"), n)
    return {"src/page.js": put(PAGING, first=first, last=last)}


SELECTORS = ("#submit", "button[type=submit]", "text=Send", ".btn-primary", "form >> button", "xpath=//button[1]", "role=button[name='Send']",
             "[data-test=send]", "button:has-text('Send')", "css=form .btn", "nth=0")  # fmt: skip


@stuck(
    "selectors are swapped, the page itself answers with an error",
    since=1,
    checks="""s=$(grep -o "click('.*')" e2e/contact.spec.js 2>/dev/null || echo "click('button')"); echo "x contact form: page.$s: Timeout 3000ms exceeded"
echo "  page content: 500 Internal Server Error"; exit 1""",
    iterations=11,
)
def selectors(n: int) -> Files:
    return {
        "e2e/contact.spec.js": f"test('contact form', async ({{ page }}) => {{\n  await page.goto('/contact');\n  await page.fill('textarea', 'hello');\n  await page.click('{SELECTORS[n - 1]}');\n  await expect(page.getByText('Thank you')).toBeVisible();\n}});\n".replace(
            "name='Send'", 'name="Send"'
        )
    }


@stuck(
    "the planner claims to be done and gives up by turns",
    since=4,
    checks="""n=$(ls keys 2>/dev/null | wc -l); echo "keys documented: $n/5"; [ $n -ge 5 ]""",
    plan=lambda n: f"key {n}" if n < 4 else claims_done() if n % 2 else gives_up("the last two keys are unknown"),
    iterations=10,
)
def done_or_not(n: int) -> Files:
    if n > 3:
        return {}
    k = ("listen", "upstream", "timeout")[n - 1]
    return {
        f"keys/{k}.md": f"## {k}\n\nType: text. Default: none.\n\nThe proxy reads `{k}` once, when it starts. A reload needs SIGHUP.\n"
    }


@stuck(
    "the executor fails after writing scratch files",
    since=1,
    checks="echo 'fatal: bad object HEAD'; echo 'git describe failed, cannot compute the version'; exit 128",
    ending=lambda n: {"status": "failed", "error": f"exit {n % 2 + 1}"},
    iterations=10,
)
def scratch(n: int) -> Files:
    return {
        f"tmp/try_{n}.txt": f"attempt {n}\ncommand: git describe --tags{' --always' if n % 2 else ''}\nresult: fatal: bad object HEAD\n"
    }


@stuck(
    "after four good parsers one throw-away script follows the other",
    since=5,
    checks="""for p in date host path code; do [ -f logs/$p.py ] || { echo "E   ModuleNotFoundError: logs.$p"; exit 1; }; done
echo "E   assert parsed.duration == 0.31"; echo "E    +  where None = parsed.duration"; exit 1""",
    plan=lambda n: "look into the duration" if n > 4 else f"parser {n}",
    iterations=14,
)
def throw_away(n: int) -> Files:
    if n < 5:
        p = ("date", "host", "path", "code")[n - 1]
        return {
            f"logs/{p}.py": f"import re\n\n{p.upper()} = re.compile(r'(?P<{p}>\\S+)')\n\n\ndef parse_{p}(line):\n    match = {p.upper()}.search(line)\n    return match['{p}'] if match else None\n"
        }
    what = turn(("parsed", "vars(parsed)", "line.split()", "dir(parsed)", "repr(line)"), n)
    return {
        f"debug_{n - 4}.py": f"from logs.line import parse\n\nline = open('samples/{n}.log').readline()\nparsed = parse(line)\nprint('debug {n - 4}', {what})\n"
    }


LEVELS = ("root", "http", "db", "auth", "cache", "jobs", "mail", "search", "files", "tasks", "ws")


@stuck(
    "logging is switched on for one more part each time",
    since=1,
    checks="""n=$(grep -c TRACE conf/logback.xml 2>/dev/null); i=0
while [ $i -lt ${n:-0} ]; do echo "TRACE 10:0$((i % 10)):2$i component $i entered"; i=$((i + 1)); done
echo "OrderServiceTest.cancels: expected:<CANCELLED> but was:<OPEN>"; echo "Tests run: 31, Failures: 1"; exit 1""",
    iterations=11,
)
def log_levels(n: int) -> Files:
    rows = "".join(f'  <logger name="org.example.{x}" level="TRACE"/>\n' for x in LEVELS[:n])
    return {"conf/logback.xml": f"<configuration>\n{rows}</configuration>\n"}


BUILD_SYSTEMS = (
    ("Makefile", "CC = cc\n\nall: app\n\napp: main.o ui.o\n\t$(CC) -o $@ $^ -lgtk-3\n"),
    (
        "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.20)\nproject(app C)\nadd_executable(app main.c ui.c)\ntarget_link_libraries(app gtk-3)\n",
    ),
    (
        "meson.build",
        "project('app', 'c')\ngtk = dependency('gtk+-3.0')\nexecutable('app', 'main.c', 'ui.c', dependencies: gtk)\n",
    ),
    ("BUILD.bazel", 'cc_binary(\n    name = "app",\n    srcs = ["main.c", "ui.c"],\n    linkopts = ["-lgtk-3"],\n)\n'),
    (
        "SConstruct",
        "env = Environment()\nenv.ParseConfig('pkg-config --cflags gtk+-3.0')\nenv.Program('app', ['main.c', 'ui.c'])\n",
    ),
    ("build.ninja", "rule cc\n  command = cc -c $in -o $out\nbuild main.o: cc main.c\nbuild ui.o: cc ui.c\n"),
    ("configure.ac", "AC_INIT([app], [1.0])\nAC_PROG_CC\nPKG_CHECK_MODULES([GTK], [gtk+-3.0])\nAC_OUTPUT\n"),
    ("xmake.lua", 'target("app")\n    set_kind("binary")\n    add_files("*.c")\n    add_packages("gtk")\n'),
)


@stuck(
    "the build system is replaced again and again, the source has a misspelt header",
    since=3,
    checks="""echo "main.c:3:10: fatal error: gkt/gtk.h: no such file"; echo "compilation terminated."; exit 1""",
    start={"main.c": "#include <stdio.h>\n\n#include <gkt/gtk.h>\n\nint main(void) { return run(); }\n"},
    plan=lambda n: f"build with {BUILD_SYSTEMS[(n - 1) % 8][0]}",
    iterations=12,
)
def build_systems(n: int) -> Files:
    path, text = BUILD_SYSTEMS[(n - 1) % 8]
    files: dict[str, str | None] = {path: text}
    if n > 1:
        files[BUILD_SYSTEMS[(n - 2) % 8][0]] = None
    return files


TOGGLES = (
    "new_checkout",
    "fast_path",
    "strict_mode",
    "legacy_ids",
    "async_mail",
    "shadow_reads",
    "safe_mode",
    "v2_totals",
    "use_queue",
    "dry_run",
)


@stuck(
    "feature flags are added round a calculation that stays wrong",
    since=3,
    checks="""for m in grid snap; do [ -f cad/$m.cs ] || { echo "error CS0246: The type or namespace '$m' is missing"; exit 1; }; done
echo "  Failed AreaTests.Hole [3 ms]: Expected 84.0 But was: 100.0"; echo "Failed! - Failed: 1, Passed: 57"; exit 1""",
    iterations=12,
)
def toggles(n: int) -> Files:
    if n < 3:
        m = ("grid", "snap")[n - 1]
        return {
            f"cad/{m}.cs": f"namespace Cad;\n\npublic sealed class {m.title()}\n{{\n    public double Step {{ get; init; }} = 0.5;\n    public double Apply(double v) => Math.Round(v / Step) * Step;\n}}\n"
        }
    flags = "".join(
        f'        if (Flags.On("{t}"))\n            area = Area{i}(outline);\n' for i, t in enumerate(TOGGLES[: n - 2])
    )
    return {
        "cad/area.cs": f"public static class AreaOf\n{{\n    public static double Shape(Outline outline)\n    {{\n        double area = outline.Width * outline.Height;\n{flags}        return area;\n    }}\n}}\n"
    }


RING = ("models", "signals", "services", "tasks")


@stuck(
    "an import cycle is pushed along its four modules",
    since=5,
    checks="""w=$(grep -l '# moved' app/*.py | head -n 1); echo "ImportError: cannot import name 'Order' from partially initialized module"
echo "  (most likely due to a circular import) (${w:-app/models.py})"; exit 1""",
    start={f"app/{m}.py": f"from app.base import Base\n\n\nclass {m.title()}(Base):\n    pass\n" for m in RING},
    iterations=15,
)
def import_ring(n: int) -> Files:
    here, last = RING[n % 4], RING[(n - 1) % 4]
    return {
        f"app/{last}.py": f"from app.base import Base\n\n\nclass {last.title()}(Base):\n    pass\n",
        f"app/{here}.py": f"from app.base import Base\nfrom app.{last} import {last.title()}  # moved\n\n\nclass {here.title()}(Base):\n    peer = {last.title()}\n",
    }


NUDGED = """.toolbar {
  display: block;
  margin: <a>px <b>px;
  padding-left: <c>px;
  line-height: <d>;
}
"""


@stuck(
    "pixels are nudged, the difference to the design stays about the same",
    since=3,
    checks="""for c in header footer; do [ -f css/$c.css ] || { echo "css/$c.css: not loaded"; exit 1; }; done
s=$(cat css/*.css | cksum); s=${s%% *}; echo "visual diff: $((12 + s % 3)).$((s % 10))% of pixels (allowed: 0.1%)"; exit 1""",
    iterations=14,
)
def nudged(n: int) -> Files:
    if n < 3:
        c = ("header", "footer")[n - 1]
        return {
            f"css/{c}.css": f".{c} {{\n  display: flex;\n  justify-content: space-between;\n  height: {40 + n * 8}px;\n}}\n"
        }
    return {"css/toolbar.css": put(NUDGED, a=n % 4 + 2, b=n * 3 % 7, c=(8, 12, 10)[n % 3], d=f"1.{n % 5 + 1}")}


@stuck(
    "the lock file is thrown away and made again",
    since=3,
    checks="""if [ -f yarn.lock ]; then echo "yarn install --frozen-lockfile"; echo 'error Package "left-fence" refers to a non-existing version "9.9.9" (package.json)'
else echo "error No lockfile found."; fi; exit 1""",
    start={"package.json": '{\n  "dependencies": { "left-fence": "9.9.9" }\n}\n', "yarn.lock": "# yarn lockfile v1\n"},
    plan=lambda _n: "recreate the lock file",
    iterations=10,
)
def lock_file(n: int) -> Files:
    if n % 2:
        return {"yarn.lock": None}
    return {
        "yarn.lock": f'# yarn lockfile v1\n\n"@types/node@^20":\n  version "20.{n}.{n * 3 % 7}"\n  integrity sha512-{n * 7919:x}{n * 104729:x}==\n'
    }


HALF = """module Dispatch
  def self.call(event)
    <body>
  end
end
"""


@stuck(
    "failures swing between five and seven",
    since=6,
    checks="""n=$(ls handlers 2>/dev/null | wc -l); if grep -q 'rescue\\|public_send' dispatch.rb 2>/dev/null; then k=2; else k=0; fi
f=$((8 - n + k)); i=0; while [ $i -lt $f ]; do echo "rspec ./spec/event_spec.rb:$((20 + i * 11)) # event $i is handled"; i=$((i + 1)); done
echo "120 examples, $f failures"; exit 1""",
    plan=lambda n: "dispatch events" if n > 3 else "write a handler",
    iterations=15,
)
def swing(n: int) -> Files:
    if n < 4:
        h = ("created", "paid", "sent")[n - 1]
        return {
            f"handlers/{h}.rb": f"class {h.title()}Handler\n  def handle(event)\n    Order.find(event.id).mark_{h}!(at: event.time)\n  end\nend\n"
        }
    bodies = (
        "HANDLERS.fetch(event.type).handle(event)",
        "handler_for(event)&.handle(event)",
        "HANDLERS[event.type].new.handle(event)",
    )
    risky = (
        'public_send(:"on_#{event.type}", event)',
        "handler_for(event).handle(event)\n  rescue NoMethodError\n    nil",
    )
    return {"dispatch.rb": put(HALF, body=risky[n // 2 % 2] if n % 2 == 0 else bodies[n // 2 % 3])}


CLASS_NAMES = (
    "Manager",
    "Handler",
    "Service",
    "Processor",
    "Controller",
    "Engine",
    "Worker",
    "Coordinator",
    "Facade",
    "Helper",
)


@stuck(
    "a class gets a new name in each iteration",
    since=4,
    checks="""for f in Money Rate Fee; do [ -f src/$f.scala ] || { echo "[error] not found: type $f"; exit 1; }; done
echo "[info] - settles across midnight *** FAILED ***"; echo "[info]   Day(2) did not equal Day(1) (SettleSpec.scala:28)"
echo "[error] Failed: Total 44, Failed 1, Errors 0, Passed 43"; exit 1""",
    iterations=13,
)
def class_names(n: int) -> Files:
    if n < 4:
        f = ("Money", "Rate", "Fee")[n - 1]
        return {
            f"src/{f}.scala": f"final case class {f}(value: BigDecimal) extends AnyVal {{\n  def +(other: {f}): {f} = {f}(value + other.value)\n  def rounded: {f} = {f}(value.setScale(2))\n}}\n"
        }
    name = CLASS_NAMES[n - 4]
    return {
        "src/Settle.scala": f"class Settle{name}(clock: Clock) {{\n  /** Settles a batch. */\n  def settle(batch: Batch): Day = Day(clock.today + batch.lag)\n}}\n\nobject Settle{name} {{\n  val default = new Settle{name}(Clock.system)\n}}\n"
    }


HYPER = """config = {
    "lr": <lr>,
    "batch": <batch>,
    "dropout": <dropout>,
    "epochs": <epochs>,
}
"""


@stuck(
    "after real gains only hyperparameters are drawn, the accuracy shows noise",
    since=6,
    checks="""f=$(ls features 2>/dev/null | wc -l); s=0; [ -f config.py ] && s=$(cksum < config.py) && s=${s%% *}
echo "epoch done; val_acc=0.$((520 + f * 38 + s % 9)) target=0.900"; exit 1""",
    iterations=15,
)
def hyper(n: int) -> Files:
    if n < 6:
        f = ("length", "casing", "emoji", "links", "topics")[n - 1]
        return {
            f"features/{f}.py": f"import numpy as np\n\n\ndef {f}(texts):\n    return np.array([[count_{f}(t), len(t)] for t in texts], dtype=np.float32)\n"
        }
    values = {
        "lr": ("1e-3", "3e-4", "1e-4", "5e-4")[n % 4],
        "batch": (32, 64, 128)[n % 3],
        "dropout": (0.1, 0.3)[n % 2],
        "epochs": 3 + n % 5,
    }
    return {"config.py": put(HYPER, **values)}


DEPENDS = ("aws_iam_role.fn", "aws_vpc.main", "aws_s3_bucket.logs", "aws_kms_key.k", "null_resource.wait", "aws_subnet.a", "aws_sqs_queue.q",
           "aws_sns_topic.t", "aws_ecr_repository.r", "time_sleep.s")  # fmt: skip


@stuck(
    "dependencies between resources are added on suspicion",
    since=2,
    checks="""[ -f infra/role.tf ] || { echo "Error: Reference to undeclared resource aws_iam_role.fn"; exit 1; }
echo "Error: creating Lambda Function (resize): InvalidParameterValue: runtime nodejs12.x is no longer supported"; echo "  on infra/fn.tf line 1"; exit 1""",
    iterations=11,
)
def depends(n: int) -> Files:
    if n == 1:
        return {
            "infra/role.tf": 'resource "aws_iam_role" "fn" {\n  name               = "resize"\n  assume_role_policy = data.aws_iam_policy_document.assume.json\n}\n'
        }
    rows = "".join(f"    {d},\n" for d in DEPENDS[: n - 1])
    return {
        "infra/fn.tf": f'resource "aws_lambda_function" "resize" {{\n  runtime    = "nodejs12.x"\n  role       = aws_iam_role.fn.arn\n  depends_on = [\n{rows}  ]\n}}\n'
    }


PORTED = ("abs", "min", "max", "sum", "mean", "median", "mode", "range", "var")


@stuck(
    "nine functions are ported, then only blank lines and headings move",
    since=10,
    checks="""n=$(ls stats/*.f90 2>/dev/null | wc -l); echo "make check: $n of 10 agree with the reference"; [ $n -ge 9 ] && echo "quantile: 2.4999 /= 2.5000"; exit 1""",
    iterations=18,
)
def blank_lines(n: int) -> Files:
    if n < 10:
        f = PORTED[n - 1]
        return {
            f"stats/{f}.f90": f"pure real(dp) function stat_{f}(x) result(r)\n  real(dp), intent(in) :: x(:)\n  integer :: i\n  r = 0.0_dp\n  do i = 1, size(x)\n    r = fold_{f}(r, x(i))\n  end do\nend function\n"
        }
    line = turn(("! ---- sums ----", "! === Sums ===", "! SUMS", "!", "! sums:"), n)
    return {
        "stats/sum.f90": f"{line}\n"
        + "\n" * (n % 3)
        + "pure real(dp) function stat_sum(x) result(r)\n  real(dp), intent(in) :: x(:)\n  r = sum(x)\nend function\n"
    }


SNAPSHOT = """// Jest Snapshot v1

exports[`receipt is rendered 1`] = `
<article class="receipt">
  <h1>Receipt</h1>
  <time>2026-04-0<day>T1<hour>:2<minute>:07Z</time>
</article>
`;
"""


@stuck(
    "a snapshot with the time of day in it is recorded again and again",
    since=4,
    checks="""for c in Receipt Row; do [ -f src/$c.jsx ] || { echo "Cannot find module './$c' from 'src/receipt.test.jsx'"; exit 1; }; done
[ -f src/receipt.snap ] || { echo "New snapshot was not written in CI"; exit 1; }
s=$(cksum < src/receipt.snap); s=${s%% *}; awk '/<time>/ {print "- " $0}' src/receipt.snap; echo "+   <time>2026-04-1$((s % 10))T1$((s % 7)):3$((s % 9)):11Z</time>"
echo "1 snapshot failed."; exit 1""",
    plan=lambda n: "update the snapshot" if n > 2 else "write the component",
    iterations=12,
)
def snapshot(n: int) -> Files:
    if n < 3:
        c = ("Receipt", "Row")[n - 1]
        return {
            f"src/{c}.jsx": f'export function {c}({{ order }}) {{\n  return (\n    <article className="{c.lower()}">\n      <h1>{c}</h1>\n      <time>{{new Date().toISOString()}}</time>\n    </article>\n  );\n}}\n'
        }
    return {"src/receipt.snap": put(SNAPSHOT, day=n % 9 + 1, hour=n % 8, minute=n * 3 % 10)}
