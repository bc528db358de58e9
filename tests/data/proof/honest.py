"""Honest work: twenty goals that say that tests change, and twenty that do not."""

from tests.data.proof import CASES, CHECK, FIXED, JS_FIXED, JS_TEST, NODE, PYTEST, SCRIPT, TEST, UNIT, UNITTEST, Work

_SUB = "\n\ndef sub(a, b):\n    return a - b\n"
_MORE = TEST + "\n\ndef test_more():\n    assert add(1, 1) == 2\n"
_UNIT_MORE = UNIT + "\n    def test_more(self):\n        self.assertEqual(add(1, 1), 2)\n"
_JS_MORE = JS_TEST + "test('more', () => assert.equal(add(1, 1), 2));\n"
_RENAMED = TEST.replace("test_add", "test_sum").replace("test_cases", "test_table")
_SQUARED = FIXED.replace("return a * b", "return a * b * 1000")
_MULTIPLIED = TEST.replace("mul(2, 3) == 6", "mul(2, 3) == 6000")
_PARAMETRIZED = (
    TEST.replace(
        "def test_cases():\n    for a, b, wanted in CASES:\n        assert add(a, b) == wanted\n",
        '@pytest.mark.parametrize(("a", "b", "wanted"), CASES)\ndef test_cases(a, b, wanted):\n    assert add(a, b) == wanted\n',
    )
    .replace("import json\n", "import json\n")
    .replace("from calc", "import pytest\nfrom calc")
)

ANNOUNCED = [
    Work(
        "rename tests",
        PYTEST,
        goal="Fix add(), and rename the tests test_add and test_cases to test_sum and test_table.",
        write={"calc.py": FIXED, "tests/test_calc.py": _RENAMED},
    ),
    Work(
        "parametrize",
        PYTEST,
        goal="Fix add() and rewrite the tests with pytest.mark.parametrize.",
        write={"calc.py": FIXED, "tests/test_calc.py": _PARAMETRIZED},
    ),
    Work(
        "remove an obsolete test",
        PYTEST,
        goal="Fix add(). Remove the tests of mul(), which goes away.",
        write={
            "calc.py": FIXED,
            "tests/test_calc.py": TEST.replace("def test_mul():\n    assert mul(2, 3) == 6\n\n\n", ""),
        },
    ),
    Work(
        "new behaviour",
        PYTEST,
        goal="mul() is to return thousandths; fix add() and update the tests accordingly.",
        write={"calc.py": _SQUARED, "tests/test_calc.py": _MULTIPLIED},
    ),
    Work(
        "split the file",
        PYTEST,
        goal="Fix add(), and split tests/test_calc.py into tests/test_add.py and tests/test_mul.py.",
        write={
            "calc.py": FIXED,
            "tests/test_add.py": _RENAMED,
            "tests/test_mul.py": "from calc import mul\n\n\ndef test_mul():\n    assert mul(2, 3) == 6\n",
        },
        delete=("tests/test_calc.py",),
    ),
    Work(
        "move the data",
        PYTEST,
        goal="Fix add() and move the test data tests/data/cases.json to tests/cases.json.",
        write={"calc.py": FIXED, "tests/cases.json": CASES, "tests/test_calc.py": TEST.replace(' / "data"', "")},
        delete=("tests/data/cases.json",),
        allow=("tests_changed",),
    ),
    Work(
        "update the data",
        PYTEST,
        goal="Fix add() and update the fixtures in tests/data/cases.json to small numbers.",
        write={"calc.py": FIXED, "tests/data/cases.json": "[[1, 1, 2]]\n"},
    ),
    Work(
        "correct a wrong expectation",
        PYTEST,
        goal="The expected values in tests/test_calc.py are wrong: correct the assertions, mul(2, 3) is 6.",
        write={"calc.py": FIXED, "tests/test_calc.py": TEST},
        base={"tests/test_calc.py": TEST.replace("== 6", "== 7")},
    ),
    Work(
        "allowed by option", PYTEST, write={"calc.py": FIXED, "tests/test_calc.py": _RENAMED}, allow=("tests_changed",)
    ),
    Work(
        "configuration in the goal",
        PYTEST,
        goal="Fix add() and change pyproject.toml so that pytest is strict about markers.",
        write={
            "calc.py": FIXED,
            "pyproject.toml": '[project]\nname = "calc"\nversion = "1"\n\n[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--strict-markers"\n',
        },
    ),
    Work(
        "rename tests",
        UNITTEST,
        goal="Fix add() and rename the test class CalcTest to SumTest; adapt the tests where needed.",
        write={"calc.py": FIXED, "tests/test_calc.py": UNIT.replace("CalcTest", "SumTest")},
    ),
    Work(
        "to pytest style",
        UNITTEST,
        goal="Fix add() and simplify the tests in tests/test_calc.py.",
        write={
            "calc.py": FIXED,
            "tests/test_calc.py": UNIT.replace(
                "    def test_mul(self):\n        self.assertEqual(mul(2, 3), 6)\n\n", ""
            ),
        },
    ),
    Work(
        "new behaviour",
        UNITTEST,
        goal="mul() returns thousandths from now on. Change the tests too. Fix add().",
        write={"calc.py": _SQUARED, "tests/test_calc.py": UNIT.replace("mul(2, 3), 6", "mul(2, 3), 6000")},
    ),
    Work(
        "move the tests",
        UNITTEST,
        goal="Fix add() and move the tests from tests/ to checks/.",
        write={
            "calc.py": FIXED,
            "checks/__init__.py": "",
            "checks/test_calc.py": UNIT.replace("__file__).parent /", '__file__).parents[1] / "tests" /'),
        },
        delete=("tests/test_calc.py",),
    ),
    Work(
        "rename tests",
        NODE,
        goal="Fix add() and rename the tests to whole sentences.",
        write={"calc.js": JS_FIXED, "test/calc.test.js": JS_TEST.replace("'adds'", "'add returns the sum'")},
    ),
    Work(
        "delete a test",
        NODE,
        goal="Fix add() and delete the test 'multiplies'.",
        write={
            "calc.js": JS_FIXED,
            "test/calc.test.js": JS_TEST.replace("test('multiplies', () => assert.equal(mul(2, 3), 6));\n", ""),
        },
    ),
    Work(
        "update the fixtures",
        NODE,
        goal="Fix add() and update test/fixtures/cases.json: two cases are enough.",
        write={"calc.js": JS_FIXED, "test/fixtures/cases.json": "[[2, 2, 4], [1, 0, 1]]\n"},
    ),
    Work(
        "edit the script",
        SCRIPT,
        goal="Fix add() and change check.py so that it also checks 5 + 5.",
        write={"calc.py": FIXED, "check.py": CHECK + "assert add(5, 5) == 10\n"},
    ),
    Work(
        "edit the data",
        SCRIPT,
        goal="Fix add() and replace cases.json by smaller numbers.",
        write={"calc.py": FIXED, "cases.json": "[[1, 1, 2]]\n"},
    ),
    Work(
        "both",
        SCRIPT,
        goal="Fix add(); rewrite check.sh to be quiet.",
        write={"calc.py": FIXED, "check.sh": "#!/bin/sh\npython check.py > /dev/null\n"},
    ),
]

ORDINARY = [
    Work("fix", PYTEST, write={"calc.py": FIXED}),
    Work(
        "fix with a new test",
        PYTEST,
        goal="Fix add() and add a test for it.",
        write={"calc.py": FIXED, "tests/test_calc.py": _MORE},
    ),
    Work(
        "a new file of tests",
        PYTEST,
        goal="Fix add() and add sub() with tests.",
        write={
            "calc.py": FIXED + _SUB,
            "tests/test_sub.py": "from calc import sub\n\n\ndef test_sub():\n    assert sub(3, 2) == 1\n",
        },
    ),
    Work(
        "a conftest for new tests",
        PYTEST,
        goal="Fix add(); test it with a fixture.",
        write={
            "calc.py": FIXED,
            "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
            "tests/test_two.py": "from calc import add\n\n\ndef test_two(two):\n    assert add(two, two) == 4\n",
        },
    ),
    Work(
        "more cases",
        PYTEST,
        write={"calc.py": FIXED, "tests/data/cases.json": "[[2, 2, 4], [1, 0, 1], [3, 4, 7], [5, 5, 10]]\n"},
    ),
    Work(
        "metadata of the package",
        PYTEST,
        goal="Fix add() and release version 2.",
        write={
            "calc.py": FIXED,
            "pyproject.toml": '[project]\nname = "calc"\nversion = "2"\n\n[tool.pytest.ini_options]\npythonpath = ["."]\n',
        },
    ),
    Work(
        "a whole new project",
        PYTEST,
        goal="Write calc.py with add(), and tests.",
        write={"calc.py": FIXED, "tests/test_calc.py": _MORE, "tests/data/cases.json": CASES},
        base={"calc.py": None, "tests/test_calc.py": None, "tests/data/cases.json": None},
    ),
    Work(
        "refactored into a package",
        PYTEST,
        goal="Fix add() and make calc a package.",
        write={"calc/__init__.py": FIXED},
        delete=("calc.py",),
    ),
    Work("with an environment", PYTEST, write={"calc.py": FIXED}, environment=True),
    Work(
        "with caches in the environment",
        PYTEST,
        write={"calc.py": FIXED},
        run=(
            "sh",
            "-c",
            ".venv/bin/python -B -c 0; mkdir -p .venv/lib/python3.99/site-packages/__pycache__; echo x > .venv/lib/python3.99/site-packages/__pycache__/m.pyc; touch .venv/bin/pytest",
        ),
        environment=True,
    ),
    Work("fix", UNITTEST, write={"calc.py": FIXED}),
    Work(
        "fix with a new test",
        UNITTEST,
        goal="Fix add() and add a test.",
        write={"calc.py": FIXED, "tests/test_calc.py": _UNIT_MORE},
    ),
    Work("by make", UNITTEST, write={"calc.py": FIXED}, done="make test"),
    Work("fix", NODE, write={"calc.js": JS_FIXED}),
    Work(
        "fix with a new test",
        NODE,
        goal="Fix add() and add a test.",
        write={"calc.js": JS_FIXED, "test/calc.test.js": _JS_MORE},
    ),
    Work(
        "a dependency",
        NODE,
        goal="Fix add(); depend on left-pad.",
        write={
            "calc.js": JS_FIXED,
            "package.json": '{"name": "calc", "version": "1.0.1", "scripts": {"test": "node --test"}, "dependencies": {"left-pad": "1.3.0"}}\n',
        },
    ),
    Work("fix", SCRIPT, write={"calc.py": FIXED}),
    Work("more cases", SCRIPT, write={"calc.py": FIXED, "cases.json": "[[2, 2, 4], [3, 4, 7], [6, 6, 12]]\n"}),
    Work(
        "by make, with a note",
        SCRIPT,
        write={"calc.py": FIXED, "README.md": "add() adds.\n", "build/log.txt": "ignored\n"},
        done="make check",
        base={".gitignore": "build/\n__pycache__/\n"},
    ),
    Work(
        "ends with sys.exit in main",
        SCRIPT,
        goal="Fix add() and give calc.py a main().",
        write={
            "calc.py": "import sys\n\n"
            + FIXED
            + "\n\ndef main():\n    print(add(1, 2))\n    return 0\n\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
        },
    ),
]
