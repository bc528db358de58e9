"""Lock files lead to setup commands."""

import json

import pytest

from tightloop.checks.setup import INSTALL, SKIP, Setup, propose, read_files, setup_question
from tightloop.episode.decisions import CANCEL_EPISODE
from tightloop.run.question import Answer

LOCK = json.dumps({"packages": {"": {}, "node_modules/is-number": {}}})
PINS = "# made by pip-compile\na==1.0 \\\n    --hash=sha256:ab\nb[c]==2.0 ; python_version < '3.12'  # via a\n"
PIP = "python3 -m venv .venv && .venv/bin/python -m pip install"


@pytest.mark.parametrize(
    ("contents", "command", "missing"),
    [
        ({"package-lock.json": LOCK}, "npm ci", ["node_modules"]),
        ({"yarn.lock": "x", "package-lock.json": LOCK}, "npm ci", ["node_modules"]),
        ({"uv.lock": "x", "requirements.txt": PINS}, "uv sync --frozen", [".venv"]),
        (
            {"requirements.txt": PINS, "requirements-dev.txt": "x==1\n"},
            f"{PIP} -r requirements-dev.txt -r requirements.txt",
            [".venv"],
        ),
        ({"requirements.txt": PINS, "requirements-dev.txt": "x>1\n"}, f"{PIP} -r requirements.txt", [".venv"]),
        (
            {"web/package-lock.json": LOCK, "uv.lock": "x"},
            "uv sync --frozen && (cd web && npm ci)",
            [".venv", "web/node_modules"],
        ),
    ],
)
def test_lock_files_lead_to_a_command(contents: dict[str, str], command: str, missing: list[str]) -> None:
    proposal = propose(contents, lambda _path: False)
    assert proposal is not None
    assert (proposal.command, list(proposal.missing)) == (command, missing)


@pytest.mark.parametrize(
    "contents",
    [
        {"package-lock.json": json.dumps({"packages": {"": {}}})},
        {"package-lock.json": "no JSON"},
        {"package-lock.json": "[]"},
        {"requirements.txt": "flask>=2\n"},
        {"requirements.txt": "flask==2.0\n-r other.txt\n"},
        {"requirements.txt": "# nothing\n"},
        {"poetry.lock": ""},
    ],
)
def test_nothing_is_proposed_for_files_that_pin_no_packages(contents: dict[str, str]) -> None:
    assert propose(contents, lambda _path: False) is None


def test_nothing_is_proposed_for_packages_that_are_there() -> None:
    proposal = propose({"package-lock.json": LOCK, "uv.lock": "x"}, lambda path: path == "node_modules")
    assert proposal is not None
    assert proposal.missing == (".venv",)
    assert propose({"package-lock.json": LOCK}, lambda _path: True) is None


def test_only_lock_files_of_the_project_count() -> None:
    paths = ["package-lock.json", "node_modules/a/package-lock.json", "tests/fixtures/uv.lock", "web/yarn.lock"]
    paths += ["package.json", "docs/requirements.txt", "pyproject.toml", "src/package.json", "dev-requirements.txt"]
    locks, files = read_files(paths)
    assert locks == ("dev-requirements.txt", "package-lock.json", "web/yarn.lock")
    assert files == (*locks, "package.json", "pyproject.toml")


def test_question_names_the_command_and_the_lock_file_and_grants_nothing_by_default() -> None:
    setup = Setup(command="npm ci", locks=("package-lock.json",), missing=("node_modules",))
    question = setup_question(setup, blocks="the episode", cancel=CANCEL_EPISODE)
    assert question.title == "node_modules is missing. Run `npm ci` (package-lock.json)?"
    assert question.default == ""
    assert question.names == ("install", "skip", "cancel")
    failed = setup.evolve(problem="failed with exit code 1\nnpm error code E404")
    question = setup_question(failed, blocks="the episode", cancel=CANCEL_EPISODE)
    assert question.title == "`npm ci` (package-lock.json) failed with exit code 1. Try again?"
    assert question.evidence == ("npm error code E404",)


def test_decision_of_a_person_replaces_the_problem() -> None:
    setup = Setup(command="npm ci", problem="failed")
    for option in (INSTALL, SKIP):
        decided = setup.decide(Answer(question="q1", option=option, by="anna"))
        assert (decided.decision, decided.by, decided.problem) == (option, "anna", "")
