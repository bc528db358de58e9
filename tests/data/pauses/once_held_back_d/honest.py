"""Episodes that do honest work: none of them may be paused."""

# ruff: noqa: E501

from tests.data.pauses import Files, honest
from tests.support.doubles import planned


def put(text: str, /, **values: object) -> str:
    """Fill in `<key>` in the text."""
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    return text


GRADLE = (
    "app",
    "core",
    "data",
    "domain",
    "feature-home",
    "feature-chat",
    "feature-map",
    "network",
    "sync",
    "ui",
    "wear",
)
GRADLE_BUILD = """n=0; for m in app core data domain feature-home feature-chat feature-map network sync ui wear; do
  if [ -f $m/build.gradle ]; then echo "> Task :$m:compileDebugKotlin FAILED"; n=$((n + 1));
  else echo "> Task :$m:compileDebugKotlin"; fi
done
[ $n -eq 0 ] && { echo "BUILD SUCCESSFUL"; exit 0; }
echo "BUILD FAILED: $n of 11 modules use the removed Groovy plugin block"; exit 1
"""
KTS = """plugins {
    alias(libs.plugins.android.library)
    alias(libs.plugins.kotlin.android)
}

android {
    namespace = "org.example.<name>"
    compileSdk = 34
}

dependencies {
    implementation(projects.<uses>)
}
"""


@honest(
    "Groovy build files become Kotlin scripts, module by module",
    checks="sh build.sh",
    start={
        "build.sh": GRADLE_BUILD,
        **{f"{m}/build.gradle": f"apply plugin: 'com.android.library'\n\next.module = '{m}'\n" for m in GRADLE},
    },
    iterations=11,
)
def gradle(n: int) -> Files:
    m = GRADLE[n - 1]
    return {
        f"{m}/build.gradle": None,
        f"{m}/build.gradle.kts": put(KTS, name=m.replace("-", "."), uses="core" if n % 3 else "domain"),
    }


RESOLVERS = ("user", "posts", "post", "comments", "likes", "followers", "feed", "search", "notifications", "settings")
RESOLVER = """import { <Type>Model } from '../models/<name>.js';

export const <name> = {
  async resolve(parent, { first = 20, after }, { loaders, viewer }) {
    if (!viewer.can('read', '<name>')) throw new Forbidden('<name>');
    return loaders.<name>.page(parent.id, { first, after });
  },
  type: <Type>Model.graphql,
};
"""


@honest(
    "GraphQL resolvers, the schema test prints how many fields are null",
    checks="""n=$(ls resolvers 2>/dev/null | grep -c js); echo "Query: $((10 - n)) fields resolve to null"; [ $n -eq 10 ]""",
    plan=lambda n: f"resolve {RESOLVERS[n - 1]}",
    iterations=10,
)
def resolvers(n: int) -> Files:
    name = RESOLVERS[n - 1]
    return {f"resolvers/{name}.js": put(RESOLVER, name=name, Type=name.capitalize())}


EX = ("accounts", "blog", "carts", "chat", "jobs", "mailer", "media", "stats", "tokens", "uploads", "wiki")
EX_MODULE = """defmodule Site.<Name> do
<doc>  alias Site.Repo

  def list(filter \\\\ %{}) do
    <Name>
    |> Repo.filter(filter)
    |> Repo.all()
  end
end
"""


@honest(
    "credo issues shown with a category and a total",
    checks="""awk 'FNR == 1 {getline; if ($0 !~ /moduledoc/) {print "[R] Modules should have a @moduledoc tag. " FILENAME ":1:11"; n++}}
END {if (n) {print "Analysis took 0.1 seconds"; print "11 mods/funs, found " n " code readability issues."; exit 4}}' lib/*.ex""",
    start={f"lib/{e}.ex": put(EX_MODULE, Name=e.capitalize(), doc="") for e in EX},
    iterations=11,
)
def credo(n: int) -> Files:
    name = EX[n - 1]
    doc = f'  @moduledoc "Keeps the {name} and answers questions about them."\n\n'
    return {f"lib/{name}.ex": put(EX_MODULE, Name=name.capitalize(), doc=doc)}


ROLES = ("base", "users", "ssh", "firewall", "ntp", "nginx", "postgres", "backup", "monitoring")
ROLE = """- name: Install <name>
  <apt>:
    name: <name>
    state: present

- name: Start <name>
  <service>:
    name: <name>
    enabled: true
"""


@honest(
    "ansible roles get qualified module names, two findings a role",
    checks="""awk '/^  (apt|service):/ {print "fqcn[action-core]: Use FQCN for builtin module actions. " FILENAME ":" FNR; n++}
END {if (n) {print "Failed: " n " failure(s), 0 warning(s) on 9 files."; exit 2}}' roles/*/tasks/main.yml""",
    start={f"roles/{r}/tasks/main.yml": put(ROLE, name=r, apt="apt", service="service") for r in ROLES},
    iterations=9,
)
def ansible(n: int) -> Files:
    r = ROLES[n - 1]
    return {
        f"roles/{r}/tasks/main.yml": put(ROLE, name=r, apt="ansible.builtin.apt", service="ansible.builtin.service")
    }


ETL = (
    ("extract", "return [line.split(',') for line in source]"),
    ("header", "names, *rows = rows\n    return [dict(zip(names, row)) for row in rows]"),
    ("strip", "return [{k: v.strip() for k, v in row.items()} for row in rows]"),
    ("typed", "return [{**row, 'qty': int(row['qty'])} for row in rows]"),
    ("valid", "return [row for row in rows if row['qty'] > 0]"),
    ("dedupe", "return list({row['sku']: row for row in rows}.values())"),
    ("priced", "return [{**row, 'total': row['qty'] * PRICES[row['sku']]} for row in rows]"),
    ("sorted", "return sorted(rows, key=lambda row: row['sku'])"),
    ("grouped", "return {row['sku'][0]: [r for r in rows if r['sku'][0] == row['sku'][0]] for row in rows}"),
    ("written", "return json.dumps(rows, indent=2)"),
)


@honest(
    "a pipeline is written stage by stage, it stops at the first stage that is not there",
    checks="""for s in extract header strip typed valid dedupe priced sorted grouped written; do
grep -q "^def $s" etl/stages.py 2>/dev/null || { echo "[$s] NotImplementedError"; echo "pipeline aborted"; exit 1; }
echo "[$s] 412 rows"; done""",
    iterations=10,
)
def etl(n: int) -> Files:
    body = "".join(
        f"\n\ndef {name}({'source' if i == 0 else 'rows'}):\n    {how}\n" for i, (name, how) in enumerate(ETL[:n])
    )
    return {"etl/stages.py": f"import json\n\nfrom etl.prices import PRICES\n{body}"}


OPS = (
    ("PUSH", "self.stack.append(arg)"), ("ADD", "self.stack.append(self.pop() + self.pop())"),
    ("SUB", "right = self.pop()\n            self.stack.append(self.pop() - right)"),
    ("MUL", "self.stack.append(self.pop() * self.pop())"), ("DUP", "self.stack.append(self.stack[-1])"),
    ("SWAP", "self.stack[-2:] = self.stack[:-3:-1]"), ("JMP", "self.pc = arg"),
    ("JZ", "self.pc = self.pc if self.pop() else arg"), ("CALL", "self.frames.append(self.pc)\n            self.pc = arg"),
    ("RET", "self.pc = self.frames.pop()"), ("LOAD", "self.stack.append(self.vars[arg])"),
    ("STORE", "self.vars[arg] = self.pop()"), ("PRINT", "self.out.append(str(self.pop()))"),
)  # fmt: skip


@honest(
    "a small machine learns its instructions; the check prints a percentage of the programs that run",
    checks="""n=$(grep -c 'if op ==' vm/machine.py); echo "programs: 13, running: $n ($((n * 100 / 13)) %)"; [ $n -ge 13 ]""",
    start={"vm/machine.py": "class Machine:\n    pass\n"},
    plan=lambda n: f"implement {OPS[n - 1][0]}",
    iterations=13,
)
def machine(n: int) -> Files:
    body = "".join(f"        if op == '{name}':\n            {how}\n" for name, how in OPS[:n])
    return {"vm/machine.py": f"class Machine:\n    def step(self, op, arg=None):\n        self.pc += 1\n{body}"}


SCREENS = ("Welcome", "SignIn", "Feed", "Detail", "Composer", "Profile", "Settings", "About")
SCREEN = """import SwiftUI

struct <Name>View: View {
    @Environment(\\.colorScheme) private var scheme
    let model: <Name>Model

    var body: some View {
        VStack(spacing: <spacing>) {
            Text(model.title).font(.title)
            <Name>List(model: model)
        }
        .background(<color>)
    }
}
"""


@honest(
    "dark mode: snapshots differ by fewer pixels screen after screen",
    checks="""p=0; for s in Welcome SignIn Feed Detail Composer Profile Settings About; do
if grep -q 'Color.white' ios/$s.swift; then p=$((p + 1000 + ${#s} * 37)); fi; done
echo "snapshot/dark: $p pixels differ (tolerance 0)"; [ $p -eq 0 ]""",
    start={f"ios/{s}.swift": put(SCREEN, Name=s, spacing=8, color="Color.white") for s in SCREENS},
    iterations=8,
)
def dark_mode(n: int) -> Files:
    return {f"ios/{SCREENS[n - 1]}.swift": put(SCREEN, Name=SCREENS[n - 1], spacing=8, color='Color("surface")')}


RUBY = ("user", "order", "ticket", "product", "label", "vendor", "coupon", "parcel", "review", "photo")
RUBY_MODEL = """class <Name> < ApplicationRecord
  belongs_to :account
  <enum>
  scope :recent, -> { where("created_at > ?", 1.week.ago) }

  def to_s
    "<Name> #{id}"
  end
end
"""


@honest(
    "Rails deprecations are raised as errors, boot stops at the first",
    checks="""f=$(grep -l 'enum state:' app/models/*.rb | head -n 1); [ -z "$f" ] && exit 0
echo "bin/rails aborted!"; echo "ActiveSupport::DeprecationException: DEPRECATION WARNING: Defining enums with keyword arguments"
echo "$f:3:in '<class:$(basename $f .rb)>'"; exit 1""",
    start={
        f"app/models/{r}.rb": put(RUBY_MODEL, Name=r.capitalize(), enum="enum state: { open: 0, done: 1 }")
        for r in RUBY
    },
    plan=lambda n: f"get past the next deprecation ({n})",
    iterations=10,
)
def rails(n: int) -> Files:
    name = sorted(RUBY)[n - 1]
    return {f"app/models/{name}.rb": put(RUBY_MODEL, Name=name.capitalize(), enum="enum :state, { open: 0, done: 1 }")}


COBOL = ("INIT", "READ-MASTER", "CHECK-DATE", "CALC-INTEREST", "CALC-FEES", "ROUND", "WRITE-LEDGER", "WRITE-REPORT",
         "CLOSE-FILES", "ABEND")  # fmt: skip
COBOL_JAVA = """package bank.batch;

/** Paragraph <cobol> of INTRST01. */
final class <Name> implements Paragraph {
    @Override
    public void perform(WorkingStorage ws) {
        ws.trace("<cobol>");
        if (ws.returnCode() > <code>) {
            throw new Abend("<cobol>", ws.returnCode());
        }
        ws.next(<next>);
    }
}
"""


@honest(
    "COBOL paragraphs are ported under a comparison that only says yes or no",
    checks="[ -f src/Abend.java ] && [ -f src/CalcFees.java ] && [ -f src/Init.java ]",
    plan=lambda n: f"port paragraph {COBOL[n - 1]}",
    iterations=10,
)
def cobol(n: int) -> Files:
    name = COBOL[n - 1].title().replace("-", "")
    return {f"src/{name}.java": put(COBOL_JAVA, cobol=COBOL[n - 1], Name=name, code=n * 2, next=f"{n + 1}0")}


STRESS = ("Connect", "Reconnect", "Drain", "Flush", "Close", "Ping", "Subscribe", "Unsubscribe", "Backoff")
STRESS_TEST = """func Test<Name>(t *testing.T) {
	srv := newServer(t)
	c := dial(t, srv.Addr())
	<wait>
	if got := c.State(); got != <Name>ed {
		t.Fatalf("state = %v", got)
	}
}
"""


@honest(
    "stress runs: the share that passes grows with a little noise",
    checks="""k=$(grep -l 'time.Sleep' *_test.go 2>/dev/null | wc -l); s=$(cat *_test.go | cksum); s=${s%% *}
[ $k -eq 0 ] && { echo "100 runs: 100 ok"; exit 0; }
echo "100 runs: $((97 - k * 9 + s % 5)) ok, $((3 + k * 9 - s % 5)) failed"; exit 1""",
    start={f"{s.lower()}_test.go": put(STRESS_TEST, Name=s, wait="time.Sleep(20 * time.Millisecond)") for s in STRESS},
    iterations=9,
)
def stress(n: int) -> Files:
    name = STRESS[n - 1]
    return {f"{name.lower()}_test.go": put(STRESS_TEST, Name=name, wait=f"waitFor(t, c, {name}ed)")}


HEAVY = (("moment", 288, "import { format } from 'date-fns/format';"), ("lodash", 71, "import pick from 'lodash-es/pick';"),
         ("jquery", 85, "const $ = (s) => document.querySelector(s);"), ("echarts", 512, "const charts = () => import('echarts/core');"),
         ("xlsx", 430, "const sheet = () => import('xlsx');"), ("icons", 160, "import { Bell } from './icons/bell';"),
         ("pdfjs", 390, "const pdf = () => import('pdfjs-dist');"), ("validator", 44, "import { isMail } from './mail';"),
         ("polyfills", 92, "// modern browsers only"))  # fmt: skip


@honest(
    "the bundle loses one heavy import after the other",
    checks=f"""k=300; for x in {" ".join(f"{h}:{w}" for h, w, _ in HEAVY)}; do
grep -q "from '${{x%:*}}'" src/vendor.js && k=$((k + ${{x#*:}})); done
echo "dist/main.js $k.$((k % 9)) kB (budget 300.9 kB)"; [ $k -le 300 ]""",
    start={"src/vendor.js": "".join(f"import {h} from '{h}';\n" for h, _, _ in HEAVY)},
    iterations=9,
)
def bundle(n: int) -> Files:
    lines = [how for _, _, how in HEAVY[:n]] + [f"import {h} from '{h}';" for h, _, _ in HEAVY[n:]]
    return {"src/vendor.js": "\n".join(lines) + "\n"}


NODES = ("program", "block", "let", "call", "lambda", "list", "map", "match", "import", "string")
NODE = """void free_<name>(node *n)
{
    if (!n)
        return;
<extra>    free(n);
}
"""


@honest(
    "valgrind: definitely lost bytes go down",
    checks="""b=0; k=0; for x in program block let call lambda list map match import string; do
grep -q 'free_all' ast/$x.c || { k=$((k + 1)); b=$((b + ${#x} * 1008)); }; done
echo "==31337== definitely lost: $b bytes in $((k * 7)) blocks"; echo "==31337== ERROR SUMMARY: $k errors from $k contexts"; [ $k -eq 0 ]""",
    start={f"ast/{x}.c": put(NODE, name=x, extra="") for x in NODES},
    iterations=10,
)
def valgrind(n: int) -> Files:
    return {f"ast/{NODES[n - 1]}.c": put(NODE, name=NODES[n - 1], extra="    free_all(n->children, n->count);\n")}


DEPS = (("django", "4.2", "5.1"), ("celery", "4.4", "5.4"), ("redis", "3.5", "5.0"), ("sqlparse", "0.3", "0.5"),
        ("pillow", "8.4", "10.4"), ("boto3", "1.17", "1.35"), ("httpx", "0.18", "0.27"))  # fmt: skip
DEPS_CHECK = """out=$(grep -c ' # old' requirements.in); now=$(grep -c new requirements.in); fixed=$(ls compat 2>/dev/null | wc -l)
broken=$(( (now - fixed) * 4 )); echo "outdated: $out"; i=0
while [ $i -lt $broken ]; do echo "FAILED tests/test_integration.py::test_flow[$now-$i] - AttributeError"; i=$((i + 1)); done
echo "$broken failed, $((210 - broken)) passed"; [ $out -eq 0 ] && [ $broken -eq 0 ]
"""


@honest(
    "each upgrade breaks four tests, the next iteration mends them",
    checks="sh deps.sh",
    start={"deps.sh": DEPS_CHECK, "requirements.in": "".join(f"{d}=={old} # old\n" for d, old, _ in DEPS)},
    plan=lambda n: f"{'upgrade' if n % 2 else 'adapt to'} {DEPS[(n - 1) // 2][0]}",
    iterations=14,
)
def upgrades(n: int) -> Files:
    done = (n + 1) // 2
    if n % 2:
        lines = [f"{d}=={new} # new" for d, _, new in DEPS[:done]] + [f"{d}=={old} # old" for d, old, _ in DEPS[done:]]
        return {"requirements.in": "\n".join(lines) + "\n"}
    name, old, new = DEPS[done - 1]
    return {
        f"compat/{name}.py": f'"""What changed between {name} {old} and {new}."""\n\nimport {name}\n\n\n'
        f"def connect(url):\n    return {name}.Client.from_url(url, timeout={done * 5})\n"
    }


CVES = (("CVE-2024-1001", "yaml", "safe_load(text)"), ("CVE-2024-1107", "tar", "extractall(path, filter='data')"),
        ("CVE-2024-1310", "sql", "execute(query, parameters)"), ("CVE-2024-1422", "shell", "run(words, shell=False)"),
        ("CVE-2024-1587", "xml", "defused.parse(path)"), ("CVE-2024-1600", "hash", "scrypt(secret, salt=salt)"),
        ("CVE-2024-1718", "redirect", "url_is_local(target)"), ("CVE-2024-1890", "cookie", "set_cookie(secure=True)"),
        ("CVE-2024-1955", "upload", "magic_type(head) in ALLOWED"), ("CVE-2024-2001", "token", "compare_digest(a, b)"))  # fmt: skip


@honest(
    "security findings are closed, the worst first",
    checks=f"""n=0; for x in {" ".join(f"{c}:{name}" for c, name, _ in CVES)}; do
[ -f secure/${{x#*:}}.py ] || {{ echo "${{x%:*}}  HIGH  ${{x#*:}}"; n=$((n + 1)); }}; done; echo "findings: $n"; exit $n""",
    iterations=10,
)
def findings(n: int) -> Files:
    cve, name, how = CVES[n - 1]
    return {
        f"secure/{name}.py": f'"""Closes {cve}."""\n\n\ndef guarded_{name}(request, value):\n    audit.note("{cve}", request)\n    return {how}\n'
    }


MODEL_STEPS = (
    "baseline",
    "lowercase",
    "bigrams",
    "stopwords",
    "tfidf",
    "balanced",
    "regularised",
    "chars",
    "calibrated",
    "ensemble",
)


@honest(
    "a model's score rises over the runs with small setbacks",
    checks="""n=$(grep -c 'pipeline.add' model/train.py 2>/dev/null); set -- 412 583 641 702 698 755 781 776 822 861 904; shift ${n:-0}
echo "f1 0.$1 on 1200 validation rows (target 0.900)"; [ $1 -ge 900 ]""",
    plan=lambda n: f"add {MODEL_STEPS[n - 1]}",
    iterations=10,
)
def model(n: int) -> Files:
    steps = "".join(
        f'    pipeline.add("{s}", {s.title()}Step(seed=7, strength={0.1 * (i + 1):.1f}))\n'
        for i, s in enumerate(MODEL_STEPS[:n])
    )
    return {"model/train.py": f"def build(rows):\n    pipeline = Pipeline(rows)\n{steps}    return pipeline.fit()\n"}


LINKS = ("install", "tutorial", "faq", "api", "plugins", "themes", "hosting", "upgrade", "contribute")


@honest(
    "broken links of the documentation",
    checks="""n=0; for p in docs/*.md; do if grep -q '/old/' $p; then k=$(grep -c '/old/' $p); n=$((n + k)); echo "$p: $k broken (404)"; fi
done; echo "$n broken links"; [ $n -eq 0 ]""",
    start={
        f"docs/{p}.md": f"# {p.title()}\n\n"
        + "".join(f"- [part {i}](/old/{p}/{i}.html)\n" for i in range(1 + len(p) % 4))
        for p in LINKS
    },
    iterations=9,
)
def links(n: int) -> Files:
    p = LINKS[n - 1]
    return {
        f"docs/{p}.md": f"# {p.title()}\n\n"
        + "".join(f"- [part {i}](../{p}.md#part-{i})\n" for i in range(1 + len(p) % 4))
    }


PHP = ("Cart", "Mail", "Tax", "User", "Blog", "Feed")
PHP_CLASS = """<?php
<strict>
final class <Name>
{
    <type>private $rows;

    public function find(<int>$id)<return>
    {
        return $this->rows[$id] ?? null;
    }
}
"""
PHPSTAN = """level=$(awk '/level:/ {print $2}' phpstan.neon); n=0
for f in src/*.php; do
  [ $level -ge 1 ] && ! grep -q strict_types $f && { echo "$f:2 strict_types is missing"; n=$((n + 1)); }
  [ $level -ge 2 ] && grep -q '(\\$id)' $f && { echo "$f:8 Parameter \\$id has no type"; n=$((n + 1)); }
done
echo "level $level: $n errors"; [ $level -ge 2 ] && [ $n -eq 0 ]
"""


@honest(
    "phpstan: at the next level there are more errors for a while",
    checks="sh phpstan.sh",
    start={
        "phpstan.sh": PHPSTAN,
        "phpstan.neon": "level: 0\n",
        **{f"src/{p}.php": put(PHP_CLASS, Name=p, strict="", type="", int="", **{"return": ""}) for p in PHP},
    },
    plan=lambda n: "raise the level" if n in {1, 8} else "fix the next class",
    iterations=14,
)
def phpstan(n: int) -> Files:
    if n in {1, 8}:
        return {"phpstan.neon": f"level: {1 if n == 1 else 2}\n"}
    strict, name = "declare(strict_types=1);\n", PHP[n - 2 if n < 8 else n - 9]
    if n < 8:
        return {f"src/{name}.php": put(PHP_CLASS, Name=name, strict=strict, type="", int="", **{"return": ""})}
    return {
        f"src/{name}.php": put(PHP_CLASS, Name=name, strict=strict, type="array ", int="int ", **{"return": ": ?Row"})
    }


RECORDS = tuple(f"{kind}-{year}" for kind in ("invoice", "order", "credit") for year in range(2019, 2024))


@honest(
    "archived XML is converted into JSON, file by file, and counted",
    checks="""x=$(ls archive/*.xml 2>/dev/null | wc -l); echo "$x of 15 documents are still XML"; [ $x -eq 0 ]""",
    start={
        f"archive/{r}.xml": f"<document>\n  <id>{r}</id>\n  <total>{len(r) * 113}.20</total>\n</document>\n"
        for r in RECORDS
    },
    plan=lambda n: planned(f"convert {RECORDS[n - 1]}"),
    iterations=15,
)
def to_json(n: int) -> Files:
    r = RECORDS[n - 1]
    return {f"archive/{r}.xml": None, f"archive/{r}.json": f'{{\n  "id": "{r}",\n  "total": "{len(r) * 113}.20"\n}}\n'}


MUTATED = (
    "discount",
    "shipping",
    "tax",
    "currency",
    "bundle",
    "voucher",
    "loyalty",
    "rounding",
    "surcharge",
    "refund",
    "deposit",
)


@honest(
    "mutation testing: survivors are killed by boundary tests",
    checks="""n=$(ls tests/boundary_*.py 2>/dev/null | wc -l); s=$((132 - n * 12)); echo "mutants: 480"; echo "survived: $s"
echo "score: $(( (480 - s) * 100 / 480 )) %"; [ $s -eq 0 ]""",
    iterations=11,
)
def mutants(n: int) -> Files:
    name = MUTATED[n - 1]
    return {
        f"tests/boundary_{name}.py": f"import pytest\n\nfrom pricing.{name} import {name}\n\n\n"
        f"@pytest.mark.parametrize('amount, wanted', [(0, 0), (1, {n}), (-1, None), (10**9, {n * 3})])\n"
        f"def test_{name}_at_its_limits(amount, wanted):\n    assert {name}(amount) == wanted\n"
    }


WASM = ("memory", "table", "globals", "imports", "exports", "traps", "float", "simd", "bulk", "threads", "tail")


@honest(
    "a runtime is ported in one growing file under a silent check",
    checks="[ $(grep -c '^pub fn' src/wasm.rs) -ge 11 ]",
    start={"src/wasm.rs": "//! Runtime for wasm32.\n"},
    plan=lambda n: f"port {WASM[n - 1]}",
    iterations=11,
)
def wasm(n: int) -> Files:
    body = "".join(
        f"\npub fn {w}(ctx: &mut Context, at: u32) -> Result<u{8 << (i % 4)}, Trap> {{\n    ctx.check({i * 8})?;\n"
        f"    ctx.{w}_slots.get(at as usize).copied().ok_or(Trap::OutOf{w.title()})\n}}\n"
        for i, w in enumerate(WASM[:n])
    )
    return {"src/wasm.rs": f"//! Runtime for wasm32.\n{body}"}


GOD = ("login", "search", "basket", "checkout", "invoice", "mailing", "reports", "exports", "imports", "audit")


@honest(
    "a class of ten jobs is taken apart, its length is measured",
    checks="""n=$(wc -l < app/manager.py); echo "app/manager.py:1: R0904 class too long ($n lines, at most 2)"; [ $n -le 2 ]""",
    start={
        "app/manager.py": "class Manager:\n    name = 'manager'\n"
        + "".join(f"    def {g}(self, r):\n        x = r.{g}()\n        return x\n" for g in GOD)
    },
    iterations=10,
)
def god_class(n: int) -> Files:
    rest = "".join(f"    def {g}(self, r):\n        x = r.{g}()\n        return x\n" for g in GOD[n:])
    g = GOD[n - 1]
    return {
        "app/manager.py": "class Manager:\n    name = 'manager'\n" + rest,
        f"app/{g}.py": f"class {g.title()}:\n    def __init__(self, store):\n        self.store = store\n\n    def run(self, r):\n        return r.{g}()\n",
    }


REVIEW = ("rename Foo", "no global state", "test the error path", "close the file", "document units", "split the long function",
          "use the clock", "no magic number", "drop the flag")  # fmt: skip
REVIEW_CODE = (
    "class Gauge:\n", "    def __init__(self, registry):\n        self.registry = registry\n",
    "    def fail(self):\n        raise GaugeError(self.registry.name)\n", "    def close(self):\n        self.file.close()\n",
    "    #: in kelvin\n    offset = 273\n", "    def read(self):\n        return self._scaled(self._raw())\n",
    "    def age(self, clock):\n        return clock.now() - self.last\n", "    LIMIT = 4096\n    def full(self):\n        return self.n >= self.LIMIT\n",
    "    def flush(self):\n        self.file.flush()\n",
)  # fmt: skip


@honest(
    "review comments are worked off one by one",
    checks="""n=$(grep -c '^- \\[ \\]' REVIEW.md); grep '^- \\[ \\]' REVIEW.md; echo "unresolved conversations: $n"; [ $n -eq 0 ]""",
    start={"REVIEW.md": "".join(f"- [ ] {r}\n" for r in REVIEW)},
    plan=lambda n: REVIEW[n - 1],
    iterations=9,
)
def review(n: int) -> Files:
    marks = "".join(f"- [{'x' if i < n else ' '}] {r}\n" for i, r in enumerate(REVIEW))
    return {"REVIEW.md": marks, "src/gauge.py": "".join(REVIEW_CODE[:n])}


RFC = (
    "greeting",
    "helo",
    "mail-from",
    "rcpt-to",
    "data",
    "dot-stuffing",
    "rset",
    "noop",
    "vrfy",
    "quit",
    "pipelining",
    "8bitmime",
)


@honest(
    "a protocol server passes one more section of the conformance suite each time",
    checks="""i=0; bad=0; for s in greeting helo mail-from rcpt-to data dot-stuffing rset noop vrfy quit pipelining 8bitmime; do i=$((i + 1))
if [ -f smtp/$s.ml ]; then echo "ok $i - $s"; else echo "not ok $i - $s"; bad=1; fi; done; echo "1..$i"; exit $bad""",
    iterations=12,
)
def rfc(n: int) -> Files:
    name = RFC[n * 5 % 12]
    word = name.replace("-", "_").replace("8", "eight")
    return {
        f"smtp/{name}.ml": f"open Session\n\nlet {word} session line =\n  match parse line with\n  | Ok command -> reply session (250 + {n}) command\n"
        f'  | Error e -> reply session 501 ("{name}: " ^ e)\n'
    }


CRASHES = (
    ("heap-buffer-overflow", "read_chunk", "if (len > left)\n        return -1;"),
    ("global-buffer-overflow", "decode_tag", "if (tag >= TAGS)\n        return -1;"),
    ("stack-overflow", "parse_group", "if (depth++ > 64)\n        return -1;"),
    ("integer-overflow", "row_bytes", "if (w > SIZE_MAX / bpp)\n        return -1;"),
    ("use-after-free", "close_stream", "s->next = NULL;"),
    ("SEGV on unknown address", "palette_of", "if (!img->palette)\n        return -1;"),
    ("division-by-zero", "aspect", "if (!h)\n        return -1;"),
    ("timeout", "inflate_loop", "if (produced == 0)\n        return -1;"),
    ("memory leak", "load_icc", "free(profile);"),
)


@honest(
    "fuzzing: behind each crash that is fixed there is another one",
    checks=f"""for x in {" ".join(f"{w}:{k.replace(' ', '_')}" for k, w, _ in CRASHES)}; do
grep -q "${{x%:*}}" src/guards.c 2>/dev/null || {{ echo "==77==ERROR: AddressSanitizer: ${{x#*:}}"; echo "    #0 in ${{x%:*}} src/image.c"
echo "artifact_prefix='./'; Test unit written to ./crash-$(echo $x | cksum | cut -c1-8)"; exit 77; }}; done; echo "Done 100000 runs" """,
    start={"src/guards.c": '#include "image.h"\n'},
    plan=lambda _n: "fix the crash that the fuzzer found",
    iterations=9,
)
def fuzzing(n: int) -> Files:
    body = "".join(
        f"\nint {w}_guard(stream *s, size_t len)\n{{\n    {how}\n    return 0;\n}}\n" for _, w, how in CRASHES[:n]
    )
    return {"src/guards.c": f'#include "image.h"\n{body}'}


SCRIPTS = ("backup", "deploy", "rotate", "seed", "restore", "tunnel", "prune", "stats", "certs", "report")
SCRIPT = """#!/bin/sh
set -eu
target=<q>$1<q>
for host in $(cat hosts/<name>.txt); do
  scp <q>$target<q> <q>$host<q>:/srv/<name>/
  echo "<name>: $host done"
done
"""


@honest(
    "shellcheck findings, three for each script",
    checks="""awk '/target=\\$1/ {print FILENAME ":3:8: warning: Double quote to prevent globbing [SC2086]"; n += 3} END {if (n) {print n; exit 1}}' bin/*.sh""",
    start={f"bin/{s}.sh": put(SCRIPT, name=s, q="") for s in SCRIPTS},
    iterations=10,
)
def shellcheck(n: int) -> Files:
    return {f"bin/{SCRIPTS[n - 1]}.sh": put(SCRIPT, name=SCRIPTS[n - 1], q='"')}


NINJA = ("core", "gfx", "audio", "net", "ai", "phys", "ui", "script", "save", "tools")
NINJA_ERRORS = (14, 3, 22, 9, 31, 6, 18, 2, 25, 11)


@honest(
    "a big build gets further each time, though with now more and now fewer errors",
    checks=f"""i=0; set -- {" ".join(map(str, NINJA_ERRORS))}; for m in {" ".join(NINJA)}; do
grep -q 'std::span' engine/$m.hpp || {{ echo "[$((i * 83 + 17))/830] Building CXX object engine/$m.o"
echo "engine/$m.hpp: error: no matching function for call to 'view' ($1 times)"; echo "ninja: build stopped: $1 errors generated."; exit 1; }}
i=$((i + 1)); shift; done; echo '[830/830] Linking engine'""",
    start={f"engine/{m}.hpp": f"#pragma once\n\nvoid {m}_submit(const Item* items, size_t count);\n" for m in NINJA},
    iterations=10,
)
def ninja(n: int) -> Files:
    m = NINJA[n - 1]
    return {
        f"engine/{m}.hpp": f"#pragma once\n\n#include <span>\n\nvoid {m}_submit(std::span<const Item> items);\n"
        f"inline void {m}_one(const Item& item) {{ {m}_submit(view(item)); }}\n"
    }


@honest(
    "a backfill in twenty batches",
    checks="""awk '$3 == "null" {n++} END {if (n) {print "NOT NULL violated by " n " of 500 rows"; exit 1}}' data/rows.tsv""",
    start={"data/rows.tsv": "".join(f"{i} sku-{i * 7} null\n" for i in range(500))},
    plan=lambda n: f"backfill rows {25 * n - 25} to {25 * n - 1}",
    iterations=20,
)
def backfill(n: int) -> Files:
    return {
        "data/rows.tsv": "".join(f"{i} sku-{i * 7} {f'depot-{i % 9}' if i < 25 * n else 'null'}\n" for i in range(500))
    }


SOLVER = (
    "jacobi",
    "gauss_seidel",
    "sor",
    "conjugate_gradient",
    "jacobi_preconditioner",
    "ilu",
    "multigrid_restrict",
    "multigrid_smooth",
)


@honest(
    "a solver's residual falls by orders of magnitude",
    checks="""n=$(grep -c '^function' src/solve.jl 2>/dev/null); set -- 8.1e+00 2.7e+00 9.4e-01 3.3e-01 1.2e-02 8.8e-03 4.1e-04 6.0e-06 7.7e-09
shift ${n:-0}; echo "Test Failed at test/runtests.jl:40"; echo "  Expression: residual < 1.0e-8   Evaluated: $1 < 1.0e-8"; [ $1 = 7.7e-09 ]""",
    iterations=8,
)
def solver(n: int) -> Files:
    body = "".join(
        f"function {s}!(x, A, b)\n    for i in eachindex(x)\n        x[i] += {1 / (i + 1):.2f} * (b[i] - dot(A[i, :], x)) / A[i, i]\n    end\n    x\nend\n\n"
        for i, s in enumerate(SOLVER[:n])
    )
    return {"src/solve.jl": f"using LinearAlgebra\n\n{body}"}


COMPONENTS = (
    "Button",
    "Input",
    "Select",
    "Modal",
    "Card",
    "Badge",
    "Avatar",
    "Tooltip",
    "Stepper",
    "Breadcrumb",
    "Pager",
)


@honest(
    "stories for a component library while the linter complains about one file now and then",
    checks=(
        """n=$(ls stories 2>/dev/null | wc -l); echo "storybook: $n/11 components have stories"; [ $n -ge 11 ]""",
        """[ -d stories ] || exit 1; grep -n 'any' stories/* | head -n 3; ! grep -q any stories/*""",
    ),
    iterations=12,
)
def stories(n: int) -> Files:
    def story(i: int, kind: str) -> str:
        c = COMPONENTS[i]
        return f"import {{ {c} }} from '../src/{c}';\n\nexport default {{ title: 'Library/{c}', component: {c} }};\nexport const Basic = (args: {kind}) => <{c} {{...args}} />;\n"

    found: dict[str, str | None] = {}
    if n <= 11:
        found[f"stories/{COMPONENTS[n - 1]}.stories.tsx"] = story(n - 1, "any" if n % 4 == 3 else "Props")
    if n % 4 == 0:
        found[f"stories/{COMPONENTS[n - 2]}.stories.tsx"] = story(n - 2, "Props")
    return found


BISECT = (
    ("notes/bisect.md", "good: v2.3.0, bad: v2.5.1\n\n- v2.4.0 is good\n- 41 commits are left\n"),
    ("notes/bisect.md", "good: v2.3.0, bad: v2.5.1\n\n- v2.4.0 is good\n- 9f31c02 is bad\n- 20 commits are left\n"),
    ("notes/bisect.md", "good: v2.3.0, bad: v2.5.1\n\n- v2.4.0 is good\n- 9f31c02 is bad\n- 77ab190 is the first bad one: it reuses the statement\n"),
    ("tests/test_reuse.py", "def test_statement_is_not_shared(pool):\n    with pool.get() as a, pool.get() as b:\n        assert a.statement is not b.statement\n"),
    ("db/statement.py", "class Statement:\n    def __init__(self, connection):\n        self.connection = connection\n        self.cursor = connection.cursor()\n"),
    ("db/pool.py", "class Pool:\n    def get(self):\n        connection = self.idle.pop()\n        connection.statement = Statement(connection)\n        return connection\n"),
    ("db/reader.py", "def rows(connection, sql):\n    statement = Statement(connection)\n    yield from statement.cursor.execute(sql)\n"),
    ("db/writer.py", "def write(connection, sql, values):\n    statement = Statement(connection)\n    statement.cursor.executemany(sql, values)\n    connection.commit()\n"),
)  # fmt: skip


@honest(
    "a regression is bisected, gets a test, and is mended in four modules",
    checks="""n=0; for m in statement pool reader writer; do [ -f db/$m.py ] || { echo "FAIL: db.$m shares a statement"; n=$((n + 1)); }; done
echo "Ran 88 tests in 0.91s"; [ $n -eq 0 ] || { echo "FAILED (failures=$n)"; exit 1; }""",
    plan=lambda n: "bisect" if n < 4 else f"work on {BISECT[n - 1][0]}",
    iterations=8,
)
def bisect(n: int) -> Files:
    path, text = BISECT[n - 1]
    return {path: text}


PROBES = ("gateway", "catalog", "search", "cart", "payment", "email", "reviews", "ads", "stock", "frontend")


@honest(
    "helm values: each deployment becomes ready on its own",
    checks="""r=0; for d in gateway catalog search cart payment email reviews ads stock frontend; do
if grep -q readinessProbe charts/$d.yaml 2>/dev/null; then s=1/1; r=$((r + 1)); else s=0/1; fi; echo "deployment/$d $s"; done
[ $r -eq 10 ] || { echo "Error: UPGRADE FAILED: timed out waiting for the condition"; exit 1; }""",
    iterations=10,
)
def helm(n: int) -> Files:
    p = PROBES[n - 1]
    return {
        f"charts/{p}.yaml": f"name: {p}\nreplicas: {n % 3 + 1}\nreadinessProbe:\n  httpGet:\n    path: /{p}/healthz\n    port: {8000 + n}\n  periodSeconds: 5\n"
    }


SERIALIZED = ("user", "team", "board", "card", "label", "comment", "file", "vote", "rule")
SERIALIZER = """class <Name>Serializer(Serializer):
    fields = ("id", "name", "<name>_at")

    def represent(self, item):
        return {field: getattr(item, field) for field in self.fields}
"""


@honest(
    "one change makes it worse, is taken back, and the work goes on",
    checks="""n=$(ls serializers/*_serializer.py 2>/dev/null | wc -l); k=$((9 - n)); [ -f serializers/auto.py ] && k=$((k + 6))
echo "ran 140 tests: $k failures"; [ $k -eq 0 ]""",
    plan=lambda n: {5: "derive the serializers", 6: "take the derived serializers back"}.get(
        n, "write the next serializer"
    ),
    iterations=11,
)
def taken_back_once(n: int) -> Files:
    if n == 5:
        return {
            "serializers/auto.py": "def derive(model):\n    return type(model.__name__, (Serializer,), {'fields': tuple(model.columns)})\n"
        }
    if n == 6:
        return {"serializers/auto.py": None}
    name = SERIALIZED[n - 1 if n < 5 else n - 3]
    return {f"serializers/{name}_serializer.py": put(SERIALIZER, name=name, Name=name.capitalize())}


GRAMMAR = (
    ("expression", "choice($.number, $.string, $.call, $.binary)"), ("call", "seq($.name, '(', commaSep($.expression), ')')"),
    ("binary", "prec.left(2, seq($.expression, '+', $.expression))"), ("number", "/\\d+(\\.\\d+)?/"),
    ("string", "seq('\"', repeat(/[^\"]/), '\"')"), ("name", "/[a-z_]\\w*/"), ("block", "seq('{', repeat($.statement), '}')"),
    ("statement", "choice($.assign, $.expression)"), ("assign", "prec.right(1, seq($.name, '=', $.expression))"),
    ("comment", "token(seq('#', /.*/))"), ("loop", "seq('while', $.expression, $.block)"),
)  # fmt: skip


@honest(
    "a grammar gets its rules, corpus examples pass in groups of unequal size",
    checks="""n=$(grep -c ': \\$ =>' grammar.js); set -- 64 61 52 50 50 41 33 30 24 11 8 0; shift $n
echo "Total parses: 64; successful parses: $((64 - $1)); failed parses: $1; success percentage: $(( (64 - $1) * 100 / 64 ))%"; [ $1 -eq 0 ]""",
    start={"grammar.js": "module.exports = grammar({ name: 'tiny', rules: {} });\n"},
    ending=lambda n: {"status": "failed", "error": "the connection was lost"} if n == 7 else {},
    iterations=11,
)
def grammar(n: int) -> Files:
    rules = "".join(f"    {name}: $ => {how},\n" for name, how in GRAMMAR[:n])
    return {"grammar.js": f"module.exports = grammar({{\n  name: 'tiny',\n  rules: {{\n{rules}  }},\n}});\n"}
