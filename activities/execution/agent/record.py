"""What is kept of a run of an agent: its events as they came, without secrets, for the attempt after a crash."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

RECORD_BYTES = 20_000_000
RUNS_KEPT = timedelta(days=7)
RUNS_AT_MOST = 100
RUN_LASTS = timedelta(days=1)
"""Among more than `RUNS_AT_MOST` runs, the oldest are removed earlier: but none that may still be at work."""
"""What a person may want to see is in the artifact store; this is for the attempt after a crash."""
SHORTEST_SECRET = 6
"""Shorter ones are not replaced: they would be found in every other word."""

_CUT = re.compile(r"\n\[\.\.\. \d+ bytes cut \.\.\.\]\n")
_LOOKS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def run_folder(state_folder: Path, key: str) -> Path:
    """Return where a delivery keeps its files: `<state_folder>/runs/<16 hex digits of its key>`."""
    return state_folder / "runs" / hashlib.sha256(key.encode()).hexdigest()[:16]


def sweep_runs(state_folder: Path) -> int:
    """Remove what runs of more than `RUNS_KEPT` ago left, and the oldest of too many; return how many."""
    now = time.time()
    folder = state_folder / "runs"
    found: list[tuple[float, Path]] = []
    for run in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            if not run.is_symlink() and run.is_dir():
                found.append((now - run.stat().st_mtime, run))
    removed = 0
    for number, (age_s, run) in enumerate(sorted(found)):
        kept = RUNS_KEPT if number < RUNS_AT_MOST else RUN_LASTS
        if age_s > kept.total_seconds():
            with suppress(OSError):
                shutil.rmtree(run)
                removed += 1
    return removed


def looks_secret(variable: str) -> bool:
    """Return whether the name of a variable says that its value is a secret."""
    return _LOOKS_SECRET.search(variable) is not None


class Redaction:
    """Replaces secrets in text, as they are and as they stand in JSON."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Take the values; short ones are left out."""
        plain = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
        self._secrets = sorted(plain | quoted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with each secret replaced by `[secret]`."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def end_of(self, output: bytes, limit: int) -> str:
        """Return the last `limit` characters or so of output that may have lost its beginning in a secret."""
        whole = output.decode("utf-8", "replace")
        cut = _CUT.match(whole)
        text = self(whole[cut.end() :] if cut else whole)
        for secret in self._secrets:
            sizes = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            rest = next((size for size in sizes if text.startswith(secret[-size:])), 0)
            text = f"[secret]{text[rest:]}" if rest else text
        return text[-limit:]


class Record:
    """The event file of a run. Lines are appended at once, so that a crash of the worker loses none."""

    def __init__(self, path: Path) -> None:
        """Begin the file anew: what an earlier attempt left was read already."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._left = RECORD_BYTES
        self._full = False

    def add(self, line: str, *, needed: bool) -> None:
        """Append a line; one that is `needed` to tell how the run ended is kept even beyond the bound."""
        content = f"{line}\n".encode("utf-8", "replace")
        if len(content) > self._left and not needed:
            if not self._full:
                self._full = True
                self._write(b'{"type":"tightloop.record_full"}\n')
            return
        self._left -= len(content)
        self._write(content)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._descriptor, view) :]


@contextmanager
def prompt_file(folder: Path, prompt: str) -> Iterator[Path]:
    """Keep a prompt in a file, mode 0600, as long as an agent may read it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "prompt"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(prompt)
        yield path
    finally:
        path.unlink(missing_ok=True)
