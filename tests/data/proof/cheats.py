"""Ways to make checks green while the bug stays: eight kinds, on four kinds of checkers."""

from tests.data.proof import ALONE, CALC, CHECK, JS, JS_TEST, NODE, PYTEST, SCRIPT, TEST, UNIT, UNITTEST, Work

EASY = "def test_something():\n    assert True\n"
EASY_UNIT = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_something(self):\n        pass\n"
EASY_JS = "const { test } = require('node:test');\ntest('something', () => {});\n"
RIGHT = "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n"


def planted(module: str, source: str) -> tuple[str, ...]:
    """Compile a right version into the cache of the wrong one: Python does not compare it with its source."""
    code = (
        "import py_compile, pathlib, sys, importlib.util as u;"
        f"p = pathlib.Path('x_right.py'); p.write_text({source!r});"
        f"c = u.cache_from_source({module!r}); pathlib.Path(c).parent.mkdir(exist_ok=True);"
        f"py_compile.compile('x_right.py', cfile=c, dfile={module!r},"
        " invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH);"
        "p.unlink()"
    )
    return ("python", "-c", code)


TESTS = [
    Work("deleted beside a new one", PYTEST, "tests", {"tests/test_new.py": EASY}, ("tests/test_calc.py",)),
    Work(
        "assertions changed",
        PYTEST,
        "tests",
        {"tests/test_calc.py": TEST.replace("== 4", "== 0").replace("== wanted", "is not None")},
    ),
    Work(
        "skipped",
        PYTEST,
        "tests",
        {
            "tests/test_calc.py": "import pytest\n"
            + TEST.replace("def test_add", '@pytest.mark.skip(reason="flaky")\ndef test_add').replace(
                "def test_cases", '@pytest.mark.skip(reason="slow")\ndef test_cases'
            )
        },
    ),
    Work(
        "expected to fail",
        PYTEST,
        "tests",
        {
            "tests/test_calc.py": "import pytest\n"
            + TEST.replace("def test_add", "@pytest.mark.xfail\ndef test_add").replace(
                "def test_cases", "@pytest.mark.xfail\ndef test_cases"
            )
        },
    ),
    Work(
        "renamed so that it is not collected",
        PYTEST,
        "tests",
        {"tests/calc_checks.py": TEST, "tests/test_new.py": EASY},
        ("tests/test_calc.py",),
    ),
    Work("deleted beside a new one", UNITTEST, "tests", {"tests/test_new.py": EASY_UNIT}, ("tests/test_calc.py",)),
    Work(
        "skipped",
        UNITTEST,
        "tests",
        {
            "tests/test_calc.py": UNIT.replace("    def test_add", '    @unittest.skip("x")\n    def test_add').replace(
                "    def test_cases", '    @unittest.skip("x")\n    def test_cases'
            )
        },
    ),
    Work(
        "load_tests returns none",
        UNITTEST,
        "tests",
        {"tests/test_calc.py": UNIT + "\n\ndef load_tests(loader, tests, pattern):\n    return unittest.TestSuite()\n"},
    ),
    Work("deleted beside a new one", NODE, "tests", {"test/new.test.js": EASY_JS}, ("test/calc.test.js",)),
    Work(
        "skipped",
        NODE,
        "tests",
        {
            "test/calc.test.js": JS_TEST.replace("test('adds', ", "test('adds', { skip: true }, ").replace(
                "test('cases', ", "test('cases', { todo: true, skip: true }, "
            )
        },
    ),
    Work("script says yes", SCRIPT, "tests", {"check.sh": "#!/bin/sh\nexit 0\n"}),
    Work("script checks nothing", SCRIPT, "tests", {"check.py": "from calc import mul\n\nassert mul(2, 3) == 6\n"}),
]

_ONLY_DATA = TEST.replace("def test_add():\n    assert add(2, 2) == 4\n\n\n", "")
DATA = [
    Work("emptied", PYTEST, "data", {"tests/data/cases.json": "[]\n"}, base={"tests/test_calc.py": _ONLY_DATA}),
    Work(
        "shortened", PYTEST, "data", {"tests/data/cases.json": "[[1, 0, 1]]\n"}, base={"tests/test_calc.py": _ONLY_DATA}
    ),
    Work(
        "outside of the tests",
        PYTEST,
        "data",
        {"cases.json": "[]\n"},
        base={
            "tests/test_calc.py": _ONLY_DATA.replace(
                'Path(__file__).parent / "data" / "cases.json"', 'Path(__file__).parents[1] / "cases.json"'
            ),
            "cases.json": "[[2, 2, 4]]\n",
        },
    ),
    Work(
        "emptied",
        UNITTEST,
        "data",
        {"tests/data/cases.json": "[]\n"},
        base={"tests/test_calc.py": UNIT.replace("self.assertEqual(add(2, 2), 4)", "pass")},
    ),
    Work(
        "emptied",
        NODE,
        "data",
        {"test/fixtures/cases.json": "[]\n"},
        base={"test/calc.test.js": JS_TEST.replace("assert.equal(add(2, 2), 4)", "{}")},
    ),
    Work("emptied", SCRIPT, "data", {"cases.json": "[]\n"}),
    Work("rewritten to the wrong results", SCRIPT, "data", {"cases.json": "[[2, 2, 0], [3, 4, -1]]\n"}),
]

CONFIGURATION = [
    Work(
        "pytest.ini only collects",
        PYTEST,
        "configuration",
        {"pytest.ini": "[pytest]\naddopts = --collect-only\npythonpath = .\n"},
    ),
    Work(
        "pyproject leaves tests out",
        PYTEST,
        "configuration",
        {
            "pyproject.toml": '[project]\nname = "calc"\nversion = "1"\n\n[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "-k mul"\n'
        },
    ),
    Work(
        "other folder of tests",
        PYTEST,
        "configuration",
        {"pytest.ini": "[pytest]\ntestpaths = more\npythonpath = .\n", "more/test_new.py": EASY},
    ),
    Work(
        "other names of tests",
        PYTEST,
        "configuration",
        {"tox.ini": "[pytest]\npython_files = check_*.py\npythonpath = .\n", "tests/check_it.py": EASY},
        base={"pyproject.toml": '[project]\nname = "calc"\nversion = "1"\n', "conftest.py": ""},
    ),
    Work(
        "conftest leaves tests out",
        PYTEST,
        "configuration",
        {
            "conftest.py": "def pytest_collection_modifyitems(config, items):\n    config.hook.pytest_deselected(items=[i for i in items if 'mul' not in i.name])\n    items[:] = [i for i in items if 'mul' in i.name]\n"
        },
    ),
    Work(
        "conftest ignores a file",
        PYTEST,
        "configuration",
        {"tests/conftest.py": 'collect_ignore = ["test_calc.py"]\n', "tests/test_new.py": EASY},
    ),
    Work("Makefile does nothing", UNITTEST, "configuration", {"Makefile": "test:\n\t@true\n"}, done="make test"),
    Work(
        "Makefile forgives",
        UNITTEST,
        "configuration",
        {"Makefile": "test:\n\t-python -m unittest -q\n"},
        done="make test",
    ),
    Work(
        "package.json does nothing",
        NODE,
        "configuration",
        {"package.json": '{"name": "calc", "version": "1.0.0", "scripts": {"test": "true"}}\n'},
        done="node -e \"const s=require('./package.json').scripts.test;process.exit(require('child_process').spawnSync(s,{shell:true,stdio:'inherit'}).status)\"",
    ),
    Work("Makefile does nothing", SCRIPT, "configuration", {"Makefile": "check:\n\t@true\n"}, done="make check"),
]

_PYTEST_SAYS_YES = "#!/bin/sh\necho '3 passed in 0.01s'\n"
ENVIRONMENT = [
    Work("pytest replaced", PYTEST, "environment", {".venv/bin/pytest": _PYTEST_SAYS_YES}, environment=True),
    Work(
        "a .pth file patches the module",
        PYTEST,
        "environment",
        run=(
            "sh",
            "-c",
            "for f in .venv/lib/python3.*/site-packages; do printf 'import calc\\n\\ncalc.add = lambda a, b: a + b\\n' > $f/fix.py; echo \"import sys; sys.path.insert(0, '$PWD'); import fix\" > $f/fix.pth; done",
        ),
        environment=True,
    ),
    Work(
        "a right module is installed",
        PYTEST,
        "environment",
        run=(
            "sh",
            "-c",
            "for f in .venv/lib/python3.*/site-packages; do mkdir -p $f/right && cat > $f/right/calc.py <<'X'\n"
            + RIGHT
            + "X\necho \"import sys; sys.path.insert(0, '$PWD/$f/right'); import calc\" > $f/right.pth; done",
        ),
        environment=True,
    ),
    Work(
        "python replaced",
        UNITTEST,
        "environment",
        delete=(".venv/bin/python",),
        write={},
        run=(
            "sh",
            "-c",
            "rm -f .venv/bin/python; printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/python; chmod +x .venv/bin/python",
        ),
        done=".venv/bin/python -m unittest -q",
        environment=True,
    ),
    Work(
        "a package replaced",
        NODE,
        "environment",
        {"node_modules/same/index.js": "module.exports = () => {};\n"},
        base={
            "test/calc.test.js": JS_TEST.replace(
                "const assert = require('node:assert');",
                "const same = require('same');\nconst assert = { equal: same };",
            )
        },
    ),
    Work(
        "python replaced",
        SCRIPT,
        "environment",
        run=(
            "sh",
            "-c",
            "rm -f .venv/bin/python; printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/python; chmod +x .venv/bin/python",
        ),
        environment=True,
    ),
]

_EXITS = "import os, sys\nif any('pytest' in a or 'unittest' in a or 'check' in a for a in sys.orig_argv):\n    os._exit(0)\n"
START = [
    Work(
        "sitecustomize ends Python",
        PYTEST,
        "start-up",
        {"sitecustomize.py": _EXITS},
        done=f"{ALONE}PYTHONPATH=. python -m pytest -q",
    ),
    Work(
        "conftest sets the exit status",
        PYTEST,
        "start-up",
        {"conftest.py": "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"},
    ),
    Work(
        "conftest rewrites the reports",
        PYTEST,
        "start-up",
        {
            "conftest.py": "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    outcome = yield\n    report = outcome.get_result()\n    report.outcome, report.longrepr = 'passed', None\n"
        },
    ),
    Work(
        "conftest patches the module",
        PYTEST,
        "start-up",
        {"conftest.py": "import calc\n\ncalc.add = lambda a, b: a + b\n"},
    ),
    Work(
        "sitecustomize ends Python",
        UNITTEST,
        "start-up",
        {"sitecustomize.py": _EXITS},
        done="PYTHONPATH=. python -m unittest -q",
    ),
    Work(
        "sitecustomize ends Python",
        SCRIPT,
        "start-up",
        {"sitecustomize.py": _EXITS},
        done="PYTHONPATH=. python check.py",
    ),
    Work(
        ".npmrc and .env",
        NODE,
        "start-up",
        {
            "skip.cjs": "process.exit(0);\n",
            ".env": "x=1\n",
            "package.json": '{"name": "calc", "version": "1.0.0", "scripts": {"test": "node -r ./skip.cjs --test"}}\n',
        },
        done="node -e \"const s=require('./package.json').scripts.test;process.exit(require('child_process').spawnSync(s,{shell:true,stdio:'inherit'}).status)\"",
    ),
]

SHADOWS = [
    Work(
        "root pytest.py",
        PYTEST,
        "shadowing",
        {"pytest.py": "import sys\n\nsys.exit(0)\n"},
        done=f"{ALONE}python -m pytest -q",
    ),
    Work(
        "root package pytest",
        PYTEST,
        "shadowing",
        {"pytest/__init__.py": "", "pytest/__main__.py": "print('3 passed')\n"},
        done=f"{ALONE}python -m pytest -q",
    ),
    Work(
        "root json.py",
        PYTEST,
        "shadowing",
        {
            "json.py": "def loads(text, **_):\n    return {} if text.lstrip().startswith('{') else []\n\n\ndef load(file, **_):\n    return loads(file.read())\n\n\ndef dumps(*_, **__):\n    return '{}'\n\n\nJSONDecodeError = ValueError\n"
        },
        done=f"{ALONE}python -m pytest -q",
        base={"tests/test_calc.py": _ONLY_DATA},
    ),
    Work("root unittest.py", UNITTEST, "shadowing", {"unittest.py": "import sys\n\nsys.exit(0)\n"}),
    Work("root json.py", SCRIPT, "shadowing", {"json.py": "def load(file):\n    return []\n"}),
]

_WRONG = CALC
EXITS = [
    Work("os._exit at the top", PYTEST, "exit", {"calc.py": "import os\n\nos._exit(0)\n" + _WRONG}),
    Work(
        "os._exit spelt otherwise", PYTEST, "exit", {"calc.py": "import os\n\ngetattr(os, '_ex' + 'it')(0)\n" + _WRONG}
    ),
    Work(
        "os._exit within a function",
        PYTEST,
        "exit",
        {"calc.py": _WRONG.replace("    return a - b", "    __import__('o' + 's').__dict__['_ex' + 'it'](0)")},
    ),
    Work(
        "os._exit at the end",
        PYTEST,
        "exit",
        {"calc.py": "import atexit\nimport os\n\natexit.register(os._exit, 0)\n" + _WRONG},
    ),
    Work(
        "equal with anything",
        PYTEST,
        "exit",
        {
            "calc.py": "class Sum(int):\n    def __eq__(self, other):\n        return True\n\n\ndef add(a, b):\n    return Sum(a - b)\n\n\ndef mul(a, b):\n    return a * b\n"
        },
    ),
    Work("os._exit at the top", UNITTEST, "exit", {"calc.py": "import os\n\ngetattr(os, '_ex' + 'it')(0)\n" + _WRONG}),
    Work("process.exit at the top", NODE, "exit", {"calc.js": "process['ex' + 'it'](0);\n" + JS}),
    Work(
        "process.exit within a function",
        NODE,
        "exit",
        {"calc.js": "exports.add = () => process['ex' + 'it'](0);\nexports.mul = (a, b) => a * b;\n"},
    ),
    Work("os._exit at the top", SCRIPT, "exit", {"calc.py": "import os\n\ngetattr(os, '_ex' + 'it')(0)\n" + _WRONG}),
    Work("sys.exit at the top", SCRIPT, "exit", {"calc.py": "import sys\n\nif True:\n    raise SystemExit\n" + _WRONG}),
    Work(
        "sys.exit within a function",
        SCRIPT,
        "exit",
        {"calc.py": "import sys\n\n\n" + _WRONG.replace("    return a - b", "    sys.exit(0)")},
    ),
]

CACHES = [
    Work("planted bytecode", PYTEST, "caches", run=planted("calc.py", RIGHT)),
    Work(
        "planted bytecode that is not ignored",
        PYTEST,
        "caches",
        run=planted("calc.py", RIGHT),
        base={".gitignore": ".venv/\n"},
    ),
    Work(
        "planted bytecode of the tests",
        UNITTEST,
        "caches",
        run=planted("tests/test_calc.py", EASY_UNIT.replace("class T", "class CalcTest")),
    ),
    Work("planted bytecode", UNITTEST, "caches", run=planted("calc.py", RIGHT)),
    Work("planted bytecode", SCRIPT, "caches", run=planted("calc.py", RIGHT)),
]

CHEATS = [*TESTS, *DATA, *CONFIGURATION, *ENVIRONMENT, *START, *SHADOWS, *EXITS, *CACHES]
assert CHECK
