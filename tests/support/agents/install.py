"""The agents that tests drive: which versions, where they are, and how they get here.

python -m tests.support.agents.install install [--folder .agents]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

AGENT_PACKAGES: Mapping[str, str] = {
    "@openai/codex": "0.169.0",
    "opencode-ai": "1.18.33",
    "@google/gemini-cli": "0.61.0",
    "@agentclientprotocol/claude-agent-acp": "0.49.0",
    "@github/copilot": "1.0.102",
    "@copilotkit/aimock": "1.43.0",
}
"""Exact versions: npm takes an older one without a word where the newest does not fit the installed node."""

PROGRAMS = ("codex", "opencode", "gemini", "claude-agent-acp", "copilot", "llmock")
SPEAKS_ONLY_ACP = frozenset({"claude-agent-acp"})
"""Programs that know no `--version`: they are asked to begin a conversation."""

FOLDER_VARIABLE = "TIGHTLOOP_TEST_AGENTS"
AGENT_FOLDER = os.environ.get(FOLDER_VARIABLE, "")
"""Read at import: a fixture takes all variables of ours away from the tests."""
REPOSITORY = Path(__file__).resolve().parents[3]
NATIVE_CODEX = "@openai/codex*/vendor/*/**/codex"
INSTALL_TIMEOUT_S = 600.0
CHECK_TIMEOUT_S = 60.0


class InstallError(Exception):
    """The agents could not be installed; the message says why in one line."""


def agent_program(name: str) -> Path:
    """Return the program of an agent, codex without its node wrapper; skip the test where it is not installed."""
    found = find_program(name)
    if found is None:
        pytest.skip(f"{name} is not installed: python -m tests.support.agents.install install")
    return found


def find_program(name: str) -> Path | None:
    """Look in the folder that the variable names, in the checkout's `.agents`, then on PATH."""
    named = [Path(AGENT_FOLDER)] if AGENT_FOLDER else []
    for folder in [*named, REPOSITORY / ".agents"]:
        program = folder / "node_modules" / ".bin" / name
        if program.exists():
            return _native(name, folder / "node_modules") or program
    on_path = shutil.which(name)
    if on_path is None:
        return None
    return _native(name, _modules_of(Path(on_path))) or Path(on_path)


def _modules_of(program: Path) -> Path:
    """Return the `node_modules` that a program on PATH lives in, or its own folder."""
    return next((up for up in program.resolve().parents if up.name == "node_modules"), program.parent)


def _native(name: str, modules: Path) -> Path | None:
    """Return codex itself: a killed node wrapper would leave it running."""
    if name != "codex":
        return None
    found = (path for path in _natives(modules) if path.is_file() and os.access(path, os.X_OK))
    return next(found, None)


def _natives(modules: Path) -> Iterator[Path]:
    yield from sorted(modules.glob(NATIVE_CODEX))
    yield from sorted(modules.glob(f"@openai/codex/node_modules/{NATIVE_CODEX}"))


def install(folder: Path, seconds: float = INSTALL_TIMEOUT_S) -> str:
    """Install exactly `AGENT_PACKAGES` where they are not there yet, and see that each program runs.

    Returns:
        One line that says what was done.

    Raises:
        InstallError: they are not usable, with the reason.
    """
    until = time.monotonic() + seconds
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        raise InstallError("agents not installed: node or npm is missing on PATH")
    wrong = _wrong_versions(folder)
    if wrong:
        _npm_install(npm, folder, until)
        wrong = _wrong_versions(folder)
    if wrong:
        raise InstallError(f"agents not usable: npm put other versions there than asked for: {', '.join(wrong)}")
    for name in PROGRAMS:
        _check_runs(name, folder, until)
    return f"agents: {len(AGENT_PACKAGES)} packages in {folder}, every program runs"


def _wrong_versions(folder: Path) -> list[str]:
    """Return the packages that are missing or have another version."""
    wrong = []
    for package, version in AGENT_PACKAGES.items():
        manifest = folder / "node_modules" / package / "package.json"
        found = json.loads(manifest.read_text()).get("version") if manifest.is_file() else "missing"
        if found != version:
            wrong.append(f"{package} {found}")
    return wrong


def _npm_install(npm: str, folder: Path, until: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"private": True, "dependencies": dict(AGENT_PACKAGES)}
    (folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
    argv = (npm, "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error", "--fetch-retries=1")
    done = _run(argv, folder, until)
    if done.returncode:
        lines = [
            line for line in done.stderr.splitlines() if line.startswith("npm error") and "A complete log" not in line
        ]
        raise InstallError(f"agents not installed: npm ended with {done.returncode}: {' '.join(lines)[:300]}")


def _check_runs(name: str, folder: Path, until: float) -> None:
    """Start a program: optional native packages are left out without a word where they do not fit."""
    program = folder / "node_modules" / ".bin" / name
    if not program.exists():
        raise InstallError(f"agents not usable: the program {name} is missing")
    option = "--help" if name == "llmock" else "--version"
    argv = (str(program),) if name in SPEAKS_ONLY_ACP else (str(program), option)
    done = _run(argv, folder, min(until, time.monotonic() + CHECK_TIMEOUT_S))
    if done.returncode:
        raise InstallError(f"agents not usable: {name} {option} ended with {done.returncode}: {done.stderr[-200:]!r}")


def _run(argv: tuple[str, ...], folder: Path, until: float) -> subprocess.CompletedProcess[str]:
    seconds = max(until - time.monotonic(), 1.0)
    try:
        return subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"agents not usable: {argv[0]} took longer than {seconds:.0f} s") from error


def main() -> int:
    """Run the command line; one line says what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.agents.install", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("install", help="install the pinned agents where they are absent")
    command.add_argument("--folder", type=Path, default=REPOSITORY / ".agents")
    try:
        print(install(parser.parse_args().folder.resolve()))
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
