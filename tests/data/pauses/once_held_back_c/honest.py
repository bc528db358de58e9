"""Episodes that do honest work: none of them may be paused."""

# ruff: noqa: E501

from tests.data.pauses import Files, honest


def put(text: str, /, **values: object) -> str:
    """Fill in `<key>` in the text."""
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    return text


GO_PACKAGES = ("auth", "billing", "cart", "catalog", "events", "ledger", "mailer", "orders", "search", "shipping")
GO_LOAD = """package <pkg>

import (
	"context"
	"fmt"
)

// Load reads one <pkg> record from the store.
func Load(ctx context.Context, id string) (*Record, error) {
	row, err := query(ctx, "<pkg>", id)
	if err != nil {
		return nil, fmt.Errorf("<pkg>: load %s: %<verb>", id, err)
	}
	return decode(row)
}
"""


@honest(
    "go vet: wrapped errors, package after package",
    checks="""awk '/%v", id, err/ {print FILENAME ":" FNR ":15: non-wrapping format verb for fmt.Errorf, use %w"; bad++}
END {if (bad) {print bad " issues"; exit 1}}' internal/*/load.go""",
    start={f"internal/{pkg}/load.go": put(GO_LOAD, pkg=pkg, verb="v") for pkg in GO_PACKAGES},
    plan=lambda n: f"wrap the errors of internal/{GO_PACKAGES[n - 1]}",
    iterations=10,
)
def go_vet(n: int) -> Files:
    pkg = GO_PACKAGES[n - 1]
    return {f"internal/{pkg}/load.go": put(GO_LOAD, pkg=pkg, verb="w")}


CRATES = ("base", "codec", "wire", "store", "index", "query", "plan", "exec", "net", "cli", "bench")
CRATE_OLD = """use std::sync::Arc;

pub struct <Name>State {
    pub items: Vec<Arc<str>>,
    pub epoch: u64,
}

impl <Name>State {
    pub fn drain(&mut self) -> Vec<Arc<str>> {
        let items = self.items;
        self.epoch += 1;
        items
    }
}
"""
CRATE_BUILD = """for c in base codec wire store index query plan exec net cli bench; do
  if grep -q 'let items = self.items;' crates/$c/src/lib.rs; then
    echo "   Compiling $c v0.4.2"
    echo "error[E0507]: cannot move out of 'self.items' which is behind a mutable reference"
    echo "  --> crates/$c/src/lib.rs:10:21"
    echo "error: could not compile '$c' (lib) due to 1 previous error"
    exit 101
  fi
done
"""


@honest(
    "a Rust workspace whose build stops at the first crate",
    checks="sh build.sh",
    start={
        "build.sh": CRATE_BUILD,
        **{f"crates/{c}/src/lib.rs": put(CRATE_OLD, Name=c.capitalize()) for c in CRATES},
    },
    plan=lambda _n: "fix the next borrow error",
    iterations=11,
)
def rust_crates(n: int) -> Files:
    crate = CRATES[n - 1]
    text = put(CRATE_OLD, Name=crate.capitalize())
    return {f"crates/{crate}/src/lib.rs": text.replace("self.items;", "std::mem::take(&mut self.items);")}


TS_DIRS = (
    ("api", 23),
    ("auth", 17),
    ("forms", 41),
    ("grid", 38),
    ("hooks", 9),
    ("i18n", 4),
    ("layout", 12),
    ("map", 31),
)
TS_DIRS += (("modal", 8), ("nav", 6), ("search", 19), ("utils", 27))
TSC = """total=0
for d in src/*/; do
  e=$(awk '/: any/ {n++} END {print n + 0}' ${d}index.ts)
  [ $e -gt 0 ] && echo "${d}index.ts: $e implicit or explicit any"
  total=$((total + e))
done
echo "Found $total errors."
[ $total -eq 0 ]
"""


def ts_module(name: str, size: int, kind: str) -> str:
    body = "".join(
        f"export function {name}Step{i}(input: {kind}): string {{\n  return String(input) + '{name}-{i}';\n}}\n"
        for i in range(size)
    )
    return f"import {{ Payload }} from '../types';\n\n{body}"


@honest(
    "strict TypeScript, one directory at a time and of very different size",
    checks="sh tsc.sh",
    start={"tsc.sh": TSC, **{f"src/{name}/index.ts": ts_module(name, size, "any") for name, size in TS_DIRS}},
    iterations=12,
)
def strict_ts(n: int) -> Files:
    name, size = TS_DIRS[n - 1]
    return {f"src/{name}/index.ts": ts_module(name, size, "Payload")}


TABLES = ("users", "teams", "roles", "grants", "invoices", "items", "payments", "refunds", "audit", "webhooks", "jobs")
SQL = """-- move <table> from integer keys to uuid
BEGIN;
ALTER TABLE <table> ADD COLUMN uid uuid NOT NULL DEFAULT gen_random_uuid();
CREATE UNIQUE INDEX <table>_uid_idx ON <table> (uid);
ALTER TABLE <table>_history ADD COLUMN <table>_uid uuid;
UPDATE <table>_history h SET <table>_uid = t.uid FROM <table> t WHERE t.id = h.<table>_id;
COMMIT;
"""


@honest(
    "schema migrations under a check that says nothing until the last table is moved",
    checks='[ "$(cat migrations/*.sql 2>/dev/null | grep -c gen_random_uuid)" -ge 11 ]',
    plan=lambda n: f"write the uuid migration of {TABLES[n - 1]}",
    iterations=11,
)
def uuid_migrations(n: int) -> Files:
    return {f"migrations/{n:04}_{TABLES[n - 1]}_uuid.sql": put(SQL, table=TABLES[n - 1])}


VIEWS = ("dashboard", "orders", "customers", "inventory", "reports", "alerts", "tasks", "calendar", "billing")
VIEW = """from shop.models import <Model>


def <name>_view(request):
    rows = <Model>.objects.filter(tenant=request.tenant)<related>
    return render(request, "<name>.html", {"rows": [row_of(r, r.owner, r.owner.team) for r in rows]})
"""
BENCH = """import glob, sys, zlib
texts = [open(p).read() for p in sorted(glob.glob("views/*.py"))]
slow = sum("select_related" not in t for t in texts)
p95 = 140 + slow * 83 + zlib.crc32("".join(texts).encode()) % 23
print(f"requests 2000  p50 {p95 * 0.41:.1f} ms  p95 {p95:.1f} ms  budget 170.0 ms")
sys.exit(p95 > 170)
"""


@honest(
    "query counts are brought down view by view, the benchmark has jitter",
    checks="python3 -B bench.py",
    start={
        "bench.py": BENCH,
        **{f"views/{v}.py": put(VIEW, name=v, Model=v.capitalize().rstrip("s"), related="") for v in VIEWS},
    },
    iterations=9,
)
def n_plus_one(n: int) -> Files:
    view = VIEWS[n - 1]
    related = '.select_related("owner__team")'
    return {f"views/{view}.py": put(VIEW, name=view, Model=view.capitalize().rstrip("s"), related=related)}


CALLERS = ("sync", "pull", "push", "mirror", "status", "diff", "merge", "tag", "blame", "log", "fsck", "gc")
CLIENT_OLD = """def fetch(url, timeout=10):
    try:
        return _session.get(url, timeout=timeout).json()
    except OSError:
        return None
"""
CLIENT_NEW = """from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    value: dict | None
    error: Exception | None = None

    def unwrap(self):
        if self.error:
            raise self.error
        return self.value


def fetch(url, timeout=10):
    try:
        return Result(_session.get(url, timeout=timeout).json())
    except OSError as error:
        return Result(None, error)
"""
CALLER = """from client import fetch


def <name>(remote, branch="main"):
    refs = fetch(f"{remote}/refs/{branch}")<unwrap>
    for ref in refs["items"]:
        yield "<name>", ref["sha"][:10]
"""
RESULT_TESTS = """n=0
if grep -q 'class Result' client.py; then
  for f in commands/*.py; do
    grep -q unwrap $f || { echo "FAILED ${f} - TypeError: 'Result' object is not subscriptable"; n=$((n + 1)); }
  done
else
  echo "FAILED tests/test_errors.py::test_timeout_is_reported - assert None"
  echo "FAILED tests/test_errors.py::test_reset_is_reported - assert None"; n=2
fi
echo "$n failed, $((46 - n)) passed"; [ $n -eq 0 ]
"""


@honest(
    "a return type is changed, which breaks every caller, and the callers follow",
    checks="sh tests.sh",
    start={
        "tests.sh": RESULT_TESTS,
        "client.py": CLIENT_OLD,
        **{f"commands/{c}.py": put(CALLER, name=c, unwrap="") for c in CALLERS},
    },
    iterations=13,
)
def result_type(n: int) -> Files:
    if n == 1:
        return {"client.py": CLIENT_NEW}
    return {f"commands/{CALLERS[n - 2]}.py": put(CALLER, name=CALLERS[n - 2], unwrap=".unwrap()")}


COMMANDS = {
    "init": "Create a workspace in the current directory.",
    "add": "Track files; takes globs and reads a list from standard input with `-`.",
    "lock": "Resolve all versions and write them to `deps.lock`.",
    "sync": "Install exactly what the lock file names.",
    "run": "Run a script inside the workspace's environment.",
    "why": "Print the chain of requirements that brought a package in.",
    "audit": "Compare the lock file with the advisories.",
    "publish": "Build and upload; asks before it uploads.",
    "yank": "Take a release back without deleting it.",
    "cache": "Show, prune or verify the download cache.",
}
DOC = """# deps <command>

<text>

## Synopsis

    deps <command> [--quiet] [--color auto|always|never]

## Exit status

0 if it worked, 2 on a wrong invocation, 1 otherwise.

## See also

`deps help <command>` and [the configuration](../configuration.md).
"""


@honest(
    "reference pages, the check lists the commands that lack one",
    checks="""m=0; for c in init add lock sync run why audit publish yank cache; do
  [ -f docs/reference/$c.md ] || { echo "undocumented command: $c"; m=1; }; done; exit $m""",
    iterations=10,
)
def reference_pages(n: int) -> Files:
    command, text = list(COMMANDS.items())[n - 1]
    return {f"docs/reference/{command}.md": put(DOC, command=command, text=text)}


FLAKY_TESTS = (
    "upload",
    "resume",
    "cancel",
    "retry",
    "throttle",
    "abort",
    "multipart",
    "signature",
    "expiry",
    "listing",
)
FLAKY = """sum=$(cat tests/*.py | cksum); sum=${sum%% *}; n=0
for f in tests/*.py; do
  grep -q 'time.sleep' $f && { echo "FAILED $f::test_completes - TimeoutError: still pending"; n=$((n + 1)); }
done
if [ $((sum % 3)) -eq 0 ] && [ $n -gt 0 ]; then
  echo "FAILED tests/test_network.py::test_dns - socket.gaierror: [Errno -3]"; n=$((n + 1))
fi
echo "$n failed in $((sum % 7 + 3)).$((sum % 89 + 10))s"; [ $n -eq 0 ]
"""
FLAKY_TEST = """import time


def test_completes(server, client):
    job = client.<name>("blob.bin", size=1 << 20)
    <wait>
    assert job.done, job.state
    assert server.log[-1].verb == "<name>"
"""


@honest(
    "sleeps give way to events in each test, while the network test fails now and then",
    checks="sh run.sh",
    start={
        "run.sh": FLAKY,
        **{f"tests/test_{t}.py": put(FLAKY_TEST, name=t, wait="time.sleep(0.2)") for t in FLAKY_TESTS},
    },
    iterations=10,
)
def no_sleeps(n: int) -> Files:
    test = FLAKY_TESTS[n - 1]
    return {f"tests/test_{test}.py": put(FLAKY_TEST, name=test, wait="job.finished.wait(timeout=5)")}


LEAK = """import glob, sys
text = "".join(open(p).read() for p in sorted(glob.glob("src/*.py")))
leaks = [w for w, cure in (("sessions", "WeakValueDictionary"), ("listeners", "unsubscribe"), ("buffers", "clear()"),
         ("timers", "cancel()"), ("templates", "lru_cache(maxsize"), ("sockets", "close()")) if cure not in text]
rss = 180 + 55 * len(leaks)
print(f"soak: rss after 10000 requests {rss} MB, limit 200 MB")
sys.exit(rss > 200)
"""
LEAK_WORK = (
    (
        "tests/soak/repro.py",
        "import subprocess\n\n\ndef soak(requests=10_000):\n    return subprocess.run(['load', str(requests)])\n",
    ),
    (
        "tests/soak/snapshot.py",
        "import tracemalloc\n\n\ndef top(before, after, n=12):\n    return after.compare_to(before, 'lineno')[:n]\n",
    ),
    (
        "docs/leak.md",
        "# The leak\n\nThe snapshots point at six containers: sessions, listeners, buffers, timers,\ntemplates, sockets. Each grows by one entry per request.\n",
    ),
    ("src/sessions.py", "from weakref import WeakValueDictionary\n\n_open = WeakValueDictionary()\n"),
    ("src/listeners.py", "def stop(bus, callback):\n    bus.unsubscribe(callback)\n    bus.flush()\n"),
    (
        "src/buffers.py",
        "class Pool:\n    def give_back(self, buffer):\n        buffer.clear()\n        self.free.append(buffer)\n",
    ),
    ("src/timers.py", "def forget(timer):\n    timer.cancel()\n    _timers.discard(timer)\n"),
    (
        "src/templates.py",
        "@lru_cache(maxsize=256)\ndef compiled(path):\n    return compile_template(path.read_text())\n",
    ),
    ("src/sockets.py", "def release(sock):\n    try:\n        sock.shutdown(2)\n    finally:\n        sock.close()\n"),
)


@honest(
    "a leak is reproduced, measured, understood, and then closed in six places",
    checks="python3 -B soak.py",
    start={"soak.py": LEAK},
    plan=lambda n: f"work on {LEAK_WORK[n - 1][0]}",
    iterations=9,
)
def leak(n: int) -> Files:
    path, text = LEAK_WORK[n - 1]
    return {path: text}


ESLINT_FILES = tuple(
    (f"src/pages/{p}.jsx", k)
    for p, k in zip(
        ("Home", "Login", "Profile", "Cart", "Checkout", "Orders", "Order", "Help", "Admin", "Users", "Audit", "Error"),
        (7, 2, 11, 5, 14, 3, 3, 1, 9, 6, 4, 2),
        strict=True,
    )
)


def page(path: str, count: int, fixed: bool) -> str:
    name = path.split("/")[-1][:-4]
    word = "const" if fixed else "var"
    body = "".join(f"  {word} part{i} = use{name}Part({i});\n" for i in range(count))
    return f"export default function {name}(props) {{\n{body}  return <Layout title={{props.title}} />;\n}}\n"


@honest(
    "eslint problems go down in uneven steps",
    checks="""awk '/  var /{print FILENAME ":" FNR ":3  error  Unexpected var, use let or const instead  no-var"; n++}
END {if (n) {print ""; print "x " n " problems (" n " errors, 0 warnings)"; exit 1}}' src/pages/*.jsx""",
    start={path: page(path, count, False) for path, count in ESLINT_FILES},
    iterations=12,
)
def eslint(n: int) -> Files:
    path, count = ESLINT_FILES[n - 1]
    return {path: page(path, count, True)}


PIPELINES = ("ingest", "clean", "dedupe", "geocode", "join_crm", "score", "bucket", "export", "archive")
PIPELINE = """import pandas as pd


def <name>(frame: pd.DataFrame, batch: pd.DataFrame) -> pd.DataFrame:
    frame = <append>
    frame["<name>_at"] = pd.Timestamp.now(tz="UTC")
    return frame.sort_values("id", kind="stable")
"""
PIPELINE_RUN = """for p in ingest clean dedupe geocode join_crm score bucket export archive; do
  if grep -q 'frame.append' pipelines/$p.py; then
    echo "stage $p: Traceback (most recent call last):"
    echo "  File \\"pipelines/$p.py\\", line 5, in $p"
    echo "AttributeError: 'DataFrame' object has no attribute 'append'"
    exit 1
  fi
  echo "stage $p: ok"
done
"""


@honest(
    "pandas 2: the pipeline dies one stage later each time with the same message",
    checks="sh run.sh",
    start={
        "run.sh": PIPELINE_RUN,
        **{f"pipelines/{p}.py": put(PIPELINE, name=p, append="frame.append(batch)") for p in PIPELINES},
    },
    iterations=9,
)
def pandas_upgrade(n: int) -> Files:
    stage = PIPELINES[n - 1]
    return {f"pipelines/{stage}.py": put(PIPELINE, name=stage, append="pd.concat([frame, batch], ignore_index=True)")}


C_FILES = ("adc", "boot", "can", "dma", "eeprom", "flash", "gpio", "i2c", "pwm", "rtc", "spi", "uart", "usb", "wdt")
C_FILE = """#include "hal.h"
<include>
static volatile uint32_t <name>_ticks;

int <name>_init(const struct <name>_config *config)
{
    if (config == NULL)
        return -EINVAL;
    <name>_ticks = 0;
    return hal_enable(HAL_<NAME>, config->irq);
}
"""
C_BUILD = """for f in src/*.c; do
  grep -q 'errno.h' $f || { echo "CC $f"; echo "$f:9:17: error: 'EINVAL' undeclared (first use in this function)"
    echo "make: *** [Makefile:31: build/$(basename $f .c).o] Error 1"; exit 2; }
done
"""


@honest(
    "firmware build stops at the first error, drivers are repaired in order",
    checks="sh build.sh",
    start={
        "build.sh": C_BUILD,
        **{f"src/{c}.c": put(C_FILE, name=c, NAME=c.upper(), include="") for c in C_FILES},
    },
    iterations=14,
)
def firmware(n: int) -> Files:
    name = C_FILES[n - 1]
    return {f"src/{name}.c": put(C_FILE, name=name, NAME=name.upper(), include="#include <errno.h>\n")}


TF_MODULES = ("vpc", "subnets", "nat", "eks", "rds", "redis", "s3", "cdn", "dns", "alarms")
TF = """resource "aws_<name>" "main" {
  name_prefix = "${var.env}-<name>"
  tags        = merge(var.tags, { module = "<name>" })
}

output "<name>_id" {
  value = aws_<name>.main.id
}
"""
TF_VARS = 'variable "env" {\n  type = string\n}\n\nvariable "tags" {\n  type    = map(string)\n  default = {}\n}\n'


@honest(
    "terraform: a flat file is cut into validated modules",
    checks="""bad=0; for m in vpc subnets nat eks rds redis s3 cdn dns alarms; do
  if [ -f modules/$m/variables.tf ]; then echo "module.$m: Success! The configuration is valid."
  else echo "Error: Unreadable module directory modules/$m"; bad=$((bad + 1)); fi
done; echo "$bad of 10 modules are invalid"; exit $bad""",
    iterations=10,
)
def terraform(n: int) -> Files:
    name = TF_MODULES[n - 1]
    return {f"modules/{name}/main.tf": put(TF, name=name), f"modules/{name}/variables.tf": TF_VARS}


COVERED = (
    "lexer", "scope", "types", "folding", "inline", "ssa", "regalloc", "emit", "debuginfo", "link", "errors", "driver",
    "options", "cache",
)  # fmt: skip
COVERAGE = """import glob, re, sys
tests = "".join(open(p).read() for p in glob.glob("tests/test_*.py"))
share = 61.4 + 1.9 * len(set(re.findall(r"from compiler.(\\w+) import", tests)))
print(f"TOTAL    8412    {int(8412 * (100 - share) / 100)}    {share:.1f}%")
if share < 87:
    print(f"FAIL Required test coverage of 87% not reached. Total coverage: {share:.2f}%")
    sys.exit(2)
"""
COVERING = """import pytest

from compiler.<name> import <name>_pass


@pytest.mark.parametrize("source", ["", "let a = 1", "fn f(x) { x + 1 }", "if a { b } else { c }"])
def test_<name>_is_idempotent(source):
    once = <name>_pass(source)
    assert <name>_pass(once) == once


def test_<name>_keeps_positions():
    assert <name>_pass("let a = 1").span == (0, 9)
"""


@honest(
    "coverage climbs by two percent an iteration",
    checks="python3 -B coverage.py",
    start={"coverage.py": COVERAGE},
    plan=lambda n: f"cover compiler.{COVERED[n - 1]}",
    iterations=14,
)
def coverage(n: int) -> Files:
    return {f"tests/test_{COVERED[n - 1]}.py": put(COVERING, name=COVERED[n - 1])}


JOBS = ("lint", "types", "unit", "integration", "docs", "wheel", "sdist", "docker", "smoke", "release-dry-run")
JOB = """  <job>:
    runs-on: ubuntu-24.04
    needs: [<needs>]
    steps:
      - uses: actions/checkout@v4
      - run: make <job>
"""


def workflow(n: int) -> str:
    jobs = "".join(put(JOB, job=j, needs=JOBS[i - 1] if i else "") for i, j in enumerate(JOBS[:n]))
    return f"name: ci\non: [push, pull_request]\njobs:\n{jobs}"


@honest(
    "a CI workflow is ported job by job into one file",
    checks="""for j in lint types unit integration docs wheel sdist docker smoke release-dry-run; do
  grep -q "^  $j:" .github/workflows/ci.yml 2>/dev/null || { echo "::error::required job '$j' is not defined"; exit 1; }
done""",
    iterations=10,
)
def ci_jobs(n: int) -> Files:
    return {".github/workflows/ci.yml": workflow(n)}


DOCKER = (
    "FROM python:3.12 AS build",
    "RUN apt-get update && apt-get install -y build-essential git curl vim",
    "COPY . /app",
    "RUN pip install -r /app/requirements-dev.txt",
    "RUN pip install -r /app/requirements.txt",
    "RUN cd /app && make assets",
    "RUN curl -sSL https://example.org/fonts.tar.gz | tar xz -C /usr/share",
    "RUN git clone https://example.org/themes /app/themes",
)
DOCKER_SLIM = (
    "FROM python:3.12-slim AS build",
    "RUN apt-get update && apt-get install -y --no-install-recommends gcc && rm -rf /var/lib/apt/lists/*",
    "COPY pyproject.toml src /app/",
    "# development requirements are not part of the image",
    "RUN pip install --no-cache-dir -r /app/requirements.txt",
    "COPY --from=assets /dist /app/static",
    "COPY fonts/inter /usr/share/fonts/inter",
    "COPY --from=themes /themes/default /app/themes/default",
)
DOCKER_SIZE = """import sys
weights = {"python:3.12 ": 610, "vim": 290, "COPY . ": 140, "requirements-dev": 330, "pip install -r /app/requirements.txt": 85,
           "make assets": 210, "fonts.tar.gz": 95, "git clone": 60}
text = open("Dockerfile").read()
size = 171 + sum(mb for word, mb in weights.items() if word in text)
print(f"image size: {size} MB (limit: 200 MB)")
sys.exit(size > 200)
"""


@honest(
    "a container image gets smaller line by line",
    checks="python3 -B size.py",
    start={"size.py": DOCKER_SIZE, "Dockerfile": "\n".join(DOCKER) + "\n"},
    iterations=8,
)
def docker_size(n: int) -> Files:
    return {"Dockerfile": "\n".join(DOCKER_SLIM[:n] + DOCKER[n:]) + "\n"}


LOCALES = {
    "de": ("Speichern", "Abbrechen", "Konto"), "fr": ("Enregistrer", "Annuler", "Compte"),
    "es": ("Guardar", "Cancelar", "Cuenta"), "it": ("Salva", "Annulla", "Conto"), "pt": ("Salvar", "Cancelar", "Conta"),
    "nl": ("Opslaan", "Annuleren", "Account"), "pl": ("Zapisz", "Anuluj", "Konto"), "sv": ("Spara", "Avbryt", "Konto"),
    "fi": ("Tallenna", "Peruuta", "Tili"), "cs": ("Ulozit", "Zrusit", "Ucet"), "tr": ("Kaydet", "Iptal", "Hesap"),
}  # fmt: skip


@honest(
    "a translation file for each language, the check prints what share is there",
    checks='n=$(ls locales 2>/dev/null | grep -c json); echo "translated: $((n * 100 / 11))%"; [ $n -ge 11 ]',
    iterations=11,
)
def locales(n: int) -> Files:
    code, (save, cancel, account) = list(LOCALES.items())[n - 1]
    text = f'{{\n  "button.save": "{save}",\n  "button.cancel": "{cancel}",\n  "menu.account": "{account}"\n}}\n'
    return {f"locales/{code}.json": text}


JAVA = ("Account", "Address", "Basket", "Coupon", "Customer", "Invoice", "Order", "Parcel", "Refund")
JAVA_CLASS = """package org.example.shop;

import java.time.*;
import java.util.*;

public final class <Name> {
    private final <type> created;

    public <Name>(<type> created) {
        this.created = created;
    }

    public int year() {
        return created.getYear()<offset>;
    }
}
"""


@honest(
    "java.util.Date goes away class by class, javac counts the warnings",
    checks="""awk '/private final Date/ {print FILENAME ":" FNR + 8 ": warning: [deprecation] getYear() in Date has been deprecated"; n++}
END {if (n) {print "error: warnings found and -Werror specified"; print n + 0 " warnings"; exit 1}}' src/*.java""",
    start={f"src/{j}.java": put(JAVA_CLASS, Name=j, type="Date", offset=" + 1900") for j in JAVA},
    iterations=9,
)
def java_dates(n: int) -> Files:
    return {f"src/{JAVA[n - 1]}.java": put(JAVA_CLASS, Name=JAVA[n - 1], type="LocalDate", offset="")}


MD_RULES = (
    ('("&", "&amp;")', "a & b", "a &amp; b"),
    ('("<", "&lt;")', "a < b", "a &lt; b"),
    ('(r"(?m)^## (.+)$", r"<h2>\\1</h2>")', "## Title", "<h2>Title</h2>"),
    ('(r"(?m)^# (.+)$", r"<h1>\\1</h1>")', "# Title", "<h1>Title</h1>"),
    ('(r"\\*\\*(.+?)\\*\\*", r"<strong>\\1</strong>")', "**x**", "<strong>x</strong>"),
    ('(r"\\*(.+?)\\*", r"<em>\\1</em>")', "*x*", "<em>x</em>"),
    ('(r"`([^`]+)`", r"<code>\\1</code>")', "`x`", "<code>x</code>"),
    ('(r"!\\[(.*?)\\]\\((.*?)\\)", r\'<img src="\\2" alt="\\1">\')', "![a](b)", '<img src="b" alt="a">'),
    ('(r"\\[(.*?)\\]\\((.*?)\\)", r\'<a href="\\2">\\1</a>\')', "[a](b)", '<a href="b">a</a>'),
    ('(r"~~(.+?)~~", r"<del>\\1</del>")', "~~x~~", "<del>x</del>"),
    ('(r"(?m)^---$", "<hr>")', "---", "<hr>"),
)
MD_HEAD = "import re\n\nRULES = [\n"
MD_TAIL = "]\n\n\ndef convert(text):\n    for pattern, by in RULES:\n        text = re.sub(pattern, by, text)\n    return text\n"
MD_CHECK = f"""import sys
space = {{}}
exec(open("src/markdown.py").read(), space)
for source, wanted in {[(s, w) for _, s, w in MD_RULES]!r}:
    got = space["convert"](source)
    if got != wanted:
        print(f"E   AssertionError: assert {{got!r}} == {{wanted!r}}")
        print("1 failed (stopping after the first failure)")
        sys.exit(1)
"""


@honest(
    "a converter learns one rule after the other, the suite stops at the first failure",
    checks="python3 -B check.py",
    start={"check.py": MD_CHECK, "src/markdown.py": MD_HEAD + MD_TAIL},
    plan=lambda _n: "make the next case pass",
    iterations=11,
)
def markdown(n: int) -> Files:
    rules = "".join(f"    {rule},\n" for rule, _, _ in MD_RULES[:n])
    return {"src/markdown.py": MD_HEAD + rules + MD_TAIL}


HEADERS = (
    'Strict-Transport-Security "max-age=63072000; includeSubDomains"', 'X-Content-Type-Options "nosniff"',
    'X-Frame-Options "DENY"', 'Referrer-Policy "strict-origin"', "Content-Security-Policy \"default-src 'self'\"",
    'Permissions-Policy "camera=(), microphone=()"', 'Cross-Origin-Opener-Policy "same-origin"',
    'Cross-Origin-Resource-Policy "same-site"', 'Cross-Origin-Embedder-Policy "require-corp"',
)  # fmt: skip


@honest(
    "security headers are switched on one at a time",
    checks="""n=$(grep -c add_header nginx.conf); case $n in 0) g=F;; 1|2) g=E;; 3|4) g=D;; 5|6) g=C;; 7|8) g=B;; *) g=A;; esac
echo "grade $g, $((9 - n)) headers missing"; [ $g = A ]""",
    start={"nginx.conf": "server {\n  listen 443 ssl http2;\n}\n"},
    iterations=9,
)
def headers(n: int) -> Files:
    lines = "".join(f"  add_header {h} always;\n" for h in HEADERS[:n])
    return {"nginx.conf": f"server {{\n  listen 443 ssl http2;\n{lines}}}\n"}


CLEANERS = (
    ("trim", "value.strip()", 611), ("nbsp", "value.replace('\\u00a0', ' ')", 188), ("quotes", "value.strip('\"')", 402),
    ("decimal", "value.replace(',', '.')", 1290), ("dates", "to_iso(value)", 977), ("phones", "to_e164(value)", 356),
    ("nulls", "None if value in {'-', 'n/a'} else value", 214), ("case", "value.title()", 101),
    ("units", "to_metric(value)", 63), ("codes", "value.zfill(5)", 8),
)  # fmt: skip
CLEAN_CHECK = f"""import os, sys
left = {{name: rows for name, rows in {[(c[0], c[2]) for c in CLEANERS]!r} if not os.path.exists(f"clean/{{name}}.py")}}
if left:
    for name, rows in sorted(left.items(), key=lambda item: -item[1])[:3]:
        print(f"  rejected {{rows:>5}} rows: {{name}}")
    sys.exit(f"total rejected: {{sum(left.values())}} of 48210")
"""


@honest(
    "rejected rows of an import go down, cleaner by cleaner",
    checks="python3 -B check.py",
    start={"check.py": CLEAN_CHECK},
    iterations=10,
)
def cleaners(n: int) -> Files:
    name, how, _ = CLEANERS[n - 1]
    return {
        f"clean/{name}.py": f'"""Cleaner: {name}."""\n\n\ndef {name}(value: str) -> str | None:\n'
        f"    if not value:\n        return None\n    return {how}\n"
    }


HS = ("Lexer", "Layout", "Parser", "Rename", "Infer", "Desugar", "Simplify", "Lambda", "Closure", "Emit", "Runtime")
HS_MODULE = """module Compiler.<Name> (run<Name>) where

import Control.Monad.State.Strict (State, gets, modify')
import Data.Text (Text)

run<Name> :: Text -> State Env (Either Failure Output)
run<Name> source = do
  fresh <- gets envFresh
  modify' (\\env -> env {envFresh = fresh + 1})
  pure (go<Name> fresh source)
"""


@honest(
    "modules are ported to text and strict state, ghc stops at the first missing one",
    checks="""i=0; for m in Lexer Layout Parser Rename Infer Desugar Simplify Lambda Closure Emit Runtime; do i=$((i + 1))
grep -q Strict src/Compiler/$m.hs 2>/dev/null || { echo "[$i of 11] Compiling Compiler.$m"
echo "src/Compiler/$m.hs:1:1: error: Could not find module 'Compiler.$m'"; exit 1; }; done""",
    iterations=11,
)
def haskell(n: int) -> Files:
    return {f"src/Compiler/{HS[n - 1]}.hs": put(HS_MODULE, Name=HS[n - 1])}


SPECS = (
    "login",
    "signup",
    "reset",
    "profile",
    "teams",
    "invites",
    "billing",
    "usage",
    "tokens",
    "logout",
    "search",
    "export",
)
SPEC = """import { test, expect } from '@playwright/test';
import { <name>Page } from './pages/<name>';

test.describe('<name>', () => {
  test('shows the heading', async ({ page }) => {
    await page.goto('/<name>');
    await expect(page.getByRole('heading', { name: /<name>/i })).toBeVisible();
  });
  test('refuses an expired session', async ({ page, expired }) => {
    await <name>Page(page).open(expired);
    await expect(page).toHaveURL(/login/);
  });
});
"""


@honest(
    "end-to-end tests are written under a check without a word",
    checks='[ "$(ls e2e 2>/dev/null | grep -c spec.ts)" -ge 12 ]',
    iterations=12,
)
def e2e(n: int) -> Files:
    return {f"e2e/{SPECS[n - 1]}.spec.ts": put(SPEC, name=SPECS[n - 1])}


WIDGETS = ("Menu", "Tabs", "Dialog", "Toast", "Slider", "Switch", "Picker", "Tree", "Table")
WIDGET = """<template>
  <div class="<css>" <aria>>
    <slot :open="open" />
    <button @click="toggle">{{ label }}</button>
  </div>
</template>
"""


@honest(
    "accessibility violations, several for each component",
    checks="""awk '/<div class="[a-z]*" >/ {n += 3; f++; print FILENAME ": aria-required-attr, button-name, region"}
END {if (n) {print n " violations in " f " components"; exit 1}}' src/widgets/*.vue""",
    start={f"src/widgets/{w}.vue": put(WIDGET, css=w.lower(), aria="") for w in WIDGETS},
    iterations=9,
)
def aria(n: int) -> Files:
    name = WIDGETS[n - 1]
    attributes = f'role="{name.lower()}" :aria-label="label" :aria-expanded="open"'
    return {f"src/widgets/{name}.vue": put(WIDGET, css=name.lower(), aria=attributes)}


DEAD = ("soap", "xmlrpc", "ftp", "fax", "telnet", "gopher", "wap", "flash", "applet", "activex")
DEAD_FILE = """class <Name>Gateway:
    \"\"\"Talks <name>; last used in 2014.\"\"\"

    def __init__(self, host, port):
        self.host, self.port = host, port

    def send(self, body):
        return self._transport.post(body, self.host, self.port)
"""


@honest(
    "dead gateways are deleted one by one",
    checks='n=$(ls gateways 2>/dev/null | grep -c py); echo "vulture: $n unused modules"; [ $n -eq 0 ]',
    start={f"gateways/{d}.py": put(DEAD_FILE, name=d, Name=d.capitalize()) for d in DEAD},
    iterations=10,
)
def dead_code(n: int) -> Files:
    return {f"gateways/{DEAD[n - 1]}.py": None}


FEATURES = ("tags", "folders", "sharing", "comments", "mentions", "reactions", "drafts", "history")
FEATURE = """from notes.model import Note<space>
from notes.store import Store


def <name>(store: Store, note: Note) -> list[str]:
    found = store.rows("<name>", note.id)
    return [row.text for row in found if not row.deleted]
"""


@honest(
    "each feature breaks the lint first, which the next iteration sets right",
    checks=(
        """n=0; for f in tags folders sharing comments mentions reactions drafts history; do
[ -f notes/$f.py ] || { echo "FAILED tests/test_$f.py::test_$f - ModuleNotFoundError: notes.$f"; n=$((n + 1)); }; done
echo "$n failed"; [ $n -eq 0 ]""",
        """[ -d notes ] || exit 1
awk '/ $/ {print FILENAME ":" FNR ": W291 trailing whitespace"; n++} END {exit n > 0}' notes/*.py""",
    ),
    iterations=16,
)
def feature_then_lint(n: int) -> Files:
    name = FEATURES[(n - 1) // 2]
    return {f"notes/{name}.py": put(FEATURE, name=name, space=" " if n % 2 else "")}


@honest(
    "a case folding table is filled in block by block",
    checks="""n=$(grep -c '^0x' tables/fold.inc); echo "code points covered: $n/320 ($((n * 100 / 320))%)"; [ $n -ge 320 ]""",
    start={"tables/fold.inc": "/* code, folded */\n"},
    plan=lambda n: f"add block {n} of the table",
    iterations=20,
)
def fold_table(n: int) -> Files:
    rows = "".join(f"0x{0x410 + i:04X}, 0x{0x430 + i:04X},\n" for i in range(16 * n))
    return {"tables/fold.inc": f"/* code, folded */\n{rows}"}


QUERIES = {
    "open_orders": "orders (status, created_at)", "by_email": "users (lower(email))", "late": "parcels (due_at)",
    "top": "sales (product_id, day)", "unread": "messages (to_id) WHERE NOT read", "stock": "stock (sku, depot)",
    "churn": "events (user_id, at DESC)", "refunds": "refunds (order_id)", "quota": "usage (team_id, month)",
}  # fmt: skip


@honest(
    "the planner's sequential scans get an index each",
    checks="""n=0; for q in open_orders by_email late top unread stock churn refunds quota; do
if grep -q "idx_$q " schema/indexes.sql; then echo "$q: Index Scan using idx_$q  (cost=0.42..8.44)"
else echo "$q: Seq Scan  (cost=0.00..18334.00)"; n=$((n + 1)); fi; done; [ $n -eq 0 ]""",
    start={"schema/indexes.sql": "-- indexes\n"},
    iterations=9,
)
def indexes(n: int) -> Files:
    rows = [f"CREATE INDEX CONCURRENTLY idx_{q} ON {c};\n" for q, c in list(QUERIES.items())[:n]]
    return {"schema/indexes.sql": "-- indexes\n" + "".join(rows)}


RENAMED = tuple(
    f"{area}/{part}" for area in ("core", "web", "worker", "admin", "sdk") for part in ("api", "impl", "spec")
)


def renamed(path: str, name: str) -> str:
    part = path.replace("/", "_")
    return "".join(
        f"def {part}_{i}(ctx, {name}_id):\n    {name} = ctx.find('{name}', {name}_id)\n    return {name}.{part}[{i}]\n\n"
        for i in range(1 + len(path) % 4)
    )


@honest(
    "a term is renamed all over a monorepo",
    checks="""awk '{n += gsub(/customer/, "")} END {print n + 0 " occurrences of the old name"; exit n > 0}' */*.py""",
    start={f"{path}.py": renamed(path, "customer") for path in RENAMED},
    iterations=15,
)
def rename(n: int) -> Files:
    return {f"{RENAMED[n - 1]}.py": renamed(RENAMED[n - 1], "account")}


PARTS = (
    ("proto/queue.proto", 'syntax = "proto3";\npackage queue;\nmessage Job {\n  string id = 1;\n  bytes body = 2;\n}\n'),
    ("queue/errors.go", 'package queue\n\nimport "errors"\n\nvar ErrEmpty = errors.New("queue: empty")\n'),
    ("queue/ring.go", "package queue\n\ntype ring struct {\n\thead, tail int\n\tslots []Job\n}\n\nfunc (r *ring) len() int { return r.tail - r.head }\n"),
    ("queue/wal.go", "package queue\n\nfunc (w *wal) append(j Job) error {\n\tif _, err := w.f.Write(encode(j)); err != nil {\n\t\treturn err\n\t}\n\treturn w.f.Sync()\n}\n"),
    ("queue/replay.go", "package queue\n\nfunc replay(w *wal, r *ring) error {\n\tfor j := range w.all() {\n\t\tr.push(j)\n\t}\n\treturn w.err\n}\n"),
    ("queue/lease.go", "package queue\n\ntype lease struct {\n\tid      string\n\texpires time.Time\n}\n\nfunc (l lease) valid(now time.Time) bool { return now.Before(l.expires) }\n"),
    ("queue/ack.go", "package queue\n\nfunc (q *Queue) Ack(id string) error {\n\tq.mu.Lock()\n\tdefer q.mu.Unlock()\n\treturn q.drop(id)\n}\n"),
    ("server/grpc.go", "package server\n\nfunc (s *Server) Push(ctx context.Context, r *pb.Job) (*pb.Ok, error) {\n\treturn &pb.Ok{}, s.q.Push(fromProto(r))\n}\n"),
    ("server/stream.go", "package server\n\nfunc (s *Server) Pull(r *pb.PullRequest, out pb.Queue_PullServer) error {\n\tfor j := range s.q.Subscribe(out.Context()) {\n\t\tif err := out.Send(toProto(j)); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\treturn nil\n}\n"),
    ("client/client.go", "package client\n\nfunc Dial(addr string) (*Client, error) {\n\tcc, err := grpc.NewClient(addr)\n\tif err != nil {\n\t\treturn nil, err\n\t}\n\treturn &Client{cc: cc}, nil\n}\n"),
    ("cmd/queued/main.go", "package main\n\nfunc main() {\n\tq, err := queue.Open(*dir)\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n\tlog.Fatal(server.Serve(*addr, q))\n}\n"),
)  # fmt: skip


@honest(
    "a service is built part by part, its one integration test fails until all parts are there",
    checks='echo "--- FAIL: TestPushPull (0.00s)"; echo "FAIL example.org/queue/integration"; test -f cmd/queued/main.go',
    plan=lambda n: f"write {PARTS[n - 1][0]}",
    iterations=11,
)
def service(n: int) -> Files:
    path, text = PARTS[n - 1]
    return {path: text}


APPROACH = """import sys, zlib
try:
    code = open("src/split.py").read()
except OSError:
    code = ""
left = 12 - 2 * code.count("def rule_") if "class Scanner" in code else 12 - code.count("re.compile")
for i in range(12 - left, 12):
    print(f"FAIL case {i + 1:02}: tokens differ")
print(f"{12 - left}/12 cases pass")
sys.exit(left > 0)
"""
RULES = ("quoted", "escaped", "comment", "heredoc", "substitution", "glob")


@honest(
    "a regular expression approach is given up for a scanner, which gets further",
    checks="python3 -B cases.py",
    start={"cases.py": APPROACH},
    plan=lambda n: "match more with expressions" if n < 4 else f"scan {RULES[min(n - 4, 6) - 1]} tokens",
    iterations=10,
)
def approach(n: int) -> Files:
    if n < 4:
        rows = "".join(f"_P{i} = re.compile(r'{p}')\n" for i, p in enumerate((r"\S+", r"'[^']*'", r'"[^"]*"')[:n]))
        return {"src/split.py": f"import re\n\n{rows}\n\ndef split(line):\n    return _P0.findall(line)\n"}
    rules = "".join(
        f"\n    def rule_{r}(self):\n        start = self.at\n        while not self.ends('{r}'):\n            self.at += 1\n"
        f"        return Token('{r}', start, self.at)\n"
        for r in RULES[: n - 4]
    )
    return {
        "src/split.py": "class Scanner:\n    def __init__(self, line):\n        self.line, self.at = line, 0\n" + rules
        + "\n\ndef split(line):\n    return list(Scanner(line))\n"
    }  # fmt: skip


HANDLERS = ("create", "update", "delete", "list", "get", "watch", "patch", "apply", "scale", "drain", "cordon", "evict")
HANDLER = """async def <name>(request: Request, cluster: Cluster) -> Response:
    target = await cluster.locate(request.path["node"])
    with cluster.tracer.span("<name>", node=target.name):
        outcome = await target.<name>(request.body, deadline=request.deadline)
    return Response.of(outcome, headers={"x-operation": "<name>"})
"""


@honest(
    "handlers become asynchronous although the executor runs into its time limit twice",
    checks="""n=0; for h in create update delete list get watch patch apply scale drain cordon evict; do
grep -q '^async def' handlers/$h.py || { echo "handlers/$h.py: blocking call in an event loop"; n=$((n + 1)); }; done
[ $n -eq 0 ]""",
    start={f"handlers/{h}.py": f"def {h}(request, cluster):\n    return cluster.{h}(request.body)\n" for h in HANDLERS},
    ending=lambda n: {"status": "failed", "error": "timed out after 900 s"} if n in {4, 9} else {},
    iterations=12,
)
def handlers(n: int) -> Files:
    return {f"handlers/{HANDLERS[n - 1]}.py": put(HANDLER, name=HANDLERS[n - 1])}


ROUTES = ("ping", "items", "item", "search", "tags", "users", "me", "upload", "export")
ROUTE = """    @app.get("/v2/<name>")
    def <name>(limit: int = 50, cursor: str | None = None) -> Page:
        return Page.of(backend.<name>(limit=limit, after=cursor))

"""


@honest(
    "one module grows route by route, the contract test prints a status table",
    checks="""n=0; for r in ping items item search tags users me upload export; do
if grep -q "/v2/$r\\"" app/routes.py; then s=200; else s=404; n=$((n + 1)); fi; printf '%-8s GET /v2/%-8s %s\\n' contract $r $s
done; [ $n -eq 0 ]""",
    start={"app/routes.py": "def register(app, backend):\n    pass\n"},
    iterations=9,
)
def routes(n: int) -> Files:
    body = "".join(put(ROUTE, name=r) for r in ROUTES[:n])
    return {"app/routes.py": f"from app.paging import Page\n\n\ndef register(app, backend):\n{body}"}
