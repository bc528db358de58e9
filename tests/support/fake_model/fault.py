"""What goes wrong at the service: a status with the body of the real one, or a connection that misbehaves."""

from dataclasses import dataclass, replace
from enum import StrEnum


class Trouble(StrEnum):
    """Kinds of faults."""

    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    CONTEXT_FULL = "context_full"
    UNKNOWN_MODEL = "unknown_model"
    RATE_LIMITED = "rate_limited"
    USAGE_LIMIT = "usage_limit"
    QUOTA = "quota"
    SERVER_ERROR = "server_error"
    OVERLOADED = "overloaded"
    CUT_STREAM = "cut_stream"
    STALLED_STREAM = "stalled_stream"
    SSE_FAILURE = "sse_failure"
    HANG = "hang"
    BAD_JSON = "bad_json"
    ENDLESS_TOOLS = "endless_tools"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault; each constructor takes `times`: how many calls it hits, None for all of them."""

    trouble: Trouble
    times: int | None = None
    retry_after_s: float = 0.0
    """What the service asks to wait for."""
    status: int = 0
    """Only where the services differ."""
    command: str = ""
    parameter: str = "tools"
    """Which one the service does not take."""

    def hits(self, call: int) -> bool:
        """Return whether it hits the call with this number (from 0)."""
        return self.times is None or call < self.times

    def later(self, calls: int) -> "Fault":
        """Return the same fault for the first calls after `calls` others."""
        return self if self.times is None else replace(self, times=self.times + calls)

    @classmethod
    def unauthorized(cls, *, times: int | None = None) -> "Fault":
        """401: the key is not good."""
        return cls(trouble=Trouble.UNAUTHORIZED, times=times)

    @classmethod
    def bad_request(cls, *, parameter: str = "tools", times: int | None = None) -> "Fault":
        """400: the service does not understand the request; OpenAI's formats name the parameter."""
        return cls(trouble=Trouble.BAD_REQUEST, times=times, parameter=parameter)

    @classmethod
    def context_full(cls, *, times: int | None = None) -> "Fault":
        """400: the conversation is too long for the model."""
        return cls(trouble=Trouble.CONTEXT_FULL, times=times)

    @classmethod
    def unknown_model(cls, *, times: int | None = None) -> "Fault":
        """404: there is no model of that name."""
        return cls(trouble=Trouble.UNKNOWN_MODEL, times=times)

    @classmethod
    def rate_limited(cls, *, retry_after_s: float = 1, times: int | None = None) -> "Fault":
        """429, with the time to wait in headers (Gemini: in the body)."""
        return cls(trouble=Trouble.RATE_LIMITED, retry_after_s=retry_after_s, times=times)

    @classmethod
    def usage_limit(cls, *, resets_in_s: float = 3600, times: int | None = None) -> "Fault":
        """429: the window of a subscription is used up. Gemini has none: its quota of a day."""
        return cls(trouble=Trouble.USAGE_LIMIT, retry_after_s=resets_in_s, times=times)

    @classmethod
    def quota(cls, *, times: int | None = None) -> "Fault":
        """429 (Messages: 400): there is no money left."""
        return cls(trouble=Trouble.QUOTA, times=times)

    @classmethod
    def server_error(cls, *, times: int | None = None) -> "Fault":
        """500."""
        return cls(trouble=Trouble.SERVER_ERROR, times=times)

    @classmethod
    def overloaded(cls, *, status: int = 529, times: int | None = None) -> "Fault":
        """529 as Anthropic has it; OpenAI and Gemini answer 503 then: give `status=503`."""
        return cls(trouble=Trouble.OVERLOADED, status=status, times=times)

    @classmethod
    def cut_stream(cls, *, times: int | None = None) -> "Fault":
        """The connection ends in the middle of the answer."""
        return cls(trouble=Trouble.CUT_STREAM, times=times)

    @classmethod
    def stalled_stream(cls, *, times: int | None = None) -> "Fault":
        """The first half of the answer comes, then nothing until the fake is closed."""
        return cls(trouble=Trouble.STALLED_STREAM, times=times)

    @classmethod
    def sse_failure(cls, *, times: int | None = None) -> "Fault":
        """The stream begins well, then holds an error event; 500 where no stream was asked for."""
        return cls(trouble=Trouble.SSE_FAILURE, times=times)

    @classmethod
    def hang(cls, *, times: int | None = None) -> "Fault":
        """No first byte until the fake is closed."""
        return cls(trouble=Trouble.HANG, times=times)

    @classmethod
    def bad_json(cls, *, times: int | None = None) -> "Fault":
        """200 with what is not JSON."""
        return cls(trouble=Trouble.BAD_JSON, times=times)

    @classmethod
    def endless_tools(cls, command: str, *, times: int | None = None) -> "Fault":
        """The model calls the shell again and again."""
        return cls(trouble=Trouble.ENDLESS_TOOLS, command=command, times=times)
