"""`tightloop metrics` on a ledger with a week of episodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.seeded_ledger import RELAY, fill_week
from tightloop.cli.main import app
from tightloop.database.ledger import close_ledgers, local_ledger
from tightloop.ledger.metrics import MEANINGS


@pytest.fixture
def week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    fill_week(local_ledger())
    close_ledgers()


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["metrics", *arguments])
    return result.exit_code, result.stdout, result.stderr


def as_json(*arguments: str) -> dict[str, Any]:
    code, out, error = run(*arguments, "--json")
    assert code == 0, error
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.usefixtures("week")
def test_table_has_every_figure_with_the_number_of_episodes_and_what_is_not_known() -> None:
    code, out, _ = run()
    assert code == 0
    assert out.startswith("24 episodes ended from ")
    rows = {line[:24].strip(): line[24:].split() for line in out.splitlines()}
    assert {meaning.title for meaning in MEANINGS.values()} <= rows.keys()
    assert rows["success rate"] == ["75", "%", "18", "of", "24", "24"]
    assert rows["cost"][-2:] == ["16", "8"], "the price of claude's calls is not known"
    assert rows["time to answer"][-1] == "16"


@pytest.mark.usefixtures("week")
def test_json_says_what_the_table_says() -> None:
    figures = as_json()["figures"]
    assert figures["success"] == {"n": 24, "unknown": 0, "count": 18, "share": 0.75}
    assert (figures["cost_usd"]["n"], figures["cost_usd"]["unknown"]) == (16, 8)
    assert figures["cost_usd"]["total"] == pytest.approx(sum(0.1 * (n + 1) for n in range(24) if n % 3))
    assert figures["memory_hits"]["n"] == 32


@pytest.mark.usefixtures("week")
def test_a_range_a_project_an_executor_and_a_model_choose_episodes() -> None:
    assert as_json("--since", "26h")["figures"]["episodes"] == 5
    assert as_json("--since", "7d", "--until", "2d")["figures"]["episodes"] == 16
    assert as_json("--project", RELAY[:5])["figures"]["episodes"] == 24
    assert as_json("--executor", "claude")["figures"]["cost_usd"]["total"] is None
    assert as_json("--model", "gpt-5-mini")["figures"]["episodes"] == 8


@pytest.mark.usefixtures("week")
def test_groups_are_named_and_those_without_a_name_too() -> None:
    assert {one["name"]: one["figures"]["episodes"] for one in as_json("--by", "executor")["groups"]} == {
        "codex": 16,
        "claude": 8,
    }
    _, out, _ = run("--by", "model")
    assert "gpt-5-codex" in out
    assert "not named" in out


@pytest.mark.usefixtures("week")
def test_a_range_without_episodes_has_no_figures() -> None:
    code, out, _ = run("--since", "2020-01-01", "--until", "2020-02-01")
    assert (code, out) == (0, "0 episodes ended from 2020-01-01 00:00 to 2020-02-01 00:00 (UTC)\n")


@pytest.mark.usefixtures("week")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "error: since 'yesterday' is not a valid time. Use a format like 7d"),
        (("--since", "1d", "--until", "2d"), "is empty"),
        (("--project", "nowhere"), "'nowhere' matches no project"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: tuple[str, ...], said: str) -> None:
    code, out, error = run(*arguments)
    assert (code, out) == (2, "")
    assert said in error
