"""`make run` as a newcomer sees it: with no key, and with a model that plans."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.model_server import ModelServer, says
from worker.server import free_port

pytestmark = pytest.mark.timeout(450)
ROOT = Path(__file__).parents[2]


def run_demo(home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the demo on ports and in a folder of this test's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TIGHTLOOP_"))}
    environment = {
        **clean,
        "TIGHTLOOP_HOME": str(home),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{free_port()}",
        "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{free_port()}",
        **more,
    }
    command = [sys.executable, "-m", "worker", "demo"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=400
    )


def test_the_sample_gets_green_over_several_iterations_without_a_key(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GREEN: checks 3/3" in done.stdout
    assert done.stdout.count("  iteration  ckpt-") >= 5
    assert "/namespaces/default/workflows/episode-" in done.stdout
    assert "orders/basket.py" in done.stdout
    sample = next((tmp_path / "samples").iterdir())
    status = subprocess.run(["git", "status", "--short"], cwd=sample, capture_output=True, text=True, check=True)
    assert " M orders/basket.py" in status.stdout
    assert ".tightloop" not in status.stdout


def plan(title: str, *run: str) -> dict[str, object]:
    return {
        "diagnosis": "the tools report findings",
        "action_items": [title],
        "steps": [{"title": title, "run": list(run)}],
        "scope": [],
        "context": "",
        "claims_done": False,
        "gave_up": False,
        "impossible": False,
        "reason": "",
        "alignment": {"answer": "yes", "rationale": "the linter's own fixes"},
    }


def test_a_model_plans_where_a_key_is_present(tmp_path: Path) -> None:
    answers = (
        says(plan("Fix all findings", "ruff", "check", "--fix", "--unsafe-fixes", "--exit-zero", ".")),
        says(plan("Format everything", "ruff", "format", ".")),
    )
    with ModelServer(*answers) as models:
        done = run_demo(tmp_path, OPENAI_API_KEY="test-key", OPENAI_BASE_URL=models.url)
        asked = len(models.requests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ckpt-1: Fix all findings" in done.stdout
    assert "ckpt-2: Format everything" in done.stdout
    assert "tokens" in done.stdout
    assert asked == 2


def test_the_sample_gets_green_and_says_so_where_no_sandbox_works(tmp_path: Path) -> None:
    other = "sandbox-exec" if sys.platform == "linux" else "bubblewrap"
    done = run_demo(tmp_path, TIGHTLOOP_SANDBOX__BACKEND=other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No sandbox works on this host, so the sample runs without one" in done.stdout.splitlines()[0]
    assert "GREEN: checks 3/3" in done.stdout
