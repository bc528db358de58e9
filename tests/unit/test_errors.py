"""Answers of HTTP to errors follow from their classes."""

import json
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gateway.http.app import handle_problems
from tightloop import errors
from tightloop.database.access import KeyInUseError
from tightloop.errors import TightloopError, WrongStateError


def all_errors(base: type[TightloopError] = TightloopError) -> Iterator[type[TightloopError]]:
    yield base
    for each in base.__subclasses__():
        yield from all_errors(each)


def answer_to(error: Exception) -> tuple[int, dict[str, object], str | None]:
    app = FastAPI()
    handle_problems(app)

    @app.get("/")
    def fail() -> None:
        raise error

    response = TestClient(app, raise_server_exceptions=False).get("/")
    return response.status_code, json.loads(response.text), response.headers.get("retry-after")


def test_every_error_has_a_status_and_a_name() -> None:
    for error in all_errors():
        assert HTTPStatus(error.status) >= HTTPStatus.BAD_REQUEST, error
        assert error.code == error.code.lower().replace("_", "-"), error


@pytest.mark.parametrize(
    ("error", "status", "name", "retry"),
    [
        (errors.InvalidRequestError("x"), 422, "invalid-request", None),
        (errors.IdTakenError("x"), 409, "id-taken", None),
        (KeyInUseError("x"), 409, "key-in-use", None),
        (errors.WorkspaceBusyError("x"), 409, "workspace", None),
        (errors.WorkspaceLockedError("x"), 409, "workspace", "5"),
        (errors.ArtifactMissingError("x"), 404, "not-here", None),
        (errors.StorageFullError("x"), 507, "storage-full", None),
        (errors.SettingsError("x"), 503, "misconfigured", None),
        (errors.ServiceUnavailableError("x"), 503, "unavailable", "5"),
        (errors.ArtifactCorruptError("x"), 500, "failed", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_has_the_status_name_and_retry_advice_of_its_error(
    error: TightloopError, status: int, name: str, retry: str | None
) -> None:
    found = answer_to(error)
    assert (found[0], found[1]["type"], found[2]) == (status, f"urn:tightloop:problem:{name}", retry)


def test_a_wrong_state_says_what_is_possible() -> None:
    _, problem, _ = answer_to(WrongStateError("nightly is succeeded", "succeeded", ("restore", "fork")))
    assert (problem["status"], problem["state"], problem["possible"]) == (409, "succeeded", ["restore", "fork"])
