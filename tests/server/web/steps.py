"""What tests of the page do again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.server.web.fake import Fake, Gate, ends, says

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def ask(page: Page, text: str = "Hello") -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


def done(page: Page) -> None:
    """Wait until no answer comes any more."""
    page.get_by_role("button", name="Send", exact=True).wait_for()


def last(page: Page, part: str = ".text") -> Locator:
    """Return a part of the last answer."""
    return page.locator(".answer").last.locator(part)


def gated(fake: Fake, *before: dict[str, Any], after: str = " there.") -> Gate:
    """Make the next answer wait after its first frames."""
    gate = Gate()
    fake.scripts.append([*(before or [says("Hello")]), gate, says(after), ends()])
    return gate
