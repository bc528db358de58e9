"""The checks that a project's files name: which commands, from which file, and which are not used."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.checks.commands import CheckKind, FoundCheck, Project, folder_of, started_program
from tightloop.checks.finding import family_of_command, find_checks, is_covered, is_read

CI = ".github/workflows/ci.yml"
MATRIX = """
on: [push, pull_request]
jobs:
  test:
    runs-on: ${{ matrix.os }}
    strategy:
      matrix:
        os: [ubuntu-latest, windows-latest]
        python-version: ["3.9", "3.11", "pypy3.10"]
        include:
          - {os: ubuntu-latest, python-version: "3.11", extra: --runslow}
    env: {PYTHONPATH: src, PIP_CACHE_DIR: x}
    steps:
      - uses: actions/checkout@v4
      - run: pip install -e .[test]
      - run: |
          echo "::group::tests"
          pytest tests ${{ matrix.extra }} \\
            --strict-markers
      - if: matrix.python-version == '3.9'
        run: mypy src
      - if: runner.os == 'Linux' && matrix.python-version != '3.9'
        run: ruff check .
      - if: failure()
        run: pytest --lf
"""
TOX = """
[tox]
envlist = py{310,311}-{plain,cov}, lint
[testenv]
setenv =
    MODE = {envname}
commands =
    plain: pytest {posargs:tests} --basetemp={envtmpdir}
    cov: coverage run -m pytest
    - flake8 .
[testenv:lint]
commands = ruff check {toxinidir}
"""


def found(texts: dict[str, str], *, more: tuple[str, ...] = (), python: str = "3.11") -> list[FoundCheck]:
    """Return the checks of the sources that count, as when every one can run."""
    families, by_ci, used = set(), set(), list[FoundCheck]()
    paths = frozenset({*texts, *more})
    for number, source in enumerate(find_checks(Project(paths, texts, python, "20"))):
        checks = [check for check in source if not is_covered(check, families, by_ci=by_ci)]
        used += checks
        families |= {family_of_command(check.run) for check in checks if not check.not_used}
        by_ci |= {check.kind.value for check in checks if not check.not_used} if number == 0 else set()
    return used


def runs(texts: dict[str, str], *, more: tuple[str, ...] = (), python: str = "3.11") -> list[str]:
    return [check.run for check in found(texts, more=more, python=python) if not check.not_used]


def test_matrix_gives_the_entry_of_this_system_and_interpreter() -> None:
    assert runs({CI: MATRIX}, more=("src/a.py",)) == [
        "PYTHONPATH=src pytest tests --runslow  --strict-markers",
        "PYTHONPATH=src ruff check .",
    ]
    assert runs({CI: MATRIX}, more=("src/a.py",), python="3.9") == [
        "PYTHONPATH=src pytest tests   --strict-markers",
        "PYTHONPATH=src mypy src",
    ]


def test_tox_gives_the_commands_of_its_environments() -> None:
    workflow = "on: push\njobs: {t: {runs-on: ubuntu-latest, steps: [{run: 'tox -e py311-plain,lint'}]}}"
    assert runs({CI: workflow, "tox.ini": TOX}) == [
        "MODE=py311-plain pytest tests --basetemp=/tmp/tox",
        "MODE=lint ruff check .",
    ]
    checks = found({"tox.ini": TOX})
    assert [check.run for check in checks][:2] == [
        "MODE=py311-plain pytest tests --basetemp=/tmp/tox",
        "MODE=py311-cov coverage run -m pytest",
    ]
    assert {check.source for check in checks} == {"tox.ini"}
    assert checks[1].otherwise[0].run == "MODE=py311-cov python -m pytest", "if coverage is not installed"


@pytest.mark.parametrize(
    ("command", "plain"),
    [
        ("pytest tests/ --cov=app --cov-report=term-missing", "pytest tests/"),
        ("python -m pytest  --cov app  --cov tests  --cov-report html  --cov-report xml", "python -m pytest"),
        ("pytest --cov --cov-branch --cov-fail-under 90 -k fees tests", "pytest -k fees tests"),
        ("pytest --no-cov-on-fail --cov-config=a.ini --cov-append -x", "pytest -x"),
        ("coverage run --source=app -m unittest -v", "python -m unittest -v"),
        ("coverage run --branch --source=app test.py -v", "python test.py -v"),
    ],
)
def test_tests_run_without_coverage_if_it_is_not_installed(command: str, plain: str) -> None:
    (check,) = [
        check for check in found({"tox.ini": f"[testenv]\ncommands = {command}\n"}) if check.source == "tox.ini"
    ]
    assert [inner.run for inner in check.otherwise] == [plain]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"pyproject.toml": "[tool.tox]\nenv_list=['3.11']\n[tool.tox.env_run_base]\ncommands=[['pytest','-x']]"},
            ["pytest -x"],
        ),
        (
            {
                "noxfile.py": "import nox\nnox.options.sessions = ['tests']\n\n@nox.session(python=['3.11'])\n"
                "def tests(session):\n    session.install('.')\n    session.run('pytest', '-q', *session.posargs)\n\n"
                "@nox.session\ndef lint(session):\n    session.run('flake8')\n"
            },
            ["pytest -q"],
        ),
        ({"Makefile": "PY = python3\ntest: build\n\t$(PY) -m pytest tests\nbuild:\n\tpip install .\n"}, ["make test"]),
        ({"justfile": "default:\n  just --list\ntest *args:\n  pytest {{args}}\n"}, ["just test"]),
        (
            {"package.json": json.dumps({"scripts": {"test": "npm run unit && tsc --noEmit", "unit": "node --test"}})},
            ["npm test"],
        ),
        ({"package.json": json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1'}})}, []),
        ({"pyproject.toml": "[tool.hatch.envs.default.scripts]\ntest = 'pytest {args:tests}'"}, ["pytest tests"]),
        (
            {"pyproject.toml": "[tool.pdm.scripts]\ntest = {cmd = 'pytest tests'}\nlint = 'ruff check .'"},
            ["pytest tests", "ruff check ."],
        ),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n[tool.mypy]\nfiles = 'src'"}, ["pytest", "mypy"]),
        ({"setup.cfg": "[tool:pytest]\naddopts = -q\n[flake8]\nmax-line-length = 99\n"}, ["pytest", "flake8"]),
        ({"Cargo.toml": "[package]\nname = 'a'"}, ["cargo test"]),
        ({"go.mod": "module a"}, ["go test ./..."]),
        (
            {
                ".pre-commit-config.yaml": "repos:\n- repo: https://github.com/astral-sh/ruff-pre-commit\n  hooks:\n"
                "  - {id: ruff, args: [--fix, --line-length=99]}\n  - {id: ruff-format}\n  - {id: end-of-file-fixer}\n"
                "- repo: local\n  hooks:\n  - {id: t, entry: pytest -q, language: system, pass_filenames: false}\n"
            },
            ["ruff check --line-length=99 .", "ruff format --check .", "pytest -q"],
        ),
        ({"README.md": "Run the tests:\n\n    $ python -m pytest tests\n"}, ["python -m pytest tests"]),
        (
            {
                "backend/pyproject.toml": "[tool.pytest.ini_options]\n",
                "web/package.json": '{"scripts": {"test": "jest"}}',
            },
            ["cd backend && pytest", "cd web && npm test"],
        ),
    ],
)  # fmt: skip
def test_each_file_gives_its_commands(files: dict[str, str], expected: list[str]) -> None:
    assert runs(files) == expected


def test_projects_below_the_top_are_found_like_one_at_the_top() -> None:
    files = {"backend/setup.py": "", "web/package.json": '{"scripts": {"test": "jest"}}'}
    assert runs(files, more=("backend/tests/test_a.py",)) == ["cd backend && pytest -q", "cd web && npm test"]
    assert runs({"tools/setup.py": ""}, more=("tests/test_a.py", "tools/test_b.py")) == ["pytest -q"]


def test_no_tool_is_added_that_a_project_does_not_configure() -> None:
    assert runs({"pyproject.toml": "[project]\nname = 'a'\n"}, more=("app.py",)) == []
    assert runs({"pyproject.toml": ""}, more=("app.py", "tests/test_app.py")) == ["pytest -q"]
    assert "ruff format --check ." not in runs({"pyproject.toml": "[tool.ruff]\nline-length = 99\n"})


def test_gitlab_gives_the_job_of_the_interpreter_and_says_what_needs_a_service() -> None:
    text = """
.base: {script: ["pip install .", "pytest $OPTIONS"]}
variables: {OPTIONS: -q}
py39: {extends: .base, image: "python:3.9"}
py311: {extends: .base, image: "python:3.11", script: ["pytest tests"]}
db: {image: "python:3.11", services: [postgres:16], script: ["pytest tests/db"]}
"""
    checks = found({".gitlab-ci.yml": text})
    assert [(check.run, check.not_used) for check in checks] == [
        ("OPTIONS=-q pytest tests", ""),
        ("OPTIONS=-q pytest tests/db", "it needs the service postgres:16"),
    ]


def test_what_publishes_or_needs_a_secret_is_named_and_not_used() -> None:
    text = """
on: push
jobs:
  all:
    runs-on: ubuntu-latest
    steps:
      - run: pytest -q && twine upload dist/*
      - run: pytest --token ${{ secrets.TOKEN }}
      - {run: pytest tests/live, env: {KEY: "${{ secrets.KEY }}"}}
      - run: pytest --sha ${{ github.sha }}
      - run: black .
      - run: docker run x pytest
"""
    assert {check.run: check.not_used for check in found({CI: text})} == {
        "pytest -q": "",
        "twine upload dist/*": "it publishes",
        "pytest --token @@secrets.TOKEN@@": "it needs the secret TOKEN",
        "pytest tests/live": "it needs the secret KEY",
        "pytest --sha @@github.sha@@": "it needs values that are only available in CI",
        "black .": "it rewrites files instead of checking them",
    }


def test_workflows_of_releases_do_not_count() -> None:
    release = "on: {release: {types: [published]}}\njobs: {t: {runs-on: ubuntu-latest, steps: [{run: pytest}]}}"
    [check] = found({CI: release})
    assert check.not_used == "it does not run when code changes"


def test_ci_of_a_folder_runs_there() -> None:
    text = """
on: push
defaults: {run: {working-directory: server}}
jobs: {t: {runs-on: ubuntu-latest, steps: [{run: "cd api\\npytest"}, {run: npm test, working-directory: web}]}}
"""
    files = {CI: text, "web/package.json": '{"scripts": {"test": "jest"}}'}
    assert runs(files, more=("server/api/a.py",)) == ["cd server/api && pytest", "cd web && npm test"]


def test_only_the_checks_of_a_named_folder_are_found() -> None:
    text = """
on: push
jobs:
  t:
    runs-on: ubuntu-latest
    steps: [{run: pytest}, {run: mypy ., working-directory: api}, {run: npm test, working-directory: apis}]
"""
    deep = {"api/sub/pyproject.toml": "[tool.pytest.ini_options]\n", "web/tox.ini": "[testenv]\ncommands = pytest\n"}
    files = {CI: text, "pyproject.toml": "[tool.ruff]\n", "apis/package.json": '{"scripts": {"test": "jest"}}', **deep}
    read = {path: content for path, content in files.items() if is_read(path, "api")}
    assert set(read) == {CI, "api/sub/pyproject.toml"}
    project = Project(frozenset({*files, "api/a.py"}), read, "3.11", "20", folder="api")
    commands = [check.run for source in find_checks(project) for check in source]
    assert commands == ["cd api && mypy .", "cd api/sub && pytest"]


def test_tests_of_a_job_for_another_interpreter_count_only_if_there_are_no_others() -> None:
    job = """
  {}:
    runs-on: ubuntu-latest
    steps: [{{uses: actions/setup-python@v5, with: {{python-version: '{}'}}}}, {{run: {}}}]
"""
    speed, tests = job.format("b", "3.14", "pytest speed"), job.format("t", "3.x", "pytest")
    types = job.format("m", "3.14", "mypy .")
    checks = found({CI: f"on: push\njobs:\n{speed}{tests}{types}"})
    assert {check.run: check.not_used for check in checks} == {
        "pytest speed": "it only applies to Python 3.14", "pytest": "", "mypy .": ""
    }  # fmt: skip
    assert [check.not_used for check in found({CI: f"on: push\njobs:\n{speed}"})] == [""]


def test_variables_of_wheel_builds_are_not_part_of_a_check() -> None:
    text = "on: push\nenv: {CIBW_TEST_COMMAND: python -m unittest discover}\n"
    text += "jobs: {t: {runs-on: ubuntu-latest, steps: [{run: pytest}]}}\n"
    assert runs({CI: text}) == ["pytest"]


@pytest.mark.parametrize(
    ("command", "folder", "program"),
    [
        ("cd libs/api && python -m pytest", "libs/api", "python"),
        ("cd 'my app' && MODE='a b' mypy .", "my app", "mypy"),
        ("MODE='python -m x' ruff check", "", "ruff"),
        ("cd /srv && pytest", "", "pytest"),
    ],
)
def test_place_and_program_of_a_command_are_read(command: str, folder: str, program: str) -> None:
    assert (folder_of(command), started_program(command)) == (folder, program)


def test_own_actions_and_inputs_of_foreign_ones_are_read() -> None:
    files = {
        CI: "on: push\njobs:\n  a: {runs-on: ubuntu-latest, steps: [{uses: ./.github/actions/test}]}\n"
        "  b: {uses: x/y/.github/workflows/node.yml@v1, with: {command: npm run unit}}\n",
        ".github/actions/test/action.yml": "runs: {using: composite, steps: [{run: pytest -q, shell: bash}]}",
        "package.json": '{"scripts": {"unit": "node --test"}}',
    }
    assert runs(files) == ["pytest -q", "npm run unit"]


def test_own_scripts_are_checks_if_their_name_says_so() -> None:
    script = r'"./run_tests.sh\npython tools/build.py\n./gone_tests.sh"'
    text = "on: push\njobs: {t: {runs-on: ubuntu-latest, steps: [{run: " + script + "}]}}"
    [check] = found({CI: text}, more=("run_tests.sh", "tools/build.py"))
    assert (check.run, check.kind) == ("./run_tests.sh", CheckKind.TESTS)


@pytest.mark.parametrize(
    ("makefile", "kind"),
    [
        ("test:\n\tpython3 checks_chunks.py\n", CheckKind.TESTS),
        ("test:\n\tpython3 tests/run_checks.py\n", CheckKind.TESTS),
        ("tests: all\nall:\n\tsh verify.sh\n", CheckKind.TESTS),
        ("test:\n\truff check .\n\tsh verify.sh\n", CheckKind.TESTS),
        ("test:\n\truff check .\n", CheckKind.LINT),
        ("lint:\n\tsh verify.sh\n", CheckKind.LINT),
        ("check:\n\tsh verify.sh\n", CheckKind.OTHER),
        ("check:\n\tpython3 test_chunks.py\n", CheckKind.TESTS),
    ],
)
def test_target_tells_the_kind_of_scripts_whose_names_do_not(makefile: str, kind: CheckKind) -> None:
    scripts = ("checks_chunks.py", "tests/run_checks.py", "verify.sh", "test_chunks.py")
    assert [check.kind for check in found({"Makefile": makefile}, more=scripts) if check.source == "Makefile"] == [kind]


def test_package_with_gates_has_those_in_their_order() -> None:
    scripts = {"gate:spec": "a", "test": "b", "gate:tier0": "c", "gate:ui": "d"}
    assert runs({"package.json": json.dumps({"scripts": scripts})}) == [
        "npm run --silent gate:tier0",
        "npm run --silent gate:spec",
    ]


def test_files_that_are_read() -> None:
    assert all(map(is_read, (CI, "tox.ini", "web/package.json", ".gitlab-ci.yml", "a/b/pyproject.toml")))
    assert not any(map(is_read, ("node_modules/a/package.json", "a/b/c/tox.ini", "src/app.py", "tests/x/tox.ini")))


@given(
    st.sampled_from([CI, "tox.ini", "Makefile", "package.json", "pyproject.toml", "noxfile.py", ".gitlab-ci.yml"]),
    st.one_of(
        st.text(max_size=300),
        st.lists(st.sampled_from(MATRIX.split() + TOX.split()), max_size=60).map(" ".join),
        st.lists(st.sampled_from(MATRIX.splitlines()), max_size=60).map("\n".join),
    ),
)  # fmt: skip
def test_any_file_is_read_without_an_error(name: str, text: str) -> None:
    sources = find_checks(Project(frozenset({name}), {name: text}, "3.11", "20"))
    assert sum(map(len, sources)) <= 60


def test_file_of_a_hostile_project_ends_and_is_bounded() -> None:
    loop = "a: b\n\t$(MAKE) b\nb: a\n\tmake a && make b\ntest: test\n\tmake test\n\tpytest\n"
    bomb = "a: &a [x,x]\nb: &b [" + "*a," * 9 + "x]\nc: &c [" + "*b," * 9 + "x]\nd: &d [" + "*c," * 9 + "x]\n"
    bomb += "e: &e [" + "*d," * 9 + "x]\nf: [" + "*e," * 9 + "x]\n"
    axes = ", ".join(f"v{number}: {list(range(40))}" for number in range(9))
    matrix = f"on: push\njobs: {{a: {{runs-on: x, strategy: {{matrix: {{{axes}}}}}, steps: [{{run: pytest}}]}}}}"
    many = "on: push\njobs: {a: {runs-on: x, steps: [" + ", ".join(f"{{run: pytest {n}}}" for n in range(500)) + "]}}"
    tox = "[tox]\nenvlist = " + "{a,b,c,d,e,f,g,h}" * 12 + "\n[testenv]\ncommands = pytest {[testenv]commands}\n"
    files = {
        "Makefile": loop,
        CI: matrix,
        ".github/workflows/b.yml": bomb,
        ".github/workflows/c.yml": many,
        "tox.ini": tox,
    }
    assert 2 <= sum(map(len, find_checks(Project(frozenset(files), files, "3.11", "20")))) <= 60
