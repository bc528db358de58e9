"""A sandbox's outbound proxy."""

import asyncio
import base64
import hmac
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from activities.process import ProcessRequest
from tightloop.host.identity import HEAD_SECONDS
from tightloop.plan.commands import PORTS, Host, HostRuling, host_of, judge_url
from tightloop.safety.scope import is_loopback, is_private

ADDRESSES = 4
"""Maximum number of addresses to try for a name."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the IP addresses of a host and port. Raises `OSError` if the host is unknown."""


class PrivateAddressError(ConnectionError):
    """Raised when a name resolves to this host or to a private network, which is not allowed."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} resolves to the private address {address}")
        self.address = address


async def system_addresses(name: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver finds for a name.

    Raises:
        OSError, UnicodeError: the name is unknown.
    """
    entries = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


async def judged_addresses(
    name: str, port: int, *, allow_private: bool, resolve: Resolve = system_addresses
) -> list[str]:
    """Check all addresses of a host, and return 1 to `ADDRESSES` of them.

    Connect to one of these addresses, never to the name. A second lookup could return another address
    (DNS rebinding).

    Args:
        name: the host's name or address.
        port: the service's port.
        allow_private: whether the allowlist contains the host with this port.
        resolve: resolver to use. Replaceable in tests.

    Raises:
        PrivateAddressError: an address belongs to this host or a private network; see `is_private`.
    """
    resolved = await resolve(name, port)
    addresses = list(dict.fromkeys(resolved))[:ADDRESSES]
    if not addresses:
        raise OSError(f"the host {name} has no address")
    # All are checked, not only the first: a name can have a public and a private address.
    inside = next((address for address in addresses if is_private(address)), None)
    if inside is not None and not allow_private:
        raise PrivateAddressError(name, inside)
    return addresses


ANY = "*"
"""Entry that stands for every public host on the usual ports."""
INSIDE = Path("/run/tightloop")
"""Path at which `EgressProxy.folder` is mounted in a sandbox."""
PROXY_PORT = 3128
FIRST_OPEN_PORT = 1024
"""Lowest port on which programs without capabilities can listen."""
CONNECTIONS = 256
CONNECT_S = 10.0
SHUT_S = 1.0
DRAIN_S = 30.0
"""Time in seconds for receiving the rest of the data that was sent."""
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_NO_PROXY = ("NO_PROXY", "no_proxy")
PROXY_VARIABLES = (*_PROXY, *_NO_PROXY)

_FORWARD = Path(__file__).with_name("forward.py")
_CHUNK_BYTES = 65_536
_AUTHORITY = re.compile(r"[\w.:\[\]-]{1,300}", re.ASCII)
_DROPPED = (b"proxy-", b"connection:", b"keep-alive:", b"host:")


@dataclass(frozen=True, kw_only=True)
class EgressProxy:
    """An open outbound proxy."""

    ports: tuple[int, ...]
    """Ports on the loopback that the program sees."""
    folder: Path = Path()
    """Folder that contains a Unix socket for each port and the program that forwards connections to them. It is not set
    if the program shares this host's loopback.
    """
    environment: Mapping[str, str] = field(repr=False)
    """Variables that tell programs which proxy to use."""

    def command(self, python: str) -> tuple[str, ...]:
        """Return the command prefix to run inside the sandbox. The sandbox mounts `folder` at `INSIDE`."""
        return (python, "-I", "-S", str(INSIDE / _FORWARD.name), *map(str, self.ports), "--")

    def with_proxy(self, request: ProcessRequest) -> ProcessRequest:
        """Replace the host's proxy variables in a request with the variables of this proxy."""
        other_secrets = {name: value for name, value in request.secrets.items() if name not in self.environment}
        return replace(request, environment={**request.environment, **self.environment}, secrets=other_secrets)


@contextmanager
def open_proxy(hosts: tuple[str, ...]) -> Iterator[EgressProxy]:
    """Open a proxy for a sandbox with its own network. Leaving the context closes the proxy.

    `hosts` uses the syntax of `sandbox.network`: `example.org`, `*.example.org`, `host:port` and `*`.
    """
    local_ports = {host.port: host for rule in hosts if (host := find_loopback_host(rule))}
    proxy = next(port for port in range(PROXY_PORT, PROXY_PORT + len(local_ports) + 1) if port not in local_ports)
    with tempfile.TemporaryDirectory(prefix="tightloop-proxy-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copyfile(_FORWARD, folder / _FORWARD.name)
        listeners = [(_unix_socket(folder, str(port)), local_ports.get(port)) for port in (*local_ports, proxy)]
        with _ProxyServer(hosts, listeners).serve():
            environment = _proxy_environment(f"http://127.0.0.1:{proxy}")
            yield EgressProxy(ports=(*local_ports, proxy), folder=folder, environment=environment)


@contextmanager
def open_loopback_proxy(hosts: tuple[str, ...]) -> Iterator[EgressProxy]:
    """Open a proxy for a program that shares this host's loopback interface.

    The program's rules must block all other ports. The proxy requires a password, because all users of
    the host can reach the proxy.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    token, port = secrets.token_urlsafe(24), listener.getsockname()[1]
    local_ports = {host.port for rule in hosts if (host := find_loopback_host(rule))}
    with _ProxyServer(hosts, [(listener, None)], token).serve():
        environment = _proxy_environment(f"http://tightloop:{token}@127.0.0.1:{port}")
        yield EgressProxy(ports=(*sorted(local_ports), port), environment=environment)


def find_loopback_host(rule: str) -> Host | None:
    """Return the loopback port of this host that a rule names, or None."""
    host = host_of(f"http://{rule}") if re.search(r":\d+$", rule) and _AUTHORITY.fullmatch(rule) else None
    return host if host is not None and is_loopback(host.name) and host.port >= FIRST_OPEN_PORT else None


def _proxy_environment(url: str) -> dict[str, str]:
    no_proxy = dict.fromkeys(_NO_PROXY, "localhost,127.0.0.1,::1")
    # Node only reads the others if this variable is set.
    return {**dict.fromkeys(_PROXY, url), **no_proxy, "NODE_USE_ENV_PROXY": "1"}


def _unix_socket(folder: Path, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    path = folder / name
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A socket address holds about a hundred bytes.
        long = len(os.fsencode(path)) > 100
        listener.bind(f"/proc/self/fd/{descriptor}/{name}" if long else str(path))
    finally:
        os.close(descriptor)
    path.chmod(0o600)
    listener.listen(CONNECTIONS)
    return listener


class _Refusal(Exception):  # noqa: N818
    """A rejected connection. `status` is the HTTP status of the response."""

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _ProxyServer:
    """Serves a proxy's sockets in a thread with its own event loop."""

    def __init__(
        self, hosts: tuple[str, ...], listeners: list[tuple[socket.socket, Host | None]], token: str = ""
    ) -> None:
        """Set the sockets to serve.

        The server either acts as a proxy or forwards to one port on the host's loopback interface.
        """
        self._hosts = hosts
        self._password = base64.b64encode(f"tightloop:{token}".encode()) if token else b""
        self._listeners = listeners
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="sandbox-proxy", daemon=True)

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve until the context exits."""
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2 * SHUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            # Do not wait for the loop's threads: a hanging name server would keep the proxy open.
            self._loop.close()

    async def _serve(self) -> None:
        servers: list[asyncio.Server] = []
        for listener, host in self._listeners:
            work = self._proxy if host is None else partial(self._forward_to_loopback, host)
            start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
            servers.append(await start(partial(self._accept_connection, work), sock=listener, limit=_CHUNK_BYTES))
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUT_S)

    def _accept_connection(self, work: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A command must not use up the worker's descriptors.
        if len(self._tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = self._loop.create_task(_run_and_close(work(reader, writer), writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_to_loopback(
        self, host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await _relay(reader, writer, *await _dial([host.name], host))

    async def _proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
            line, *fields = head[:-4].split(b"\r\n")
            host, first = self._parse_request(line, fields)
            outside = await self._connect(host)
        except _Refusal as refusal:
            body = f"tightloop: {refusal}\n".encode()
            asks = b"proxy-authenticate: Basic\r\n" if refusal.status.startswith("407") else b""
            answer = f"HTTP/1.1 {refusal.status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
            writer.write(answer.encode() + asks + b"connection: close\r\n\r\n" + body)
            await writer.drain()
            return
        if first:
            outside[1].write(first)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _relay(reader, writer, *outside)

    def _parse_request(self, line: bytes, fields: list[bytes]) -> tuple[Host, bytes]:
        """Parse a client's request.

        Return the requested host and the data to send first. For a tunnel, the data is empty.
        """
        if self._password and not any(
            hmac.compare_digest(b"proxy-authorization: basic " + self._password, _lower_header(entry))
            for entry in fields
        ):
            raise _Refusal("407 Proxy Authentication Required", "the proxy password is missing")
        method, _, rest = line.decode("latin-1").partition(" ")
        target, _, version = rest.rpartition(" ")
        host = None
        if method == "CONNECT" and _AUTHORITY.fullmatch(target):
            host = host_of(f"https://{target}")
        elif target.lower().startswith("http://") and version.startswith("HTTP/1."):
            host = host_of(target)
        if host is None:
            raise _Refusal("400 Bad Request", "this proxy accepts only CONNECT and http:// URLs")
        if method == "CONNECT":
            return host, b""
        # One request per connection: the next one could be for another host.
        path = re.sub(r"^[^/?#]*", "", target[len("http://") :]).partition("#")[0]
        headers = [entry for entry in fields if not entry.lower().startswith(_DROPPED)]
        ours = [f"host: {host.authority.removesuffix(':80')}".encode(), b"connection: close"]
        start = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1".encode("latin-1")
        return host, b"\r\n".join((start, *ours, *headers, b"", b""))

    async def _connect(self, host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ruling = judge_url(f"http://{host.authority}/", self._hosts)
        if ruling.refusal and ANY in self._hosts and host.port in PORTS.values():
            ruling = HostRuling()
        if ruling.refusal:
            # On a usual port the name is enough as an entry; a private host needs its port in the list.
            entry = host.name if host.port in PORTS.values() and not is_private(host.name) else host.authority
            sentence = f"sandbox.network does not list {host.authority}. To allow this host, add '{entry}'"
            raise _Refusal("403 Forbidden", sentence)
        try:
            addresses = await judged_addresses(host.name, host.port, allow_private=ruling.private)
        except PrivateAddressError as error:
            raise _Refusal("403 Forbidden", f"{error}. Add '{host.authority}' to sandbox.network") from None
        except (OSError, UnicodeError):
            raise _Refusal("502 Bad Gateway", f"the host {host.name} was not found") from None
        try:
            return await _dial(addresses, host)
        except OSError:
            raise _Refusal("502 Bad Gateway", f"{host.authority} cannot be reached from this host") from None


async def _dial(addresses: list[str], host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts the connection.

    Raise `OSError` if no address does. This includes `TimeoutError`.
    """
    for address in addresses[:-1]:
        with suppress(OSError):
            return await asyncio.wait_for(asyncio.open_connection(address, host.port, limit=_CHUNK_BYTES), CONNECT_S)
    return await asyncio.wait_for(asyncio.open_connection(addresses[-1], host.port, limit=_CHUNK_BYTES), CONNECT_S)


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    their_reader: asyncio.StreamReader,
    their_writer: asyncio.StreamWriter,
) -> None:
    """Copy data in both directions until both sides have ended or one has failed."""
    try:
        await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))
        their_writer.close()
    # Aborted and not closed: a peer must see an error, not a complete answer.
    except BaseException:
        their_writer.transport.abort()
        raise


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    # Half-closed: a client may end its request and still wait for the answer.
    writer.write_eof()


async def _run_and_close(work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
    """Handle a connection, and close it even if the handler fails."""
    try:
        await work
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), DRAIN_S)
    except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
        pass
    finally:
        writer.transport.abort()


def _lower_header(entry: bytes) -> bytes:
    name, _, value = entry.partition(b":")
    scheme, _, password = value.strip().partition(b" ")
    return name.strip().lower() + b": " + scheme.lower() + b" " + password.strip()
