"""What is asked, and what is answered."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str


@dataclass(frozen=True)
class Response:
    """One answer."""

    status: int
    body: str = ""
