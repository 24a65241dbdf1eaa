"""Chromium, driven by Playwright, and what axe finds in a page."""

import contextlib
from collections.abc import Iterator
from typing import Any

from support.servers import needs

_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; a test without Chromium is skipped."""
    path = needs("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        contextlib.closing(playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])) as browser,
    ):
        yield browser


def violations(page: Any) -> list[str]:
    """What keeps people from using a page, as axe finds it: the rule, and the element."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options=_RULES).response
    assert len(found["passes"]) > 8
    return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]
