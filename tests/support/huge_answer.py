"""A provider whose answer does not end, and how much memory a program needs to refuse it.

Run as a program it asks one, in one of two ways, and prints what came of it and its largest resident memory.
"""

import asyncio
import contextlib
import http.client
import json
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.model_gateway_client import provider

HUGE_BYTES = 300_000_000
_PIECE = b" " * 1_000_000


@contextmanager
def huge_provider(kind: str) -> Iterator[str]:
    """Open a provider whose answers have `HUGE_BYTES`: `plain`, `streamed` (no length), `packed`, `announced`."""
    packed = _packed() if kind == "packed" else b""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.send_response(200)
        request.send_header("content-type", "text/event-stream" if kind == "streamed" else "application/json")
        if packed:
            request.send_header("content-encoding", "gzip")
            request.send_header("content-length", str(len(packed)))
        elif kind == "announced":
            request.send_header("content-length", str(HUGE_BYTES))
        else:
            request.send_header("connection", "close")
        request.end_headers()
        with contextlib.suppress(OSError):
            if packed:
                request.wfile.write(packed)
            for _ in range(0 if packed else HUGE_BYTES // len(_PIECE)):
                request.wfile.write(_PIECE)

    with provider(answer) as url:
        yield url


def _packed() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(_PIECE) for _ in range(HUGE_BYTES // len(_PIECE))) + packer.flush()


def asked_apart(way: str, url: str) -> dict[str, Any]:
    """Ask in a process of its own: `client` or `gateway`; return `came` (bytes), `said` and `largest` (bytes)."""
    done = subprocess.run(
        (sys.executable, "-m", __name__, way, url), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _client(url: str) -> dict[str, Any]:
    from activities.model.asking import Asker, Question
    from activities.model.client import AnswerSchema, ModelService
    from tightloop.errors import TightloopError

    schema = AnswerSchema("answer", {"type": "object", "properties": {}})
    service = ModelService(api_key="k", base_url=url, models=("m",), timeout_s=60.0)
    try:
        asyncio.run(Asker(service).ask(Question("s", "u", schema), dict))
    except TightloopError as error:
        return {"said": f"{type(error).__name__}: {error.message}"}
    return {"said": "answered"}


def _gateway(url: str) -> dict[str, Any]:
    from activities.model.gateway.server import serve_gateway
    from activities.model.gateway.wire import GatewaySpec, Wire

    with serve_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url, key="sk-0123456789")) as gateway:
        place = urlsplit(gateway.base_url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        headers = {"authorization": f"Bearer {gateway.token}"}
        connection.request("POST", f"{place.path}/chat/completions", b"{}", headers)
        answer, came, said = connection.getresponse(), 0, ""
        try:
            while chunk := answer.read(65_536):
                came += len(chunk)
                said = chunk[:300].decode() if answer.status != 200 else said
        except (OSError, http.client.HTTPException) as error:
            said = type(error).__name__
    return {"status": answer.status, "came": came, "said": said}


def main() -> None:
    """Ask as the arguments say."""
    found = {"client": _client, "gateway": _gateway}[sys.argv[1]](sys.argv[2])
    print(json.dumps({**found, "largest": _largest()}))


def _largest() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage(2), which remembers the size of the process that this one was forked from.
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line[:6] == "VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
