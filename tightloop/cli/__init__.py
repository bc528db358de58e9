"""The operator's command line."""

import gc
import sys

YOUNG_OBJECTS = 50_000
WRONG_INPUT = 2
"""Exit code after wrong arguments. `tightloop/run/outcome.py` has the exit codes for the outcome of a run."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells (128 + SIGINT)."""
LOG = "tightloop.log"
"""Key in `Context.meta` for the function that sets up logging."""


def main() -> None:
    """Run the command line. This is the package's entry point."""
    # Scripts and prompts ask for the version; without the imports of the commands this takes a tenth of the time.
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"tightloop {version('tightloop')}")
        return
    # Imported modules are never freed: scanning them for garbage takes a tenth of a command's time.
    gc.set_threshold(YOUNG_OBJECTS)
    from tightloop.cli.main import main as run

    run()
