"""Requests for child processes, written as command lines."""

from collections.abc import Sequence
from typing import Any

from activities.process import ProcessRequest, ProjectProgram


def request_for(argv: Sequence[str], **fields: Any) -> ProcessRequest:
    """Return the request for a command of a project; the empty command names nothing."""
    program, *arguments = argv or ("",)
    return ProcessRequest(program=ProjectProgram(program), arguments=tuple(arguments), **fields)
