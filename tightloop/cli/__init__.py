"""The operator's command line."""

import sys


def main() -> None:
    """Run the command line; the entry point of the package."""
    # Scripts and prompts ask for the version: without all that commands need, it takes a tenth of the time.
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"tightloop {version('tightloop')}")
        return
    from tightloop.cli.main import main as run

    run()
