"""Hostile code meets a layer that stops it, or the sandbox that holds it; ordinary code passes."""

import shutil
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.safety.code import CodeScanner
from tests.data.code import Snippet, snippets
from tests.support.sandboxes import Box, box, open_folder
from tightloop.safety.verdict import Verdict

SECRET = "a-secret-of-the-operator"
ANYWHERE = {"OUT": "/home/somebody/out", "SECRET": "/home/somebody/secret", "PORT": "9"}
HOSTILE = snippets("hostile")
RUNNABLE = [snippet for snippet in HOSTILE if snippet.runs]


@pytest.fixture(scope="module")
def scanner() -> CodeScanner:
    return CodeScanner()


def named(snippet: Snippet) -> str:
    return snippet.name


@dataclass(frozen=True)
class Host:
    """What an attack wants to reach."""

    folder: Path
    port: int
    received: list[bytes]
    listening: threading.Thread

    @property
    def places(self) -> dict[str, str]:
        return {"OUT": str(self.folder / "out"), "SECRET": str(self.folder / "secret"), "PORT": str(self.port)}

    @property
    def reached(self) -> bool:
        self.hear_all()
        return (self.folder / "out").exists() or bool(self.received)

    def hear_all(self) -> None:
        """Wait until all connections so far are heard, and end listening."""
        if self.listening.is_alive():
            with socket.create_connection(("127.0.0.1", self.port)) as last:
                last.sendall(b"end")
            self.listening.join(10)


@pytest.fixture
def host() -> Iterator[Host]:
    with open_folder() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "secret").write_text(SECRET)
        (folder / "tree").mkdir()
        received: list[bytes] = []
        listening = threading.Thread(target=_listen, args=(server, received.append))
        listening.start()
        host = Host(folder, server.getsockname()[1], received, listening)
        yield host
        host.hear_all()


def _listen(server: socket.socket, note: Callable[[bytes], None]) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5)
            said = connection.recv(1_000)
            if said == b"end":
                return
            note(said)


def attack(walls: Box, snippet: Snippet, host: Host) -> str:
    """Write the snippet into a tree, run it, and return what it printed."""
    root = host.folder / "tree"
    for file in snippet.filled(host.places):
        (root / file.path).write_text(file.after)
    command = snippet.run or (sys.executable, snippet.files[0].path)
    result = walls.run(root, *command, wall_limit_s=20.0)
    return (result.output + result.errors).decode(errors="replace")


def test_each_hostile_snippet_meets_its_layer(scanner: CodeScanner, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for snippet in HOSTILE:
        review = scanner.scan(snippet.filled(ANYWHERE), snippet.known)
        rows.append((snippet, review.verdict, review.layers))
    with capsys.disabled():
        print()
        for snippet, verdict, layers in rows:
            print(f"  {snippet.half:12} {snippet.name:44} {verdict.value:6} {', '.join(layers) or 'sandbox'}")
        print(f"  {dict(Counter((row[0].half, (row[2] or ('sandbox',))[0]) for row in rows))}")
    assert len(rows) >= 40
    for snippet, verdict, layers in rows:
        assert snippet.layer in (layers or ("sandbox",)), snippet.name
        assert (verdict is Verdict.ALLOW) == (snippet.layer == "sandbox"), snippet.name


def test_ordinary_code_passes(scanner: CodeScanner) -> None:
    ordinary = snippets("ordinary")
    stopped = {
        one.name: review.findings for one in ordinary if (review := scanner.scan(one.filled({}), one.known)).findings
    }
    assert len(ordinary) >= 40
    assert stopped == {}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("snippet", RUNNABLE, ids=named)
def test_nothing_gets_out_of_the_sandbox(snippet: Snippet, host: Host) -> None:
    printed = attack(box("bubblewrap"), snippet, host)
    assert not host.reached
    assert SECRET not in printed
    assert (host.folder / "secret").read_text() == SECRET


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_sandbox_runs_what_it_holds(host: Host) -> None:
    inside = Snippet(name="", half="", files=({"path": "a.py", "after": "open('inside', 'w').write('x')\n"},))
    attack(box("bubblewrap"), inside, host)
    assert (host.folder / "tree" / "inside").read_text() == "x"


@pytest.mark.parametrize("snippet", RUNNABLE, ids=named)
def test_each_attack_works_where_nothing_holds_it(snippet: Snippet, host: Host) -> None:
    attack(box("unsafe-local"), snippet, host)
    assert host.reached
