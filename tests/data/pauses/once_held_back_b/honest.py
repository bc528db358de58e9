"""Episodes that do honest work: none of them may be paused."""

from tests.data.pauses import Files, honest
from tests.support.doubles import malformed

GO_BUILD = """bad=0
for s in Open Close Read Write Seek Stat Sync Lock Unlock Trim Walk; do
  grep -qs "func (f \\*File) $s(" fs/*.go || { bad=1
    echo "./main.go:31:4: f.$s undefined (type *File has no method $s)"; }
done
[ $bad -eq 0 ] || echo "FAIL example.org/vfs [build failed]"; exit $bad
"""
GO_METHODS = ("Open", "Close", "Read", "Write", "Seek", "Stat", "Sync", "Lock", "Unlock", "Trim", "Walk")


@honest(
    "a Go file type gets the methods that the linker misses",
    checks="sh build.sh",
    start={"build.sh": GO_BUILD, "go.mod": "module example.org/vfs\n"},
    iterations=11,
)
def go_methods(n: int) -> Files:
    name = GO_METHODS[n - 1]
    body = f"package fs\n\nfunc (f *File) {name}() error {{\n\treturn f.device.{name.lower()}(f.inode)\n}}\n"
    return {f"fs/{name.lower()}.go": body}


@honest(
    "Terraform resources below a check without a word",
    checks="[ $(grep -c '^resource ' infra/main.tf) -ge 10 ]",
    start={"infra/main.tf": 'provider "aws" {\n  region = "eu-central-1"\n}\n'},
    iterations=10,
)
def terraform(n: int) -> Files:
    kinds = ("vpc", "subnet", "route_table", "nat_gateway", "eip", "lb", "instance", "s3_bucket", "iam_role", "kms_key")
    blocks = (f'\nresource "aws_{kind}" "main" {{\n  tags = {{ part = "{kind}" }}\n}}\n' for kind in kinds[:n])
    return {"infra/main.tf": 'provider "aws" {\n  region = "eu-central-1"\n}\n' + "".join(blocks)}


COLUMNS = ("currency", "vat_rate", "shipped_at", "carrier", "refund_id", "channel", "locale", "coupon", "gift")
SQL = """for c in currency vat_rate shipped_at carrier refund_id channel locale coupon gift; do
  grep -qs "ADD COLUMN $c " migrations/*.sql || { echo "sqlite3.OperationalError: no such column: orders.$c"; exit 1; }
done
"""


@honest(
    "migrations add the columns that the report wants",
    checks="sh report.sh",
    start={"report.sh": SQL, "migrations/0000_init.sql": "CREATE TABLE orders (id INTEGER PRIMARY KEY);\n"},
    iterations=9,
)
def migrations(n: int) -> Files:
    column = COLUMNS[n - 1]
    text = f"ALTER TABLE orders ADD COLUMN {column} TEXT;\nCREATE INDEX orders_{column} ON orders ({column});\n"
    return {f"migrations/{n:04}_{column}.sql": text}


RUST = (11, 19, 16, 17, 12, 9, 10, 6, 4, 2, 0)
CARGO = """n=$(cat target/count); [ $n -eq 0 ] && exit 0
echo "error[E0382]: borrow of moved value: \\`session\\`"
echo "error: could not compile \\`gateway\\` (lib) due to $n previous errors"; exit 101
"""


@honest(
    "owned strings become borrowed ones in a Rust crate, the errors rise before they sink",
    checks="sh cargo.sh",
    start={"cargo.sh": CARGO, "target/count": "8\n"},
    iterations=11,
)
def borrowing(n: int) -> Files:
    types = ["Session", "Route", "Header", "Cookie", "Token", "Query", "Body", "Frame", "Stream", "Upgrade", "Trailer"]
    name = types[n - 1]
    text = (
        f"pub struct {name}<'a> {{\n    raw: &'a str,\n}}\n\nimpl<'a> {name}<'a> {{\n    pub fn raw(&self) -> &'a str"
    )
    return {"target/count": f"{RUST[n - 1]}\n", f"src/{name.lower()}.rs": text + " {\n        self.raw\n    }\n}\n"}


COVERED = (41, 46, 46, 53, 58, 63, 64, 71, 75, 79, 82, 86)


@honest(
    "tests lift the coverage to 85 percent",
    checks='c=$(cat cover.out); echo "coverage: $c.2% of statements, 85.0% wanted"; [ $c -ge 85 ]',
    start={"cover.out": "37\n"},
    iterations=12,
)
def coverage(n: int) -> Files:
    areas = [
        "login",
        "logout",
        "invite",
        "revoke",
        "rename",
        "archive",
        "restore",
        "export",
        "upload",
        "quota",
        "billing",
        "webhook",
    ]
    area = areas[n - 1]
    test = f"def test_{area}_is_denied_to_guests(guest):\n    assert guest.post('/{area}').status == 403\n"
    more = f"\n\ndef test_{area}(admin):\n    assert admin.post('/{area}').json()['{area}'] == 'ok'\n"
    return {"cover.out": f"{COVERED[n - 1]}\n", f"tests/test_{area}.py": test + more}


IMAGE_LINES = (
    ("FROM debian:12-slim", "failed to resolve source metadata: no base image"),
    ("RUN apt-get update && apt-get install -y gcc libpq-dev", "Error: pg_config executable not found."),
    ("COPY requirements.txt /app/", "Could not open requirements file: requirements.txt"),
    (
        "RUN pip install --break-system-packages -r /app/requirements.txt",
        "ModuleNotFoundError: flask",
    ),
    ("COPY src /app/src", "python: can't open file '/app/src/serve.py': [Errno 2]"),
    ("RUN useradd --create-home web", "unable to find user web: no matching entries in passwd file"),
    ("ENV DATABASE_URL=postgres://db/web", "KeyError: 'DATABASE_URL'"),
    ("EXPOSE 8080", "curl: (7) Failed to connect to localhost port 8080"),
    ("HEALTHCHECK CMD curl -f http://localhost:8080/up", "container web is unhealthy"),
)
IMAGE = """awk 'NR == FNR { want[++m] = $1 " " $2; split($0, p, "\\t"); said[m] = p[2]; next } { got[$1 " " $2] = 1 }
END { for (i = 1; i <= m; i++) if (!(want[i] in got)) { print "#" i " ERROR: " said[i]; exit 1 }}' wanted.tsv Dockerfile
"""


@honest(
    "a container image gets past one failure after the other",
    checks="sh image.sh",
    start={"image.sh": IMAGE, "wanted.tsv": "".join(f"{a}\t{b}\n" for a, b in IMAGE_LINES), "Dockerfile": "# image\n"},
    iterations=9,
)
def container_image(n: int) -> Files:
    return {"Dockerfile": "# image\n" + "".join(f"{line}\n" for line, _ in IMAGE_LINES[:n])}


MESSAGES = [
    "Save",
    "Open",
    "Print",
    "Close",
    "Undo",
    "Redo",
    "Cut",
    "Copy",
    "Paste",
    "Find",
    "Replace",
    "Zoom",
    "Help",
    "About",
    "Quit",
    "Reload",
    "Share",
    "Lock",
]
GERMAN = [
    "Speichern",
    "Öffnen",
    "Drucken",
    "Schließen",
    "Rückgängig",
    "Wiederholen",
    "Ausschneiden",
    "Kopieren",
    "Einfügen",
    "Suchen",
    "Ersetzen",
    "Zoomen",
    "Hilfe",
    "Über",
    "Beenden",
    "Neuladen",
    "Teilen",
    "Sperren",
]


def catalogue(translated: int) -> str:
    pairs = zip(MESSAGES, GERMAN, strict=True)
    return "\n".join(f'msgid "{a}"\nmsgstr "{b if i < translated else ""}"\n' for i, (a, b) in enumerate(pairs))


@honest(
    "German messages are filled in, two at a time",
    checks='n=$(grep -c \'msgstr ""\' po/de.po); echo "de.po: $n untranslated messages."; [ $n -eq 0 ]',
    start={"po/de.po": catalogue(0)},
    iterations=9,
)
def translation(n: int) -> Files:
    return {"po/de.po": catalogue(2 * n)}


PORT = """import sys
from pathlib import Path
for path in sorted(Path("legacy").glob("*.py")):
    try:
        compile(path.read_text(), str(path), "exec")
    except SyntaxError as error:
        sys.exit(f"*** Error compiling '{path}'...\\n  line {error.lineno}\\nSyntaxError: {error.msg}")
"""
OLD = "import os\n\ndef main(argv):\n    print 'usage:', argv[0]\n"


@honest(
    "scripts of Python 2 are ported, the compiler names the first that is not",
    checks="python3 -B compileall.py",
    start={"compileall.py": PORT, **{f"legacy/{c}_job.py": OLD for c in "abcdefghij"}},
    iterations=10,
)
def python_two(n: int) -> Files:
    return {f"legacy/{'abcdefghij'[n - 1]}_job.py": OLD.replace("print 'usage:', argv[0]", "print('usage:', argv[0])")}


@honest(
    "a bisection halves the suspects, then the culprit is mended",
    checks='n=$(cat suspects); echo "FAIL export_totals; bisecting, $n suspects left"; grep -qs Decimal src/export.py',
    start={"suspects": "128\n", "src/export.py": "def total(rows):\n    return sum(float(row) for row in rows)\n"},
    iterations=8,
    plan=lambda n: "halve the suspects" if n < 8 else "mend the commit that was found",
)
def bisection(n: int) -> Files:
    if n == 8:
        fixed = "from decimal import Decimal\n\n\ndef total(rows):\n    return sum(Decimal(row) for row in rows)\n"
        return {"src/export.py": fixed}
    verdicts = ("bad", "good", "good", "bad", "bad", "good", "bad")
    seen = (f"git bisect {verdicts[i]} {i * 7919 + 40961:x}\n" for i in range(n))
    return {"suspects": f"{128 >> n}\n", "BISECT_LOG": "".join(seen)}


BENCH = (812, 799, 805, 640, 655, 511, 498, 402, 409, 355, 291, 240)


@honest(
    "a benchmark with noise falls below 250 ns",
    checks='t=$(cat bench); echo "BenchmarkEncode-8  $((1000000 / t))  $t ns/op"; [ $t -lt 250 ]',
    start={"bench": "840\n"},
    iterations=12,
)
def noisy_benchmark(n: int) -> Files:
    ideas = [
        "pool",
        "scratch",
        "table",
        "unroll",
        "arena",
        "batch",
        "inline",
        "prefetch",
        "simd",
        "bitset",
        "flatten",
        "fused",
    ]
    idea = ideas[n - 1]
    code = (
        f"package enc\n\n// {idea} saves an allocation for each record.\nfunc (e *Encoder) {idea}(b []byte) []byte {{\n"
    )
    return {"bench": f"{BENCH[n - 1]}\n", f"enc/{idea}.go": code + f"\treturn append(e.{idea}Buf[:0], b...)\n}}\n"}


CONTRAST = """import re, sys
css = open("site.css").read()
bad = [m[1] for m in re.finditer(r"(\\S+) \\{ color: #([0-9a-f])", css) if int(m[2], 16) > 7]
for name in bad:
    print(f"{name}: contrast is below 4.5:1 (WCAG 1.4.3)")
print(f"{len(bad)} violations"); sys.exit(bool(bad))
"""
SELECTORS = [
    ".nav",
    ".hero",
    ".card",
    ".btn",
    ".note",
    ".tab",
    ".tag",
    ".chip",
    ".foot",
    ".price",
    ".badge",
    ".crumb",
    ".label",
    ".hint",
    ".date",
    ".menu",
]


@honest(
    "two colours of the site become readable in each iteration",
    checks="python3 contrast.py",
    start={"contrast.py": CONTRAST, "site.css": "".join(f"{s} {{ color: #c9c9c9; }}\n" for s in SELECTORS)},
    iterations=8,
)
def contrast(n: int) -> Files:
    rules = (f"{s} {{ color: #{'333333' if i < 2 * n else 'c9c9c9'}; }}\n" for i, s in enumerate(SELECTORS))
    return {"site.css": "".join(rules)}


HEADER = (46, 61, 58, 44, 37, 29, 29, 18, 7, 0)


@honest(
    "a header is torn into ten and the build is broken until the end",
    checks=("sh make.sh", "test -f include/log.h"),
    start={
        "make.sh": 'e=$(cat .errors); [ $e -eq 0 ] || { echo "engine.c:88:3: error: implicit declaration of function"; '
        'echo "make: *** [Makefile:12: engine.o] Error 1 ($e errors in total)"; exit 2; }\n',
        ".errors": "0\n",
        "include/all.h": "".join(f"int engine_call_{i}(void);\n" for i in range(40)),
    },
    iterations=10,
)
def header_split(n: int) -> Files:
    part = ["math", "mem", "str", "list", "map", "file", "net", "time", "task", "log"][n - 1]
    declared = "".join(f"int engine_call_{i}(void);\n" for i in range(4 * (n - 1), 4 * n))
    left = "".join(f"int engine_call_{i}(void);\n" for i in range(4 * n, 40))
    guard = f"#ifndef {part.upper()}_H\n#define {part.upper()}_H\n{declared}#endif\n"
    return {".errors": f"{HEADER[n - 1]}\n", f"include/{part}.h": guard, "include/all.h": left}


@honest(
    "the agent runs out of memory every third time, in between it goes ahead",
    checks="[ $(ls routes/*.rb 2>/dev/null | wc -l) -ge 8 ]",
    start={"routes/.keep": ""},
    iterations=13,
    ending=lambda n: {"status": "failed", "error": "exit 137: killed"} if n % 3 == 0 else {},
)
def killed_at_times(n: int) -> Files:
    if n % 3 == 0:
        return {}
    return {f"routes/route_{n}.rb": f"get '/r{n}' do\n  halt 404 unless Item[{n}]\n  json Item[{n}].to_h\nend\n"}


@honest(
    "Java goes class by class to Kotlin under one title",
    checks="n=$(ls app | grep -c 'java$'); echo \"$n of 12 classes are still Java\"; [ $n -eq 0 ]",
    start={f"app/Model{c}.java": f"public class Model{c} {{\n  private int id;\n}}\n" for c in "ABCDEFGHIJKL"},
    iterations=12,
    plan=lambda _n: "continue the port",
)
def kotlin(n: int) -> Files:
    name = f"Model{'ABCDEFGHIJKL'[n - 1]}"
    return {f"app/{name}.java": None, f"app/{name}.kt": f"data class {name}(val id: Int)\n"}


LEAK = (8192, 8192, 6144, 5632, 5632, 4096, 2560, 1024, 1024, 0)


@honest(
    "leaks are closed until valgrind is quiet",
    checks='b=$(cat leak); echo "==$((b * 3 + 71))== definitely lost: $b bytes in $((b / 256)) blocks"; [ $b -eq 0 ]',
    start={"leak": "9216\n"},
    iterations=10,
)
def leaks(n: int) -> Files:
    owner = ["conn", "ring", "tls", "dns", "cache", "timer", "queue", "trie", "pool", "lexer"][n - 1]
    code = f"void {owner}_free(struct {owner} *self)\n{{\n\tfree(self->{owner}_buf);\n\tfree(self);\n}}\n"
    return {"leak": f"{LEAK[n - 1]}\n", f"src/{owner}_free.c": code}


CRASHES = (
    "heap-buffer-overflow in read_varint",
    "stack-overflow in parse_group",
    "SEGV on unknown address in next_field",
    "integer-overflow in tag_size",
    "heap-use-after-free in pop_scope",
    "negative-size-param in copy_bytes",
    "global-buffer-overflow in wire_name",
    "timeout after 25 seconds in skip_unknown",
    "memcpy-param-overlap in shift_left",
)
FUZZ = """n=$(grep -c 'return ERR_' src/decode.c); [ $n -ge 9 ] && { echo "100000 runs, no crash"; exit 0; }
echo "==$((4021 + n * 613))==ERROR: AddressSanitizer: $(awk "NR == $n + 1" crashes.txt)"
echo "    #0 0x55d$((n * 7321 + 1024)) src/decode.c:$((40 + n * 3))"; exit 77
"""


@honest(
    "a fuzzer finds the next crash after each guard",
    checks="sh fuzz.sh",
    start={
        "fuzz.sh": FUZZ,
        "crashes.txt": "\n".join(CRASHES) + "\n",
        "src/decode.c": "int decode(void) { return 0; }\n",
    },
    iterations=9,
)
def fuzzing(n: int) -> Files:
    guards = "".join(
        f"    if (guard_{c.split()[-1]}(in))\n        return ERR_{i};\n" for i, c in enumerate(CRASHES[:n])
    )
    return {"src/decode.c": f"int decode(struct in *in)\n{{\n{guards}    return 0;\n}}\n"}


PAGES = ["intro", "setup", "usage", "config", "deploy", "backup", "tuning", "errors", "faq", "glossary"]


@honest(
    "dead links of the handbook get their pages",
    checks='r=0; for p in $(cat links); do test -f docs/$p.md || { echo "docs/index.md: dead link $p.md"; r=1; }; '
    "done; exit $r",
    start={"links": "\n".join(PAGES) + "\n", "docs/index.md": "".join(f"- [{p}]({p}.md)\n" for p in PAGES)},
    iterations=10,
)
def dead_links(n: int) -> Files:
    page = PAGES[n - 1]
    return {f"docs/{page}.md": f"# {page.title()}\n\nRun `shopctl {page}`.\n\nSee also {PAGES[n - 2]}.\n"}


@honest(
    "three checks become green one after the other",
    checks=(
        "n=$(grep -c 'var ' src/page.js); echo \"$n problems (no-var)\"; [ $n -eq 0 ]",
        "n=$(grep -c ': any' src/page.ts); echo \"Found $n implicit any\"; [ $n -eq 0 ]",
        "[ $(ls e2e | wc -l) -ge 4 ]",
    ),
    start={
        "src/page.js": "".join(f"var field{i} = form.f{i};\n" for i in range(8)),
        "src/page.ts": "".join(f"let f{i}: any;\n" for i in range(12)),
        "e2e/first.spec": "visit /\n",
    },
    iterations=11,
)
def three_checks(n: int) -> Files:
    if n <= 4:
        return {"src/page.js": "".join(f"{'const' if i < 2 * n else 'var'} field{i} = form.f{i};\n" for i in range(8))}
    if n <= 8:
        typed = 3 * (n - 4)
        return {"src/page.ts": "".join(f"let f{i}: {'string' if i < typed else 'any'};\n" for i in range(12))}
    flow = ("login", "basket", "refund")[n - 9]
    return {f"e2e/{flow}.spec": f"visit /{flow}\nclick 'Go on'\nexpect '{flow} is done'\n"}


FLAKY_LIST = """h=$(cat web/*.vue 2>/dev/null | cksum | cut -c2-2)
[ "$h" -gt 6 ] && echo "flaky: e2e/chat.spec timed out after 5000ms"
left=0; for v in Home Cart Item Login Order Pay Return Review Search Seller Stock Wish; do
  test -f web/$v.vue || { echo "not ok - $v has no component"; left=1; }
done; exit $left
"""
VIEWS = ["Home", "Cart", "Item", "Login", "Order", "Pay", "Return", "Review", "Search", "Seller", "Stock", "Wish"]


@honest(
    "a chat test fails by chance while components are written",
    checks="sh tap.sh",
    start={"tap.sh": FLAKY_LIST},
    iterations=12,
)
def chance(n: int) -> Files:
    view = VIEWS[n - 1]
    return {f"web/{view}.vue": f"<template>\n  <main class='{view.lower()}'>{{{{ title }}}}</main>\n</template>\n"}


FLAGS = [
    "new_nav",
    "dark_mode",
    "beta_pay",
    "fast_sync",
    "ai_tags",
    "long_poll",
    "live_map",
    "sso_v2",
    "bulk_edit",
    "geo_tax",
]


@honest(
    "feature flags are taken out of the code",
    checks="! grep -n 'flag(' src/flags_used.ex",
    start={"src/flags_used.ex": "".join(f"if flag(:{f}), do: new_{f}(), else: old_{f}()\n" for f in FLAGS)},
    iterations=10,
)
def feature_flags(n: int) -> Files:
    text = (
        f"new_{f}()\n" if i < n else f"if flag(:{f}), do: new_{f}(), else: old_{f}()\n" for i, f in enumerate(FLAGS)
    )
    return {"src/flags_used.ex": "".join(text)}


DIRTY = (
    'awk -F, \'!/@/ || $2 < 0 { bad++ } END { print bad + 0 " of " NR " rows are invalid"; exit bad > 0 }\' people.csv'
)


def people(clean: int) -> str:
    return "".join(f"user{i}{'@' if i < clean else ' at '}example.org,{20 + i % 50}\n" for i in range(120))


@honest("addresses of customers are cleaned in portions", checks=DIRTY, start={"people.csv": people(0)}, iterations=10)
def cleaning(n: int) -> Files:
    return {"people.csv": people(12 * n)}


@honest(
    "a bundle is missing until the last of nine modules is there",
    checks="cat dist/index.js 2>/dev/null || { echo \"Error: Cannot find module './dist/index.js'\"; exit 1; }",
    start={"package.json": '{"name": "charts", "main": "dist/index.js"}\n'},
    iterations=10,
    plan=lambda n: "bundle" if n == 10 else f"write module {n} of the charts",
)
def bundle(n: int) -> Files:
    if n == 10:
        return {"dist/index.js": "module.exports = { draw: require('../src/bar') };\n"}
    shape = ["axis", "scale", "line", "bar", "pie", "area", "legend", "tooltip", "theme"][n - 1]
    code = f"exports.{shape} = (data, box) => {{\n  return box.draw(data.map((d) => d.{shape}));\n}};\n"
    return {f"src/{shape}.js": code}


PINS = ("lodash", "minimist", "axios", "qs", "ws", "tar", "semver", "json5", "got", "ini")


def pinned(raised: int) -> str:
    return "".join(f'"{p}": "{"9.0.1" if i < raised else "1.0.0"}",\n' for i, p in enumerate(PINS))


@honest(
    "packages with known holes are raised one by one",
    checks="n=$(grep -c '1.0.0' deps.json); echo \"found $n vulnerabilities ($((n / 2)) high)\"; [ $n -eq 0 ]",
    start={"deps.json": pinned(0)},
    iterations=10,
    plan=lambda _n: "raise one version",
)
def audit(n: int) -> Files:
    return {"deps.json": pinned(n)}


GOLDEN = """import difflib, sys
want, got = open("golden.txt").read().splitlines(), open("out.txt").read().splitlines()
rows = list(difflib.unified_diff(want, got, "golden.txt", "out.txt", lineterm="", n=0))
print("\\n".join(rows)); sys.exit(bool(rows))
"""


@honest(
    "the printed invoice approaches its golden file",
    checks="python3 -B golden.py",
    start={
        "golden.py": GOLDEN,
        "golden.txt": "".join(f"{i:>4}  article {i * 13:05}  {i * 1.19:8.2f} EUR\n" for i in range(1, 10)),
        "out.txt": "",
    },
    iterations=9,
)
def golden(n: int) -> Files:
    formats = ["indent", "article", "padding", "money", "rounding", "currency", "totals", "align", "footer"]
    done = "".join(f"{i:>4}  article {i * 13:05}  {i * 1.19:8.2f} EUR\n" for i in range(1, n + 1))
    return {
        "out.txt": done,
        f"src/print_{formats[n - 1]}.pl": f"sub {formats[n - 1]} {{ my ($row) = @_; return $row; }}\n",
    }


PERFT = (8902, 9110, 9322, 94120, 193000, 197742, 197200, 197281)


@honest(
    "a chess engine learns the special moves",
    checks='n=$(cat perft); echo "perft(4) = $n, expected 197281"; [ $n -eq 197281 ]',
    start={"perft": "0\n"},
    iterations=8,
)
def chess(n: int) -> Files:
    move = ["slide", "knight", "king", "pawn_double", "capture", "castling", "en_passant", "promotion"][n - 1]
    code = f"void gen_{move}(Board& b, Moves& out) {{\n  for (auto from : b.own())\n    b.push_{move}(from, out);\n}}\n"
    return {"perft": f"{PERFT[n - 1]}\n", f"src/gen_{move}.cpp": code}


COLLECTED = (1, 212, 180, 181, 133, 96, 70, 41, 12, 0)


@honest(
    "an error of the collection hides two hundred failures that are then mended",
    checks="sh collect.sh",
    start={
        "collect.sh": 'f=$(cat fails); [ $f -eq 1 ] && { echo "ERROR collecting tests - Interrupted"; exit 2; }\n'
        '[ $f -eq 0 ] || { echo "$f failed, $((212 - f)) passed"; exit 1; }\n',
        "fails": "1\n",
    },
    iterations=10,
)
def collection(n: int) -> Files:
    area = ["conftest", "dates", "paths", "locale", "sockets", "threads", "temp", "users", "mails", "reports"][n - 1]
    code = f"import pytest\n\n\n@pytest.fixture\ndef {area}(tmp_path):\n    yield make_{area}(tmp_path / '{area}')\n"
    return {"fails": f"{COLLECTED[n - 1]}\n", f"tests/fixtures/{area}.py": code}


PROCEDURES = ["open", "read", "write", "seek", "close", "lock", "sync", "trim", "stat", "list", "move", "copy"]


@honest(
    "functions get their doc comments, nothing else is wanted",
    checks="u=$(($(grep -c '^fn ' lib.zig) - $(grep -c '^///' lib.zig))); echo \"$u functions lack a doc comment\"; "
    "[ $u -eq 0 ]",
    start={"lib.zig": "".join(f"fn {p}() void {{}}\n" for p in PROCEDURES)},
    iterations=12,
)
def doc_comments(n: int) -> Files:
    docs = (f"/// How to {p} a volume.\n" if i < n else "" for i, p in enumerate(PROCEDURES))
    return {"lib.zig": "".join(f"{doc}fn {p}() void {{}}\n" for doc, p in zip(docs, PROCEDURES, strict=True))}


@honest(
    "tabs are replaced file by file, as demanded",
    checks="grep -l \"$(printf '\\t')\" etc/*.conf && exit 1 || exit 0",
    start={
        f"etc/{s}.conf": f"[{s}]\n\tport = 80\n\thost = {s}\n"
        for s in ["web", "api", "job", "mail", "auth", "chat", "cron", "ftp"]
    },
    iterations=8,
)
def tabs(n: int) -> Files:
    service = ["web", "api", "job", "mail", "auth", "chat", "cron", "ftp"][n - 1]
    return {f"etc/{service}.conf": f"[{service}]\n    port = 80\n    host = {service}\n"}


LOSS = (91, 84, 79, 81, 70, 66, 58, 60, 51, 47, 42, 38)


@honest(
    "a model is tuned by its settings, the loss falls",
    checks="l=$(cut -d' ' -f2 run.txt); echo \"val_loss 0.$l (goal: 0.40)\"; [ $l -lt 40 ]",
    start={"run.txt": "loss 97\n"},
    iterations=12,
)
def loss(n: int) -> Files:
    return {
        "run.txt": f"loss {LOSS[n - 1]}\n",
        "train.yaml": f"lr: {0.1 / n:.4f}\nlayers: {n // 2 + 2}\nwarmup: {40 * n}\n",
    }


@honest(
    "one answer of the planner is malformed, the rest is work",
    checks="[ $(ls cmd 2>/dev/null | wc -l) -ge 9 ]",
    iterations=12,
    plan=lambda n: malformed() if n == 4 else f"write subcommand {n}",
)
def one_malformed(n: int) -> Files:
    if n == 4:
        return {}
    return {f"cmd/sub{n}.ts": f"export const sub{n} = command('sub{n}', async (args) => run{n}(args.positional));\n"}


@honest(
    "two time-outs in a row leave half a file that is completed afterwards",
    checks='r=0; for s in scan tokens tree types ir regs emit link; do grep -qs "^end $s" src/$s.ml || { echo '
    '"Error: Unbound module $s"; r=1; }; done; exit $r',
    iterations=10,
    ending=lambda n: {"status": "timed_out", "error": "stopped after 1800 s"} if n in (4, 5) else {},
)
def half_files(n: int) -> Files:
    stages = ["scan", "tokens", "tree", "types", "ir", "regs", "emit", "link"]
    if n in (4, 5):
        return {
            "src/types.ml": "module types\nlet unify a b = match a, b with\n"
            + "  | Fun f, Fun g -> args f g\n" * (n - 3)
        }
    stage = stages[n - 1 if n < 4 else n - 3]
    return {f"src/{stage}.ml": f"module {stage}\nlet {stage} input = List.map step_{stage} input\nend {stage}\n"}


@honest(
    "an import is rewritten twice before it scales, then goes ahead",
    checks='r=$(cat imported); echo "imported $r of 50000 records"; [ $r -ge 50000 ]',
    start={"imported": "0\n"},
    iterations=9,
)
def importing(n: int) -> Files:
    ways = ("rows", "rows", "batch", "batch", "batch", "copy", "copy", "copy", "copy")
    counts = (300, 900, 0, 6000, 9500, 4000, 21000, 38000, 50000)
    way = ways[n - 1]
    loop = f"    for part in source.parts({40 * n}):\n        target.{way}(part)\n"
    code = f"def load_{way}(source, target):\n{loop}"
    return {
        "imported": f"{counts[n - 1]}\n",
        "load.py": code,
        f"tests/load_{n}.sql": f"SELECT count(*) FROM part_{n};\n",
    }
