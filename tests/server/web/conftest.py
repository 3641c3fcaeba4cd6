"""A browser with the page in it, and a server that says what a test wants.

Unusual: the browser lives as long as one file of tests, since while it runs no other test could start an event loop.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.web.fake import WAIT_S, Fake, fake_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("OPENK3_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no chromium: install Debian's package of that name, or name one in OPENK3_CHROMIUM")
    playwright.expect.set_options(timeout=WAIT_S * 1000)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def fake(served: Fake) -> Fake:
    served.reset()
    return served


@pytest.fixture(scope="module")
def problems() -> list[str]:
    """Scripts that failed, and requests to other servers."""
    return []


@pytest.fixture(scope="module")
def window(browser: Browser, served: Fake, problems: list[str]) -> Page:
    """One window for all tests of a file: to open one takes longer than most tests."""
    page = browser.new_context().new_page()
    page.set_default_timeout(WAIT_S * 1000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if _is_problem(line.type, line.text) else None)
    page.on("request", lambda sent: None if sent.url.startswith(served.url) else problems.append(f"asked {sent.url}"))
    page.goto(f"{served.url}/web/icon.svg")
    return page


@pytest.fixture
def page(window: Page, fake: Fake, problems: list[str]) -> Iterator[Page]:
    """The page, as somebody sees it who has never been there."""
    window.set_viewport_size({"width": 1000, "height": 700})
    window.emulate_media(color_scheme="light")
    window.evaluate("localStorage.clear(), sessionStorage.clear()")
    window.goto(fake.url)
    yield window
    assert problems == []
    problems.clear()


def _is_problem(kind: str, text: str) -> bool:
    """Tell whether the console says that something failed; a refused request is none."""
    return kind == "error" and not re.match("Failed to load resource", text)
