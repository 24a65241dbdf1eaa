"""The site: built strictly without the network, its links, and in Chromium, opened as files: search, phones, axe."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from faults.__main__ import PROGRAMS
from mutants import MUTANTS
from support.browsers import chromium, violations
from support.documents import ROOT

from tagmatch.model import VERSION


class Page(HTMLParser):
    """What a page links to, and the places in it that others may link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.add(given.get("id") or "")
        self.links.add((given.get("href") if tag in ("a", "link") else given.get("src")) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, nowhere = tmp_path_factory.mktemp("site"), "http://127.0.0.1:9"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"http_proxy": nowhere, "https_proxy": nowhere}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.nightly
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    """Also those that the build makes, to pages, files, and places within pages; without the network all is shown."""
    written = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert written <= {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    followed = 0
    for path, page in pages.items():
        text = path.read_text()
        assert not any(sign in text for sign in ('<script src="http', '<img src="http', "fonts.googleapis", "cdn."))
        for link in page.links:
            parts = urlsplit(link)
            if not link or parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            if target in pages and not parts.fragment.startswith("__"):  # places of the theme's own scripts
                assert unquote(parts.fragment) in pages[target].places, f"{path.relative_to(site)} links to {link}"
            followed += 1
    assert followed > 1000


# -- in Chromium, opened as files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["index.html", "guide/areas.html"])
def test_search_of_files(browser: Any, site: Path, page: str) -> None:
    """What users of other systems look for is on the page that says how it is done here."""
    shown = browser.new_page()
    shown.goto((site / page).as_uri())
    field, results = shown.locator("input[name=query]"), shown.locator(".md-search-result__item a")
    for words, address in SOUGHT.items():
        field.fill("")
        field.press_sequentially(words)
        shown.locator(f".md-search-result__item:nth-child(-n + 3) a[href*='{address}']").first.wait_for(
            state="attached", timeout=10_000
        )
    field.fill("")
    field.press_sequentially("zzyzx")
    results.first.wait_for(state="detached", timeout=10_000)
    shown.close()


#: What is searched for, and a page that is among the first three found
SOUGHT = {
    "percolator": "howto/percolator.html",
    "minimum_should_match": "howto/percolator.html",
    "case insensitive": "guide/text.html",
    "top k": "guide/matching.html",
}


#: Whether each block of code is as wide as its longest line
FOLDED = "[...document.querySelectorAll('pre > code')].every(e => e.scrollWidth <= e.clientWidth + 1)"


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # some seventy pages
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_on_a_phone_and_what_axe_finds(browser: Any, site: Path, scheme: str) -> None:
    """No page or block of code scrolls sideways; two pages are looked at in dark colours, too."""
    shown = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    pages = sorted(site.rglob("*.html")) if scheme == "light" else [site / "index.html", site / "concepts/query.html"]
    for path in pages:
        if path.name != "404.html":  # only a server gives it, whose root has its style
            shown.goto(path.as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert shown.evaluate(FOLDED), path
            assert violations(shown) == [], path
    shown.close()


@pytest.mark.nightly
def test_pages_name_their_version(site: Path) -> None:
    assert f"<title>Glossary - tagmatch {VERSION}</title>" in (site / "glossary.html").read_text()


@pytest.mark.nightly
def test_pages_lead_to_other_versions(browser: Any, site: Path, tmp_path: Path) -> None:
    """On a server, if their folder is next to others, as `mike deploy` puts it there."""
    (tmp_path / "versions.json").write_text('[{"version": "9.0", "title": "9.0", "aliases": []}]')
    (tmp_path / VERSION).symlink_to(site)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        shown = browser.new_page()
        shown.goto(f"http://127.0.0.1:{server.server_port}/{VERSION}/glossary.html")
        shown.locator(".md-version__link[href$='/9.0/']").wait_for(state="attached", timeout=10_000)
        shown.close()
        server.shutdown()


@pytest.mark.nightly
def test_counts_are_made(site: Path) -> None:
    """The page of tests counts as the programs themselves do."""
    text = (site / "testing.html").read_text()
    numbers = [int(each.replace(",", "")) for each in re.findall(r"<td[^>]*>([\d,]+)</td>", text)]
    assert numbers[2:4] == [len(MUTANTS), len(PROGRAMS)]
    assert len(re.findall(r"<code>make (?:nightly|torture)</code></td>", text)) == 2
    assert numbers[0] > numbers[1] > 100


@pytest.mark.nightly
def test_results_are_below_their_code(browser: Any, site: Path) -> None:
    shown = browser.new_page()
    shown.goto((site / "index.html").as_uri())
    code = "\n".join(shown.locator("pre code").all_inner_texts())
    assert '# a folder; without a path, in memory\nalerts = TagMatch("alerts.index")\n' in code
    assert 'alerts.match(["flat", "lyon", "balcony"])\n# [1, 3]\n' in code
    assert 'tagmatch match alerts.index -\n# {"id": 0, "keys": [2, 3]}\n' in code
    shown.close()
