"""Pictures of the console for README and docs, of a service that is begun here: `make pictures`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Page, sync_playwright

from tagmatch import Circle, Near, TagMatch
from tagmatch.broker.config import Config, HttpOptions, MetricsOptions, ServerOptions
from tagmatch.broker.service import serving

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
TAGS = ("flat", "house", "balcony", "garden", "lyon", "milano", "garage", "lift")
ASKED = {"tags": '["flat","lyon"]', "attributes": "price = 850\nrooms = 1", "lon": 4.83, "lat": 45.76, "key": 1}
#: Each picture: a view, the scheme of colours, and a width
VIEWS = (
    ("try", f"try?{urlencode(ASKED)}", "light", 1200),
    ("map", "map", "dark", 860),
)


def filled(index: TagMatch[int]) -> None:
    """Store some alerts, and clients around them."""
    random = np.random.default_rng(1)
    index.put(1, tags=["flat", "lyon"], where="price < 900 and rooms >= 2", area=Circle(4.83, 45.76, 3000))
    for key in range(2, 60):
        lon, lat, metres = random.uniform(-110, 140), random.uniform(-40, 60), random.uniform(1e5, 7e5)
        tags = random.choice(TAGS, 2, replace=False).tolist()
        index.put(key, tags=tags, where=f"price < {100 * key}", area=Circle(lon, lat, metres))
    for key in range(1000, 1200):
        index.put(key, tags=["flat"], area=Near(10_000))
    index.consolidate()
    lon, lat = random.uniform(-10, 30, 200), random.uniform(36, 60, 200)
    index.move(np.arange(1000, 1200, dtype=np.uint64), lon, lat)


def take(page: Page, url: str) -> None:
    """Write all pictures."""
    for name, view, scheme, width in VIEWS:
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 780})
        page.goto(f"{url}/console/#/{view}")
        page.locator("#loading").wait_for(state="detached")
        page.wait_for_timeout(800)
        page.screenshot(path=PICTURES / f"console_{name}.png")


def main() -> None:
    """Begin a service, and a browser."""
    config = Config(ServerOptions(port=0), http=HttpOptions(port=0), metrics=MetricsOptions(enabled=False))
    with tempfile.TemporaryDirectory() as folder, TagMatch(f"{folder}/alerts.index", threads=1, device="cpu") as index:
        filled(index)
        with serving(index, config) as service, sync_playwright() as playwright:
            assert service.http is not None
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            take(browser.new_page(), service.http.url)
            browser.close()


if __name__ == "__main__":
    main()
