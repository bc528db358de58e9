"""What a service that imports the client does not load."""

import subprocess
import sys

NEVER = {"temporalio.worker", "tree_sitter", "diff_match_patch", "cryptography", "typer", "rich", "opentelemetry"}
"""Only workers, the command line, or a client that seals or traces need them."""


def test_the_client_loads_nothing_that_only_workers_and_the_command_line_need() -> None:
    command = (sys.executable, "-c", "import sys, tightloop.client; print(*sys.modules)")
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "tightloop.client.client" in loaded
    assert NEVER & set(loaded) == set()


def test_the_version_is_told_without_loading_the_commands() -> None:
    told = "import sys; sys.argv[1:] = ['--version']; from tightloop.cli import main; main(); print(*sys.modules)"
    first, *loaded = subprocess.run(
        (sys.executable, "-c", told), capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert first.startswith("tightloop ")
    assert not (NEVER | {"pydantic", "temporalio"}) & set(" ".join(loaded).split())
