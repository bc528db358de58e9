"""`python -m gateway.ui`: the codec server of this machine for a cluster; with `--embedded` also the Web UI of `up`."""

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from gateway.access.site import http_server, listening
from gateway.ui.app import application, codec_access, ui_access
from tightloop.client.encryption import operator_codec
from tightloop.client.sign_in import ui_token
from tightloop.errors import SettingsError, TightloopError
from tightloop.host import load_settings
from tightloop.host.log import set_up
from tightloop.settings import Settings

READY = "the sign-in listens at"


def main() -> int:
    """Run; errors of ours are one sentence."""
    set_up(logging.INFO, content=False)
    # Their lines about requests name the UI's own address.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m gateway.ui", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="read the address of the server's own Web UI from standard input, and end when that ends",
    )
    arguments = parser.parse_args()
    try:
        serve(load_settings(arguments.settings), embedded=arguments.embedded)
    except TightloopError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


def serve(settings: Settings, *, embedded: bool) -> None:
    """Answer until SIGTERM, SIGINT, or with `embedded` the end of standard input.

    Raises:
        TightloopError: a key or the token cannot be used, or the address is taken.
    """
    codec = operator_codec(settings)
    if embedded:
        # Not an argument, which every user of this machine could read in the list of processes.
        upstream = sys.stdin.readline().strip()
        access = ui_access(settings, ui_token())
        listen = f"127.0.0.1:{settings.temporal.ui_port}"
        name = "temporal.ui_url"
    elif settings.codec.listen:
        upstream, access, listen, name = None, codec_access(settings, ui_token()), settings.codec.listen, "codec.listen"
    else:
        raise SettingsError(
            "`tightloop up` serves the codec beside its Web UI. For a cluster set codec.listen, such as 127.0.0.1:8234"
        )
    listener = listening(listen, name)
    _run(http_server(application(access, codec, upstream)), listener, access.site.page, with_stdin=embedded)


def _run(server: uvicorn.Server, listener: socket.socket, page: str, *, with_stdin: bool) -> None:
    def at_the_end_of_stdin() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        server.should_exit = True

    if with_stdin:
        threading.Thread(target=at_the_end_of_stdin, daemon=True).start()
    print(f"{READY} {page}", flush=True)
    with listener:
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    sys.exit(main())
