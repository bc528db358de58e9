"""Follows a page literally: one shell, a home of its own, what is shown compared with what is printed."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.support.pages.blocks import Block, Command, commands_of
from tests.support.stack.stack import FOREIGN, ROOT
from worker.server import free_port

COMMAND_S = 400
READY_S = 180
_SERVING = ("make up", "tightloop up", "tightloop worker run")
"""Commands that run until Ctrl-C: the page goes on in another terminal once they say that they are up."""
_UP = re.compile(r"is up\b|polls? ")
_VARYING = re.compile(
    r"(?P<id>\b(?:episode|plan)-[0-9a-z]{6,}\b)|(?P<token>token=[\w.-]+)|(?P<hex>\b(?=\w*\d)[0-9a-f]{7,64}\b)"
    r"|(?P<number>\d[\d.:-]*)|(?P<dots>\.\.\.)"
)
_PATTERNS = {
    "id": r"(?:episode|plan)-\w+",
    "token": r"token=\S+",
    "hex": r"[0-9a-f]+",
    "number": r"\d[\d.:-]*",
    "dots": r".*",
}


class PageError(AssertionError):
    """What a reader of the page would have run into."""


class Reader:
    """A newcomer with an empty home, at the top of the checkout, who types what a page says."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._folder, self._kept = folder, folder.with_name(f"{folder.name}-kept")
        self._serving: dict[str, subprocess.Popen[str]] = {}
        self._kept_serving: tuple[str, ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> "Reader":
        self.home.mkdir(parents=True)
        (self._folder / "directory").write_text(str(ROOT))
        (self._folder / "environment").write_text("")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()

    def keep(self) -> None:
        """Stop what serves, and note how everything is now."""
        self._kept_serving = tuple(self._serving)
        self._stop()
        subprocess.run(["cp", "-a", str(self._folder), str(self._kept)], check=True)

    def go_back(self) -> None:
        """Put everything back as it was kept, and let serve again what served then."""
        self._stop()
        shutil.rmtree(self._folder)
        subprocess.run(["cp", "-a", str(self._kept), str(self._folder)], check=True)
        for script in self._kept_serving:
            self._serve(script)

    def _stop(self) -> None:
        for process in self._serving.values():
            os.killpg(process.pid, signal.SIGINT)
        for process in self._serving.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
        self._serving.clear()
        self._stack.close()

    def follow(self, block: Block) -> None:
        """Do what the block says.

        Raises:
            PageError: a command failed, or printed something else than the page shows.
        """
        if block.file:
            target = Path(block.file.replace("~", str(self.home), 1))
            target = target if target.is_absolute() else self.directory / target
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            self._type(block, Command(block.line, block.text, ()))
        elif block.language == "console":
            for command in commands_of(block):
                self._type(block, command)

    @property
    def directory(self) -> Path:
        """Where the shell is."""
        return Path((self._folder / "directory").read_text().strip())

    def _type(self, block: Block, command: Command) -> None:
        place = f"{block.page}:{command.line}"
        if command.text.startswith(_SERVING):
            begin = f"source {self._folder}/environment; cd {self.directory}"
            printed, status = self._serve(f"{begin} && {command.text}"), 0
        else:
            printed, status = self._shell(command.text)
        expected = re.search(r"# exit code (\d+)", command.text)
        if status != (int(expected[1]) if expected else 0):
            raise PageError(f"{place}: `{command.text}` ended with {status}:\n{printed}")
        missing = first_missing(command.shown, printed.replace(str(self.home), "~"))
        if missing is not None:
            raise PageError(f"{place}: `{command.text}` did not print {missing!r}, but:\n{printed}")

    def _script(self, text: str) -> list[str]:
        keep = f"status=$?; pwd > {self._folder}/directory; declare -px > {self._folder}/environment; exit $status"
        begin = f"source {self._folder}/environment; cd {self.directory}"
        return ["bash", "-c", f"{begin} || exit 1\n{text}\n{keep}"]

    def _environment(self) -> dict[str, str]:
        if not hasattr(self, "_ports"):
            self._ports = free_port(), free_port(), free_port()
        return {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith((*FOREIGN, "VIRTUAL_ENV", "PYTEST", "XDG_"))
            },
            "HOME": str(self.home),
            "COLUMNS": "160",
            "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{self._ports[0]}",
            "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{self._ports[1]}",
            "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{self._ports[2]}",
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def _shell(self, text: str) -> tuple[str, int]:
        with (self._folder / "printed").open("w+") as printed:
            process = self._start(self._script(text), printed)
            try:
                process.wait(COMMAND_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said = (self._folder / "printed").read_text(errors="replace")
                raise PageError(f"`{text}` did not end within {COMMAND_S} s:\n{said}") from None
            return (self._folder / "printed").read_text(errors="replace"), process.returncode

    def _start(self, command: list[str], output: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _serve(self, script: str) -> str:
        log: IO[str] = self._stack.enter_context((self._folder / f"serving-{len(self._serving)}.log").open("w+"))
        process = self._serving[script] = self._start(["bash", "-c", script], log)
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            printed = Path(log.name).read_text()
            if _UP.search(printed):
                return printed
            if process.poll() is not None:
                raise PageError(f"`{script}` ended with {process.returncode}:\n{printed}")
            time.sleep(0.1)
        raise PageError(f"`{script}` was not up after {READY_S} s:\n{Path(log.name).read_text()}")


def first_missing(shown: tuple[str, ...], printed: str) -> str | None:
    """Return the first line of a page that was not printed after the one before it; ids, times and numbers vary."""
    rest = printed.splitlines()
    for line in shown:
        if line.strip() in ("", "..."):
            continue
        pattern = re.compile(_pattern(line.strip()))
        place = next((number for number, each in enumerate(rest) if pattern.fullmatch(each.strip())), None)
        if place is None:
            return line
        rest = rest[place + 1 :]
    return None


def _pattern(line: str) -> str:
    parts, end = [], 0
    for found in _VARYING.finditer(line):
        parts += [re.escape(line[end : found.start()]), _PATTERNS[found.lastgroup or ""]]
        end = found.end()
    # Columns are as wide as what varies in them.
    return re.sub(r"(?:\\ ){2,}", r"\\s+", "".join([*parts, re.escape(line[end:])]))
