"""The page of metrics in a real browser: plots and tables say the same, and what nobody knows is no zero."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import base, scrolls_sideways, signed_in, violations
from tests.support.seeded_ledger import RELAY, fill, fill_week
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.ledger.metrics import MEANINGS
from tightloop.settings import Settings

WEEK = "/metrics?since=7d"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = Ledger(sqlite_database(tmp_path_factory.mktemp("page") / "ledger.db"))
    fill(made, tmp_path_factory.mktemp("orders"))
    fill_week(made)
    return made


def row(page: Page, table: str, first: str) -> list[str]:
    """Return the cells of a row behind its first one."""
    found = (
        page.get_by_role("region", name=table)
        .get_by_role("row")
        .filter(has=page.get_by_role("rowheader", name=first, exact=True))
    )
    return [cell.strip() for cell in found.get_by_role("cell").all_text_contents()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everybody_can_read_it(scheme: str, width: int, browser: Browser, served: Settings) -> None:
    context = signed_in(browser, served, color_scheme=scheme, viewport={"width": width, "height": 800})
    page, problems = context.pages[0], list[str]()
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    for path in (WEEK, f"{WEEK}&by=executor", "/metrics?since=24h", "/metrics?since=90d"):
        page.goto(f"{base(served)}{path}")
        expect(page.locator("svg")).to_have_count(4)
        problems += [f"{path}: {line}" for line in violations(page)]
        if scrolls_sideways(page):
            problems.append(f"{path} scrolls sideways")
    context.close()
    assert problems == []


def test_all_figures_have_their_number_of_episodes_and_their_meaning(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}{WEEK}&project={RELAY}")
    expect(page.locator("#main")).to_contain_text("24 episodes ended from")
    assert row(page, "All figures", "Success rate") == [
        "75 %",
        "",
        "18 of 24",
        "24",
        "",
        MEANINGS["success"].definition,
    ]
    assert row(page, "All figures", "Cost")[3:5] == ["16", "8"]
    for meaning in MEANINGS.values():
        assert row(page, "All figures", meaning.title[0].upper() + meaning.title[1:].lower())[5] == meaning.definition


def test_plot_and_table_say_the_same(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}{WEEK}&project={RELAY}")
    days = page.get_by_role("region", name="By period").get_by_role("rowheader").all_text_contents()
    columns = page.locator("#plot-success .column title").all_text_contents()
    assert len(columns) > 5
    for said in columns:
        day, _, rest = said.partition(": success rate ")
        share, _, n = rest.partition(", n ")
        assert day in days
        assert row(page, "By period", day)[1] == f"{share} (n {n})"
    assert page.locator("#plot-cost_usd circle").count() == page.locator("#plot-cost_usd rect.p90").count()


def test_what_nobody_reported_is_called_unknown_and_has_no_point(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}{WEEK}&executor=claude")
    expect(page.locator("#plot-cost_usd")).to_contain_text("Unknown for all episodes in this range.")
    assert row(page, "All figures", "Cost")[:5] == ["unknown", "unknown", "unknown", "0", "8"]
    assert page.locator("#plot-cost_usd svg").count() == 0


def test_filter_and_division_are_the_address(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}/")
    page.get_by_role("link", name="Metrics").click()
    page.get_by_label("Group by").select_option("executor")
    page.get_by_role("textbox", name="Model").fill("gpt-5-mini")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile(r"since=7d.*model=gpt-5-mini&by=executor"))
    assert row(page, "By executor", "codex")[0] == "8"


def test_an_empty_range_says_so_and_a_wrong_one_what_is_right(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}/metrics?since=2020-01-01&until=2020-02-01")
    expect(page.locator(".empty")).to_contain_text("ended in this range")
    page.goto(f"{base(served)}/metrics?since=yesterday")
    expect(page.locator("#main")).to_contain_text("since 'yesterday' is not a valid time. Use a format like 7d")
