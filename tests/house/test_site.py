"""The documentation site is built strictly, without the network, and each of its links leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.documents import ROOT

pytestmark = pytest.mark.nightly


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


def test_links_lead_somewhere(site: Path) -> None:
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
