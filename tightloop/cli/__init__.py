"""The operator's command line."""

import gc
import sys

YOUNG_OBJECTS = 50_000
FAILED = 1
WRONG_INPUT = 2
NEEDS_PERSON = 3
"""Exit code of a command that does not wait for people."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""
LOG = "tightloop.log"
"""Key in `Context.meta` of the function that sets up the log."""


def main() -> None:
    """Run the command line; the entry point of the package."""
    # Scripts and prompts ask for the version: without all that commands need, it takes a tenth of the time.
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"tightloop {version('tightloop')}")
        return
    # What is imported stays: looking for garbage among it takes a tenth of the time of a command.
    gc.set_threshold(YOUNG_OBJECTS)
    from tightloop.cli.main import main as run

    run()
