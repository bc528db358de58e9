"""Hosts on this machine: each in a network namespace with a cable of its own, which can be pulled."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

KILL_SECONDS = 30.0


def namespaces_problem() -> str:
    """Return why this machine cannot have such hosts; empty: it can."""
    missing = [program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    name = f"tl{os.getpid()}try"
    tried = subprocess.run(("ip", "netns", "add", name), capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made here: {tried.stderr.strip()[:200]}"
    _ip("netns", "delete", name)
    return ""


class Network:
    """A bridge, and the hosts on it; all of it goes at the end. (RFC 2544 keeps these addresses for tests.)"""

    def __init__(self) -> None:
        """Choose names and addresses that no other test process has."""
        self._bridge, self._subnet = f"tl{os.getpid()}", f"198.18.{os.getpid() % 256}"
        self._hosts: list[str] = []

    @property
    def address(self) -> str:
        """Where the hosts reach this machine."""
        return f"{self._subnet}.1"

    def __enter__(self) -> Self:
        """Make the bridge."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all hosts, and take everything down."""
        for name in self._hosts:
            self.kill(name)
            _ip("netns", "delete", self._namespace(name))
        _ip("link", "delete", self._bridge)

    def join(self, name: str) -> tuple[str, ...]:
        """Add a host; returns the start of the command that runs a program there."""
        self._hosts.append(name)
        space, cable = self._namespace(name), self._cable(name)
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", f"{self._subnet}.{len(self._hosts) + 1}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        named = f'hostname {name}; exec "$@"'
        return ("nsenter", f"--net=/run/netns/{space}", "unshare", "--uts", "sh", "-c", named, "sh")

    def cut(self, name: str) -> None:
        """Pull the cable of a host: nothing is refused, everything is silent."""
        _ip("link", "set", self._cable(name), "down")

    def reconnect(self, name: str) -> None:
        """Put the cable back."""
        _ip("link", "set", self._cable(name), "up")

    def processes(self, name: str) -> tuple[int, ...]:
        """Return what runs on a host."""
        return tuple(map(int, _ip("netns", "pids", self._namespace(name)).split()))

    def kill(self, name: str) -> None:
        """kill -9 of everything on a host, as when it loses its power."""
        until = time.monotonic() + KILL_SECONDS
        while alive := [pid for pid in self.processes(name) if not _is_dead(pid)]:
            assert time.monotonic() < until, f"{name} has processes that cannot be killed: {alive}"
            for pid in alive:
                _kill(pid)
            time.sleep(0.05)

    def _namespace(self, name: str) -> str:
        return f"{self._bridge}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._bridge}v{self._hosts.index(name)}"


@asynccontextmanager
async def relay(address: str, port: int) -> AsyncIterator[None]:
    """Let others reach a server of this machine that listens on 127.0.0.1 only."""
    waiting: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        for work in (copy(reader, back), copy(there, writer)):
            task = asyncio.create_task(work)
            waiting.add(task)
            task.add_done_callback(waiting.discard)

    server = await asyncio.start_server(connect, address, port)
    try:
        yield
    finally:
        server.close()
        for task in tuple(waiting):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _ip(*arguments: str) -> str:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True)
    assert not done.returncode, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
