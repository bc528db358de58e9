"""Work that gets nearer to its goal, in many languages and with many kinds of checks."""

from tests.data.pauses import Files, honest
from tests.support.doubles import claims_done, malformed, planned

TEXTKIT = (
    ("slug", "def slug(s):\n    return s.lower().replace(' ', '-')\n", "slug('A B') == 'a-b'"),
    ("initials", "def initials(s):\n    return ''.join(w[0] for w in s.split())\n", "initials('Ada L') == 'AL'"),
    ("squeeze", "def squeeze(s):\n    return ' '.join(s.split())\n", "squeeze('a   b') == 'a b'"),
    ("vowels", "def vowels(s):\n    return sum(c in 'aeiou' for c in s)\n", "vowels('banana') == 3"),
    ("mirror", "def mirror(s):\n    return s + s[::-1]\n", "mirror('ab') == 'abba'"),
    (
        "chunk",
        "def chunk(s, k):\n    return [s[i:i + k] for i in range(0, len(s), k)]\n",
        "chunk('abc', 2) == ['ab', 'c']",
    ),
    ("rot13", "import codecs\ndef rot13(s):\n    return codecs.encode(s, 'rot13')\n", "rot13('abc') == 'nop'"),
    ("camel", "def camel(s):\n    return ''.join(w.title() for w in s.split('_'))\n", "camel('a_bc') == 'ABc'"),
    ("dedupe", "def dedupe(s):\n    return ''.join(dict.fromkeys(s))\n", "dedupe('aabca') == 'abc'"),
)


@honest(
    "pytest names the functions that are not there yet",
    checks="python3 -BS run_tests.py",
    iterations=9,
    plan=lambda n: f"Write {TEXTKIT[n - 1][0]}()",
    start={
        "src/textkit.py": '"""Small text functions."""\n',
        "run_tests.py": f"""import sys, zlib
source = open("src/textkit.py").read()
space, failed = {{}}, []
exec(source, space)
for name, claim in {[(name, claim) for name, _, claim in TEXTKIT]!r}:
    try:
        assert eval(claim, space)
    except Exception as error:
        failed.append(f"FAILED tests/test_textkit.py::test_{{name}} - {{type(error).__name__}}: {{error}}")
print("\\n".join(failed))
spent = zlib.crc32(source.encode()) % 90 + 10
print(f"=== {{len(failed)}} failed, {{{len(TEXTKIT)} - len(failed)}} passed in 0.{{spent}}s ===")
sys.exit(bool(failed))
""",
    },
)
def textkit(n: int) -> Files:
    return {"src/textkit.py": '"""Small text functions."""\n' + "\n\n".join(body for _, body, _ in TEXTKIT[:n])}


GO_PACKAGES = [
    "auth",
    "billing",
    "cart",
    "catalog",
    "email",
    "invoice",
    "ledger",
    "search",
    "session",
    "shipping",
    "tax",
    "wallet",
]


@honest(
    "go packages get a context one after the other, with durations that never repeat",
    checks="sh gotest.sh",
    iterations=12,
    plan=lambda n: f"Pass a context through {GO_PACKAGES[n - 1]}",
    start={
        **{f"{p}/{p}.go": f"package {p}\n\nfunc Load(id string) error {{\n\treturn nil\n}}\n" for p in GO_PACKAGES},
        "gotest.sh": """status=0
for file in */*.go; do
  name=${file%%/*}
  took=$(cat */*.go | cksum | awk -v n="$name" '{printf "0.%03ds", ($1 + length(n) * 37) % 1000}')
  if grep -q 'ctx context.Context' "$file"; then
    echo "ok  	example.com/shop/$name	$took"
  else
    echo "# example.com/shop/$name"
    echo "./$name.go:3:6: too many arguments in call to Load"
    echo "FAIL	example.com/shop/$name [build failed]"
    status=1
  fi
done
exit $status
""",
    },
)
def go_context(n: int) -> Files:
    p = GO_PACKAGES[n - 1]
    return {
        f"{p}/{p}.go": f'package {p}\n\nimport "context"\n\nfunc Load(ctx context.Context, id string) error {{\n'
        f"\treturn ctx.Err()\n}}\n"
    }


RUST_MODULES = ["codec", "frame", "pool", "queue", "retry", "router", "session", "stats", "timer", "tls"]


@honest(
    "cargo finds ten more errors once the first one is out of the way",
    checks="sh cargo.sh",
    iterations=11,
    start={
        "src/lib.rs": "use tokio02::net::TcpStream;\n",
        **{f"src/{m}.rs": f"pub fn {m}(s: &mut TcpStream) {{\n    s.poll_read_buf();\n}}\n" for m in RUST_MODULES},
        "cargo.sh": """if grep -q tokio02 src/lib.rs; then
  echo 'error[E0432]: unresolved import `tokio02`'
  echo ' --> src/lib.rs:1:5'
  echo 'error: could not compile `wire` (lib) due to 1 previous error'
  exit 101
fi
n=0
for file in src/*.rs; do
  if grep -q poll_read_buf "$file"; then
    echo 'error[E0599]: no method named `poll_read_buf` found for mutable reference `&mut TcpStream`'
    echo " --> $file:2:7"
    n=$((n + 1))
  fi
done
[ $n = 0 ] && exit 0
echo "error: could not compile \\`wire\\` (lib) due to $n previous errors"
exit 101
""",
    },
)
def cargo_upgrade(n: int) -> Files:
    if n == 1:
        return {"src/lib.rs": "use tokio::net::TcpStream;\nuse tokio::io::AsyncReadExt;\n"}
    m = RUST_MODULES[n - 2]
    return {
        f"src/{m}.rs": f"pub async fn {m}(s: &mut TcpStream) -> io::Result<usize> {{\n"
        f"    let mut {m}_buf = BytesMut::with_capacity(4096);\n    s.read_buf(&mut {m}_buf).await\n}}\n"
    }


@honest(
    "jest wants roles on components, each one different",
    checks="sh jest.sh",
    iterations=10,
    plan=lambda _n: "Fix the next failing component",
    start={
        **{f"ui/{c}.jsx": f"export const {c} = () => <div>{c}</div>;\n" for c in "ABCDEFGHIJ"},
        "jest.sh": """bad=0 good=0
for file in ui/*.jsx; do
  if grep -q 'role=' $file; then echo "PASS $file"; good=$((good + 1)); else
    echo "FAIL $file"
    echo "  ● renders › is reachable by its role"
    bad=$((bad + 1))
  fi
done
echo "Tests:       $bad failed, $good passed, $((bad + good)) total"
[ $bad = 0 ]
""",
    },
)
def jest_roles(n: int) -> Files:
    c = "ABCDEFGHIJ"[n - 1]
    role = ("button", "alert", "dialog", "menu", "tab", "grid", "status", "tree", "slider", "switch")[n - 1]
    return {f"ui/{c}.jsx": f'export const {c} = (props) => (\n  <div role="{role}" {{...props}}>{c}</div>\n);\n'}


ENTITIES = [
    "Account",
    "Address",
    "Basket",
    "Coupon",
    "Customer",
    "Invoice",
    "Item",
    "Parcel",
    "Payment",
    "Refund",
    "Stock",
    "Supplier",
]


@honest(
    "surefire prints only totals while repositories move to JPA two at a time, then one",
    checks="sh mvn.sh",
    iterations=10,
    start={
        **{f"src/{e}Dao.java": f"class {e}Dao {{ JdbcTemplate template; }}\n" for e in ENTITIES},
        "mvn.sh": """left=0
for file in src/*Dao.java; do [ -f "$file" ] && left=$((left + 1)); done
took=$(cat src/*.java | cksum | awk '{printf "%.3f", 1 + $1 % 997 / 400}')
echo "Tests run: 96, Failures: 0, Errors: $((left * 8)), Skipped: 0, Time elapsed: $took s"
[ $left = 0 ] && echo "BUILD SUCCESS" || { echo "BUILD FAILURE"; exit 1; }
""",
    },
)
def jpa(n: int) -> Files:
    moved = ENTITIES[2 * n - 2 : 2 * n] if n <= 2 else ENTITIES[n + 1 : n + 2]
    files: dict[str, str | None] = {f"src/{e}Dao.java": None for e in moved}
    files |= {
        f"src/{e}Repository.java": f"interface {e}Repository extends JpaRepository<{e}, Long> {{}}\n" for e in moved
    }
    return files


@honest(
    "ctest stays at 0 of 6 while the port to Windows takes shape file by file",
    checks="sh ctest.sh",
    iterations=13,
    plan=lambda n: f"Port {('threads', 'files', 'sockets', 'clock', 'signals', 'pipes')[n % 6]}, part {n}",
    start={
        "ctest.sh": """if [ -f src/port/win_12.cpp ]; then
  echo '100% tests passed, 0 tests failed out of 6'; exit 0
fi
for t in threads files sockets clock signals pipes; do echo "***Not Run $t"; done
echo '0% tests passed, 6 tests failed out of 6'
exit 8
""",
    },
)
def windows_port(n: int) -> Files:
    calls = ("CreateFileW", "WSAStartup", "WaitForSingleObject", "ReadFile", "CreateNamedPipeW", "GetTickCount64")
    body = "".join(f"  check({calls[(n + k) % 6]}(arg{k}, {n * 17 + k}));\n" for k in range(3 + n % 4))
    return {f"src/port/win_{n}.cpp": f"#include <windows.h>\nvoid port_{n}() {{\n{body}}}\n"}


FORMATS = ["bmp", "gif", "heif", "ico", "jpeg", "pcx", "png", "psd", "tga", "tiff", "webp", "xpm"]


@honest(
    "a silent check waits for the last of twelve image readers",
    checks='test "$(cat readers/*.lua | grep -c ^return)" -ge 12',
    iterations=12,
    plan=lambda n: f"Read {FORMATS[n - 1]}",
    start={"readers/init.lua": "local readers = {}\n"},
)
def image_readers(n: int) -> Files:
    f = FORMATS[n - 1]
    return {
        f"readers/{f}.lua": f"local M = {{ext = '{f}'}}\nfunction M.read(h)\n  local magic = h:read({n + 1})\n"
        f"  if magic ~= M.magic_{f} then error('not {f}') end\n  return h:seek('cur', {n * 8})\nend\nreturn M\n"
    }


SAVINGS = (
    ("hoist the length out of the loop", 61),
    ("use a lookup table", 0),
    ("avoid the copy of the key", 88),
    ("reserve the vector", 12),
    ("batch the writes", 140),
    ("pack the struct", 0),
    ("skip empty buckets", 47),
    ("prefetch the next node", 29),
    ("inline the comparison", 33),
    ("drop the mutex on the read path", 61),
)


@honest(
    "a noisy benchmark gets better with most of the optimisations",
    checks="python3 -BS bench.py",
    iterations=10,
    plan=lambda n: SAVINGS[n - 1][0].capitalize(),
    start={
        "engine.c": "/* engine */\n",
        "bench.py": f"""import sys, zlib
text = open("engine.c").read()
ms = 830 - sum(saved for name, saved in {SAVINGS!r} if name in text) + zlib.crc32(text.encode()) % 170 / 10 - 8.5
print(f"BM_Insert/65536   {{ms:.1f}} ms   iterations {{int(60000 / ms)}}")
print("target: below 380 ms")
sys.exit(ms >= 380)
""",
    },
)
def optimise(n: int) -> Files:
    return {
        "engine.c": "/* engine */\n"
        + "".join(
            f"/* {name} */\nstatic int fast_{k}(int v) {{ return v >> {k}; }}\n"
            for k, (name, _) in enumerate(SAVINGS[:n])
        )
    }


GOLDEN = [
    f"{name:<10}{amount:>8.2f}"
    for name, amount in zip(FORMATS, (1.5, 20, 3.25, 7, 9.99, 12, 4, 8.8, 2, 6, 30, 5), strict=True)
]


@honest(
    "the diff to a golden report loses a line or two per iteration",
    checks="python3 -BS golden.py",
    iterations=8,
    start={
        "golden/report.txt": "\n".join(GOLDEN) + "\n",
        "out/report.txt": "".join(line.replace(" ", "") + "\n" for line in GOLDEN),
        "golden.py": """import difflib, sys
want, got = (open(f"{d}/report.txt").read().splitlines() for d in ("golden", "out"))
diff = list(difflib.unified_diff(want, got, "golden/report.txt", "out/report.txt", lineterm="", n=0))
print("\\n".join(diff))
sys.exit(bool(diff))
""",
    },
)
def golden_report(n: int) -> Files:
    done = min(12, n + n // 2)
    rows = GOLDEN[:done] + [line.replace(" ", "") for line in GOLDEN[done:]]
    return {"out/report.txt": "\n".join(rows) + "\n", "report.rb": f"COLUMNS = {done}\nputs rows.first(COLUMNS)\n"}


@honest(
    "bad rows of a table are cleaned, rule by rule, with one rule that made it worse",
    checks="awk -f rules.awk data.csv",
    iterations=11,
    start={
        "data.csv": "".join(f"{k};{'' if k % 3 else 'x'};{k * 7 % 50}\n" for k in range(60)),
        "rules.awk": """BEGIN { FS = ";" }
$2 !~ /^[A-Z][a-z]+$/ { bad++; if (bad <= 3) print "row " NR ": name \\"" $2 "\\" is not valid" }
END { print bad + 0 " of " NR " rows are not valid"; exit bad > 0 }
""",
    },
)
def clean_rows(n: int) -> Files:
    done = {1: 4, 2: 11, 3: 18, 4: 15, 5: 24, 6: 31, 7: 38, 8: 44, 9: 49, 10: 55, 11: 60}[n]
    return {
        "data.csv": "".join(
            f"{k};{'Name' + 'abcdefghij'[k % 10] if k < done else ''};{k * 7 % 50}\n" for k in range(60)
        ),
        f"clean/rule_{n}.sql": f"UPDATE people SET name = initcap(name) WHERE id < {done};\n",
    }


HANDLERS = [
    "login",
    "logout",
    "signup",
    "profile",
    "avatar",
    "follow",
    "feed",
    "post",
    "like",
    "comment",
    "share",
    "report",
]


@honest(
    "the connection is refused until the last handler of the server is written",
    checks="sh smoke.sh",
    iterations=13,
    plan=lambda n: f"Write the handler for /{HANDLERS[n - 1]}" if n < 13 else "Bind the port and start to listen",
    start={
        "server.ex": "defmodule Server do\nend\n",
        "smoke.sh": """if grep -q 'Plug.Cowboy.http' server.ex; then echo 'HTTP/1.1 200 OK'; exit 0; fi
echo 'curl: (7) Failed to connect to localhost port 4000 after 0 ms: Connection refused'
exit 7
""",
    },
)
def handlers(n: int) -> Files:
    routes = "".join(f'  post "/{h}", do: {h.title()}.call(conn, :{h})\n' for h in HANDLERS[:n])
    start = "  def start, do: Plug.Cowboy.http(Server, [], port: 4000)\n" if n > 12 else ""
    files = {"server.ex": f"defmodule Server do\n{routes}{start}end\n"}
    if n < 13:
        h = HANDLERS[n - 1]
        files[f"lib/{h}.ex"] = (
            f"defmodule {h.title()} do\n  def call(conn, :{h}), do: Repo.{h}(conn.params, {n})\nend\n"
        )
    return files


TABLES = ["users", "teams", "roles", "grants", "audits", "tokens", "devices", "events", "alerts", "reports"]


@honest(
    "migrations are added until the schema has the version that is wanted",
    checks="sh migrate.sh",
    iterations=10,
    start={
        "migrate.sh": """v=0
for file in db/*.sql; do [ -f "$file" ] || continue; v=$((v + 1)); echo "applied ${file#db/}"; done
echo "schema is at version $v, want 10"
[ $v -ge 10 ]
""",
    },
)
def migrations(n: int) -> Files:
    t = TABLES[n - 1]
    return {f"db/{n:04d}_{t}.sql": f"CREATE TABLE {t} (\n  id bigint PRIMARY KEY,\n  {t}_name text NOT NULL\n);\n"}


PAGES = ["install", "quickstart", "config", "plugins", "themes", "search", "deploy", "upgrade", "faq"]


@honest(
    "sphinx warns of pages that are not in any toctree, and finds a few more on the way",
    checks="sh docs.sh",
    iterations=12,
    start={
        "docs/index.rst": ".. toctree::\n",
        **{f"docs/{p}.rst": f"{p}\n====\n" for p in PAGES},
        "docs.sh": """w=0
for file in docs/*.rst; do
  p=${file#docs/}; p=${p%.rst}
  [ $p = index ] && continue
  grep -q "^   $p$" docs/index.rst || { echo "$file: WARNING: document isn't included in any toctree"; w=$((w + 1)); }
done
[ $w = 0 ] && { echo 'build succeeded.'; exit 0; }
echo "build finished with problems, $w warnings (with warnings treated as errors)."
exit 1
""",
    },
)
def toctree(n: int) -> Files:
    order = [*PAGES[:4], "api", "cli", *PAGES[4:], "glossary"]
    files = {"docs/index.rst": ".. toctree::\n\n" + "".join(f"   {p}\n" for p in order[:n])}
    if n == 4:
        files |= {"docs/api.rst": "API\n===\n", "docs/cli.rst": "CLI\n===\n"}
    if n == 11:
        files["docs/glossary.rst"] = "Glossary\n========\n"
    return files


@honest(
    "mypy's count rests while a protocol is drawn out of four classes, then falls",
    checks="sh mypy.sh",
    iterations=12,
    start={
        **{f"app/v{k}.py": "def view(store):\n    return store.get()\n" for k in range(8)},
        "mypy.sh": """n=0
for file in app/v*.py; do
  grep -q 'store: Store' $file && continue
  echo "$file:1: error: Function is missing a type annotation  [no-untyped-def]"
  n=$((n + 1))
done
[ $n = 0 ] && exit 0
echo "Found $n errors in $n files (checked 14 source files)"
exit 1
""",
    },
)
def protocol(n: int) -> Files:
    if n <= 4:
        methods = ("get", "put", "drop", "scan")[:n]
        return {
            "app/store.py": "class Store(Protocol):\n"
            + "".join(f"    def {m}(self, key: str) -> Row: ...\n" for m in methods),
            f"app/impl_{n}.py": f"class {('Sql', 'File', 'Memory', 'Cached')[n - 1]}Store:\n    kind = {n}\n",
        }
    return {f"app/v{n - 5}.py": f"def view(store: Store) -> Row:\n    return store.get('{PAGES[n - 5]}')\n"}


MESSAGES = {
    "save": "Speichern",
    "open": "Öffnen",
    "close": "Schließen",
    "undo": "Rückgängig",
    "redo": "Wiederholen",
    "print": "Drucken",
    "share": "Teilen",
    "quit": "Beenden",
    "help": "Hilfe",
    "find": "Suchen",
}


@honest(
    "one line names the next message without a translation",
    checks="python3 -BS messages.py",
    iterations=10,
    plan=lambda _n: "Translate the message that the check names",
    start={
        "de.po": "",
        "messages.py": f"""import sys
text = open("de.po").read()
for key in {list(MESSAGES)!r}:
    if f'msgid "{{key}}"' not in text:
        sys.exit(f"de.po: no translation for '{{key}}'")
""",
    },
)
def translate(n: int) -> Files:
    return {"de.po": "".join(f'msgid "{k}"\nmsgstr "{v}"\n\n' for k, v in list(MESSAGES.items())[:n])}


@honest(
    "a bisection halves the range of suspects while the test fails in the same words",
    checks="sh crash.sh",
    iterations=11,
    plan=lambda n: (
        f"Bisect: test the middle of {2 ** (11 - n)} revisions" if n < 10 else "Fix what the bisection found"
    ),
    start={
        "ring.zig": "const mask = size;\n",
        "crash.sh": """grep -q 'size - 1' ring.zig && exit 0
echo 'thread 1 panic: index out of bounds: index 4096, len 4096'
exit 134
""",
    },
)
def bisect(n: int) -> Files:
    if n >= 10:
        return {"ring.zig": "const mask = size - 1;\n" if n == 11 else "const mask = size; // culprit: revision 733\n"}
    low, high, log = 0, 1024, ""
    for _ in range(n):
        middle = (low + high) // 2
        verdict = "bad" if middle >= 733 else "good"
        low, high = (low, middle) if verdict == "bad" else (middle, high)
        log += f"git bisect {verdict} r{middle}  # {high - low} left\n"
    return {"bisect.log": log}


@honest(
    "the count of calls of an old function falls by unequal steps",
    checks="sh old.sh",
    iterations=9,
    start={
        **{f"lib/m{k}.php": "<?php\n" + "mysql_query($q);\n" * (k + 2) for k in range(9)},
        "old.sh": "cat lib/*.php | grep -c mysql_query && exit 1\necho clean\n",
    },
)
def old_calls(n: int) -> Files:
    k = n * 4 % 9
    calls = "".join(f"$rows_{j} = $pdo->prepare($q{j})->fetchAll();\n" for j in range(k + 2))
    return {f"lib/m{k}.php": "<?php\n" + calls}


IDEAS = ["baseline", "stemming", "bigrams", "idf", "bm25", "synonyms", "fields", "proximity", "rerank", "distill"]
QUALITY = (0.412, 0.431, 0.429, 0.468, 0.533, 0.529, 0.561, 0.574, 0.642, 0.655)


@honest(
    "search quality climbs with dips, each time by another idea",
    checks="python3 -BS quality.py",
    iterations=10,
    plan=lambda n: f"Try {IDEAS[n - 1]}",
    start={
        "rank.py": "",
        "quality.py": f"""import sys
last = [i for i in {IDEAS!r} if i in open("rank.py").read()][-1:]
score = dict(zip({IDEAS!r}, {QUALITY!r})).get(*last or [""], 0.4)
print(f"nDCG@10 {{score}} (want 0.65), {{int(score * 212)}} of 212 queries have a hit")
sys.exit(score < 0.65)
""",
    },
)
def ranking(n: int) -> Files:
    return {
        "rank.py": "".join(
            f"def {i}(query, doc):\n    return doc.{i} * {k + 1} + len(query)\n\n" for k, i in enumerate(IDEAS[:n])
        ),
        "experiments.md": "".join(f"- {i}: {q}\n" for i, q in zip(IDEAS[: n - 1], QUALITY, strict=False)),
    }


@honest(
    "coverage rises by half a percent at a time",
    checks="sh cover.sh",
    iterations=14,
    plan=lambda n: f"Test the branches of parser state {n}",
    start={
        "cover.sh": """n=0
for file in spec/*_spec.rb; do [ -f $file ] && n=$((n + 1)); done
awk -v n=$n 'BEGIN { p = 82.3 + n * 0.55; printf "Line Coverage: %.2f%% (%d / 2000)\\n", p, p * 20
  if (p < 90) { print "Line coverage is below the minimum of 90.00%."; exit 2 } }'
""",
    },
)
def coverage(n: int) -> Files:
    word = [
        "array",
        "block",
        "case",
        "def",
        "ensure",
        "for",
        "gvar",
        "hash",
        "if",
        "lambda",
        "module",
        "next",
        "or",
        "proc",
    ][n - 1]
    return {
        f"spec/{word}_spec.rb": f"RSpec.describe '{word}' do\n  it 'parses a {word}' do\n"
        f"    expect(parse('{word} {n}')).to eq s(:{word}, {n})\n  end\nend\n"
    }


@honest(
    "unused files are deleted one by one and the tree gets smaller",
    checks="sh unused.sh",
    iterations=10,
    plan=lambda _n: "Delete the next unused file",
    start={
        **{f"css/old{k}.css": f".old-{k} {{ margin: {k}px; }}\n" * 5 for k in range(10)},
        "unused.sh": "for f in css/old*.css; do [ -f $f ] || continue; echo unused: $f; bad=1; done; exit ${bad:-0}\n",
    },
)
def unused(n: int) -> Files:
    return {f"css/old{(n * 3) % 10}.css": None}


@honest(
    "a flaky test passes in more and more of its twenty runs",
    checks="sh repeat.sh",
    iterations=9,
    start={
        "repeat.sh": """locks=$(cat src/*.kt | grep -c withLock)
id=$(cat src/*.kt | cksum | awk '{printf "%x", $1}')
p=$((locks * 2 + 3)); [ $p -gt 20 ] && p=20
echo "run $id: QueueTest.drains passed $p of 20"
[ $p = 20 ]
""",
        "src/queue.kt": "class Queue\n",
    },
)
def flaky(n: int) -> Files:
    fields = ["head", "tail", "size", "closed", "waiters", "limit", "stamp", "owner", "epoch"][:n]
    return {
        "src/queue.kt": "class Queue {\n" + "".join(f"  fun {f}() = lock.withLock {{ {f}_ }}\n" for f in fields) + "}\n"
    }


IMPORTS = ("moment", "lodash", "jquery", "core-js", "three", "d3", "ace", "mathjs", "pdfjs")
WEIGHTS = (231, 71, 85, 140, 310, 96, 190, 166, 280)


@honest(
    "the bundle loses one heavy import after the other",
    checks="python3 -BS size.py",
    iterations=9,
    start={
        "main.ts": "".join(f'import "{name}";\n' for name in IMPORTS),
        "size.py": f"""import sys
text = open("main.ts").read()
kib = 88.4 + sum(w for name, w in zip({IMPORTS!r}, {WEIGHTS!r}) if f'import "{{name}}"' in text)
print(f"dist/main.js  {{kib:.1f}} kB | gzip: {{kib * 0.31:.2f}} kB")
sys.exit(kib > 100)
""",
    },
)
def bundle(n: int) -> Files:
    gone = IMPORTS[:n]
    return {
        "main.ts": "".join(f'import "{name}";\n' for name in IMPORTS[n:]),
        f"small/{gone[-1]}.ts": f"export function {gone[-1].replace('-', '')}Lite(x: number) {{\n"
        f"  return x * {WEIGHTS[n - 1]};\n}}\n",
    }


PASSING = (3, 9, 14, 13, 22, 30, 28, 37, 44, 52, 51, 60)


@honest(
    "a parser passes more conformance cases, with a regression now and then",
    checks="sh conform.sh",
    iterations=12,
    plan=lambda n: f"Handle production {n}",
    start={
        "Parser.hs": "module Parser where\n",
        "conform.sh": """p=$(cat Parser.hs | grep -c '^case')
for k in 1 2 3; do echo "not ok $((p + k)) - json-suite/case_$((p + k)).json"; done
echo "# pass $p"
echo "# fail $((60 - p))"
[ $p = 60 ]
""",
    },
)
def parser(n: int) -> Files:
    cases = "".join(
        f"case{k} = token '{chr(97 + k % 26)}' <|> many {n if k % 9 == n % 9 else k}\n" for k in range(PASSING[n - 1])
    )
    return {"Parser.hs": "module Parser where\n" + cases}


@honest(
    "the linter is satisfied early, the tests only bit by bit",
    checks=("sh lint.sh", "sh unit.sh"),
    iterations=11,
    start={
        "calc.swift": "var x = 1 \n",
        "lint.sh": "grep -n ' $' calc.swift && { echo 'warning: trailing whitespace'; exit 1; }\nexit 0\n",
        "unit.sh": """n=$(cat calc.swift | grep -c func)
echo "Executed 10 tests, with $((10 - n)) failures (0 unexpected) in 0.0$((n * 7 % 10)) seconds"
[ $n -ge 10 ]
""",
    },
)
def calculator(n: int) -> Files:
    if n == 1:
        return {"calc.swift": "var x = 1\n"}
    names = ["add", "sub", "mul", "div", "pow", "root", "log", "exp", "sin", "cos"][: n - 1]
    return {
        "calc.swift": "var x = 1\n"
        + "".join(f"func {f}(_ a: Double, _ b: Double) -> Double {{ {f}_(a, b) }}\n" for f in names)
    }


GEMS = (
    ("rails", 7),
    ("devise", 5),
    ("sidekiq", 7),
    ("pundit", 3),
    ("puma", 6),
    ("rack", 3),
    ("redis", 5),
    ("rspec", 4),
)


@honest(
    "bundler stops at the first gem that does not fit, a different one each time",
    checks="sh bundle.sh",
    iterations=8,
    plan=lambda n: f"Raise {GEMS[n - 1][0]} to {GEMS[n - 1][1]}",
    start={
        "Gemfile": "".join(f"gem '{g}', '~> {v - 1}.0'\n" for g, v in GEMS),
        "bundle.sh": "".join(
            f"grep -q \"'{g}', '~> {v}\" Gemfile || {{\n"
            f"  echo 'Could not find compatible versions: {g} ~> {v - 1}.0'; exit 6\n}}\n"
            for g, v in GEMS
        ),
    },
)
def gems(n: int) -> Files:
    return {"Gemfile": "".join(f"gem '{g}', '~> {v if k < n else v - 1}.0'\n" for k, (g, v) in enumerate(GEMS))}


@honest(
    "the loss of a model falls by less and less each epoch",
    checks="python3 -BS loss.py",
    iterations=16,
    plan=lambda _n: "Resume the training for another epoch",
    start={
        "model.json": '{"epoch": 0, "weights": [4.0]}\n',
        "loss.py": """import json, math, sys
model = json.load(open("model.json"))
loss = 0.21 + 0.5 * math.exp(-model["epoch"] / 4)
print(f"epoch {model['epoch']}: val_loss {loss:.5f}, lr {0.01 * 0.9 ** model['epoch']:.2e}")
sys.exit(loss >= 0.2195)
""",
    },
)
def training(n: int) -> Files:
    return {"model.json": f'{{"epoch": {n}, "weights": [{", ".join(f"{4 / (k + n):.6f}" for k in range(1, 8))}]}}\n'}


STAGES = (
    "lexer: unexpected character '#'",
    "lexer: string without an end",
    "parser: expected ')' before 'then'",
    "parser: 'else' without 'if'",
    "types: cannot unify int with bool",
    "types: 'acc' is not in scope",
    "codegen: no rule for a closure",
    "codegen: registers are used up",
    "link: undefined symbol '_rt_alloc'",
)


@honest(
    "a compiler gets through its own source one stage further each time",
    checks="sh selfhost.sh",
    iterations=9,
    start={
        "compiler.ml": "let () = ()\n",
        "selfhost.sh": "".join(
            f"grep -q 'fix_{k} ' compiler.ml || {{ echo \"compiler.ml: {stage}\" >&2; exit 2; }}\n"
            for k, stage in enumerate(STAGES)
        ),
    },
)
def selfhost(n: int) -> Files:
    return {
        "compiler.ml": "".join(f"let fix_{k} s = match s with Some x -> x + {k * k} | None -> {k}\n" for k in range(n))
    }


TOPICS = ["money", "time", "trust", "rivers", "bread", "maps", "salt", "glass", "ships", "bees"]


@honest(
    "chapters are written until the book has its words",
    checks="cat book/*.md | awk '{ n += NF } END { print n \" words of 1400\"; exit n < 1400 }'",
    iterations=10,
    plan=lambda n: f"Write the chapter on {TOPICS[n - 1]}",
    start={"book/title.md": "A history of things\n"},
)
def book(n: int) -> Files:
    t = TOPICS[n - 1]
    verbs = ("moved", "fed", "divided", "outlived", "shaped", "cost", "ruined", "named")
    return {
        f"book/{n:02d}.md": f"# On {t}\n\n"
        + "".join(
            f"In the year {1100 + n * 61 + k} {t} {verbs[(n + k) % 8]} a town of {k * n + 40} people.\n"
            for k in range(12 + n % 3)
        )
    }


@honest(
    "files are renamed to the new scheme and only the first wrong name is printed",
    checks="sh names.sh",
    iterations=9,
    start={
        **{f"assets/IMG-{k}.svg": f"<svg id='{k}'/>\n" for k in range(1, 10)},
        "names.sh": 'for f in assets/IMG*; do [ -f $f ] && { echo "bad name: ${f#assets/}"; exit 1; }; done; exit 0\n',
    },
)
def renames(n: int) -> Files:
    return {f"assets/IMG-{n}.svg": None, f"assets/{PAGES[n - 1]}.svg": f"<svg id='{n}'/>\n"}


@honest(
    "valgrind finds fewer lost bytes, and process ids change all the time",
    checks="sh valgrind.sh",
    iterations=9,
    start={
        "src/cache.c": "".join(f"char *b{k} = malloc({2**k * 8});\n" for k in range(9)),
        "valgrind.sh": """pid=$(cat src/cache.c | cksum | awk '{print $1 % 30000 + 1000}')
awk -v pid=$pid '/malloc/ { split($0, p, /[()]/); size[$2] = p[2] }
  /free/ { split($0, p, /[()]/); delete size["*" p[2]] }
  END { for (b in size) { n++; sum += size[b] }
  print "==" pid "== definitely lost: " sum + 0 " bytes in " n + 0 " blocks"
  print "==" pid "== ERROR SUMMARY: " n + 0 " errors from " n + 0 " contexts"; exit n > 0 }' src/cache.c
""",
    },
)
def leaks(n: int) -> Files:
    made = "".join(f"char *b{k} = malloc({2**k * 8});\n" for k in range(9))
    return {"src/cache.c": made + "".join(f"free(b{k * 2 % 9});\n" for k in range(n))}


@honest(
    "the executor runs out of time in every iteration and still leaves a finished converter",
    checks='test -f convert/unit_09.jl || { echo "convert/ is not complete"; false; }',
    iterations=9,
    ending=lambda n: {"status": "failed", "error": "the time limit was reached"} if n < 9 else {},
    plan=lambda n: f"Convert {TABLES[n - 1]}",
)
def converters(n: int) -> Files:
    t = TABLES[n - 1]
    return {
        f"convert/unit_{n:02d}.jl": f"function convert_{t}(row)\n    row.{t} / {n * 25.4}\nend\nexport convert_{t}\n"
    }


@honest(
    "two answers of the planner could not be used between good iterations",
    checks="sh routes.sh",
    iterations=10,
    plan=lambda n: malformed() if n in {4, 7} else planned(f"Type the route {HANDLERS[n - 1]}"),
    start={
        **{f"routes/{h}.ts": f"export const {h} = (req: any) => req;\n" for h in HANDLERS[:8]},
        "routes.sh": """n=$(cat routes/*.ts | grep -c ': any')
[ $n = 0 ] && exit 0
echo "✖ $n problems ($n errors, 0 warnings)"; exit 1
""",
    },
)
def any_types(n: int) -> Files:
    if n in {4, 7}:
        return {}
    h = HANDLERS[n - 1 - (n > 4) - (n > 7)]
    return {f"routes/{h}.ts": f"export const {h} = (req: {h.title()}Request): {h.title()} => req.body;\n"}


@honest(
    "a claim that all is done comes too early, and the rest is done after it",
    checks="sh api.sh",
    iterations=9,
    plan=lambda n: claims_done() if n == 5 else planned(f"Implement DELETE and PATCH of {TABLES[n - 1]}"),
    start={
        "api.py": "",
        "api.sh": "".join(
            f"grep -q {t} api.py && echo '200 /{t}' || {{ echo '501 /{t}'; bad=1; }}\n" for t in TABLES[:8]
        )
        + "exit ${bad:-0}\n",
    },
)
def endpoints(n: int) -> Files:
    done = TABLES[: n if n < 5 else n - 1]
    return {"api.py": "".join(f"@app.patch('/{t}')\ndef patch_{t}(id: int):\n    return db.{t}[id]\n\n" for t in done)}


@honest(
    "an audit finds fewer holes, the bad ones first",
    checks="python3 -BS audit.py",
    iterations=9,
    start={
        "lock.txt": "".join(f"pkg{k}==1.0\n" for k in range(18)),
        "audit.py": """import sys
old = [line for line in open("lock.txt") if line.endswith("==1.0\\n")]
critical = sum(int(line[3:-6]) < 6 for line in old)
if old:
    print(f"{len(old)} vulnerabilities ({len(old) - critical} moderate, {critical} critical)")
    print("fix available via `audit fix --force`")
sys.exit(bool(old))
""",
    },
)
def audit(n: int) -> Files:
    return {"lock.txt": "".join(f"pkg{k}=={'2.' + str(k % 4 + 1) if k < 2 * n else '1.0'}\n" for k in range(18))}


A11Y = (61, 61, 68, 74, 74, 79, 85, 88, 93, 100)


@honest(
    "an accessibility score stays for an iteration twice before it moves on",
    checks="sh a11y.sh",
    iterations=10,
    plan=lambda n: f"Label region {n}",
    start={
        "page.html": "<main></main>\n",
        "a11y.sh": f"""n=$(cat page.html | grep -c aria-)
set -- 55 {" ".join(map(str, A11Y))}
shift $n
echo "accessibility: $1/100 ($((10 - n)) audits failed)"
[ $1 = 100 ]
""",
    },
)
def accessibility(n: int) -> Files:
    names = ["banner", "nav", "main", "search", "form", "list", "table", "figure", "aside", "footer"][:n]
    return {
        "page.html": "<main>\n"
        + "".join(f'<section aria-label="{x}"><h2>{x}</h2></section>\n' for x in names)
        + "</main>\n"
    }


@honest(
    "conflicts in a timetable are resolved by swaps that cost another one at times",
    checks="python3 -BS conflicts.py",
    iterations=12,
    start={
        "table.txt": "".join(f"class{k} {k // 3}\n" for k in range(24)),
        "conflicts.py": """import sys
seen, clash = {}, []
for line in open("table.txt"):
    name, slot = line.split()
    if slot in seen:
        clash.append(f"{name} and {seen[slot]} both have slot {slot}")
    seen[slot] = name
print(*clash[:2], f"{len(clash)} conflicts", sep="\\n")
sys.exit(bool(clash))
""",
    },
)
def timetable(n: int) -> Files:
    free = {1: 2, 2: 4, 3: 7, 4: 6, 5: 9, 6: 11, 7: 10, 8: 13, 9: 14, 10: 15, 11: 15, 12: 16}[n]
    moved = [k for k in range(24) if k % 3][:free]
    extra = "# room 4 is free on Friday\n" if n == 11 else ""
    return {
        "table.txt": "".join(f"class{k} {100 + k if k in moved else k // 3}\n" for k in range(24)),
        "swaps.log": "".join(f"swap {k}: class{k * 5 % 24}\n" for k in range(1, n + 1)) + extra,
    }


CLOUD = ("vpc", "subnet", "gateway", "bucket", "queue", "topic", "role", "key", "alarm", "zone", "record")


@honest(
    "terraform's drift shrinks as resources are imported",
    checks="sh drift.sh",
    iterations=11,
    plan=lambda n: f"Import the {CLOUD[n - 1]}",
    start={
        "main.tf": "",
        "drift.sh": """n=$(cat main.tf | grep -c ^import)
[ $n = 11 ] && { echo 'No changes. Your infrastructure matches the configuration.'; exit 0; }
echo "Plan: $((11 - n)) to add, $((n % 3)) to change, 0 to destroy."
exit 2
""",
    },
)
def drift(n: int) -> Files:
    return {
        "main.tf": "".join(
            f'import {{\n  to = aws_{c}.main\n  id = "{c}-{k * 7919:05x}"\n}}\n' for k, c in enumerate(CLOUD[:n], 3)
        )
    }


RULES = ["header", "spacing", "numbers", "units", "quotes", "dashes", "tables", "captions"]


@honest(
    "a LaTeX build shows only that it failed, and each iteration repairs another chapter",
    checks="sh latex.sh",
    iterations=8,
    plan=lambda _n: "Repair the next chapter",
    start={
        **{f"tex/{r}.tex": "\\begin{table}\n\\hline\n" for r in RULES},
        "latex.sh": "for f in tex/*.tex; do grep -q 'end{table}' $f || { echo '! Emergency stop.'; exit 1; }; done\n",
    },
)
def latex(n: int) -> Files:
    r = RULES[n - 1]
    rows = "".join(f"{r} {k} & {k * n} \\\\\n" for k in range(n + 2))
    return {f"tex/{r}.tex": f"\\begin{{table}}\n\\hline\n{rows}\\end{{table}}\n"}


LEMMAS = [
    "add_comm",
    "add_assoc",
    "mul_comm",
    "mul_assoc",
    "distrib",
    "le_trans",
    "le_antisymm",
    "sub_self",
    "dvd_trans",
    "gcd_comm",
]
TACTICS = ("ring", "omega", "simp [h]", "induction n with k ih", "exact h.symm", "linarith", "rcases h with ⟨a, b⟩")


@honest(
    "lemmas of a proof are split before they are proved, so that the open ones rise first",
    checks="sh lean.sh",
    iterations=13,
    plan=lambda n: "Split the main theorem" if n <= 3 else f"Prove {LEMMAS[n - 4]}",
    start={
        "Main.lean": "theorem main : goal := by\n  sorry\n",
        "lean.sh": """awk '/^theorem/ { name = $2 }
  /sorry/ { print "Main.lean:" NR ": declaration " name " uses sorry"; n++ }
  END { print n + 0 " open goals"; exit n > 0 }' Main.lean
""",
    },
)
def lemmas(n: int) -> Files:
    known = LEMMAS[: min(10, 4 * n)]
    proved = max(0, n - 3)
    text = "".join(
        f"theorem {x} (n : Nat) : {x}_statement n := by\n  {TACTICS[k % 7] if k < proved else 'sorry'}\n"
        for k, x in enumerate(known)
    )
    return {"Main.lean": f"{text}theorem main : goal := by\n  exact combine {' '.join(known)}\n"}


SCRIPTS = ["backup", "deploy", "rotate", "seed", "clean", "notify", "health", "release"]


@honest(
    "shellcheck's codes disappear from one script after the other, the loud one last",
    checks="sh shellcheck.sh",
    iterations=8,
    plan=lambda n: f"Quote the variables in {SCRIPTS[n - 1]}.bash",
    start={
        **{f"bin/{s}.bash": f"cd ${s}_dir\nrm -f $1\n" + "cp $a $b\n" * (k + 1) for k, s in enumerate(SCRIPTS)},
        "shellcheck.sh": """awk '/ [$]/ { bad = 1
  print "In " FILENAME " line " FNR ": SC2086 (info): Double quote to prevent globbing" }
  END { exit bad }' bin/*.bash
""",
    },
)
def shellcheck(n: int) -> Files:
    s = SCRIPTS[n - 1]
    return {f"bin/{s}.bash": f'cd "${{{s}_dir:?}}"\nrm -f -- "$1"\n' + 'cp "$a" "$b"\n' * n}
