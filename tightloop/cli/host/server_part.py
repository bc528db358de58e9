"""The server part, a distribution of its own: how this process becomes it, and what it knows of this host."""

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from tightloop.cli.session import Session
from tightloop.cli.start import given
from tightloop.errors import ServiceUnavailableError
from tightloop.host import module_arguments
from tightloop.host.programs import own_environment, own_python

DESCRIBE_SECONDS = 60


class Role(StrEnum):
    """What a worker is for, as the server part has it."""

    ALL = "all"
    WORKFLOWS = "workflows"
    WORKSPACE = "workspace"
    LLM = "llm"
    GUI = "gui"


def become_worker(session: Session, *arguments: str, state_folder: Path | None = None) -> NoReturn:
    """Replace this process by the server part, so that signals and exit codes are its own."""
    options = [] if state_folder is None else ["--state-folder", str(state_folder)]
    become_server_part(session, "worker", *options, *arguments)


def become_server_part(session: Session, module: str, *arguments: str) -> NoReturn:
    """Replace this process by a module of the server part.

    Raises:
        ServiceUnavailableError: it is not installed here.
    """
    command = own_python().command(*_module(module), *_options(session), *arguments)
    # exec drops what is still in the buffers of Python.
    sys.stdout.flush()
    os.execve(own_python().path, command, environment_of(session))  # noqa: S606


def described(session: Session) -> dict[str, Any]:
    """Return what the executors and sandboxes of this host can do, with the settings and variables in force here.

    Raises:
        ServiceUnavailableError: the server part is not installed here, or does not answer.
    """
    command = own_python().command(*_module("worker"), *_options(session), "describe")
    try:
        done = subprocess.run(
            command, env=environment_of(session), capture_output=True, text=True, timeout=DESCRIBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailableError(f"the server part did not answer within {DESCRIBE_SECONDS} s") from error
    if done.returncode != 0:
        # The server part prints its error last, after warnings of libraries.
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServiceUnavailableError(f"the server part cannot be asked: {last.removeprefix('error: ')}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_again(session: Session, root: Path, content: Path, commands: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run commands in a checkout, in the sandbox of this host; return how each ended.

    Raises:
        ServiceUnavailableError: the server part is not installed here, or cannot run them.
    """
    wanted = json.dumps({"root": str(root), "content": str(content), "commands": commands})
    return _asked(session, "rerun", wanted, "the commands were not run")


def recalled(session: Session, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the memory finds, with the embedder of the settings.

    Raises:
        ServiceUnavailableError: the server part is not installed here, or cannot be asked.
    """
    return _asked(session, "recall", json.dumps(wanted), "the memory was not searched")


def _asked(session: Session, command: str, given: str, failed: str) -> list[dict[str, Any]]:
    """Run a command of the server part that reads and prints JSON; `failed` says what did not happen."""
    whole = own_python().command(*_module("worker"), *_options(session), command)
    done = subprocess.run(whole, env=environment_of(session), input=given, capture_output=True, text=True, check=False)
    try:
        results: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServiceUnavailableError(f"{failed}: {last.removeprefix('error: ')}") from None
    return results


def _module(name: str) -> tuple[str, ...]:
    arguments = module_arguments(name)
    if arguments is None:
        raise ServiceUnavailableError(
            "the server part is not installed here, only the client. "
            "Build and install tightloop-server: docs/operate/install.md"
        )
    return arguments


def _options(session: Session) -> list[str]:
    return [] if session.settings_file is None else ["--settings", str(session.settings_file)]


def environment_of(session: Session) -> dict[str, str]:
    """Return the variables of a process of the server part: those of this one, and what was given as options."""
    options = given(ADDRESS=session.address, NAMESPACE=session.namespace)
    return {**own_environment(), **{f"TIGHTLOOP_TEMPORAL__{name}": value for name, value in options.items()}}
