"""Logs: whatever is written through them is scrubbed, and content stays out where histories are encrypted."""

import logging
import subprocess
import sys
from pathlib import Path

from tightloop.errors import PlannerError
from tightloop.host.log import Privacy, ScrubbingFormatter
from tightloop.value.scrub import Scrubber

ROOT = Path(__file__).parents[2]
EMAIL = "jane@mail.example.org"
CODE = "return balance * margin"


def record_of(error: BaseException) -> logging.LogRecord:
    try:
        raise error
    except type(error):
        return logging.LogRecord("temporalio.worker", 40, "f", 1, "failed for %s", (EMAIL,), sys.exc_info())


def written(record: logging.LogRecord, *, content: bool) -> str:
    return ScrubbingFormatter(Privacy(Scrubber(["hunter-two-two"]), content=content)).format(record)


def test_messages_arguments_and_exceptions_are_scrubbed() -> None:
    text = written(record_of(ValueError(f"{EMAIL} hunter-two-two {CODE}")), content=True)
    assert "failed for [pii:email]" in text
    assert f"ValueError: [pii:email] [secret:known] {CODE}" in text
    assert EMAIL not in text


def test_without_content_an_exception_is_its_class_its_places_and_a_fingerprint() -> None:
    error = ValueError(CODE)
    error.__cause__ = KeyError(CODE)
    record = record_of(error)
    text = written(record, content=False)
    assert CODE not in text
    assert "test_log.py" in text
    assert "in record_of" in text
    assert "ValueError (23 characters, sha256 " in text
    assert "KeyError (" in text
    assert CODE in written(record, content=True), "no formatter leaves its text in the record"


def test_an_error_of_ours_is_told_as_its_sentence_or_as_its_class() -> None:
    error = PlannerError(f"the model said {CODE}")
    assert Privacy(Scrubber()).describe(error) == f"PlannerError: the model said {CODE}"
    assert CODE not in Privacy(Scrubber(), content=False).describe(error)


def test_uncaught_exceptions_of_threads_and_of_the_process_are_scrubbed_with_the_secrets_of_the_environment() -> None:
    code = (
        "import logging, threading; from tightloop.host.log import set_up; set_up(logging.INFO, content=True)\n"
        "def fail(): raise ValueError('in a thread: hunter two two')\n"
        "t = threading.Thread(target=fail); t.start(); t.join()\n"
        "logging.getLogger('some.library').warning('a library: %s', 'hunter two two')\n"
        "raise ValueError('at the end: hunter two two, jane@mail.example.org')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"BILLING_TOKEN": "hunter two two"}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "in a thread: [secret:known]" in done.stderr
    assert "a library: [secret:known]" in done.stderr
    assert "at the end: [secret:known], [pii:email]" in done.stderr
    assert "hunter" not in done.stderr
