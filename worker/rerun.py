"""Runs the commands of a proof again, in a fresh checkout that lies in the sandbox where the working tree would."""

import json
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from activities.checks.port import CheckView
from activities.checks.runner import ProcessCheckRunner
from activities.sandbox.choose import choose_sandbox
from tightloop.episode.check import Check, CheckStatus, judge
from tightloop.episode.proof.files import ENVIRONMENTS
from tightloop.errors import InvalidRequestError
from tightloop.settings import Settings
from tightloop.value import Document, Value, clip, first_problem
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 600
MOST_COMMANDS = 100


class Rerun(Document):
    """What is run again."""

    root: Path
    """Working tree whose installed programs are used, read-only; the checkout lies at its path."""
    content: Path
    """The checkout."""
    commands: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_COMMANDS)]


class Reran(Value):
    """How one command ended."""

    run: str
    status: CheckStatus
    sandbox: str = ""
    tail: str = ""


def print_rerun(settings: Settings) -> bool:
    """Read a `Rerun` as JSON from standard input, and print the results as JSON. Return whether all passed.

    Raises:
        InvalidRequestError: the input is something else.
        SandboxUnavailableError: no sandbox works on this host.
    """
    try:
        wanted = Rerun.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidRequestError(f"rerun: {first_problem(error)}") from None
    results = rerun(wanted, settings)
    print(json.dumps([result.model_dump(mode="json") for result in results]))
    return all(result.status is CheckStatus.PASSED for result in results)


def rerun(wanted: Rerun, settings: Settings) -> list[Reran]:
    """Run every command, and return how each ended."""
    present = [name for name in sorted(ENVIRONMENTS) if (wanted.root / name).is_dir()]
    for name in present:
        (wanted.content / name).mkdir(exist_ok=True)
    view = CheckView(content=wanted.content, mounts=tuple((wanted.root / name, wanted.root / name) for name in present))
    runner = ProcessCheckRunner(choose_sandbox(settings.sandbox), settings.sandbox)
    results = []
    for command in wanted.commands:
        check = Check(run=command)
        done = runner.run(check, wanted.root, cancelled=lambda: False, started=lambda _pid: None, view=view)
        judged = judge(
            check,
            tree="",
            exit_code=done.exit_code,
            timed_out=done.timed_out,
            duration_s=done.duration_s,
            output=done.output.decode("utf-8", "replace"),
        )
        tail = clip(scrub(judged.tail), TAIL_CHARACTERS)
        results.append(Reran(run=command, status=judged.status, sandbox=done.sandbox, tail=tail))
    return results
