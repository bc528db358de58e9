"""A page that behaves like the chat of an editor, and runs Cursor's hooks for what is submitted in it."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from activities.executor.gui import cursor_hook

HTML = Path(__file__).with_name("page.html")
EDITOR_TITLE = "main.py - demo - Cursor"
DECOY_TITLE = "main.py - other - Cursor"


@dataclass
class ChatPage:
    """What the page does, and what was done to it."""

    hooks: Path | None = None
    """Folder of the hooks; None: none are installed."""
    root: Path | None = None
    """Folder that the editor says to have open; None: it says nothing."""
    lag_s: float = 0.0
    """How long what was submitted stays in the box."""
    busy: bool = False
    shown: str = ""
    """What the chat shows above its box, a message a line."""
    address: str = ""
    submitted: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    """What was put into anything but the chat box of the right window."""
    refused: int = 0
    agent: Callable[["ChatPage", str], None] | None = None
    """Works on what it is given, in a thread of its own; None: it says at once that it has done everything."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, title: str = EDITOR_TITLE) -> str:
        return f"{self.address}/?title={title.replace(' ', '%20')}"

    @property
    def taken(self) -> list[str]:
        """What the agent has got; the hook acknowledges a moment before."""
        with self.lock:
            return list(self.submitted)

    def submit(self, text: str) -> dict[str, object]:
        with self.lock:
            if self.busy or not text:
                return {"taken": False}
            if self.hooks and not self.run_hook("beforeSubmitPrompt", prompt=text).get("continue", True):
                self.refused += 1
                return {"taken": True, "lag": 0}
            self.submitted.append(text)
        if self.agent is not None:
            threading.Thread(target=self.agent, args=(self, text), daemon=True).start()
        elif self.hooks:
            self.stop("Done: everything in the plan.")
        return {"taken": True, "lag": self.lag_s}

    def stop(self, said: str) -> None:
        """End the agent's turn; what the hook gives it is its next prompt, as in Cursor."""
        self.run_hook("afterAgentResponse", text=said)
        if given := self.run_hook("stop", status="completed").get("followup_message"):
            self.submit(str(given))

    def run_hook(self, name: str, **fields: object) -> dict[str, object]:
        """Run the real script as Cursor runs it."""
        roots = [] if self.root is None else [str(self.root)]
        event = {"hook_event_name": name, "conversation_id": "c-1", "workspace_roots": roots, **fields}
        command = (sys.executable, "-I", cursor_hook.__file__, str(self.hooks))
        done = subprocess.run(command, input=json.dumps(event), capture_output=True, text=True, timeout=20, check=True)
        answer: dict[str, object] = json.loads(done.stdout)
        return answer


@contextmanager
def chat_page(page: ChatPage) -> Iterator[ChatPage]:
    """Serve the page on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            if "title" not in asked:
                self.answer(b"", "image/x-icon")
                return
            title = asked["title"][0]
            text = HTML.read_text(encoding="utf-8").replace("TITLE", title).replace("FILE", title.split(" ")[0])
            self.answer(text.encode(), "text/html; charset=utf-8")

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            parts = urlsplit(self.path)
            right = parse_qs(parts.query).get("title") == [EDITOR_TITLE]
            answer: dict[str, object] = {}
            if parts.path == "/shown":
                answer = {"text": page.shown}
            elif parts.path == "/submit" and right:
                answer = page.submit(text)
            elif not (right and parts.path == "/input/chat"):
                page.leaked.append(f"{parts.path} {text[:60]}")
            self.answer(json.dumps(answer).encode(), "application/json")

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    page.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
