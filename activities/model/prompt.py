"""Prompt files: Jinja templates next to their capability, bounded and versioned by hash."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

SMALLEST_CONTEXT = 8_000
SHARED_OUT = 0.85
"""Part of the whole that the shares of a template divide; the rest is the template's own text."""


class Prompts:
    """The prompt files of one folder.

    Templates bound what they insert with the filters `start`, `end` and `items`, each with a share in percent
    of the whole, so that no prompt grows with the length of an episode.
    """

    def __init__(self, folder: Path, *, context_characters: int) -> None:
        """Take the folder and the bound of a prompt in characters, at least `SMALLEST_CONTEXT`."""
        self._characters = max(context_characters, SMALLEST_CONTEXT) * SHARED_OUT
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            # A misspelt name in a template must fail in a test, not vanish from a prompt.
            undefined=jinja2.StrictUndefined,
            # Prompts are Markdown, not HTML.
            autoescape=False,  # noqa: S701
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(start=self._start, end=self._end, items=self._items)
        digest = hashlib.sha256()
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        self.sha256 = digest.hexdigest()
        """Version of the files."""

    def render(self, name: str, **values: object) -> str:
        """Return a prompt; a value that the template uses and that is not given is an error."""
        return self._environment.get_template(name).render(**values).strip() + "\n"

    def _share(self, percent: float) -> int:
        return int(self._characters * percent / 100)

    def _start(self, text: str, percent: float) -> str:
        limit = self._share(percent)
        return text if len(text) <= limit else text[: max(limit - 6, 0)] + " [...]"

    def _end(self, text: str, percent: float) -> str:
        limit = self._share(percent)
        return text if len(text) <= limit else "[...] " + text[len(text) - max(limit - 6, 0) :]

    def _items(self, items: Sequence[str], percent: float) -> str:
        """Return a list in Markdown: the newest items that fit, and how many were left out."""
        limit = self._share(percent)
        lines: list[str] = []
        used = 0
        for item in reversed(items):
            line = "- " + self._start(item, percent / 2).replace("\n", "\n  ")
            used += len(line) + 1
            if used > limit:
                lines.append(f"- [{len(items) - len(lines)} left out]")
                break
            lines.append(line)
        return "\n".join(reversed(lines))
