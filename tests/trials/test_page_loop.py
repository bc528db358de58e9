"""A project from its plan to its verification, by clicks in a real browser, with workers that really work."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect
from temporalio.client import Client

from activities.planner.activity import Briefing
from gateway.server import application
from tests.support import doubles
from tests.support.browser import ARGUMENTS, program
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Working
from tests.support.loops import ObedientExecutor, ScriptedTaskPlanner, five_tasks
from tests.support.ui_server import serving
from tightloop.client import TightloopClient
from tightloop.client.sign_in import page_link
from tightloop.database.ledger import local_ledger
from tightloop.episode.planning import PlannerAnswer
from tightloop.host import state_folder
from tightloop.settings import Settings
from worker.server import free_port

pytestmark = pytest.mark.timeout(600)
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)


class HesitantPlanner:
    """Gives up once on one of the tasks, until a person has been asked."""

    def __init__(self, about: str) -> None:
        self._about, self.asked = about, 0

    def __call__(self, briefing: Briefing) -> PlannerAnswer:
        """Plan what the goal says."""
        if self._about in briefing.goal:
            self.asked += 1
            if self.asked == 1:
                return doubles.gives_up("which of two ways is wanted?")
        return doubles.planned(briefing.goal)


@pytest.fixture
def page_settings(settings: Settings) -> Settings:
    return settings.evolve(gateway=settings.gateway.evolve(listen=f"127.0.0.1:{free_port()}"))


@pytest.fixture
async def page(page_settings: Settings, temporal_client: Client) -> AsyncIterator[Page]:
    """A signed-in browser at the page of a gateway."""
    client = TightloopClient(temporal_client, page_settings)
    address = page_settings.gateway.address(page_settings.temporal)
    with serving(application(local_ledger(), client, page_settings), address):
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
            opened = await browser.new_page()
            await opened.goto(page_link(page_settings))
            yield opened
            await browser.close()


@pytest.fixture
def at_work(
    working: Working, registry: Callable[..., dict[str, Any]], client: TightloopClient, workspace: Path
) -> Callable[..., Any]:
    """Run workers; their planner hesitates at the third task."""

    def run() -> Any:
        parts = {
            **registry(command=ObedientExecutor()),
            "task_planners": lambda _kind, _model: ScriptedTaskPlanner(*five_tasks()),
        }
        return working(ScriptedPlanner(HesitantPlanner("made3.txt")), **parts)

    return run


async def add_on_the_page(page: Page, base: str, workspace: Path) -> None:
    """Add a project that the ledger does not know, which plans it."""
    await page.goto(f"{base}/projects")
    await page.locator("summary", has_text="Add a project").click()
    await page.get_by_label("Folder").fill(f"{workspace}-none")
    await page.get_by_role("button", name="Add and plan").click()
    await expect(page.get_by_role("status").filter(has_text="does not exist on this host")).to_be_visible()
    await page.locator("summary", has_text="Add a project").click()
    await page.get_by_label("Folder").fill(str(workspace))
    await page.get_by_label("Goal (optional)").fill("make files")
    await page.get_by_role("button", name="Add and plan").click()
    await expect(page.get_by_role("button", name="Dispatch")).to_have_count(1)
    await page.get_by_role("link", name="make files").first.click()
    await expect(page.locator("#main .badge", has_text="Created")).to_have_count(5)


async def dispatch_on_the_page(page: Page) -> None:
    await expect(page.get_by_role("button", name="Verify")).to_have_count(0)
    await page.get_by_role("button", name="Dispatch").click()
    await expect(page.locator("#main")).to_contain_text("3 of 5")
    await expect(page.locator("#main")).to_contain_text("at most 75")
    await page.get_by_role("radio", name="yes, do it").check()
    await page.get_by_role("button", name="Continue").click()


async def answer_on_the_page(page: Page, base: str, project: str) -> None:
    await page.goto(f"{base}/")
    card = page.locator(".card.asks")
    await expect(card).to_contain_text("ptask_5")
    await expect(card.locator(".badge-awaiting")).to_have_text("NEEDS RESPONSE")
    await expect(card).to_contain_text("which of two ways is wanted?")
    await page.goto(f"{base}/projects/{project}")
    await expect(page.locator(".badge-awaiting").first).to_be_visible()
    await page.goto(f"{base}/")
    await card.get_by_role("radio", name="retry").check()
    await card.get_by_role("button", name="Send the answer").click()


@pytest.mark.parametrize("formatted", [True, False])
async def test_project_is_planned_dispatched_answered_and_verified_on_the_page(
    formatted: bool,
    page: Page,
    page_settings: Settings,
    at_work: Callable[..., Any],
    workspace: Path,
) -> None:
    (workspace / "ruff.toml").write_text("[format]\n")
    if formatted:
        (workspace / "app.py").write_text('print("hello")\n')
    base = page_settings.gateway.page(page_settings.temporal)
    async with at_work():
        project = state_folder(workspace).name
        await add_on_the_page(page, base, workspace)
        plan_page = page.url
        await dispatch_on_the_page(page)
        await answer_on_the_page(page, base, project)
        await page.goto(plan_page)
        await expect(page.locator("#main .badge.good", has_text="Complete")).to_have_count(5)
        await page.get_by_role("button", name="Verify").click()
        state, gate = ("Verified", "Passed") if formatted else ("Failed", "Failed")
        await expect(page.locator("#main p.meta .badge", has_text=state)).to_be_visible()
        await expect(page.get_by_role("listitem").filter(has_text="gate:ruff format")).to_contain_text(gate)
        last = "plan verified" if formatted else "plan failed"
        for kind in ("plan created", "plan dispatched", "plan completed", last):
            await expect(page.get_by_role("cell", name=kind, exact=True)).to_have_count(1)
        for button in ("Dispatch", "Verify"):
            await expect(page.get_by_role("button", name=button)).to_have_count(0)
    assert (workspace / "all.txt").read_text() == "1\n2\n3\n"
