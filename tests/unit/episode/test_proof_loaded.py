"""Rules of the proof about what a check loaded: which files decide it, and which are its subject."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import Guards, is_same_setup, programs_of, suspicious_lines
from tightloop.episode.proof.inner_tests import lost_inner_tests
from tightloop.episode.proof.loaded import LoadedFiles, asserts, checks_values
from tightloop.episode.proof.report import Observation, read_events
from tightloop.episode.proof.verdict import known_checkers

MODIFIED, ADDED = FileChange.MODIFIED, FileChange.ADDED
HELPER = "def same(a, b):\n    assert a == b\n"
PRODUCT = "def add(a, b):\n    assert a is not None\n    return a + b\n"
CHECK = "from calc import add\n\nassert add(1, 1) == 2\n"


def loaded(texts: Mapping[str, str], now: Observation | None = None, **seen: Any) -> LoadedFiles:
    before = Observation(is_watched=True, opened=tuple(texts), **seen)
    paths = frozenset(texts) | {"README.md", "LICENSE", "NOTES.md"}
    return LoadedFiles((before,), (now or before,), Guards().kind_of, lambda path: texts.get(path, ""), paths)


def deciding(files: LoadedFiles, *changed: str, change: FileChange = MODIFIED) -> dict[str, FileKind]:
    return files.find_deciding(dict.fromkeys(changed, change))


def test_assertions_that_only_tests_load_decide_and_the_product_does_not() -> None:
    texts = {"tests/test_a.py": "", "calc.py": PRODUCT, "help/same.py": HELPER}
    loads = {"tests/test_a.py": ("",), "calc.py": ("tests/test_a.py",), "help/same.py": ("tests/test_a.py",)}
    assert deciding(loaded(texts, loads=loads), "calc.py", "help/same.py") == {"help/same.py": FileKind.TEST}
    by_both = {**loads, "help/same.py": ("tests/test_a.py", "calc.py")}
    assert deciding(loaded(texts, loads=by_both), "help/same.py") == {}, "the product loads it as well"


def test_a_module_that_the_project_publishes_is_no_helper() -> None:
    module = "const assert = require('assert')\nmodule.exports = (a) => { assert(a); return a + 1 }\n"
    texts = {"test/a.test.js": "", "index.js": module, "lib/same.js": module}
    loads = {"index.js": ("test/a.test.js",), "lib/same.js": ("test/a.test.js",)}
    assert deciding(loaded(texts, loads=loads), "index.js", "lib/same.js") == {"lib/same.js": FileKind.TEST}
    manifest = {"package.json": '{"main": "./lib/same"}'}
    assert deciding(loaded({**texts, **manifest}, loads=loads), *texts).keys() == {"index.js"}


def test_a_named_file_is_a_test_if_a_runner_reported_tests_of_it() -> None:
    texts = {"tests/test_a.py": "", "test/a.js": "", "calc.py": ""}
    names = ("tests/test_a.py::test_a", "test/a.js > adds", "calc.py::calc.add")
    files = loaded(texts, results={"pytest": dict.fromkeys(names, "passed")})
    assert [path for path in texts if files.has_tests(path)] == ["tests/test_a.py", "test/a.js"]
    assert not loaded(texts, results={}, programs=("tests/test_a.py",)).has_tests("tests/test_a.py")


def test_helpers_of_helpers_decide_too() -> None:
    texts = {"tests/test_a.py": "", "help/same.py": HELPER, "help/deep.py": HELPER}
    loads = {"help/same.py": ("tests/test_a.py",), "help/deep.py": ("help/same.py",)}
    assert deciding(loaded(texts, loads=loads), *texts).keys() == {"help/same.py", "help/deep.py"}


def test_the_product_cannot_adopt_a_helper() -> None:
    texts = {"tests/test_a.py": "", "help/same.py": HELPER}
    adopted = Observation(is_watched=True, loads={"help/same.py": ("calc.py",)})
    files = loaded(texts, adopted, loads={"help/same.py": ("tests/test_a.py",)})
    assert deciding(files, "help/same.py") == {"help/same.py": FileKind.TEST}


def test_plugins_and_modules_in_place_of_others_decide() -> None:
    texts = {"tools/hooks.py": "x = 1\n", "yaml.py": ""}
    assert deciding(loaded(texts, plugins=("tools/hooks.py",)), "tools/hooks.py") == {
        "tools/hooks.py": FileKind.START_UP
    }
    shadow = Observation(is_watched=True, shadows=("yaml.py",))
    assert deciding(loaded(texts, shadow), "yaml.py", change=ADDED) == {"yaml.py": FileKind.START_UP}
    assert deciding(loaded(texts, shadow), "yaml.py") == {}, "it was there from the start"


def test_a_new_program_with_the_name_of_a_command_decides_and_one_that_a_check_names_does_not() -> None:
    texts = {"bin/lint": "", "calc.py": "", "notes/lint": ""}
    files = loaded(texts)._replace(commands=("lint .", "test -f calc.py && python -m pytest"))
    files = files._replace(executable=frozenset(["bin/lint", "calc.py"]))
    assert deciding(files, *texts, change=ADDED) == {"bin/lint": FileKind.START_UP}, "nothing runs the notes"


def test_a_new_program_with_the_name_of_a_command_decides_nothing_where_a_search_opened_it() -> None:
    texts = {"bin/lint": "", **{f"notes/{number}.txt": "" for number in range(80)}}
    files = loaded(texts)._replace(commands=("lint .",), executable=frozenset(["bin/lint"]), delivered=len(texts))
    assert deciding(files, "bin/lint", change=ADDED) == {}
    more = files._replace(delivered=2 * len(texts))
    assert deciding(more, "bin/lint", change=ADDED) == {"bin/lint": FileKind.START_UP}, "it opened half of the files"


def test_a_vendored_assertion_decides_where_deno_runs_its_tests() -> None:
    vendored = "export function assertEquals(a: unknown, b: unknown) { if (a !== b) throw new Error() }\n"
    texts = {
        "deno.json": '{"imports": {"@std/assert": "./vendor/assert/mod.ts"}}',
        "index_test.ts": 'import { assertEquals } from "@std/assert";\nimport { index } from "./index.ts";\n',
        "checks.ts": 'import { assertEquals } from "@std/assert";\nDeno.test("a", () => {});\n',
        "vendor/assert/mod.ts": vendored,
        "index.ts": "export const index = 1;\n",
    }
    assert Guards().kind_of("index_test.ts") is FileKind.TEST
    assert deciding(loaded(texts), "checks.ts", "vendor/assert/mod.ts", "index.ts") == {
        "checks.ts": FileKind.TEST,
        "vendor/assert/mod.ts": FileKind.TEST,
    }


def test_a_class_that_asserts_what_it_stores_is_no_helper() -> None:
    product = "class Bounds:\n    def __init__(self, low):\n        assert low > 0\n        self.low = low\n"
    assert not checks_values("bounds.py", product)
    assert checks_values("same.py", HELPER)


def test_a_crate_that_others_need_only_for_their_tests_decides() -> None:
    own = '[package]\nname = "temp"\n\n[dev-dependencies]\nnear = { path = "vendor/near" }\n'
    texts = {"Cargo.toml": own, "src/lib.rs": "", "vendor/near/src/lib.rs": "", "vendor/near/Cargo.toml": ""}
    assert deciding(loaded(texts), "src/lib.rs", "vendor/near/src/lib.rs") == {"vendor/near/src/lib.rs": FileKind.TEST}
    both = {**texts, "Cargo.toml": own + '\n[dependencies]\nnear = { path = "./vendor/near" }\n'}
    assert deciding(loaded(both), "vendor/near/src/lib.rs") == {}, "the product needs it as well"


def test_a_program_that_asserts_about_other_code_is_a_check() -> None:
    texts = {"run_all.py": CHECK, "calc.py": PRODUCT, "main.py": "from calc import add\nprint(add(1, 1))\n"}
    loads = {"calc.py": ("run_all.py", "main.py")}
    files = loaded(texts, loads=loads, programs=("run_all.py", "main.py"))
    assert deciding(files, *texts) == {"run_all.py": FileKind.CONFIGURATION}


@pytest.mark.parametrize(("loader", "decides"), [("check.py", False), ("noxfile.py", True)])
def test_what_configuration_loads_decides_and_what_a_check_loads_does_not(loader: str, decides: bool) -> None:
    texts = {loader: CHECK, "calc.py": "def add(a, b):\n    return a - b\n"}
    programs = ("check.py",) if loader == "check.py" else ()
    files = loaded(texts, loads={"calc.py": (loader,)}, programs=programs)
    kinds = Guards(programs=frozenset({"check.py"})).kind_of
    assert kinds(loader) is FileKind.CONFIGURATION
    assert ("calc.py" in deciding(files._replace(kind_of=kinds), "calc.py")) is decides


def test_data_decides_where_a_check_compares_code_with_it() -> None:
    texts = {"run_all.py": CHECK, "calc.py": PRODUCT, "table.txt": "1 1 2\n"}
    loads = {"calc.py": ("run_all.py",), "table.txt": ("run_all.py",)}
    files = loaded(texts, loads=loads, programs=("run_all.py",))
    assert deciding(files, "table.txt") == {"table.txt": FileKind.TEST_DATA}
    alone = loaded(texts, loads={"table.txt": ("run_all.py",)}, programs=("run_all.py",))
    assert deciding(alone, "table.txt") == {}, "the data is what the program is about"


def test_settings_that_an_unobserved_runner_opens_first_decide() -> None:
    texts = {"deno.json": "{}", "tests/calc_test.go": "", "calc.ts": "", "late.json": "{}", "deno.lock": ""}
    first = Observation(
        is_watched=True, opened=("deno.json", "deno.lock", "tests/calc_test.go", "calc.ts", "late.json")
    )
    files = LoadedFiles((first,), (), Guards().kind_of, lambda path: texts[path], frozenset(texts) | {"a", "b", "c"})
    assert deciding(files, "deno.json", "late.json", "deno.lock") == {"deno.json": FileKind.START_UP}
    everything = files._replace(paths=frozenset(texts))
    assert deciding(everything, "deno.json") == {}, "a tool that opens all files says nothing by that"


def test_helpers_are_known_by_who_names_them_where_imports_are_not_observed() -> None:
    texts = {
        "tests/test_calc.c": '#include "check.h"\n#include "calc.h"\n',
        "check.h": "#define CHECK(x) if (!(x)) exit(1)\n",
        "calc.h": "int add(int, int);\n",
        "calc.c": '#include "calc.h"\n',
    }
    assert deciding(loaded(texts), *texts) == {"check.h": FileKind.TEST}
    texts["calc.c"] += '#include "check.h"\n'
    assert deciding(loaded(texts), *texts) == {}, "the product uses it as well"


def test_configuration_that_no_check_opened_decides_nothing() -> None:
    files = loaded({"Makefile": "", "tests/data/x.json": ""})
    assert files.keeps("Makefile", FileKind.CONFIGURATION)
    assert not files.keeps("ruff.toml", FileKind.CONFIGURATION)
    assert files.keeps("tests/test_x.py", FileKind.TEST), "deleted tests were not opened either"


@pytest.mark.parametrize(
    ("command", "is_kept"),
    [
        ("grep -q 2 spec/api.json", False),
        ("diff out.json spec/api.json", True),
        ("check < spec/api.json", True),
        ("sh check.sh", True),
    ],
)
def test_a_file_that_a_command_inspects_is_its_subject(command: str, is_kept: bool) -> None:
    files = loaded({"spec/api.json": "", "out.json": ""})._replace(commands=(command,))
    assert files.keeps("spec/api.json", FileKind.TEST_DATA) is is_kept


def test_product_that_reads_what_the_tests_compare_with_is_found() -> None:
    texts = {"tests/test_a.py": "", "calc.py": PRODUCT, "tests/cases.json": ""}
    before = {"tests/cases.json": ("tests/test_a.py",), "calc.py": ("tests/test_a.py",)}
    now = Observation(loads={**before, "tests/cases.json": ("tests/test_a.py", "calc.py")})
    changed = {"calc.py": MODIFIED}
    assert loaded(texts, now, loads=before).find_peeks(changed, ()) == ("calc.py reads tests/cases.json",)
    did_before = {**before, "tests/cases.json": ("calc.py",)}
    assert loaded(texts, now, loads=did_before).find_peeks(changed, ()) == ()


@pytest.mark.parametrize(
    ("text", "offers", "makes"),
    [
        (HELPER, True, True),
        (PRODUCT, False, True),
        ("class That:\n    def is_(self, x):\n        assert self.v == x\n        return self\n", True, True),
        ("import sys\n\nif 1 > 2:\n    sys.exit('wrong')\n", False, True),
        ("import sys\n\nsys.exit(main())\n", False, False),
        ("def f():\n    raise ValueError\n", False, False),
        ("not python (", False, False),
    ],
)
def test_assertions_are_told_from_the_rest(text: str, offers: bool, makes: bool) -> None:
    assert (checks_values("a.py", text), asserts("a.py", text)) == (offers, makes)


def test_tests_inside_a_product_file_are_compared() -> None:
    old = 'def add(a, b):\n    """Add.\n\n    >>> add(1, 1)\n    2\n    """\n    return a - b\n\n\n'
    old += "assert add(2, 2) == 4\n"
    assert lost_inner_tests("a.py", old, old.replace("a - b", "a + b")) == ()
    assert lost_inner_tests("a.py", old, old.replace("    2\n", "    0\n")) == (">>> add(1, 1) gives 2",)
    assert lost_inner_tests("a.py", old, old.replace(" == 4", "")) == ("assert add(2, 2) == 4",)


def test_stricter_and_additional_settings_leave_the_checks_as_they_were() -> None:
    coverage = b"[tool.coverage.report]\nfail_under = 80\n"
    assert is_same_setup("pyproject.toml", coverage, coverage.replace(b"80", b"90"))
    assert not is_same_setup("pyproject.toml", coverage, coverage.replace(b"80", b"70"))
    make = b"test:\n\tpytest\n"
    assert is_same_setup("Makefile", make, b".PHONY: test lint\n" + make + b"\nlint:\n\truff check\n")
    assert not is_same_setup("Makefile", make, b"test:\n\ttrue\n")
    assert not is_same_setup("Makefile", make, b"SHELL = /bin/true\n" + make)
    assert not is_same_setup("Makefile", make, make + b"test: export X = 1\n")
    package = b'{"scripts": {"test": "jest"}}'
    assert is_same_setup("package.json", package, b'{"scripts": {"test": "jest", "start": "node ."}}')
    assert not is_same_setup("package.json", package, b'{"scripts": {"test": "jest", "pretest": "exit 0"}}')
    assert not is_same_setup("package.json", package, b'{"scripts": {"start": "node ."}}')


def test_scripts_whose_code_or_output_is_used_are_under_test() -> None:
    paths = ["lib.sh", "bin/price", "check.sh"]
    assert programs_of([". ./lib.sh; sh check.sh", 'test "$(bin/price 2)" = 4'], paths) == {"check.sh"}
    assert programs_of(["bin/price 2 | grep 4", "sh check.sh | tee log"], paths) == {"check.sh"}


def test_a_word_in_a_text_starts_no_runner() -> None:
    for command in (
        "pytest -q",
        "python -m pytest",
        "A=1 pytest",
        "uv run pytest",
        "cd x && ./bin/pytest",
        "timeout 60 pytest",
    ):
        assert known_checkers(command) == ("pytest",), command
    for command in ("grep -q pytest CHANGELOG.md", "test -f pytest", "echo pytest"):
        assert known_checkers(command) == (), command


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("lib.sh", "exit 0"),
        ("lib.sh", "test() { return 0; }"),
        ("calc.h", "#define assert(x)"),
        ("calc.go", '\tif flag.Lookup("test.v") != nil {'),
        ("calc.py", "FAST = 'pytest' in sys.modules"),
    ],
)
def test_lines_that_deceive_checks_in_other_languages_are_found(path: str, line: str) -> None:
    assert suspicious_lines(path, "", f"{line}\n") == (f"{path}:1: {line.strip()}",)


def test_edges_of_several_processes_become_one_graph() -> None:
    events: list[dict[str, object]] = [
        {"e": "start", "pid": 1, "ppid": 0, "cwd": "/w", "argv": ["python", "-m", "pytest", "test_a.py"]},
        {"e": "start", "pid": 3, "ppid": 0, "cwd": "/w", "argv": ["python", "-m", "doctest", "calc.py"]},
        {"e": "session", "pid": 1, "s": "1", "k": "pytest"},
        {"e": "load", "pid": 1, "by": "", "file": "setup.txt", "tested": False},
        {"e": "load", "pid": 1, "by": "", "file": "late.txt", "tested": True},
        {"e": "load", "pid": 2, "by": "", "file": "other.txt", "tested": False},
        {"e": "load", "pid": 2, "by": "a.py", "file": "calc.py", "tested": True},
        {"e": "patch", "pid": 2, "by": "a.py", "file": "json.loads"},
    ]
    seen = read_events("\n".join(json.dumps({"n": "n", **event}) for event in events), "n", "/w")
    assert seen.programs == ("calc.py",)
    assert seen.loads["calc.py"] == ("a.py",)
    assert seen.read_first == ("setup.txt",)
    assert seen.patched == ("a.py: json.loads",)
