"""Episodes that may never be paused."""

from tests.data.pauses import Files, honest
from tests.support.doubles import claims_done, malformed, planned


def names(text: str) -> tuple[str, ...]:
    """Names that are written with spaces in between."""
    return tuple(text.split())


BODIES = (
    "def {name}(rows):\n    kept = [row for row in rows if row.{name}]\n    return sorted(kept)[:{n}]\n",
    "class {title}:\n    size = {n}\n\n    def {name}(self, other):\n        return self.size + other.size\n",
    "import json\n\n\ndef {name}(path):\n    with open(path) as file:\n        return json.load(file)['{name}']\n",
    "def {name}(left, right):\n    if left is None:\n        return right\n    return max(left * {n} - right, 0)\n",
    "STEP = {n}\n\n\ndef {name}(amount):\n    while amount > STEP:\n        amount -= STEP\n        yield amount\n",
)


def code(name: str, n: int) -> str:
    """A small module that differs from its neighbours."""
    return BODIES[n % len(BODIES)].format(name=name, title=name.title(), n=n)


def nth(names: tuple[str, ...], n: int) -> str:
    """The name of iteration n, the last one where there are no more."""
    return names[min(n, len(names)) - 1]


COMMANDS = ("init", "clone", "status", "log", "diff", "commit", "branch", "merge", "push", "fetch")


@honest(
    "one subcommand per iteration, and the only check prints nothing",
    checks="for c in init clone status log diff commit branch merge push fetch; do test -f cli/$c.py || exit 1; done",
    iterations=12,
)
def subcommands(n: int) -> Files:
    name = nth(COMMANDS, n)
    return {f"cli/{name}.py": code(name, n)}


ROUTES = (
    "login",
    "logout",
    "orders",
    "basket",
    "invoice",
    "refund",
    "address",
    "search",
    "review",
    "wishlist",
    "admin",
)


@honest(
    "handlers of routes, and the check names the first one without a handler",
    checks="sh routes.sh",
    iterations=14,
    start={
        "routes.txt": "\n".join(ROUTES) + "\n",
        "routes.sh": 'while read r; do grep -qs "route(\'/$r\')" app/*.py || { echo "no handler for /$r"; exit 1; };'
        " done < routes.txt\n",
    },
    plan=lambda n: f"write the handler of /{nth(ROUTES, n)}",
)
def routes(n: int) -> Files:
    name = nth(ROUTES, n)
    return {f"app/{name}.py": f"@app.route('/{name}')\n{code(name, n)}"}


LEGACY = ("parse", "price", "ship", "pack", "label", "weigh", "track", "notify", "archive", "export", "audit", "purge")


@honest(
    "a long refactoring empties a legacy module, and the check only says that it is not empty yet",
    checks="! grep -q '^def ' legacy.py || { echo 'legacy.py still defines functions'; exit 1; }",
    iterations=14,
    start={"legacy.py": "\n\n".join(f"def {name}(order):\n    return order['{name}']\n" for name in LEGACY)},
)
def emptied_legacy(n: int) -> Files:
    name = nth(LEGACY, n)
    rest = "\n\n".join(f"def {left}(order):\n    return order['{left}']\n" for left in LEGACY[n:])
    return {
        "legacy.py": rest or "# Everything has moved to shop/.\n",
        f"shop/{name}.py": f"from shop.order import Order\n\n\ndef {name}(order: Order):\n    return order.{name}\n",
        f"tests/test_{name}.py": f"from shop.{name} import {name}\n\n\ndef test_{name}():\n    assert {name}(ORDER)\n",
    }


@honest(
    "a flaky second check changes at random while the first one counts down",
    checks=(
        "sh todo.sh",
        "s=$(cat src/*.js | cksum); case ${s%% *} in *[0-4]) echo 'socket hang up'; exit 1;; esac",
    ),
    iterations=15,
    start={
        "src/a.js": "// start\n",
        "todo.sh": 'n=$(ls src | grep -c widget); echo "$n of 12 widgets render"; test $n -ge 12\n',
    },
)
def flaky_socket(n: int) -> Files:
    return {
        f"src/widget_{n}.js": f"export function widget{n}(props) {{\n  return props.items.slice({n}).map(render);\n}}\n"
    }


PASSES = names("blur bloom shadow fog water sky grass decal ssao taa hdr tone grain flare glow cull sort lod")


@honest(
    "a frame gets a few per cent faster with each shader",
    checks="awk '/^. cost/ { s += $3 } END { printf \"frame %.1f ms, budget 210.0 ms\\n\", s; exit s > 210 }' "
    "passes/*.glsl",
    iterations=20,
    start={f"passes/{name}.glsl": f"# cost 17.2\nvoid {name}() {{ loop(64); }}\n" for name in PASSES},
)
def shaders(n: int) -> Files:
    name = nth(PASSES, n)
    return {f"passes/{name}.glsl": f"# cost {11 + n % 3 * 0.3:.1f}\nvoid {name}() {{ unrolled(16 + {n}); }}\n"}


FEATURES = names("age income region device hour weekday tenure spend visits churn score source lang team")


@honest(
    "the accuracy of a model climbs with noise, now and then it falls a little",
    checks="sh accuracy.sh",
    iterations=16,
    start={
        "features/bias.txt": "weight 1\n",
        "accuracy.sh": "k=$(ls features | wc -l); s=$(cat features/* | cksum); s=${s%% *}\n"
        'awk -v k=$k -v s=$s \'BEGIN { a = 60 + k * 2.1 + s % 40 / 10; printf "accuracy %.1f, wanted 92.0\\n", a;'
        " exit a < 92 }'\n",
    },
)
def noisy_accuracy(n: int) -> Files:
    name = nth(FEATURES, n)
    return {f"features/{name}.txt": f"weight {n * 7 % 11}\nbins {n + 3}\nsource {name}_daily\n"}


@honest(
    "strict types are switched on, which brings many errors, and then they go",
    checks="sh types.sh",
    iterations=14,
    start={
        "tsconfig.json": '{ "strict": false }\n',
        **{f"src/m{k}.ts": f"export const v{k}: any = load{k}();\n" for k in range(1, 25)},
        "types.sh": "grep -q '\"strict\": true' tsconfig.json || { echo 'Found 1 error: strict is off'; exit 1; }\n"
        'n=$(cat src/*.ts | grep -c ": any"); echo "Found $n errors"; test $n -eq 0\n',
    },
)
def strict_types(n: int) -> Files:
    if n == 1:
        return {"tsconfig.json": '{ "strict": true }\n'}
    first = (n - 2) * 2 + 1
    return {f"src/m{k}.ts": f"export const v{k}: Row{k} = load{k}();\n" for k in (first, first + 1) if k <= 24}


@honest(
    "four checks turn green one after another",
    checks=(
        "test -f build/ok || { echo 'no build'; exit 1; }",
        "test $(ls unit 2>/dev/null | wc -l) -ge 3 || { echo 'unit: failing'; exit 1; }",
        "test $(ls docs 2>/dev/null | wc -l) -ge 4 || { echo 'docs: pages missing'; exit 1; }",
        "grep -qs '^signed' dist/manifest || { echo 'dist: not signed'; exit 1; }",
    ),
    iterations=12,
)
def four_checks(n: int) -> Files:
    if n <= 2:
        return {"Makefile": f"all:\n\tcc -O{n} -o app main.c\n"} if n == 1 else {"build/ok": "built\n"}
    if n <= 5:
        return {f"unit/test_{n}.py": code(f"case{n}", n)}
    if n <= 9:
        return {f"docs/page_{n}.md": f"# Chapter {n}\n\nHow to use option {n} with an example.\n"}
    return {"dist/manifest": "app 1.0\n" if n == 10 else "app 1.0\nsigned by release key\n"}


CHAPTERS = (
    "install",
    "quickstart",
    "config",
    "backup",
    "upgrade",
    "tuning",
    "limits",
    "faq",
    "glossary",
    "api",
    "errors",
)


@honest(
    "the executor breaks off every fourth time, and the manual still gets its chapters",
    checks="sh links.sh",
    iterations=15,
    start={
        "index.md": "".join(f"- [{name}](docs/{name}.md)\n" for name in CHAPTERS),
        "links.sh": "bad=0; for f in $(grep -o 'docs/[a-z]*.md' index.md); do test -f $f || { echo \"dead link: $f\";"
        " bad=1; }; done; exit $bad\n",
    },
    ending=lambda n: {"status": "failed", "error": "connection reset by peer"} if n % 4 == 0 else {},
)
def chapters(n: int) -> Files:
    if n % 4 == 0:
        return {}
    name = nth(CHAPTERS, n - n // 4)
    return {f"docs/{name}.md": f"# {name.title()}\n\n" + f"What to know about {name}.\n" * (n % 5 + 4)}


@honest(
    "the executor runs out of time every third iteration, and leaves half of the work, which the next one completes",
    checks="n=$(cat parts/* 2>/dev/null | grep -c '^end'); echo \"$n of 9 parts complete\"; test $n -ge 9",
    iterations=14,
    ending=lambda n: {"status": "timed_out", "error": "no answer within 900 s"} if n % 3 == 2 else {},
)
def half_parts(n: int) -> Files:
    part = n - n // 3
    body = f"begin {part}\n" + "".join(f"  opcode {part * 16 + k}\n" for k in range(6 if n % 3 == 2 else 12))
    return {f"parts/{part:02}.asm": body if n % 3 == 2 else body + f"end {part}\n"}


SERVICES = ("auth", "mail", "queue", "cache", "search", "media", "billing", "report", "cron", "proxy")


@honest(
    "settings of ten services move to the second version of the format, the check names the first old one",
    checks='for f in deploy/*.yaml; do grep -q "^version: 2" $f || { echo "$f: version 1 is not supported"; exit 1; };'
    " done",
    iterations=12,
    start={f"deploy/{name}.yaml": f"version: 1\nimage: {name}\nport: 80\n" for name in sorted(SERVICES)},
)
def settings_format(n: int) -> Files:
    name = nth(tuple(sorted(SERVICES)), n)
    text = f"version: 2\nservice:\n  image: registry/{name}:{n}\n  ports:\n    - {8000 + n}\n  replicas: {n % 3 + 1}\n"
    return {f"deploy/{name}.yaml": text}


def _table(n: int) -> str:
    """Ten kinds of bad cells, of which the first n are repaired."""
    rows = []
    for k in range(160):
        kind = k % 20
        bad = kind < 10 and kind >= n
        rows.append(f"{k},item {k}," + (f"??{kind}" if bad else f"{k * 3}.50"))
    return "id,name,price\n" + "\n".join(rows) + "\n"


@honest(
    "one kind of bad cell after another is cleaned in a table",
    checks="awk -F, 'NR > 1 && $3 !~ /^[0-9.]+$/ { n++ } END { print n + 0, \"bad prices\"; exit n > 0 }' prices.csv",
    iterations=12,
    start={"prices.csv": _table(0)},
)
def bad_cells(n: int) -> Files:
    return {"prices.csv": _table(n), f"clean/rule_{n}.py": code(f"rule{n}", n)}


COLUMNS = ("customer", "placed_at", "currency", "total", "tax", "channel", "coupon", "shipped_at", "carrier", "weight")


@honest(
    "one migration per missing column, and the query names the next one",
    checks="python3 -S -B query.py",
    iterations=12,
    start={
        "migrations/001_orders.sql": "CREATE TABLE orders (id INTEGER);\n",
        "query.py": "import glob, sqlite3, sys\ndb = sqlite3.connect(':memory:')\n"
        "for path in sorted(glob.glob('migrations/*.sql')):\n    db.executescript(open(path).read())\n"
        f"try:\n    db.execute('SELECT {', '.join(COLUMNS)} FROM orders')\n"
        "except sqlite3.Error as error:\n    sys.exit(f'query failed: {error}')\n",
    },
)
def migrations(n: int) -> Files:
    name = nth(COLUMNS, n)
    kind = ("TEXT", "INTEGER DEFAULT 0", "REAL")[n % 3]
    number = min(n, len(COLUMNS)) + 1
    return {f"migrations/{number:03}_{name}.sql": f"ALTER TABLE orders ADD COLUMN {name} {kind};\n"}


@honest(
    "callbacks become promises file by file, and the check prints the number of files left",
    checks='n=$(grep -l "callback(" lib/*.js | wc -l); echo "$n files use callbacks"; test $n -eq 0',
    iterations=13,
    start={f"lib/f{k:02}.js": f"module.exports = (x, callback) => callback(null, x + {k});\n" for k in range(1, 13)},
)
def promises(n: int) -> Files:
    k = min(n, 12)
    return {f"lib/f{k:02}.js": f"module.exports = async (x) => {{\n  const y = await x;\n  return y + {k};\n}};\n"}


SYMBOLS = ("ring_init", "ring_push", "ring_pop", "ring_peek", "ring_len", "ring_full", "ring_drain", "ring_free")


@honest(
    "functions of a C header get their bodies, as the linker asks for them",
    checks="sh link.sh",
    iterations=10,
    start={
        "ring.h": "".join(f"int {name}(struct ring *r);\n" for name in SYMBOLS),
        "link.sh": "bad=0; for s in $(grep -o 'ring_[a-z]*' ring.h); do grep -qs \"^int $s(\" ring.c ||"
        ' { echo "undefined reference to \\`$s\'"; bad=1; }; done; exit $bad\n',
    },
)
def linker(n: int) -> Files:
    bodies = (
        f"int {name}(struct ring *r)\n{{\n    if (!r) return -1;\n    r->at += {k};\n    return r->at % {k + 2};\n}}\n"
        for k, name in enumerate(SYMBOLS[:n])
    )
    return {"ring.c": '#include "ring.h"\n\n' + "\n".join(bodies)}


LANGUAGES = names("de fr es it pt nl pl cs sv da fi el tr ja")


@honest(
    "one translation per iteration, and the check only says that some are missing",
    checks="for l in de fr es it pt nl pl cs sv da fi el tr ja; do test -f locale/$l.po ||"
    " { echo 'translations are incomplete'; exit 1; }; done",
    iterations=15,
    start={"locale/en.po": 'msgid "save"\nmsgstr "Save"\n'},
    plan=lambda n: f"translate into {nth(LANGUAGES, n)}",
)
def translations(n: int) -> Files:
    name = nth(LANGUAGES, n)
    return {f"locale/{name}.po": "".join(f'msgid "text {k}"\nmsgstr "{name} {k * n}"\n' for k in range(8))}


LEDGER = "def balance(rows):\n    return sum(int(row) for row in rows)\n"


@honest(
    "a search for a bug: a reproducer, a log, a finding, a partial repair, and then the right one",
    checks="python3 -S -B check_ledger.py",
    iterations=8,
    start={
        "ledger.py": LEDGER,
        "check_ledger.py": "from ledger import balance\ngot = balance(['1.50', '2.25', '-0.75'])\n"
        "assert got == 3.0, f'balance is {got}'\n",
    },
    plan=lambda n: ("reproduce", "log the rows", "write down the cause", "parse cents", "keep the sign", "tidy")[
        min(n, 6) - 1
    ],
)
def bug_search(n: int) -> Files:
    if n == 1:
        return {"repro.py": "from ledger import balance\n\n\nprint(balance(['1.50']))\n"}
    if n == 2:
        return {
            "ledger.py": "import logging\n\n\n" + LEDGER.replace("    return", "    logging.info(rows)\n    return")
        }
    if n == 3:
        return {"FINDINGS.md": "int() refuses '1.50': amounts have been text with cents since the import of March.\n"}
    if n == 4:
        return {"ledger.py": "def balance(rows):\n    return sum(abs(float(row)) for row in rows)\n"}
    return {"ledger.py": "def balance(rows):\n    return sum(float(row) for row in rows)\n", "repro.py": None}


OPERATIONS = ("add", "sub", "mul", "div", "mod", "pow", "neg")


@honest(
    "tests come first, so that more and more fail, and then the code makes them pass",
    checks="sh suite.sh",
    iterations=16,
    start={
        "suite.sh": "t=$(ls tests 2>/dev/null | wc -l); f=0; for x in $(ls tests 2>/dev/null); do test -f ops/$x ||"
        ' { echo "FAILED tests/$x"; f=$((f + 1)); }; done; echo "$f failed, $((t - f)) passed";'
        " test $t -ge 7 && test $f -eq 0\n",
    },
)
def tests_first(n: int) -> Files:
    if n <= 7:
        name = OPERATIONS[n - 1]
        return {f"tests/{name}.py": f"from ops.{name} import {name}\n\n\nassert {name}(6, {n}) == EXPECTED[{n}]\n"}
    name = nth(OPERATIONS, n - 7)
    return {f"ops/{name}.py": code(name, n)}


PACKAGES = names("api billing core crawl feeds graph hooks index jobs legal media oauth")


@honest(
    "a class gets its new name in one package after another, and the check names the first with the old one",
    checks='f=$(grep -l OldSession packages/*/*.py | sort); test -z "$f" || { echo "${f%%.py*}: OldSession"; exit 1; }',
    iterations=14,
    start={
        f"packages/{name}/session.py": f"class OldSession:\n    name = '{name}'\n    port = {k}\n"
        for k, name in enumerate(PACKAGES)
    },
)
def new_name(n: int) -> Files:
    name = nth(PACKAGES, n)
    return {f"packages/{name}/session.py": f"class Session:\n    name = '{name}'\n    port = {min(n, 12) - 1}\n"}


GOLDEN = tuple(f"{k * 37 % 101:03} {'abcdefgh'[k % 8] * 5}" for k in range(60))


@honest(
    "the first line that differs from the wanted output moves down",
    checks="awk 'NR == FNR { w[FNR] = $0; next } w[FNR] != $0 "
    '{ print "line " FNR " differs: wanted <" w[FNR] ">, got <" $0 ">"; exit 1 }\' golden.txt out.txt',
    iterations=12,
    start={"golden.txt": "\n".join(GOLDEN) + "\n", "out.txt": "?\n" * 60},
)
def golden_output(n: int) -> Files:
    right = min(60, n * 5 + n % 3)
    return {
        "out.txt": "".join(line + "\n" for line in GOLDEN[:right]) + "?\n" * (60 - right),
        "render.awk": "".join(f"/rule {k}/ {{ print pad($1, {k}) }}\n" for k in range(n)),
    }


@honest(
    "the front end and the back end take turns, screen by screen",
    checks=(
        'n=$(ls back 2>/dev/null | wc -l); echo "back end: $n of 6 endpoints"; test $n -ge 6',
        'n=$(ls front 2>/dev/null | wc -l); echo "front end: $n of 6 screens"; test $n -ge 6',
    ),
    iterations=13,
)
def two_ends(n: int) -> Files:
    screen = ("users", "teams", "plans", "usage", "keys", "logs")[min((n - 1) // 2, 5)]
    if n % 2:
        return {f"back/{screen}.py": code(screen, n)}
    return {
        f"front/{screen}.jsx": f"export const {screen.title()} = () => <Table of={{use('{screen}')}} page={n} />;\n"
    }


@honest(
    "dead code is deleted piece by piece until the size fits",
    checks='n=$(cat old/*.py new.py | wc -l); echo "$n lines, 200 allowed"; test $n -le 200',
    iterations=13,
    start={
        "new.py": "def main():\n    return 0\n",
        "old/keep.py": "KEEP = True\n",
        **{f"old/dead_{k:02}.py": f"# dead\nX_{k} = 1\n" * (10 + k % 4) for k in range(1, 21)},
    },
)
def dead_code(n: int) -> Files:
    return {f"old/dead_{k:02}.py": None for k in (2 * n - 1, 2 * n) if k <= 20}


@honest(
    "the first approach is taken back once, and the second one works",
    checks='n=$(cat src/*.go 2>/dev/null | grep -c "^// case"); echo "$n of 8 cases handled"; test $n -ge 8',
    iterations=13,
)
def second_approach(n: int) -> Files:
    if n <= 3:
        return {"src/regex.go": "package parse\n" + "".join(f"// case {k}\nvar r{k} = re({k})\n" for k in range(n))}
    if n == 4:
        return {
            "src/regex.go": None,
            "DECISION.md": "A regular expression cannot match nested groups; use a scanner.\n",
        }
    cases = "".join(f"// case {k}\nfunc scan{k}(s []byte) int {{ return s[{k}] }}\n" for k in range(n - 4))
    return {"src/scanner.go": "package parse\n" + cases}


@honest(
    "a gain is found by bisection",
    checks="awk '{ d = $3 - 37.4; if (d < 0) d = -d; printf \"off by %.2f\\n\", d; exit d > 0.2 }' pid.conf",
    iterations=8,
    start={"pid.conf": "gain = 128\n"},
    plan=lambda n: f"halve the interval, try {(64, 32, 48, 40, 36, 38, 37, 37.5)[n - 1]}",
)
def bisection(n: int) -> Files:
    return {"pid.conf": f"gain = {(64, 32, 48, 40, 36, 38, 37, 37.5)[n - 1]}\n"}


@honest(
    "the same number is tuned again and again, and the loss falls each time",
    checks="awk '{ l = 2.5 * exp(-$2 / 6) + 0.2; printf \"validation loss %.4f\\n\", l; exit l > 0.35 }' train.cfg",
    iterations=20,
    start={"train.cfg": "rate 0\n"},
)
def falling_loss(n: int) -> Files:
    return {"train.cfg": f"rate {n}\n"}


NAMES = names("login cart pay mail pdf sms vat iban zip cron")


@honest(
    "fewer tests fail, while each line of the output has another duration and the run another id",
    checks="sh run.sh",
    iterations=12,
    start={
        "run.sh": 's=$(cat fixes/* 2>/dev/null | cksum); s=${s%% *}; echo "run $s"; bad=0\n'
        f"for t in {' '.join(NAMES)}; do s=$((s * 7 % 9973))\n"
        'test -f fixes/$t.py || { echo "FAIL $t (0.$s s)"; bad=1; }; done; exit $bad\n',
    },
)
def noisy_output(n: int) -> Files:
    name = nth(NAMES, n)
    return {f"fixes/{name}.py": code(name, n)}


COMPILER = (
    "4:9: expected ';' after expression",
    "11:1: unknown type name 'size'",
    "19:14: too few arguments to function 'open_port'",
    "23:5: control reaches end of non-void function",
    "31:20: incompatible pointer to integer conversion",
    "38:7: duplicate case value '3'",
    "40:3: redefinition of 'flush'",
    "52:11: member 'baud' not found in 'struct port'",
    "60:2: unterminated conditional directive",
)


@honest(
    "each repaired compiler error uncovers the next one in the same file",
    checks="sh compile.sh",
    iterations=11,
    start={
        "port.c": "/* fixed: 0 */\n",
        "compile.sh": "n=$(grep -c '^fix' port.c); case $n in\n"
        + "".join(f'{k}) echo "port.c:{text}";;\n' for k, text in enumerate(COMPILER))
        + "*) exit 0;; esac; exit 1\n",
    },
)
def compiler_chain(n: int) -> Files:
    return {"port.c": "".join(f"fix{k}(port, {k * 5 % 7}, BAUD_{k * 300});\n" for k in range(n))}


PINS = names("click flask jinja2 numpy pandas pillow redis scipy sqlalchemy urllib3")


@honest(
    "dependencies are moved to their next major version one by one",
    checks='awk -F== \'$2 < 2 { print $1 " " $2 " is not compatible with Python 3.13"; exit 1 }\' requirements.txt',
    iterations=12,
    start={"requirements.txt": "".join(f"{name}==1.4\n" for name in PINS)},
)
def next_major(n: int) -> Files:
    pins = "".join(f"{name}=={'2.0' if k < n else '1.4'}\n" for k, name in enumerate(PINS))
    name = nth(PINS, n)
    return {"requirements.txt": pins, f"app/uses_{name}.py": f"import {name}\n\nclient = {name}.Client(version={n})\n"}


@honest(
    "coverage climbs by a few tenths with each test file",
    checks="awk '/^covers/ { s += $2 } END { printf \"coverage %.1f of 75 %%\\n\", 61 + s; exit s < 14 }' tests/*.txt",
    iterations=22,
    start={"tests/base.txt": "covers 0.0\n"},
)
def coverage(n: int) -> Files:
    return {f"tests/suite_{n}.txt": f"covers {0.4 + n % 5 * 0.15:.2f}\ncalls function_{n * 3}\nexpects {n * n}\n"}


RULES = ("program", "statement", "block", "assign", "call", "unary", "binary", "index", "lambda", "literal", "string")


@honest(
    "one file with a grammar grows, and the sample does not parse until the last rule is there",
    checks="for r in program statement block assign call unary binary index lambda literal string; do"
    " grep -qs \"^$r:\" grammar.g4 || { echo 'sample.src: syntax error'; exit 1; }; done",
    iterations=13,
)
def grammar(n: int) -> Files:
    return {
        "grammar.g4": "".join(
            f"{rule}:\n    {RULES[(k + 3) % 11]} '{chr(40 + k)}' {RULES[(k + 5) % 11]}*\n  | EMPTY_{k}\n  ;\n"
            for k, rule in enumerate(RULES[:n])
        )
    }


@honest(
    "the planner once calls it done too early, sees the check and goes on",
    checks='n=$(ls pages 2>/dev/null | wc -l); echo "$n of 9 pages have a title"; test $n -ge 9',
    iterations=12,
    plan=lambda n: claims_done() if n == 5 else planned(f"write page {n}"),
)
def early_claim(n: int) -> Files:
    return {f"pages/p{n}.html": f"<title>Page {n}</title>\n<p>{'Useful text. ' * (n % 4 + 2)}</p>\n"}


@honest(
    "the planner's answer cannot be read now and then, and the work goes on in between",
    checks='n=$(ls hooks 2>/dev/null | wc -l); echo "$n hooks of at least 8"; test $n -ge 8',
    iterations=14,
    plan=lambda n: malformed() if n in (3, 8) else planned(f"add hook {n}"),
)
def unreadable_now_and_then(n: int) -> Files:
    return {f"hooks/hook_{n}.sh": f"#!/bin/sh\nset -eu\ngit diff --cached --stat | awk 'NR > {n}'\n"}


@honest(
    "every fifth iteration changes nothing, because the model was overloaded",
    checks="sh mirrors.sh",
    iterations=14,
    start={
        "mirrors.sh": "for c in at be ch dk es fr gr hu ie; do test -f mirrors/$c.list ||"
        ' { echo "mirror $c is not configured"; exit 1; }; done\n'
    },
    ending=lambda n: {"status": "failed", "error": "overloaded, try again"} if n % 5 == 0 else {},
)
def overloaded(n: int) -> Files:
    if n % 5 == 0:
        return {}
    name = nth(("at", "be", "ch", "dk", "es", "fr", "gr", "hu", "ie"), n - n // 5)
    return {f"mirrors/{name}.list": f"deb mirror.{name}.example stable main\npriority {n * 10}\n"}


LEAKS = (12, 9, 11, 8, 10, 6, 7, 3, 4, 1, 0, 0)


@honest(
    "two steps forward, one step back, until no leak is left",
    checks="n=$(cat src/alloc.c | grep -c 'leak'); echo \"$n blocks are definitely lost\"; test $n -eq 0",
    iterations=12,
    start={"src/alloc.c": "/* leak */\n" * 14},
)
def leaks(n: int) -> Files:
    lost = LEAKS[n - 1]
    text = "".join(f"p{k} = malloc({k * 8}); /* leak */\n" for k in range(lost))
    return {"src/alloc.c": text + "".join(f"free(q{k}); /* owner {k * n % 5} */\n" for k in range(14 - lost + n))}


@honest(
    "images get their alternative texts page by page",
    checks='n=$(cat site/*.html | grep -c \'alt=""\'); echo "$n images without text"; test $n -eq 0',
    iterations=12,
    start={f"site/{name}.html": f'<img src="{name}.png" alt="">\n' * 3 for name in SERVICES},
)
def alternative_texts(n: int) -> Files:
    name = nth(SERVICES, n)
    return {f"site/{name}.html": "".join(f'<img src="{name}.png" alt="Chart {k} of {name}">\n' for k in range(3))}


@honest(
    "experiments that stay flat for three iterations, and then one of them pays",
    checks="awk '/^recall/ { if ($2 > b) b = $2 } END { printf \"best recall %.2f\\n\", b; exit b < 0.9 }' runs/*.txt",
    iterations=14,
    start={"runs/000.txt": "recall 0.60\n"},
    plan=lambda n: (
        f"experiment {n}: {('stemming', 'synonyms', 'n-grams', 'reranking')[n % 4]} with {n * 10} candidates"
    ),
)
def experiments(n: int) -> Files:
    best = (0.6, 0.58, 0.6, 0.71, 0.7, 0.71, 0.71, 0.83, 0.82, 0.83, 0.8, 0.91, 0.9, 0.92)[n - 1]
    method = ("stemming", "synonyms", "n-grams", "reranking")[n % 4]
    return {
        f"runs/{n:03}.txt": f"method {method}\ncandidates {n * 10}\nrecall {best:.2f}\n",
        f"search/{method.replace('-', '')}_{n}.py": code(f"rank{n}", n),
    }


@honest(
    "sources are ported to another language, one file per iteration",
    checks="! ls src/*.c >/dev/null 2>&1 || { echo 'C files remain in src'; exit 1; }",
    iterations=12,
    start={f"src/{name}.c": f"int {name}(int x) {{ return x * {k}; }}\n" for k, name in enumerate(SERVICES)},
)
def ported(n: int) -> Files:
    name = nth(SERVICES, n)
    return {
        f"src/{name}.c": None,
        f"src/{name}.rs": f"pub fn {name}(x: i32) -> i32 {{\n    x.wrapping_mul({n - 1})\n}}\n",
    }


@honest(
    "modules move from the top folder into packages",
    checks='n=$(ls *.py | wc -l); echo "$n modules in the top folder, 1 allowed"; test $n -le 1',
    iterations=12,
    start={"main.py": "import app\n", **{f"{name}.py": code(name, k) for k, name in enumerate(SERVICES)}},
)
def moved_modules(n: int) -> Files:
    name = nth(SERVICES, n)
    return {f"{name}.py": None, f"app/{name}.py": code(name, min(n, 10) - 1)}


CONFORMING = (3, 7, 7, 7, 12, 15, 15, 21, 20, 26, 31, 31, 36, 40)


@honest(
    "conformance rises in uneven steps, with iterations in which it stays",
    checks='n=$(cat spec/passing.txt | wc -l); echo "$n of 40 conformance cases pass"; test $n -ge 40',
    iterations=14,
    start={"spec/passing.txt": "case 0\n"},
)
def conformance(n: int) -> Files:
    return {
        "spec/passing.txt": "".join(f"case {k}\n" for k in range(CONFORMING[n - 1])),
        f"codec/frame_{n}.py": code(f"frame{n}", n),
    }


@honest(
    "colours of a style sheet become variables, and the check names the next line with a literal",
    checks='awk \'/#[0-9a-f]/ { print FILENAME ":" NR ": literal colour"; exit 1 }\' theme.css',
    iterations=16,
    start={"theme.css": "".join(f".c{k} {{ color: #{k * 12345 + 65536:06x}; }}\n" for k in range(30))},
)
def colours(n: int) -> Files:
    lines = (
        f".c{k} {{ color: var(--tone-{k % 6}); }}\n" if k < 2 * n else f".c{k} {{ color: #{k * 12345 + 65536:06x}; }}\n"
        for k in range(30)
    )
    return {"theme.css": "".join(lines)}


@honest(
    "each endpoint moves on the server first, which breaks its client, which moves next",
    checks=(
        'n=$(cat server/*.py | grep -c "v1"); echo "server: $n endpoints on v1"; test $n -eq 0',
        "sh client.sh",
    ),
    iterations=18,
    start={
        **{f"server/e{k}.py": f"PATH = '/v1/e{k}'\n" for k in range(1, 9)},
        **{f"client/e{k}.py": f"CALLS = '/v1/e{k}'\n" for k in range(1, 9)},
        "client.sh": "for k in 1 2 3 4 5 6 7 8; do s=$(awk -F\"'\" '{ print $2 }' server/e$k.py);"
        ' grep -q "$s\'" client/e$k.py || { echo "client e$k: 404 for its path"; exit 1; }; done\n',
    },
)
def server_then_client(n: int) -> Files:
    k = min((n + 1) // 2, 8)
    if n % 2:
        return {f"server/e{k}.py": f"PATH = '/v2/e{k}'\nSCHEMA = '{k}.json'\n"}
    return {f"client/e{k}.py": f"CALLS = '/v2/e{k}'\nRETRIES = {k % 3}\n"}


SECRETS = ("db", "smtp", "s3", "stripe", "oauth", "sentry", "slack", "ldap", "redis")


@honest(
    "passwords leave the settings, a file per iteration, and the check lists the files that have one",
    checks="! grep -l 'password=' conf/*.ini",
    iterations=11,
    start={f"conf/{name}.ini": f"[{name}]\nuser=app\npassword=hunter{k}\n" for k, name in enumerate(SECRETS)},
)
def passwords(n: int) -> Files:
    name = nth(SECRETS, n)
    return {f"conf/{name}.ini": f"[{name}]\nuser=app\nsecret_ref=vault/{name}/{min(n, 9)}\n"}


@honest(
    "a long list of small work that is not finished within the iterations",
    checks='n=$(cat recipes.txt 2>/dev/null | grep -c "^recipe"); echo "$n of 500 recipes"; test $n -ge 500',
    iterations=28,
)
def long_list(n: int) -> Files:
    return {
        "recipes.txt": "".join(f"recipe {k}: {k * 17 % 90} g of {nth(FEATURES, k % 14 + 1)}\n" for k in range(n * 4))
    }


@honest(
    "a scaffold, one silent check, and larger and smaller steps in many files",
    checks="grep -qs '^run' app/main.sh && sh app/main.sh",
    iterations=12,
    plan=lambda n: ("models", "storage", "views", "events", "queue", "errors", "wiring", "start", "ports")[
        min(n, 9) - 1
    ],
)
def scaffold(n: int) -> Files:
    layer = ("models", "storage", "views", "events", "queue", "errors", "wiring", "start")[min(n, 8) - 1]
    if n >= 9:
        return {"app/main.sh": "run() { test -d app/models; }\nrun\n"}
    return {f"app/{layer}/part_{k}.py": code(f"{layer}{k}", n + k) for k in range(1 + n * 5 % 4)}


@honest(
    "duplicates are merged in a list of addresses, and the pairs that are left are printed",
    checks="sh pairs.sh",
    iterations=14,
    start={
        "addresses.txt": "".join(f"{k % 26} Main Street, flat {k % 26}\n" for k in range(52)),
        "pairs.sh": "sort addresses.txt | uniq -d | awk '{ print \"twice: \" $0 } END { exit NR > 0 }'\n",
    },
)
def duplicates(n: int) -> Files:
    return {"addresses.txt": "".join(f"{k % 26} Main Street, flat {k % 26}\n" for k in range(52 - 2 * min(n, 13)))}
