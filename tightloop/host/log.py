"""Logging setup: records are scrubbed and limited in length, and private content is omitted.

This is the only module that configures logging, both for workers and for the command line. One formatter handles
messages, arguments, exception texts and the log records of libraries.
"""

import logging
import os
import re
import sys
import threading
import traceback
from types import TracebackType

from tightloop.errors import TightloopError
from tightloop.value import digest
from tightloop.value.scrub import Scrubber

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
RECORD_CHARACTERS = 20_000
READ_CHARACTERS = 1_000_000
"""Maximum length of a record before scrubbing. Scrubbing a record of this length takes 0.1 s."""
_SAYS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|DATABASE_URL|DSN", re.IGNORECASE)


def own_secrets() -> tuple[str, ...]:
    """Return the values of environment variables whose names suggest a secret."""
    return tuple(value for name, value in os.environ.items() if _SAYS_SECRET.search(name) and value)


class Privacy:
    """Decides whether error messages may be logged.

    Args:
        scrubber: removes secrets.
        content: True if error messages may be logged, although they may quote code.
    """

    def __init__(self, scrubber: Scrubber, *, content: bool = True) -> None:
        self.scrubber = scrubber
        self.content = content

    def describe(self, error: BaseException) -> str:
        """Format an error for logs.

        The result contains either the message, or the class and a digest for looking up the message.
        """
        text = error.message if isinstance(error, TightloopError) else str(error)
        if self.content:
            return f"{type(error).__name__}: {self.scrubber(text)}"
        return f"{type(error).__name__} ({digest(text)}; read it: tightloop timeline ID)"


class ScrubbingFormatter(logging.Formatter):
    """Formatter that removes secrets from log records and limits their length."""

    def __init__(self, privacy: Privacy) -> None:
        super().__init__(FORMAT)
        self._privacy = privacy

    def format(self, record: logging.LogRecord) -> str:
        # Another handler may have cached an unscrubbed exception text here.
        record.exc_text = None
        # Scrub before truncating: half of a secret would not be recognized.
        text = self._privacy.scrubber(super().format(record)[:READ_CHARACTERS])[:RECORD_CHARACTERS]
        # Other handlers would print the scrubbed text instead of their own.
        record.exc_text = None
        return text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Append the current trace ids, if any, to the first line of a record."""
        return super().formatMessage(record) + trace_ids()

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Format a traceback. The error message is included only if it may be logged."""
        error = ei[1]
        if error is None or self._privacy.content:
            return super().formatException(ei)
        return "\n".join(_places(error, self._privacy))


def trace_ids() -> str:
    """Return the trace and span ids to append to a log line, or "" if there is no trace."""
    # Not imported here: without telemetry, no part of OpenTelemetry is loaded.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return f" trace_id={context.trace_id:032x} span_id={context.span_id:016x}" if context.is_valid else ""


def _places(error: BaseException, privacy: Privacy) -> list[str]:
    lines: list[str] = []
    # `raise a from a` and handlers that raise each other create cycles.
    visited: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in visited:
        visited.add(id(at))
        # Omit the source lines of the usual traceback, which are content.
        frames = traceback.extract_tb(at.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        lines.append(privacy.describe(at))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return lines


_IN_FORCE = Privacy(Scrubber())


def describe_error(error: BaseException) -> str:
    """Format an error for logs according to this process's privacy policy."""
    return _IN_FORCE.describe(error)


def set_up(level: int, *, content: bool) -> None:
    """Send all log records of this process to stderr, after removing secrets.

    Uncaught exceptions are logged as well.

    Args:
        level: minimum level.
        content: False if histories are encrypted. Exception messages are then not logged.
    """
    global _IN_FORCE
    _IN_FORCE = Privacy(Scrubber(own_secrets()), content=content)
    handler = logging.StreamHandler()
    handler.setFormatter(ScrubbingFormatter(_IN_FORCE))
    # `force`, because handlers that libraries have installed would log unscrubbed records.
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("tightloop").critical("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        _log_uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
