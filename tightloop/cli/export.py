"""What the exports of episodes and plans share: everything is asked for at once, and written or refused."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tightloop.cli import render
from tightloop.errors import InvalidRequestError, ServiceUnavailableError

Ask = Callable[[str], Awaitable[Any]]


async def ask_all(key: str, *asks: Ask) -> tuple[list[Any], dict[str, None]]:
    """Return the answers as plain values, None for each that nobody gives, and why nobody does, each once."""
    problems: dict[str, None] = {}

    async def part(ask: Ask) -> Any:
        try:
            return render.as_plain_values(await ask(key))
        except ServiceUnavailableError as error:
            problems[f"not everything could be asked, the history is complete: {error.message}"] = None
            return None

    return list(await asyncio.gather(*map(part, asks))), problems


def json_text(document: Any) -> str:
    """Return a document as the text of a file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Write below `out`.

    Raises:
        InvalidRequestError: this host does not let us.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(f"{out} cannot be written: {error.strerror}. Choose another --out") from error
