"""Sets up logging: records are scrubbed and bounded, and without content where that is private.

The one place that sets up logging, for workers and for the command line. Everything goes through one formatter:
messages, their arguments, exception texts, and the records of libraries.
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
"""Of a record; scrubbing as much takes a tenth of a second."""
_SAYS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|DATABASE_URL|DSN", re.IGNORECASE)


def own_secrets() -> tuple[str, ...]:
    """Return the values of the variables of this process whose names say that they are secret."""
    return tuple(value for name, value in os.environ.items() if _SAYS_SECRET.search(name) and value)


class Privacy:
    """Decides how much of an error a log may show."""

    def __init__(self, scrubber: Scrubber, *, content: bool = True) -> None:
        """Take the scrubber, and whether messages of errors, which may quote code, may be written."""
        self.scrubber = scrubber
        self.content = content

    def told(self, error: BaseException) -> str:
        """Return an error for a log: its sentence, or its class and a fingerprint that finds it again."""
        text = error.message if isinstance(error, TightloopError) else str(error)
        if self.content:
            return f"{type(error).__name__}: {self.scrubber(text)}"
        return f"{type(error).__name__} ({digest(text)}; read it: tightloop timeline ID)"


class ScrubbingFormatter(logging.Formatter):
    """Formats a record, takes secrets and personal data out of all of it, and bounds it."""

    def __init__(self, privacy: Privacy) -> None:
        super().__init__(FORMAT)
        self._privacy = privacy

    def format(self, record: logging.LogRecord) -> str:
        # Another handler may have left its own, unscrubbed text of the exception here.
        record.exc_text = None
        # Scrubbed before it is cut: half of a secret would not be known for one.
        text = self._privacy.scrubber(super().format(record)[:READ_CHARACTERS])[:RECORD_CHARACTERS]
        record.exc_text = None
        return text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the first line of a record, with the ids of the trace in which it was written, if there is one."""
        return super().formatMessage(record) + trace_ids()

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Return where an exception was raised, and what it says if that may be written."""
        error = ei[1]
        if error is None or self._privacy.content:
            return super().formatException(ei)
        return "\n".join(_places(error, self._privacy))


def trace_ids() -> str:
    """Return the ids of the trace and the span in force, as a line of a log ends with them; empty: there is none."""
    # Not imported here: without telemetry no part of OpenTelemetry is loaded.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return f" trace_id={context.trace_id:032x} span_id={context.span_id:016x}" if context.is_valid else ""


def _places(error: BaseException, privacy: Privacy) -> list[str]:
    lines: list[str] = []
    # `raise a from a` and handlers that raise each other make circles.
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        # Without the lines of source, which the usual traceback quotes: they are content.
        frames = traceback.extract_tb(at.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        lines.append(privacy.told(at))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return lines


_IN_FORCE = Privacy(Scrubber())


def told(error: BaseException) -> str:
    """Return an error as the logs of this process may show it."""
    return _IN_FORCE.told(error)


def set_up(level: int, *, content: bool) -> None:
    """Send all logging of this process to stderr, scrubbed; uncaught exceptions too.

    Args:
        level: the least level of a record.
        content: False where histories are encrypted: messages of exceptions stay out of the logs.
    """
    global _IN_FORCE
    _IN_FORCE = Privacy(Scrubber(own_secrets()), content=content)
    handler = logging.StreamHandler()
    handler.setFormatter(ScrubbingFormatter(_IN_FORCE))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("tightloop").critical("this process ends with an uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        _log_uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
