"""Forwards loopback ports inside a sandbox to Unix sockets outside, then runs the program.

It is run by path, as `python -I -S forward.py PORT ... -- PROGRAM ARGUMENT ...`, next to a Unix socket named after
each port. It does not import any of our modules. It starts listening before the program starts, so that no connection
arrives too early.
"""

# Not `socket`, `selectors`, `signal` and `pathlib`: importing them takes longer than all the rest. Measured: 8 ms of
# processor time instead of 16, for each command.
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import os
import select
import sys
import time

CHUNK_BYTES = 65_536
CONNECT_S = 2.0
BACKLOG = 128
ENDED = select.POLLHUP | select.POLLERR


class End:
    """One of two connected sockets. Data received on it is written to the peer, with backpressure."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting = bytearray()
        """Data to write to this socket. It is less than one chunk, because the peer is not read in the meantime."""
        self.ended = False
        """True after the end of this socket's input."""
        self.peer = self
        connection.setblocking(False)

    def read(self) -> None:
        """Read a chunk of data to send to the peer."""
        chunk = self.connection.recv(CHUNK_BYTES)
        self.peer.waiting += chunk
        self.ended = not chunk
        self.peer.write()

    def write(self) -> None:
        """Write as much data as possible, then pass on the peer's end of file."""
        if self.waiting:
            del self.waiting[: self.connection.send(self.waiting)]
        # Not before the buffer is empty: the end of file would overtake the data.
        if not self.waiting and self.peer.ended:
            self.connection.shutdown(socket.SHUT_WR)

    def poll_events(self) -> int:
        """Return the events to poll for."""
        reads = not self.ended and not self.peer.waiting
        return (select.POLLIN if reads else 0) | (select.POLLOUT if self.waiting else 0)


class Forwarder:
    """Forwards all of a sandbox's connections."""

    def __init__(self, listening: dict[socket.socket, str]) -> None:
        self._listening = {listener.fileno(): (listener, address) for listener, address in listening.items()}
        self._ends: dict[int, End] = {}
        self._poll = select.poll()
        for number in self._listening:
            self._poll.register(number, select.POLLIN)

    def serve(self) -> None:
        """Forward data until the sandbox ends. The process then ends too."""
        while True:
            for number, events in self._poll.poll():
                if number in self._listening:
                    self._accept(*self._listening[number])
                # An earlier event of this round may have closed it.
                elif number in self._ends:
                    self._turn(self._ends[number], events)

    def _accept(self, listener: socket.socket, address: str) -> None:
        try:
            number, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            # Without free descriptors the listener stays readable.
            time.sleep(0.05)
            return
        came, way = socket.socket(fileno=number), None
        try:
            # Nagle's algorithm would hold back the small messages of a protocol on loopback.
            came.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            way.settimeout(CONNECT_S)
            way.connect(address)
        except OSError:
            came.close()
            if way is not None:
                way.close()
            return
        first, other = End(came), End(way)
        first.peer, other.peer = other, first
        for end in (first, other):
            self._ends[end.connection.fileno()] = end
            self._poll.register(end.connection.fileno(), end.poll_events())

    def _turn(self, end: End, events: int) -> None:
        try:
            if events & (select.POLLIN | ENDED) and not end.ended and not end.peer.waiting:
                end.read()
            if events & (select.POLLOUT | ENDED):
                end.write()
        # A poll event can be outdated; the socket is reported again once it is ready.
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)
            return
        peer = end.peer
        if (end.ended and peer.ended and not end.waiting and not peer.waiting) or (events & select.POLLERR):
            self._close(end)
            return
        for side in (end, peer):
            number, poll_mask = side.connection.fileno(), side.poll_events()
            # Unregistered, because poll(2) reports a hang-up again and again, requested or not.
            if poll_mask:
                self._poll.register(number, poll_mask)
            else:
                self._forget(number)

    def _forget(self, number: int) -> None:
        try:
            self._poll.unregister(number)
        except KeyError:
            return

    def _close(self, end: End) -> None:
        for side in (end, end.peer):
            number = side.connection.fileno()
            self._forget(number)
            del self._ends[number]
            side.connection.close()


def listen(port: int) -> list[socket.socket]:
    """Open the listening sockets for a port. IPv6 is included if the sandbox supports it."""
    listeners = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        except OSError:
            if family == socket.AF_INET:
                raise
            continue
        listener.listen(BACKLOG)
        listeners.append(listener)
    return listeners


def main() -> None:
    """Open the listening sockets, fork the forwarding process and execute the program."""
    divider = sys.argv.index("--")
    folder, program = os.path.dirname(__file__), sys.argv[divider + 1 :]  # noqa: PTH120
    listening = {listener: f"{folder}/{port}" for port in sys.argv[1:divider] for listener in listen(int(port))}
    child = os.fork()
    if not child:
        # Forked twice: the program must not have a child that it did not start.
        if os.fork():
            os._exit(0)
        # It ends with the sandbox: a program that was told to stop may still have data to send.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        Forwarder(listening).serve()
    # The first child exits at once; unreaped, it would stay a zombie of the program.
    os.waitpid(child, 0)
    # Python ignores both signals, and the program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606
    except OSError as error:
        # Like a shell: 127 if there is no such program.
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
