"""A browser that is signed in to the page of a ledger; each module says which."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from temporalio.testing import WorkflowEnvironment

from gateway.server import application
from tests.support.browser import chromium, signed_in
from tests.support.ui_server import serving
from tightloop.client import TightloopClient
from tightloop.database.ledger import Ledger
from tightloop.settings import Settings, parse_settings
from worker.server import free_port


@pytest.fixture(scope="module")
def page_settings(temporal: WorkflowEnvironment) -> Settings:
    address, port = temporal.client.service_client.config.target_host, free_port()
    return parse_settings(
        f"temporal: {{address: '{address}', authenticate: false}}\ngateway: {{listen: '127.0.0.1:{port}'}}\n", {}
    )


@pytest.fixture(scope="module")
def served(ledger: Ledger, page_settings: Settings, temporal: WorkflowEnvironment) -> Iterator[Settings]:
    client = TightloopClient(temporal.client, page_settings)
    address = page_settings.gateway.address(page_settings.temporal)
    with serving(application(ledger, client, page_settings), address):
        yield page_settings


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, served: Settings) -> Iterator[Page]:
    context = signed_in(browser, served)
    yield context.pages[0]
    context.close()
