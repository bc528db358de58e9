"""A real Chromium for tests, driven by Playwright, and axe-core's judgement of a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tightloop.client.sign_in import page_link
from tightloop.settings import Settings

ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run")
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def program() -> str:
    """Return where Chromium is; skip the test where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; skip the test where there is none."""
    path = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def signed_in(browser: Browser, settings: Settings, **options: object) -> BrowserContext:
    """Open a window that is signed in to the page."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    context.new_page().goto(page_link(settings))
    return context


def base(settings: Settings) -> str:
    """Return the origin of the page."""
    return settings.gateway.page(settings.temporal)


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with a page, one line each."""
    # By the protocol, not as a script of the page: its policy allows no foreign ones.
    page.evaluate(f"{AXE}\n;0")
    ask = "axe.run().then(all => all.violations.flatMap(v => v.nodes.map(n => `${v.id}: ${n.html.slice(0, 200)}`)))"
    found = page.evaluate(ask)
    assert isinstance(found, list)
    return [str(line) for line in found]


def scrolls_sideways(page: Page) -> bool:
    """Whether a page is wider than its window."""
    root = "document.documentElement"
    return bool(page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))
