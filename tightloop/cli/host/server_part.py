"""Access to the server, which is a separate distribution: either replace this process with it or query it."""

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from tightloop.cli.session import Session
from tightloop.cli.start import drop_none
from tightloop.episode.check import Check
from tightloop.errors import ServiceUnavailableError
from tightloop.host import module_arguments
from tightloop.host.programs import own_environment, own_python

DESCRIBE_SECONDS = 60


class Role(StrEnum):
    """The role of a worker, as defined in the server part."""

    ALL = "all"
    WORKFLOWS = "workflows"
    WORKSPACE = "workspace"
    LLM = "llm"
    GUI = "gui"


def become_worker(session: Session, *arguments: str, state_folder: Path | None = None) -> NoReturn:
    """Replace this process with a worker, so that signals and exit codes are those of the worker."""
    options = [] if state_folder is None else ["--state-folder", str(state_folder)]
    become_server_part(session, "worker", *options, *arguments)


def become_server_part(session: Session, module: str, *arguments: str) -> NoReturn:
    """Replace this process with one that runs a module of the server part.

    Raises:
        ServiceUnavailableError: the server part is not installed.
    """
    command = own_python().command(*_module(module), *_options(session), *arguments)
    # exec discards Python's buffered output.
    sys.stdout.flush()
    os.execve(own_python().path, command, environment_of(session))  # noqa: S606


def describe_host(session: Session) -> dict[str, Any]:
    """Return the executors and sandboxes that are available on this host.

    Raises:
        ServiceUnavailableError: the server part is not installed, or does not respond.
    """
    # Asked in a process of its own, because finding executors and sandboxes needs packages that a client lacks.
    command = own_python().command(*_module("worker"), *_options(session), "describe")
    try:
        result = subprocess.run(
            command, env=environment_of(session), capture_output=True, text=True, timeout=DESCRIBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailableError(f"tightloop-server did not respond within {DESCRIBE_SECONDS} s") from error
    if result.returncode != 0:
        # The server part prints its error last, after warnings of libraries.
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServiceUnavailableError(
            f"cannot list the executors and sandboxes on this host: {last.removeprefix('error: ')}"
        )
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def run_again(
    session: Session, root: Path, content: Path, checks: tuple[Check, ...], *, isolated: bool = False
) -> list[dict[str, Any]]:
    """Run checks on a checkout in this host's sandbox and return their results.

    Isolated checks have no network access.

    Raises:
        ServiceUnavailableError: the server part is not installed, or cannot run them.
    """
    commands = [check.model_dump(mode="json") for check in checks]
    request = {"root": str(root), "content": str(content), "commands": commands, "isolated": isolated}
    return _call_server_part(session, "rerun", json.dumps(request), "the commands were not run")


def reproduce_proof(session: Session, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Reproduce a proof in this host's sandbox.

    Return the new statement, and the end of the output of each failed command.

    Raises:
        ServiceUnavailableError: the server part is not installed, or cannot run the checks.
    """
    statement, tails = _call_server_part(session, "reproduce", json.dumps(request), "the proof was not reproduced")
    return statement, tails


def search_memory(session: Session, query: dict[str, Any]) -> list[dict[str, Any]]:
    """Search the memory with the configured embedder.

    Raises:
        ServiceUnavailableError: the server package is not installed, or fails.
    """
    return _call_server_part(session, "recall", json.dumps(query), "the memory was not searched")


def take_result(session: Session, request: dict[str, Any]) -> str:
    """Commit a run's result on a branch, write its files, or attach its proof.

    Return a sentence that describes the outcome.

    Raises:
        ServiceUnavailableError: the server component is not installed, or the result cannot be retrieved.
    """
    answer = _call_server_part(session, "take", json.dumps(request), "the result was not written")
    return str(answer[0]["result"])


def _call_server_part(session: Session, command: str, request: str, failed: str) -> list[dict[str, Any]]:
    """Run a command of the server part with JSON input and output.

    `failed` is the beginning of the error message.
    """
    whole = own_python().command(*_module("worker"), *_options(session), command)
    process = subprocess.run(
        whole, env=environment_of(session), input=request, capture_output=True, text=True, check=False
    )
    try:
        results: list[dict[str, Any]] = json.loads(process.stdout)
    # A command that fails prints no JSON.
    except json.JSONDecodeError:
        last = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServiceUnavailableError(f"{failed}: {last.removeprefix('error: ')}") from None
    return results


def _module(name: str) -> tuple[str, ...]:
    arguments = module_arguments(name)
    if arguments is None:
        raise ServiceUnavailableError(
            "only the client is installed on this host. Build and install tightloop-server (see "
            "docs/operate/install.md)"
        )
    return arguments


def _options(session: Session) -> list[str]:
    return [] if session.settings_file is None else ["--settings", str(session.settings_file)]


def environment_of(session: Session) -> dict[str, str]:
    """Return the environment for the server part.

    This is the environment of this process plus the global options.
    """
    # As variables, so that processes that the server part starts use the same server.
    options = drop_none(ADDRESS=session.address, NAMESPACE=session.namespace)
    return {**own_environment(), **{f"TIGHTLOOP_TEMPORAL__{name}": value for name, value in options.items()}}
