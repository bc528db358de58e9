"""`python -m gateway.codec`: the codec server of this machine, until it is stopped."""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from gateway.codec.server import CodecServer
from tightloop.client.codec_token import codec_token
from tightloop.client.encryption import data_converter
from tightloop.errors import SettingsError, TightloopError
from tightloop.host import load_settings
from tightloop.log import set_up

READY = "the codec server listens at"


def main() -> int:
    """Run; errors of ours are one sentence."""
    set_up(logging.INFO, content=False)
    parser = argparse.ArgumentParser(prog="python -m gateway.codec", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends, with who started this")
    arguments = parser.parse_args()
    try:
        serve(arguments.settings, with_stdin=arguments.with_stdin)
    except TightloopError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


def serve(settings_file: Path | None, *, with_stdin: bool) -> None:
    """Answer until SIGTERM, SIGINT, or the end of standard input where that is asked for.

    Raises:
        TightloopError: encryption is off, a key is missing, or the address is taken.
    """
    settings = load_settings(settings_file)
    codec = data_converter(settings.privacy).payload_codec
    if codec is None:
        raise SettingsError(
            "the codec server has nothing to do: privacy.encrypt is off. Turn it on: tightloop up --encrypt"
        )
    with CodecServer(codec, settings, codec_token(settings.codec)) as server:

        def stop(*_: object) -> None:
            # Not in the main thread: shutdown waits for the loop that runs there.
            threading.Thread(target=server.shutdown).start()

        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, stop)
        if with_stdin:
            threading.Thread(target=_at_the_end_of_stdin, args=(stop,), daemon=True).start()
        print(f"{READY} {server.endpoint}", flush=True)
        server.serve_forever()


def _at_the_end_of_stdin(stop: Callable[[], None]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop()


if __name__ == "__main__":
    sys.exit(main())
