"""Episodes that are stuck: each has to be noticed within five iterations."""

# ruff: noqa: E501

from tests.data.pauses import Files, stuck
from tests.support.doubles import claims_done, gives_up, malformed


def put(text: str, /, **values: object) -> str:
    """Fill in `<key>` in the text."""
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    return text


def turn(states: tuple[str, ...], n: int) -> str:
    return states[n % len(states)]


TIMEOUT_TEST = """import pytest


@pytest.mark.timeout(<seconds>)
def test_export_finishes(client, big_tenant):
    job = client.post(f"/tenants/{big_tenant.id}/export")
    assert client.wait(job, seconds=<seconds>).state == "done"
"""


@stuck(
    "a test's time limit is raised, lowered and raised",
    since=1,
    checks="echo 'FAILED tests/test_export.py::test_export_finishes - Failed: deadlock, 0 rows written'; exit 1",
    start={"tests/test_export.py": put(TIMEOUT_TEST, seconds=10)},
    plan=lambda _n: "give the export more time",
    iterations=10,
)
def time_limit(n: int) -> Files:
    seconds = (30, 60, 45, 120, 90, 300, 200, 600, 450, 900)[n - 1]
    return {"tests/test_export.py": put(TIMEOUT_TEST, seconds=seconds)}


LOCKS = (
    "func (c *Cache) Get(k string) (V, bool) {\n\tc.mu.RLock()\n\tdefer c.mu.RUnlock()\n\tv, ok := c.m[k]\n\treturn v, ok\n}\n",
    "func (c *Cache) Get(k string) (V, bool) {\n\tv, ok := c.m.Load(k)\n\tif !ok {\n\t\treturn V{}, false\n\t}\n\treturn v.(V), true\n}\n",
)
RACE = """for f in put evict stats; do grep -q sync cache/$f.go 2>/dev/null || { echo "DATA RACE in cache/$f.go:14"; exit 66; }; done
echo "WARNING: DATA RACE"; echo "Write at 0x00c000126018 by goroutine 31: cache.(*Cache).resize()"
echo "FAIL example.org/cache 0.412s"; exit 1
"""


@stuck(
    "a mutex and a sync.Map by turns after three races were closed",
    since=6,
    checks="sh race.sh",
    start={"race.sh": RACE},
    iterations=14,
)
def locks(n: int) -> Files:
    if n < 4:
        name = ("put", "evict", "stats")[n - 1]
        return {
            f"cache/{name}.go": f'package cache\n\nimport "sync"\n\nvar {name}Mu sync.Mutex\n\n'
            f"func (c *Cache) {name}(k string) {{\n\t{name}Mu.Lock()\n\tdefer {name}Mu.Unlock()\n\tc.{name}Locked(k)\n}}\n"
        }
    return {"cache/get.go": "package cache\n\n" + turn(LOCKS, n)}


PRINTS = (
    "basket", "basket.items", "basket.total()", "type(basket)", "id(basket)", "request.user", "request.session.keys()",
    "basket.__dict__", "len(basket.items)", "request.META.get('HTTP_COOKIE')", "request.path", "basket.owner",
)  # fmt: skip


@stuck(
    "one more print in each iteration",
    since=1,
    checks="echo 'E   AssertionError: assert Decimal(0) == Decimal(49)'; echo 'FAILED tests/test_basket.py::test_total'; exit 1",
    iterations=12,
)
def prints(n: int) -> Files:
    lines = "".join(f'    print("DEBUG {i}:", {what})\n' for i, what in enumerate(PRINTS[:n]))
    return {
        "shop/basket_view.py": "def show(request):\n    basket = Basket.of(request.session)\n"
        f"{lines}    return render(request, 'basket.html', {{'basket': basket}})\n"
    }


EXCEPTS = ("KeyError", "(KeyError, TypeError)", "LookupError", "Exception", "(Exception, SystemExit)", "BaseException")
WRAPPED = """def load(path):
    try:
        return _parse(path.read_text())
    except <what>:<body>
        return <fallback>
"""


@stuck(
    "an error is wrapped in ever other try blocks",
    since=3,
    checks="""for t in name port; do grep -q "def read_$t" conf/read.py 2>/dev/null || { echo "FAILED test_$t"; exit 1; }; done
echo "FAILED test_reload - AssertionError: reloaded config is stale: 'v1' != 'v2'"; exit 1""",
    iterations=12,
)
def excepts(n: int) -> Files:
    if n < 3:
        body = "".join(f"def read_{t}(config):\n    return config['server']['{t}']\n\n\n" for t in ("name", "port")[:n])
        return {"conf/read.py": body}
    i = n - 3
    fallback = turn(("{}", "None", "dict(DEFAULTS)", "_last"), i)
    body = turn(("", "\n        log.exception('load')", "\n        # keep going"), i)
    return {"conf/load.py": put(WRAPPED, what=EXCEPTS[i % 6], body=body, fallback=fallback)}


PARSERS = (
    "def parse(text):\n    out = []\n    for part in text.split(';'):\n        key, _, value = part.partition('=')\n        out.append((key, value))\n    return dict(out)\n",
    "import re\n\n_PAIR = re.compile(r'(\\w+)=([^;]*)')\n\n\ndef parse(text):\n    return {m[1]: m[2] for m in _PAIR.finditer(text)}\n",
    "class Parser:\n    def __init__(self, text):\n        self.text, self.at = text, 0\n\n    def run(self):\n        return dict(self.pairs())\n\n\ndef parse(text):\n    return Parser(text).run()\n",
    "def parse(text):\n    state, key, value, out = 'key', '', '', {}\n    for c in text + ';':\n        if state == 'key' and c == '=':\n            state = 'value'\n        elif c == ';':\n            out[key], state, key, value = value, 'key', '', ''\n        else:\n            key, value = (key + c, value) if state == 'key' else (key, value + c)\n    return out\n",
    "from functools import reduce\n\n\ndef parse(text):\n    return reduce(lambda d, p: {**d, p.split('=')[0]: p.split('=')[-1]}, text.split(';'), {})\n",
    "import csv, io\n\n\ndef parse(text):\n    return dict(row[:2] for row in csv.reader(io.StringIO(text.replace(';', '\\n')), delimiter='='))\n",
    "import shlex\n\n\ndef parse(text):\n    lexer = shlex.shlex(text, posix=True)\n    lexer.whitespace = ';'\n    lexer.whitespace_split = True\n    return dict(t.split('=', 1) for t in lexer)\n",
    "import configparser\n\n\ndef parse(text):\n    c = configparser.ConfigParser()\n    c.read_string('[x]\\n' + text.replace(';', '\\n'))\n    return dict(c['x'])\n",
)  # fmt: skip


@stuck(
    "the same module is written anew in another style, the same case fails",
    since=3,
    checks="echo \"cookie.py: 'a=1;b=\\\"x;y\\\"' -> 3 keys, expected 2\"; echo '17 passed, 1 failed'; exit 1",
    plan=lambda n: f"rewrite the cookie parser (attempt {n})",
    iterations=16,
)
def rewritten(n: int) -> Files:
    return {"src/cookie.py": f"# attempt {n}\n" + PARSERS[(n - 1) % 8]}


COSMETIC = (
    "int clamp(int v, int lo, int hi) {\n  return v < lo ? lo : v > hi ? hi : v;\n}\n",
    "int clamp(int value, int low, int high) {\n  return value < low ? low : value > high ? high : value;\n}\n",
    "int clamp(int value, int low, int high)\n{\n    if (value < low)\n        return low;\n    return value > high ? high : value;\n}\n",
    "/* Keep value between low and high. */\nint clamp(int value, int low, int high)\n{\n    if (value < low) return low;\n    if (value > high) return high;\n    return value;\n}\n",
    "/**\n * Clamp.\n */\nint\nclamp(int value, int low, int high)\n{\n\tif (value < low)\n\t\treturn (low);\n\tif (value > high)\n\t\treturn (high);\n\treturn (value);\n}\n",
    "static inline int clamp_int(int x, int a, int b) { return x < a ? a : (x > b ? b : x); }\n#define clamp clamp_int\n",
)
IMG = """for f in rotate crop scale blur; do [ -f src/$f.c ] || { echo "undefined reference to 'img_$f'"; exit 1; }; done
echo "golden/gradient.png: 4096 of 65536 pixels differ (max delta 17)"; exit 1
"""


@stuck("style edits after four functions", since=5, checks="sh img.sh", start={"img.sh": IMG}, iterations=12)
def cosmetic(n: int) -> Files:
    if n < 5:
        name = ("rotate", "crop", "scale", "blur")[n - 1]
        loop = "    for (size_t y = 0; y < in->h; y++)\n        for (size_t x = 0; x < in->w; x++)\n"
        return {
            f"src/{name}.c": f'#include "img.h"\n\nvoid img_{name}(const img *in, img *out)\n{{\n{loop}'
            f"            px(out, x, y) = {name}_px(in, x, y);\n}}\n"
        }
    return {"src/clamp.h": COSMETIC[(n - 5) % 6]}


TOPICS = (
    "Overview",
    "Concepts",
    "Architecture",
    "Threading",
    "Errors",
    "Testing",
    "Style",
    "Glossary",
    "History",
    "Thanks",
)


@stuck(
    "documents are written instead of the code",
    since=1,
    checks="""echo "src/scheduler.rs:88:13: thread 'timers::fires_in_order' panicked: assertion failed: a <= b"; exit 101""",
    plan=lambda n: f"describe the design: {TOPICS[n - 1].lower()}",
    iterations=10,
)
def documents(n: int) -> Files:
    topic = TOPICS[n - 1]
    return {
        f"docs/{topic.lower()}.md": f"# {topic}\n\nThis page explains the {topic.lower()} of the scheduler. It is meant"
        f" for contributors.\n\n## Summary\n\nTimers are kept in a wheel of {2**n} slots, see the other pages.\n"
    }


GENERATED = """# Generated by protoc-gen-py. DO NOT EDIT.
class Order:
    __slots__ = (<slots>)

    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, <cast>)
"""
PROTO = 'syntax = "proto3";\nmessage Order {\n  string id = 1;\n  int32 total = 2;\n}\n'


@stuck(
    "generated code is edited by hand, the check generates it again",
    since=1,
    checks="""awk '/int64 total/ {ok = 1} END {if (!ok) {print "protoc: wrote gen/order_pb.py";
print "test_order: OverflowError: total 4294967296 does not fit int32 (order.proto:4)"} exit !ok}' proto/order.proto""",
    start={"proto/order.proto": PROTO, "gen/order_pb.py": put(GENERATED, slots='"id", "total"', cast="value")},
    iterations=10,
)
def generated(n: int) -> Files:
    cast = turn(("int(value)", "value", "_wide(value)", "value & (2**63 - 1)", "str(value)"), n)
    slots = turn(('"id", "total", "_wide"', '"id", "total"', '"total", "id"'), n)
    return {"gen/order_pb.py": put(GENERATED, slots=slots, cast=cast)}


DAMAGE_CHECK = """bad=$(grep -l 'legacy_compat' app/*.py 2>/dev/null | wc -l); done=$(ls app/core_*.py 2>/dev/null | wc -l)
echo "$((9 - done + bad * 3)) failed, $((81 + done - bad * 3)) passed"; exit 1
"""


@stuck(
    "damage grows: each shim breaks more tests than before",
    since=4,
    checks="sh suite.sh",
    start={"suite.sh": DAMAGE_CHECK},
    iterations=12,
)
def damage(n: int) -> Files:
    if n < 4:
        name = ("dates", "money", "text")[n - 1]
        return {f"app/core_{name}.py": f"def parse_{name}(raw):\n    return {name.upper()}.match(raw).groupdict()\n"}
    name = ("orm", "auth", "mail", "cache", "forms", "admin", "feeds", "files", "tasks")[n - 4]
    return {
        f"app/{name}.py": f"from legacy_compat import patch_{name}\n\npatch_{name}(globals())\n\n"
        f"def setup_{name}(app):\n    app.register('{name}', strict=False)\n"
    }


PINS = (
    (
        "numpy==1.26.4\nscipy==1.11.4\nnumba==0.58.1\n",
        "numba 0.58.1 requires llvmlite<0.42, but you have llvmlite 0.43",
    ),
    ("numpy==2.1.0\nscipy==1.14.1\nnumba==0.60.0\n", "numba 0.60.0 requires numpy<2.1, but you have numpy 2.1.0"),
    ("numpy==2.0.2\nscipy==1.14.1\nnumba==0.60.0\n", "torch 2.2.0 requires numpy<2, but you have numpy 2.0.2"),
)
PIP = """if grep -q 'numpy==1' requirements.txt; then echo "ERROR: numba 0.58.1 requires llvmlite<0.42, but you have llvmlite 0.43"
elif grep -q 'numpy==2.1' requirements.txt; then echo "ERROR: numba 0.60.0 requires numpy<2.1, but you have numpy 2.1.0"
else echo "ERROR: torch 2.2.0 requires numpy<2, but you have numpy 2.0.2"; fi
exit 1
"""


@stuck(
    "three sets of pins in a circle",
    since=4,
    checks="sh pip.sh",
    start={"pip.sh": PIP, "requirements.txt": "numpy\nscipy\nnumba\n"},
    plan=lambda _n: "resolve the conflict",
    iterations=13,
)
def pins(n: int) -> Files:
    return {"requirements.txt": PINS[n % 3][0]}


@stuck(
    "the planner gives up in each iteration after some good ones",
    since=4,
    checks="""for m in read write seek; do [ -f fs/$m.c ] || { echo "fs/$m.c is missing"; exit 1; }; done
echo "fsx: data miscompare at 0x3f2a0"; exit 1""",
    plan=lambda n: ("read", "write", "seek")[n - 1] if n < 4 else gives_up("the miscompare cannot be reproduced here"),
    iterations=10,
)
def giving_up(n: int) -> Files:
    if n > 3:
        return {}
    name = ("read", "write", "seek")[n - 1]
    return {
        f"fs/{name}.c": f"ssize_t fs_{name}(struct file *f, void *b, size_t n)\n{{\n    return f->ops->{name}(f, b, n);\n}}\n"
    }


@stuck(
    "the executor dies each time and leaves nothing",
    since=1,
    checks="echo 'npm ERR! missing script: build:prod'; exit 1",
    ending=lambda _n: {"status": "failed", "error": "exit 137"},
    iterations=9,
)
def dying(_n: int) -> Files:
    return {}


TYPED = ("models", "views", "forms")


@stuck(
    "the type error is pushed from one module to the next in a circle",
    since=4,
    checks="""f=$(grep -l 'cast(Any' app/*.py | head -n 1)
echo "${f:-app/models.py}:4: error: Returning Any from function declared to return \\"Money\\""; echo "Found 1 error in 1 file"; exit 1""",
    start={f"app/{m}.py": f"def {m}_total(rows) -> Money:\n    return sum(rows)\n" for m in TYPED},
    iterations=18,
)
def pushed(n: int) -> Files:
    here, last = TYPED[(n - 1) % 3], TYPED[(n - 2) % 3]
    return {
        f"app/{last}.py": f"def {last}_total(rows) -> Money:\n    return sum(rows)\n",
        f"app/{here}.py": f"from typing import Any, cast\n\ndef {here}_total(rows) -> Money:\n    return cast(Any, sum(rows))\n",
    }


INCLUDES = ("/usr/include/ssl", "/usr/local/include", "/opt/openssl/include", "/usr/include/openssl3", "$(HOME)/include",
            "../vendor/include", "/usr/include/x86_64-linux-gnu", "/opt/local/include", "third_party/openssl")  # fmt: skip


@stuck(
    "a linker error is taken for a missing include path",
    since=1,
    checks="""grep -q -- -lcrypto Makefile && exit 0
echo "/usr/bin/ld: build/tls.o: in function 'tls_init': undefined reference to 'EVP_sha256'"
echo "collect2: error: ld returned 1 exit status"; exit 1""",
    start={"Makefile": "CFLAGS = -O2\napp: build/tls.o\n\t$(CC) -o $@ $^\n"},
    plan=lambda _n: "add the include path of OpenSSL",
    iterations=9,
)
def includes(n: int) -> Files:
    flags = " ".join(f"-I{p}" for p in INCLUDES[:n])
    return {"Makefile": f"CFLAGS = -O2 {flags}\napp: build/tls.o\n\t$(CC) -o $@ $^\n"}


SETTINGS = """DATABASE = {
    "host": "<host>",
    "port": <port>,
    "pool": <pool>,
}
"""


@stuck(
    "a settings module that nothing reads is edited, the service reads settings.toml",
    since=3,
    checks="""for v in health ready; do grep -q "$v" api/probes.py 2>/dev/null || { echo "GET /$v 404"; exit 1; }; done
grep -q 'port = 5433' settings.toml && exit 0
echo "reading settings.toml"; echo 'connect ECONNREFUSED 127.0.0.1:5432'; exit 1""",
    start={"settings.toml": '[database]\nhost = "127.0.0.1"\nport = 5432\n'},
    iterations=11,
)
def wrong_file(n: int) -> Files:
    if n < 3:
        return {
            "api/probes.py": "".join(
                f"@app.get('/{v}')\ndef {v}():\n    return 'ok'\n\n" for v in ("health", "ready")[:n]
            )
        }
    host = turn(("localhost", "db", "192.168.0.9", "postgres", "host.docker.internal"), n)
    return {"src/settings.py": put(SETTINGS, host=host, port=(5433, 5432)[n % 2], pool=n * 4)}


ROUND = """def price(net, rate):
    # <why>
    gross = net * (1 + rate)
    return <how>
"""
ROUND_CHECK = """for f in vat coupons shipping; do [ -f shop/$f.py ] || { echo "FAILED test_$f"; exit 1; }; done
if grep -q ROUND_UP shop/price.py 2>/dev/null; then echo "FAILED tests/test_price.py::test_bank - 10.03 != 10.02"
else echo "FAILED tests/test_price.py::test_tax_office - 10.02 != 10.03"; fi; echo "1 failed, 58 passed"; exit 1
"""


@stuck(
    "what mends one test breaks the other, with new wording each time",
    since=6,
    checks="sh tests.sh",
    start={"tests.sh": ROUND_CHECK},
    iterations=14,
)
def see_saw(n: int) -> Files:
    if n < 4:
        name = ("vat", "coupons", "shipping")[n - 1]
        return {
            f"shop/{name}.py": f"from decimal import Decimal\n\n\ndef {name}(net: Decimal) -> Decimal:\n    return net * RATES['{name}']\n"
        }
    up = ("gross.quantize(CENT, ROUND_UP)", "Money(gross).rounded(ROUND_UP)", "quantized(gross, mode=ROUND_UP)")
    down = ("gross.quantize(CENT)", "Money(gross).rounded()", "quantized(gross)")
    how = (up if n % 2 else down)[n // 2 % 3]
    return {
        "shop/price.py": put(
            ROUND, why=f"the {'tax office' if n % 2 else 'bank'} wants it so, see issue {400 + n}", how=how
        )
    }


TRACE = """n=$(cat run/attempt 2>/dev/null || echo 0)
echo "2026-02-0$((n % 9 + 1)) 04:1$((n % 10)):$((n * 7 % 50 + 10)),$((n * 137 % 900 + 100)) ERROR pool-$((n + 3))-thread-$((n * 5 + 1))"
echo "java.lang.IllegalStateException: Channel@$((n * 7919 + 4096)) already closed"
echo "    at org.example.net.Channel.write(Channel.java:211)"
echo "    at org.example.net.Flusher.run(Flusher.java:58)"
exit 1
"""


@stuck(
    "only run files and logs change, the trace has other times and addresses",
    since=1,
    checks="sh trace.sh",
    start={"trace.sh": TRACE},
    plan=lambda _n: "run it again and look at the trace",
    iterations=12,
)
def run_logs(n: int) -> Files:
    log = "".join(f"04:1{i % 10}:0{i % 6} INFO restart {i}, pid {2000 + i * 31}\n" for i in range(n))
    return {"run/attempt": f"{n}\n", "run/server.log": log}


TUNING = """[engine]
workers = <workers>
batch = <batch>
queue = <queue>
"""
TUNE_CHECK = """for f in pool arena; do [ -f src/$f.zig ] || { echo "bench: $((900 - $(ls src | wc -l) * 200)) ms (goal 200 ms)"; exit 1; }; done
s=$(cksum < engine.ini); s=${s%% *}; echo "bench: $((480 + s % 24)) ms (goal 200 ms)"; exit 1
"""


@stuck(
    "parameters are turned to and fro, the benchmark only shows noise",
    since=3,
    checks="sh bench.sh",
    start={"bench.sh": TUNE_CHECK, "src/main.zig": "pub fn main() !void {}\n", "engine.ini": "[engine]\n"},
    iterations=14,
)
def tuning(n: int) -> Files:
    if n < 3:
        name = ("pool", "arena")[n - 1]
        return {
            f"src/{name}.zig": f"pub const {name.capitalize()} = struct {{\n    free: []usize,\n    pub fn take(self: *@This()) usize {{\n        return self.free[0];\n    }}\n}};\n"
        }
    values = {
        "workers": (4, 8, 16, 6, 12)[n % 5],
        "batch": (64, 256, 128, 512)[n % 4],
        "queue": (1000, 200, 5000)[n % 3],
    }
    return {"engine.ini": put(TUNING, **values)}


RETRY = """import { retry, sleep } from './util';

test('presence is broadcast', async () => {
  await sleep(<sleep>);
  await retry(<times>, async () => {
    const seen = await bob.presence();
    expect(seen).toContain('alice');
  });
});
"""


@stuck(
    "a flaky test gets longer sleeps and more retries, and fails by chance as before",
    since=1,
    checks="""s=$(cksum < test/presence.test.js); s=${s%% *}
if [ $((s % 3)) -eq 0 ]; then echo "x presence is broadcast (5003 ms)  Exceeded timeout of 5000 ms for a test."
else echo "x presence is broadcast (412 ms)  Expected array to contain 'alice', received []"; fi
echo "Tests: 1 failed, 33 passed, 34 total"; exit 1""",
    start={"test/presence.test.js": put(RETRY, sleep=0, times=1)},
    iterations=11,
)
def retries(n: int) -> Files:
    return {"test/presence.test.js": put(RETRY, sleep=(50, 200, 100, 500, 1000, 250)[n % 6], times=n % 4 + 2)}


CI = """name: build
on: push
jobs:
  build:
    runs-on: <image>
    steps:
      - uses: actions/checkout@<checkout>
      - run: ./gradlew assemble
"""


@stuck(
    "the runner image of the CI is changed on and on",
    since=1,
    checks="echo 'build: /home/runner/work/_temp/1.sh: line 1: ./gradlew: Permission denied'; echo 'Error: exit code 126'; exit 1",
    plan=lambda n: f"try another runner ({n})",
    iterations=10,
)
def runner(n: int) -> Files:
    images = (
        "ubuntu-latest",
        "ubuntu-22.04",
        "ubuntu-20.04",
        "macos-14",
        "ubuntu-24.04",
        "self-hosted",
        "windows-2022",
    )
    return {".github/workflows/build.yml": put(CI, image=images[n % 7], checkout=turn(("v4", "v3", "main"), n))}


CSS = """.menu {
  position: relative;
  z-index: <menu>;
}

.dialog {
  overflow: hidden;
  z-index: <dialog>;
}
"""


@stuck(
    "z-index goes up and up under a visual check that says nothing",
    since=2,
    checks="grep -q 'isolation: isolate' ui/layers.css && [ -f ui/layers.html ]",
    start={"ui/layers.css": put(CSS, menu=1, dialog=1)},
    iterations=11,
)
def z_index(n: int) -> Files:
    if n == 1:
        return {
            "ui/layers.html": '<main class="stack">\n  <nav class="menu"></nav>\n  <div class="dialog"></div>\n</main>\n'
        }
    return {"ui/layers.css": put(CSS, menu=10 ** (n % 6) + n, dialog=10 ** ((n + 1) % 6))}


BUNDLERS = (
    "module.exports = {\n  entry: './src/index.js',\n  output: { filename: '[name].js' },\n  target: 'web',\n};\n",
    "module.exports = {\n  entry: './src/index.js',\n  output: { filename: '[name].js', libraryTarget: 'umd' },\n  externals: ['fs'],\n};\n",
)


@stuck(
    "two bundler configurations by turns",
    since=3,
    checks="""if grep -q umd webpack.config.js; then echo "ERROR in ./src/io.js: Module not found: Can't resolve 'path'"
else echo "ERROR in ./src/io.js: Module not found: Can't resolve 'fs'"; fi; echo "webpack 5.90 compiled with 1 error"; exit 1""",
    start={"webpack.config.js": "module.exports = {};\n"},
    iterations=10,
)
def bundler(n: int) -> Files:
    return {"webpack.config.js": BUNDLERS[n % 2]}


HELPER = """def <name>_helper(frame, column, default=<n>):
    \"\"\"Return the column, or the default where it is absent.\"\"\"
    if column not in frame:
        return [default] * len(frame)
    return list(frame[column])
"""


@stuck(
    "helpers are added that nobody calls",
    since=1,
    checks="echo \"KeyError: 'customer_id'\"; echo '  File \"jobs/join.py\", line 27, in join'; exit 1",
    plan=lambda _n: "prepare a helper for the join",
    iterations=10,
)
def helpers(n: int) -> Files:
    name = ("safe", "robust", "column", "frame", "fallback", "generic", "utils", "common", "lookup", "misc")[n - 1]
    return {f"jobs/{name}_helpers.py": put(HELPER, name=name, n=n)}


REGEXES = (
    r"^v?(\d+)\.(\d+)$", r"^v?(\d+)(?:\.(\d+))?$", r"v(\d+)\.(\d+)\.?(\d+)?", r"^(\d+)\.(\d+)\.(\d+)$", r"(\d+)[.-](\d+)",
    r"^v?(\d+)\.(\d+)\.(\d+)-?$", r"^\D*(\d+)\D+(\d+)$", r"^v(\d+)\.(\d+)$", r"^(?:v|V)?(\d+)\.(\d+)(?:-rc)?$",
    r"(\d+).(\d+).(\d+)", r"^v?(\d+)\.(\d+)\.?$", r"^[vV]?(\d+)-(\d+)$",
)  # fmt: skip
REGEX_CHECK = """for f in bump tag; do [ -f release/$f.pl ] || { echo "Can't locate release/$f.pl in @INC"; exit 2; }; done
s=$(cksum < release/version.pl); s=${s%% *}; k=$((s % 2 + 4)); i=0
while [ $i -lt $k ]; do echo "not ok $((i * 2 + s % 3 + 1)) - parses version string"; i=$((i + 1)); done
echo "# Looks like you failed $k tests of 14."; exit $k
"""


@stuck(
    "an expression is tweaked, now these cases fail and now those",
    since=3,
    checks="sh prove.sh",
    start={"prove.sh": REGEX_CHECK, "release/version.pl": "1;\n"},
    iterations=14,
)
def regexes(n: int) -> Files:
    if n < 3:
        name = ("bump", "tag")[n - 1]
        return {
            f"release/{name}.pl": f"use strict;\nuse warnings;\n\nsub {name} {{\n    my ($v) = @_;\n    return join '.', {name}_parts($v);\n}}\n1;\n"
        }
    return {
        "release/version.pl": f"use strict;\n\nour $VERSION_RE = qr/{REGEXES[n - 3]}/;\n\nsub parse {{ shift =~ $VERSION_RE }}\n1;\n"
    }


@stuck(
    "the planner claims to be done again and again while the check fails",
    since=3,
    checks="""[ -f cmd/root.go ] && [ -f cmd/serve.go ] || { echo "cmd: no Go files"; exit 1; }
echo "cmd/serve_test.go:31: serve --port 0 printed no port"; echo "FAIL"; exit 1""",
    plan=lambda n: claims_done() if n > 2 else f"command {n}",
    iterations=9,
)
def done_claims(n: int) -> Files:
    if n < 3:
        name = ("root", "serve")[n - 1]
        return {
            f"cmd/{name}.go": f'package cmd\n\nvar {name}Cmd = &cobra.Command{{\n\tUse: "{name}",\n\tRunE: run{name.title()},\n}}\n'
        }
    return {}


@stuck(
    "the planner's answers are unusable, so that nothing happens",
    since=5,
    checks="""n=$(ls lib/*.ex 2>/dev/null | wc -l); echo "mix test: $((9 - n)) failures, $((40 + n)) tests"; [ $n -ge 9 ]""",
    plan=lambda n: malformed() if n > 4 else f"module {n}",
    iterations=11,
)
def unusable(n: int) -> Files:
    if n > 4:
        return {}
    name = ("Room", "Member", "Topic", "Presence")[n - 1]
    return {
        f"lib/{name.lower()}.ex": f"defmodule Chat.{name} do\n  use GenServer\n\n  def init(state), do: {{:ok, Map.put(state, :kind, :{name.lower()})}}\nend\n"
    }


K8S = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: indexer
spec:
  template:
    spec:
      containers:
        - name: indexer
          resources:
            limits:
              memory: <memory>
"""


@stuck(
    "a memory limit is varied while the container is killed all the same",
    since=1,
    checks="echo 'pod/indexer-0  0/1  OOMKilled  restarts=5'; echo 'error: timed out waiting for the condition'; exit 1",
    iterations=10,
)
def memory(n: int) -> Files:
    sizes = ("512Mi", "1Gi", "2Gi", "1536Mi", "4Gi", "3Gi", "8Gi", "6Gi", "16Gi", "12Gi")
    return {"deploy/indexer.yaml": put(K8S, memory=sizes[n - 1])}


CASTS = (
    "amount::numeric", "CAST(amount AS numeric(12,2))", "to_number(amount, '999D99')", "amount::text::numeric",
    "NULLIF(amount, '')::numeric", "trim(amount)::numeric", "amount::money::numeric", "regexp_replace(amount, ' ', '')::numeric",
    "coalesce(amount, '0')::numeric", "amount::float8::numeric",
)  # fmt: skip


@stuck(
    "one migration after the other casts the same column in vain",
    since=3,
    checks="""[ -f migrations/002.sql ] || { echo "relation \\"invoices\\" lacks migration 00$(($(ls migrations 2>/dev/null | wc -l) + 1))"; exit 3; }
echo 'ERROR:  cannot alter type of a column used by a view or rule'; echo 'DETAIL:  rule _RETURN on view totals depends on column "amount"'; exit 3""",
    iterations=12,
)
def casts(n: int) -> Files:
    if n < 3:
        column = ("currency char(3)", "issued_on date")[n - 1]
        return {
            f"migrations/{n:03}.sql": f"ALTER TABLE invoices ADD COLUMN {column};\nUPDATE invoices SET {column.split()[0]} = DEFAULT;\n"
        }
    return {
        f"migrations/{n:03}.sql": f"ALTER TABLE invoices\n  ALTER COLUMN amount TYPE numeric(12,2)\n  USING {CASTS[n - 3]};\n"
    }


REMARKS = ("TODO: check the sign here", "FIXME maybe off by one", "NOTE: the sensor reports in mm", "TODO(agent): verify units",
           "HACK: see the data sheet", "XXX is this right?", "TODO: ask about calibration", "NOTE: keep in sync with v2",
           "TODO: simplify", "FIXME: rounding?")  # fmt: skip


@stuck(
    "nothing but comments",
    since=1,
    checks="echo 'test_altitude.cpp:44: Failure'; echo 'Expected: (h) > 0.0, actual: -132.5 vs 0'; exit 1",
    iterations=10,
)
def remarks(n: int) -> Files:
    comments = "".join(f"    // {remark}\n" for remark in REMARKS[:n])
    return {
        "src/altitude.cpp": f"double altitude(const Sample& s)\n{{\n{comments}    return s.base - s.delta * kScale;\n}}\n"
    }


WEBHOOK = """from hmac import compare_digest, new


def verify(secret, body, signature):
    digest = new(secret, body, "sha256").hexdigest()
    return compare_digest(digest, signature)
"""


@stuck(
    "a module is added and taken back by turns",
    since=5,
    checks="""for m in model store routes; do [ -f hooks/$m.py ] || { echo "FAILED tests/hooks/test_$m.py"; exit 1; }; done
if [ -f hooks/verify.py ]; then echo "FAILED tests/hooks/test_replay.py - 200 != 401"
else echo "ERROR tests/hooks/test_verify.py - ModuleNotFoundError: hooks.verify"; fi; exit 1""",
    iterations=14,
)
def taken_back(n: int) -> Files:
    if n < 4:
        name = ("model", "store", "routes")[n - 1]
        return {
            f"hooks/{name}.py": f"class Hook{name.title()}:\n    table = 'hooks'\n\n    def {name}_rows(self):\n        return self.db.all(self.table)\n"
        }
    return {"hooks/verify.py": None if n % 2 else WEBHOOK}


CHAIN = ("route", "controller", "service", "repository")
GUARD = """function <name>(input) {
  if (input == null) return <fallback>;
  return next<name>(input.<field>);
}
"""


@stuck(
    "guards against null move the error round the same four places",
    since=5,
    checks="""w=$(cat src/where.txt 2>/dev/null || echo route)
echo "TypeError: Cannot read properties of undefined (reading 'tenant')"; echo "    at $w (src/$w.js:3:29)"; exit 1""",
    iterations=16,
)
def guards(n: int) -> Files:
    name = CHAIN[(n - 1) % 4]
    fallback = turn(("null", "{}", "undefined", "[]", "''"), n)
    return {
        f"src/{name}.js": put(GUARD, name=name, fallback=fallback, field=turn(("user", "body", "scope"), n)),
        "src/where.txt": CHAIN[n % 4] + "\n",
    }


LINT_RULES = ("no-undef", "eqeqeq", "curly", "no-shadow", "complexity", "max-len", "indent", "quotes", "semi", "radix")


@stuck(
    "rules are relaxed in a file that the check does not use",
    since=1,
    checks="echo 'using ci/eslint.json'; echo '  12:9  error  Promise returned is ignored  no-floating-promises'; echo 'x 1 problem'; exit 1",
    start={"ci/eslint.json": '{"rules": {"no-floating-promises": "error"}}\n'},
    plan=lambda n: f"relax {LINT_RULES[n - 1]}",
    iterations=10,
)
def relaxed(n: int) -> Files:
    rules = ",\n".join(f'    "{rule}": "off"' for rule in LINT_RULES[:n])
    return {".eslintrc.json": f'{{\n  "root": true,\n  "rules": {{\n{rules}\n  }}\n}}\n'}


MOCKS = ("clock", "smtp", "redis", "s3", "ldap", "stripe", "dns", "random", "uuid", "env", "fs", "socket")


@stuck(
    "more and more is mocked, the same assertion fails",
    since=1,
    checks="echo 'E   assert 3 == 2'; echo 'E    +  where 3 = len(sent)'; echo 'FAILED test_digest.py::test_digest_is_sent_once'; exit 1",
    iterations=12,
)
def mocks(n: int) -> Files:
    patches = "".join(f'@patch("app.digest.{m}")\n' for m in reversed(MOCKS[:n]))
    arguments = ", ".join(MOCKS[:n])
    return {
        "tests/test_digest.py": f"from unittest.mock import patch\n\n\n{patches}def test_digest_is_sent_once({arguments}):\n"
        "    sent = run_digest(day='2026-01-05')\n    assert len(sent) == 2\n"
    }


FLAGS = (
    "-O0",
    "-O1",
    "-O2",
    "-O3",
    "-Os",
    "-Og",
    "-O2 -fno-strict-aliasing",
    "-O2 -fwrapv",
    "-O1 -g3",
    "-Ofast",
    "-O0 -g",
)


@stuck(
    "another set of compiler flags, the same segmentation fault",
    since=1,
    checks="echo 'make: *** [test] Segmentation fault (core dumped)'; echo '#0  list_remove (l=0x0) at list.c:77'; exit 139",
    start={"Makefile": "CFLAGS = -O2\n\ntest: list\n\t./list\n"},
    iterations=11,
)
def flags(n: int) -> Files:
    return {"Makefile": f"CFLAGS = {FLAGS[n - 1]} -Wall\n\ntest: list\n\t./list\n"}


CACHE = """build:
  image: rust:1.79
  cache:
    key: "<key>"
    paths: [target/, .cargo/]
  script:
    - cargo test --locked
"""


@stuck(
    "the cache key of the pipeline is bumped, the lock file stays out of date",
    since=1,
    checks="echo 'error: the lock file Cargo.lock needs to be updated but --locked was passed'; exit 101",
    plan=lambda _n: "invalidate the cache",
    iterations=10,
)
def cache_key(n: int) -> Files:
    return {".gitlab-ci.yml": put(CACHE, key=turn((f"v{n}", f"$CI_COMMIT_REF_SLUG-{n}", f"rust-179-{n}"), n))}


LAYOUT = """def layout_v<n>(boxes, width):
    rows, row, used = [], [], 0
    for box in sorted(boxes, key=<key>):
        if used + box.width <op> width:
            rows.append(row)
            row, used = [], 0
        row.append(box)
        used += box.width + <gap>
    return rows + [row]
"""


@stuck(
    "one more copy of the module in each iteration",
    since=4,
    checks="""for f in box font; do [ -f render/$f.py ] || { echo "ImportError: render.$f"; exit 1; }; done
[ -f render/page.py ] || { echo "ImportError: render.page"; exit 1; }
echo "snapshot 'two columns' differs: expected 2 rows, got 3"; exit 1""",
    iterations=13,
)
def copies(n: int) -> Files:
    if n < 4:
        name = ("box", "font", "page")[n - 1]
        return {
            f"render/{name}.py": f"from dataclasses import dataclass\n\n\n@dataclass\nclass {name.title()}:\n    width: float\n    height: float\n    name: str = '{name}'\n"
        }
    key = turn(("lambda b: b.width", "lambda b: -b.width", "lambda b: b.order", "id"), n)
    return {
        f"render/layout_v{n - 3}.py": put(
            LAYOUT, n=n - 3, key=key, op=turn((">", ">="), n), gap=turn(("0", "1", "2"), n)
        )
    }
