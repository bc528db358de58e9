"""What a service that imports the client, and what the command line for its help, does not load."""

import os
import subprocess
import sys

import click
import pytest

from tightloop.cli.commands import COMMANDS

NEVER = {"temporalio.worker", "tree_sitter", "diff_match_patch", "cryptography", "click", "rich", "opentelemetry"}
"""Only workers, the command line, or a client that seals or traces need them."""
LATER = {
    "yaml", "tightloop.plan.progress", "tightloop.plan.engine", "tightloop.safety.change.reading",
    "tightloop.episode.planning", "tightloop.episode.proof", "tightloop.memory",
    "difflib", "tomllib", "importlib.resources", "importlib.metadata",
    "tightloop.settings", "tightloop.episode.model", "tightloop.plan.request", "tightloop.loop.model",
}  # fmt: skip
"""Needed to connect, for runs of one kind, for plans, for messages about mistakes, or by workers."""
OF_COMMANDS = {"temporalio", "asyncio", "yaml", "tightloop.client", "tightloop.settings", "tightloop.value"}
"""Needed by commands when they run; not to name them and say what they do."""


def loaded(code: str, **variables: str) -> tuple[str, set[str]]:
    """Return what a program prints, and the modules that it has loaded at its end."""
    program = f"import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules)); {code}"
    environment = {**os.environ, **variables}
    command = (sys.executable, "-c", program)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    printed, _, modules = done.stdout.partition("LOADED")
    return printed, set(modules.split())


def command_line(*words: str, **variables: str) -> tuple[str, set[str]]:
    """Return the same of the command line with these words."""
    # `main` would end the process at once.
    called = f"sys.argv[:] = ['tightloop', *{words!r}]; from tightloop.cli.main import app; app()"
    return loaded(called, **variables)


def test_the_client_loads_nothing_that_only_workers_and_the_command_line_need() -> None:
    _, modules = loaded("import tightloop.client")
    assert "tightloop.client.client" in modules
    assert (NEVER | LATER) & modules == set()


def test_the_client_builds_no_validator_before_the_first_value() -> None:
    code = (
        "from tightloop.client import *; from tightloop.value import Document, Value;"
        "kinds = [Document, Value];"
        "[kinds.extend(kind.__subclasses__()) for kind in kinds];"
        "print(len(kinds), *(kind.__name__ for kind in kinds if kind.__pydantic_complete__))"
    )
    printed, _ = loaded(code)
    count, *built = printed.split()
    assert int(count) > 100
    assert built == []


def test_a_program_that_names_models_of_episodes_loads_none_of_plans() -> None:
    _, modules = loaded("from tightloop.client import EpisodeRequest, EpisodeStatus")
    assert "tightloop.episode.model" in modules
    assert not {"tightloop.settings", "tightloop.plan.request", "tightloop.loop.model"} & modules


def test_the_version_is_told_without_loading_the_commands() -> None:
    printed, modules = loaded("sys.argv[1:] = ['--version']; from tightloop.cli import main; main()")
    assert printed.startswith("tightloop ")
    assert not (NEVER | {"pydantic", "temporalio"}) & modules


def test_the_package_runs_as_a_module() -> None:
    command = (sys.executable, "-m", "tightloop", "--version")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("tightloop ")


def test_a_shell_completes_a_command_without_loading_any() -> None:
    printed, modules = command_line(_TIGHTLOOP_COMPLETE="bash_complete", COMP_WORDS="tightloop st", COMP_CWORD="1")
    assert [line.rpartition(",")[2] for line in printed.split()] == ["start", "status"]
    assert not ({"rich"} | OF_COMMANDS) & modules


@pytest.mark.parametrize(
    ("words", "named"), [(("--help",), "answer"), (("plan", "--help"), "validate"), (("pause", "--help"), "--reason")]
)
def test_help_loads_none_of_what_commands_need(words: tuple[str, ...], named: str) -> None:
    printed, modules = command_line(*words)
    assert named in printed
    assert not ({"rich", "pydantic"} | OF_COMMANDS - {"tightloop.value"}) & modules


def test_every_command_can_be_loaded() -> None:
    for entry in COMMANDS:
        for command in getattr(entry, "commands", {"": entry}).values():
            assert command.get_params(click.Context(command))
