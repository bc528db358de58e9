"""The page in a real browser, behind the real guard, on a real ledger."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from temporalio.testing import WorkflowEnvironment

from activities.artifacts.stores import LocalArtifactStore
from tests.support.browser import base, scrolls_sideways, signed_in, violations
from tests.support.seeded_ledger import ORDERS, fill
from tests.support.stack.stack import ROOT
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.model import EpisodeStatus
from tightloop.host import state_folder
from tightloop.ledger.model import ProjectLine, TrailEvent, WorkflowSnapshot
from tightloop.loop.model import LoopStatus, LoopTask
from tightloop.settings import Settings

PAGES = (
    "/",
    "/episodes",
    "/episodes?status=failed",
    "/plans",
    "/projects",
    f"/projects/{ORDERS}",
    "/metrics",
    "/metrics?since=24h&by=executor",
    "/metrics?since=2020-01-01&until=2020-02-01",
    "/workflows/episode-ask",
    "/workflows/episode-ask?tab=checks",
    "/workflows/episode-ask?tab=diff",
    "/workflows/episode-ask?tab=plan",
    "/workflows/episode-ask?tab=findings",
    "/workflows/episode-ask?tab=checkpoints",
    "/workflows/episode-ask?tab=log",
    "/workflows/plan-refactor",
    "/workflows/plan-refactor?tab=children",
    "/workflows/plan_5ad9",
    "/workers",
    "/no-such-page",
)
SHAPES = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = Ledger(sqlite_database(tmp_path_factory.mktemp("page") / "ledger.db"))
    fill(made, tmp_path_factory.mktemp("orders"))
    return made


@pytest.mark.parametrize(("scheme", "width"), SHAPES)
def test_every_page_can_be_read_by_everybody(scheme: str, width: int, browser: Browser, served: Settings) -> None:
    context = signed_in(browser, served, color_scheme=scheme, viewport={"width": width, "height": 800})
    page, problems = context.pages[0], list[str]()
    page.on(
        "console", lambda said: problems.append(said.text) if said.type == "error" and "404" not in said.text else None
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    for path in PAGES:
        page.goto(f"{base(served)}{path}")
        problems += [f"{path}: {line}" for line in violations(page)]
        if scrolls_sideways(page):
            problems.append(f"{path} scrolls sideways")
    context.close()
    assert problems == []


def test_who_is_not_signed_in_sees_nothing(browser: Browser, served: Settings) -> None:
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"{base(served)}/")
    assert answer is not None
    assert answer.status == 401
    assert "npm publish" not in page.content()
    context.close()


def test_inbox_shows_what_waits_since_when_and_what_it_blocks(page: Page) -> None:
    card = page.locator(".card.asks").first
    expect(card).to_contain_text("Allow `npm publish`?")
    expect(card).to_contain_text("blocks the episode")
    expect(card).to_contain_text(re.compile(r"\b\d+m\b"))
    expect(card.locator(".option b")).to_have_text(["no answer yet", "allow", "deny", "cancel"])
    expect(card.get_by_role("radio", name="no answer yet")).to_be_checked()
    expect(card.locator(".badge-awaiting")).to_have_text("NEEDS RESPONSE")
    expect(page).to_have_title("(1) Inbox - tightloop")


def test_workers_are_shown_as_connected_or_missing(page: Page, served: Settings, temporal: WorkflowEnvironment) -> None:
    page.goto(f"{base(served)}/workers")
    row = page.locator("li.row", has_text="tightloop").first
    expect(row).to_contain_text("Missing")
    missing = "no worker is running workflows on task queue 'tightloop'"
    expect(page.locator(".said.refused").first).to_contain_text(missing)
    environment = {
        **os.environ,
        "TIGHTLOOP_TEMPORAL__ADDRESS": served.temporal.address,
        "TIGHTLOOP_GATEWAY__ENABLED": "false",
    }
    with ExitStack() as running:
        for role, queue in (("all", "tightloop"), ("gui", "tightloop-gui-linux")):
            command = (sys.executable, "-m", "worker", "run", "--role", role)
            process = running.enter_context(subprocess.Popen(command, cwd=ROOT, env=environment))
            running.callback(process.terminate)
            connected_on(page, queue)
    expect(page.locator("li.row", has_text="tightloop-gui-linux")).to_contain_text("at the screen")


def connected_on(page: Page, queue: str) -> None:
    """Look again and again until a queue has a worker."""
    end = time.monotonic() + 60
    while True:
        page.reload()
        rows = page.locator("li.row", has=page.get_by_text(re.compile(rf"^{queue} ")), has_text="Connected")
        if rows.count() == 1:
            return
        assert time.monotonic() < end, page.locator("#main").inner_text()
        page.wait_for_timeout(500)


def test_a_new_event_is_on_the_page_without_a_click(page: Page, ledger: Ledger, served: Settings) -> None:
    page.goto(f"{base(served)}/workflows/episode-ask?tab=log")
    expect(page.get_by_text("the branch was pushed")).to_have_count(0)
    page.evaluate("document.querySelector('h1').kept = true")
    ledger.of(ORDERS).add_event(TrailEvent(episode_id="episode-ask", kind="note", text="the branch was pushed"))
    expect(page.get_by_text("the branch was pushed")).to_be_visible(timeout=20_000)
    assert page.evaluate("document.querySelector('h1').kept === true"), "the page was not morphed but replaced"


def test_a_refused_answer_says_why_and_loses_nothing(page: Page) -> None:
    page.get_by_role("radio", name="deny").check()
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_role("status").filter(has_text="episode-ask")).to_be_visible()
    expect(page.locator(".card.asks")).to_have_count(1)


def test_keys_move_through_the_inbox_and_stay_quiet_in_fields(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("j")
    expect(page.locator("[data-item]:focus, [data-item] :focus")).to_have_count(1)
    page.get_by_role("textbox").first.focus()
    page.keyboard.type("gj")
    assert page.url.endswith("/")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page).to_have_title("(1) Plans - tightloop")


def test_graph_and_list_say_the_same_and_zoom(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}/workflows/plan-refactor")
    shown = page.locator(".graph g title").all_text_contents()
    listed = page.locator("#main ul.rows .title").all_text_contents()
    assert [line.partition(":")[0] for line in shown] == [line.strip() for line in listed]
    before = page.locator(".graph svg").get_attribute("viewBox")
    page.get_by_role("button", name="Failed").click()
    assert page.locator(".graph svg").get_attribute("viewBox") != before


def test_a_project_can_be_added_and_a_refusal_says_why(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}/projects")
    page.locator("summary", has_text="Add a project").click()
    page.get_by_label("Folder").fill("/srv/nowhere")
    page.get_by_role("button", name="Add and plan").click()
    expect(page.get_by_role("status").filter(has_text="no workspace worker is running")).to_be_visible()
    expect(page).to_have_url(f"{base(served)}/projects")


def test_why_a_check_failed_is_shown_and_its_whole_output_is_one_click_away(
    page: Page, ledger: Ledger, served: Settings, tmp_path: Path
) -> None:
    store = LocalArtifactStore(state_folder(tmp_path) / "artifacts")
    output = "\n".join(["the first line", *["noise"] * 400, "REASON: <b>done.txt</b> is missing", "bye"])
    red = judge(
        Check(run="sh c.sh"),
        tree="t",
        exit_code=1,
        timed_out=False,
        duration_s=1.5,
        output=output,
        artifact=store.put(output.encode(), name="output of sh c.sh", media_type="text/plain"),
    )
    report = store.put(CheckReport(results=(red,)).model_dump_json().encode(), name="checks", media_type="text/json")
    status = EpisodeStatus(episode_id="episode-red", goal="g", workspace=str(tmp_path), check_report=report)
    project = ledger.select_project(ProjectLine(id="red-0123456789abcdef", name="red", workspace="/srv/red", host="x"))
    now = datetime.now(UTC)
    project.record(
        WorkflowSnapshot(
            id="episode-red",
            kind="episode",
            status="running",
            at=now,
            started=now,
            details=status.model_dump(mode="json"),
        )
    )
    page.goto(f"{base(served)}/workflows/episode-red?tab=checks")
    shown = page.locator("section.card", has_text="sh c.sh")
    assert shown.locator("pre").inner_text().splitlines()[0] == "REASON: <b>done.txt</b> is missing"
    expect(shown).not_to_contain_text("the first line")
    page.get_by_role("link", name="full output").click()
    assert shown.locator("pre").inner_text() == output


def test_what_comes_from_outside_is_only_text(page: Page, ledger: Ledger, served: Settings) -> None:
    bad = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>\u202egnp.exe' + "long_" * 60
    evil = ledger.select_project(ProjectLine(id="evil-0123456789abcdef", name=bad, workspace=f"/srv/{bad}", host=bad))
    task = LoopTask(task_id="ptask_1", description=bad, message=bad, definition_of_done=(Check(run=bad),))
    loop = LoopStatus(plan_id="plan_bad", tasks=(task,), parallel=2, executor=bad, budget=Budget(max_cost_usd=0.5))
    evil.record(
        WorkflowSnapshot(
            id="plan_bad",
            kind="loop",
            status="DRAFT",
            goal=bad,
            executor=bad,
            at=datetime.now(UTC),
            started=datetime.now(UTC),
            details=loop.model_dump(mode="json"),
        )
    )
    for path in ("/", "/projects", "/projects/evil-0123456789abcdef", "/workflows/plan_bad"):
        page.goto(f"{base(served)}{path}")
        assert page.evaluate("window.pwned") is None
        assert "\u202e" not in page.content()
        assert page.locator("#main img, #main script").count() == 0
        assert not scrolls_sideways(page), path
    page.get_by_role("button", name="Dispatch").first.click()
    shown = page.locator("#main")
    for words in ("1 episode", "at most 2", "at most 15", "at most $0.50", "at most 12h 0m"):
        expect(shown).to_contain_text(words)
    assert page.evaluate("window.pwned") is None


def test_what_came_of_an_action_cannot_be_put_there_by_a_link(page: Page, served: Settings) -> None:
    page.goto(f"{base(served)}/?said=pay+now")
    expect(page.locator(".said")).to_have_count(0)
