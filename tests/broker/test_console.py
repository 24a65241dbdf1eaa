"""The console in a browser: its files, its views in real Chromium, hostile texts, rights, and a service that goes."""

import contextlib
import dataclasses
import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.browsers import chromium, violations
from support.service import USERS, config
from support.waiting import wait_until
from test_http import Http, served

import tagmatch.broker
import tagmatch.broker.config
from tagmatch import Box, Circle, Polygon, TagMatch
from tagmatch.broker.config import ROLES, HttpOptions, IndexOptions, User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.observe import Metrics
from tagmatch.broker.service import opened as opened_index
from tagmatch.broker.service import serving

FOLDER = Path(tagmatch.broker.__file__).parent / "console"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_are_served_with_their_types_and_a_policy_and_refer_to_each_other():
    kinds = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json"}
    with served(USERS) as (service, _), contextlib.closing(Http(service)) as client:
        assert client.ask("GET", "/console")[:2][0] == client.ask("GET", "/")[0] == 307
        for file in FOLDER.iterdir():
            path = "/console/" if file.name == "index.html" else f"/console/{file.name}"
            status, headers, body = client.ask("GET", path)
            assert status == 200, file
            assert headers["content-type"].startswith(kinds.get(file.suffix, "image/svg+xml"))
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert file.suffix == ".json" or body == file.read_bytes()
            assert client.ask("GET", path, If_None_Match=headers["etag"])[::2] == (304, b"")
            assert client.ask("HEAD", path)[::2] == (200, b"")
            text = file.read_text()
            for other in re.findall(r'(?:from|href=|src=|URL\()\s*"(?:\./)?([\w.]+\.\w+)"', text):
                assert (FOLDER / other).exists(), f"{file.name} names {other}"
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|<style|style=", text
            ), file
        assert client.ask("GET", "/console/../routes.py")[0] in (401, 404)
        assert client.ask("GET", "/console/none.js")[0] in (401, 404)
        assert client.ask("POST", "/console/", {})[0] in (401, 405)


def test_the_console_is_small():
    lines = sum(
        len(each.read_text().splitlines()) for each in FOLDER.iterdir() if each.suffix in {".js", ".css", ".html"}
    )
    assert lines <= 1500
    assert sum(each.stat().st_size for each in FOLDER.iterdir()) <= 120_000


# -- in Chromium -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@contextlib.contextmanager
def opened(browser: Any, url: str, token: str | None = None, **context: Any) -> Iterator[Any]:
    """A page, signed in; it fails if the page wrote an error or asked for anything that is not the service's."""
    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 800}, **context)) as own:
        page, errors = own.new_page(), list[str]()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.on("request", lambda asked: asked.url.startswith(url) or errors.append(asked.url))
        page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
        page.goto(f"{url}/console")
        if token is not None:
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("navigation").wait_for()
        yield page
        assert errors == []


@pytest.fixture
def page(browser) -> Iterator[Any]:
    with TagMatch(threads=1, device="cpu", data={"tenant": "string"}) as tm:
        tm.put(
            1,
            tags=["flat", "lyon"],
            where="price < 900 and rooms >= 2",
            area=Circle(4.83, 45.76, 3000),
            data={"tenant": "acme"},
        )
        tm.put(2, tags=[HOSTILE], where=f'city = "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"')
        tm.put(2**64 - 1, tags=["\u202egpj.exe\u0000"], area=Box(170, -10, -170, 10))
        tm.put(4, tags=["poly"], area=Polygon([[(0, 0), (10, 0), (10, 10), (0, 0)]]))
        tm.consolidate()
        with serving(tm, config(USERS)) as service, opened(browser, service.http.url, "token-admin") as found:
            yield found


@pytest.mark.nightly
def test_every_view(page):
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_role("heading", name="Record").wait_for()
    page.locator("main").get_by_text("acme").first.wait_for()
    page.get_by_role("link", name="Try a message with these tags").click()
    page.get_by_label("Attributes").fill("price = 850\nrooms = 1")
    page.get_by_label("Longitude").fill("4.83")
    page.get_by_label("Latitude").fill("45.76")
    page.get_by_role("button", name="Match", exact=True).click()
    page.get_by_text("1 of 5 tests fails").wait_for()
    assert "rooms >= 2" in page.locator(".tree li:has(> .fails)").inner_text()
    page.get_by_label("Attributes").fill("price = 850\nrooms = 2")
    page.get_by_role("button", name="Match", exact=True).click()
    page.get_by_text("1 key matches.").first.wait_for()
    for name, seen in (
        ("Map", "3 areas of 4 subscriptions"),
        ("Live", "Messages a second"),
        ("Sessions", "There is no session"),
        ("Index", "Journal"),
        ("Users", "Calls by name"),
    ):
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_text(seen).first.wait_for()
        assert page.title().endswith("tagmatch")


@pytest.mark.nightly
def test_a_subscription_is_added_changed_and_removed(page):
    page.get_by_role("link", name="Add one").click()
    page.get_by_label("Key").fill("77")
    page.get_by_label("Tags").fill("new\n")
    page.get_by_label("Conditions").fill("price <")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("expected a value").wait_for()
    page.get_by_label("Conditions").fill("price < 5")
    page.get_by_label("Data").fill("{")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("The field “data” is no JSON").wait_for()
    page.get_by_label("Data").fill("")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="Record").wait_for()
    page.get_by_role("link", name="Change").click()
    page.get_by_label("Conditions").fill("price < 6")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("price < 6").wait_for()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    page.get_by_role("heading", name="Stored subscriptions").wait_for()
    page.get_by_text("poly", exact=True).wait_for()
    assert "77" not in page.locator("table").inner_text()


@pytest.mark.nightly
def test_what_is_stored_is_text_never_html(page):
    page.get_by_text(HOSTILE).first.wait_for()
    assert page.title() == "Stored subscriptions · tagmatch"
    assert page.locator("main img").count() == 0
    text = page.locator("table").inner_text()
    assert str(2**64 - 1) in text  # JavaScript's numbers would round it
    assert "\\u202egpj.exe\\u0000" in text


@pytest.mark.nightly
def test_rights_and_an_expired_token(browser, monkeypatch):
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=1)

    soon = User("soon", token_sha256("token-soon"), "admin", expires=datetime.now(UTC) + timedelta(hours=1))
    with served((*USERS, soon)) as (service, client):
        client.ask("PUT", "/subscriptions/1", {"tags": ["a"]})
        with opened(browser, service.http.url) as page:
            page.get_by_label("Token").fill("wrong")
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text("The token is not valid").wait_for()
        with opened(browser, service.http.url, "token-read") as page:
            page.get_by_role("link", name="1", exact=True).click()
            page.get_by_role("heading", name="Record").wait_for()
            assert (
                page.get_by_role("button", name="Remove").count() == page.get_by_role("link", name="Users").count() == 0
            )
            page.goto(f"{service.http.url}/console/#/change")
            page.get_by_role("heading", name="Stored subscriptions").wait_for()
        with opened(browser, service.http.url, "token-soon") as page:
            monkeypatch.setattr(tagmatch.broker.config, "datetime", Tomorrow)
            page.get_by_role("link", name="Live").click()
            page.get_by_role("heading", name="Sign in").wait_for()


@pytest.mark.nightly
@pytest.mark.parametrize(("role", "has_filter"), [*((role, False) for role in ROLES), ("read", True), ("write", True)])
def test_a_user_is_offered_what_the_service_lets_it_do(browser, role, has_filter):
    """No view that a link leads to is refused, and no button is; views that are not offered are not shown."""
    user = User("someone", token_sha256("own"), role, filter='name = "a"' if has_filter else None)
    with served((*USERS, user)) as (service, client):
        client.ask("PUT", "/subscriptions/1", {"tags": ["a"], "data": {"name": "a"}, "area": "circle(1, 2, 3)"})
        with opened(browser, service.http.url, "own") as page:
            refused = list[str]()
            page.on("response", lambda answer: answer.status < 400 or refused.append(answer.url))
            offered = page.locator("#views a").all_inner_texts()
            whole = [] if has_filter else ["Live", "Sessions", *(["Users"] if role == "admin" else [])]
            assert {*offered} == {"Stored", "Try", "Map", "Index", *whole}
            for name in offered:
                page.get_by_role("link", name=name, exact=True).click()
                page.locator("#views a[aria-current]", has_text=name).wait_for()
                page.locator("#loading").wait_for(state="detached")
                for button in page.get_by_role("button", name="Consolidate").all():
                    button.click()
                    page.get_by_text("Staged changes are in effect").wait_for(state="attached")
            for name, view in (("Live", "live"), ("Sessions", "sessions"), ("Sessions", "session"), ("Users", "calls")):
                if name in offered:
                    continue
                page.goto(f"{service.http.url}/console/#/{view}")
                page.get_by_role("heading", name="Stored subscriptions").wait_for()
            if role != "read":
                page.goto(f"{service.http.url}/console/#/change?key=1")
                page.get_by_role("button", name="Save").click()
                page.get_by_role("button", name="Remove").click()
                page.get_by_role("button", name="Remove it").click()
                page.get_by_text("No subscription is like this").first.wait_for()
            assert page.locator(".problem").count() == 0
            assert refused == []


@pytest.mark.nightly
def test_a_service_that_follows_an_index_offers_no_change(browser, tmp_path):
    """It shows stored subscriptions, and refuses changes: no button may lead to one."""
    index_of([["cat"]], [7], tmp_path / "index").close()
    index = IndexOptions(str(tmp_path / "index"), follow=True, device="cpu", threads=1, auto_reload=0.01)
    own = dataclasses.replace(config(), index=index, http=HttpOptions(port=0))
    with opened_index(own) as tm, serving(tm, own) as service, opened(browser, service.http.url) as page:
        for view in ("stored", "record?key=7", "index"):
            page.goto(f"{service.http.url}/console/#/{view}")
            page.locator("#loading").wait_for(state="detached")
            page.get_by_text("cat" if view != "index" else "Sets").first.wait_for()
            names = {*page.get_by_role("button").all_inner_texts(), *page.get_by_role("link").all_inner_texts()}
            assert not names & {"Add one", "Change", "Remove", "Consolidate"}, view
        page.goto(f"{service.http.url}/console/#/change?key=7")
        page.get_by_role("heading", name="Stored subscriptions").wait_for()


@pytest.mark.nightly
def test_a_service_that_goes_away_and_comes_back(browser):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = dataclasses.replace(config(), http=HttpOptions(port=port))
    with TagMatch(threads=1, device="cpu") as tm:
        with serving(tm, own) as service:
            url = service.http.url
            context = opened(browser, url)
            page = context.__enter__()
            page.get_by_role("link", name="Live").click()
            page.get_by_text("Messages a second").wait_for()
        page.get_by_text("The service cannot be reached.").wait_for()
        with serving(tm, own):
            page.get_by_role("button", name="Ask now").click()
            page.locator("#gone").wait_for(state="hidden")
            page.get_by_text("Messages a second").wait_for()
            context.__exit__(None, None, None)


@pytest.mark.nightly
def test_views_that_are_shown_anew_keep_the_focus_and_ask_nothing_while_nobody_looks(browser):
    with served() as (service, _), opened(browser, service.http.url) as page:
        page.get_by_role("link", name="Index", exact=True).click()
        page.get_by_role("button", name="Consolidate").focus()
        with page.expect_response(re.compile("stats")):
            pass
        page.wait_for_timeout(300)
        assert page.evaluate("document.activeElement.textContent") == "Consolidate"
        page.get_by_role("link", name="Live").click()
        page.get_by_text("Messages a second").wait_for()
        see = """(seen) => {
          Object.defineProperty(document, "visibilityState", { value: seen, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(see, "hidden")
        page.wait_for_timeout(500)
        asked = list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(5_000)
        assert asked == []
        page.evaluate(see, "visible")
        page.wait_for_timeout(3_000)
        assert len(asked) in (2, 3)


def test_the_console_adds_no_work_while_nobody_looks(monkeypatch):
    looks = list[str]()
    for kind, name in ((TagMatch, "stats"), (Metrics, "figures"), (Metrics, "of_call")):
        method = getattr(kind, name)

        def counted(*given: Any, method: Any = method, **more: Any) -> Any:
            looks.append(method.__name__)
            return method(*given, **more)

        monkeypatch.setattr(kind, name, counted)
    with served() as (service, client):
        client.ask("GET", "/stats?details=true")
        client.close()
        app, threads = service.http.app, set(threading.enumerate())
        for looked in (False, True):
            if looked:
                with contextlib.closing(Http(service)) as page:
                    for file in FOLDER.iterdir():
                        assert page.ask("GET", f"/console/{file.name.replace('index.html', '')}")[0] == 200
                    for view in ("info", "subscriptions", "stats?details=true&positions=10", "sessions", "calls"):
                        assert page.ask("GET", f"/{view}")[0] == 200
                assert {"stats", "figures", "of_call"} <= {*looks}
            wait_until(lambda: not app.connections)
            looks.clear()
            time.sleep(0.7)
            assert looks == []
            assert not app.tasks
            assert not app._calls
            # Threads that answer calls are kept, and wait
            assert {each for each in threading.enumerate() if "http-call" not in each.name} <= threads


@pytest.mark.nightly
def test_a_session_is_ended_by_whose_it_is_or_by_an_administrator(browser):
    with served(USERS) as (service, _):
        for user in ("user-read", "user-write"):
            service.subscribers.sessions.connect(f"of {user}", user, keys=[1], linger=300).close()
        with opened(browser, service.http.url, "token-read") as page:
            page.get_by_role("link", name="Sessions").click()
            page.get_by_role("link", name="of user-read").click()
            assert page.get_by_role("link", name="of user-write").count() == 0
            page.get_by_role("button", name="End", exact=True).click()
            page.get_by_role("button", name="Keep it").click()
            page.get_by_role("button", name="End", exact=True).click()
            page.get_by_role("button", name="End it").click()
            page.get_by_text("There is no session").wait_for()
            page.goto(f"{service.http.url}/console/#/session?name=of+user-write")
            page.get_by_text("There is no such session").wait_for()
        with opened(browser, service.http.url, "token-admin") as page:
            page.get_by_role("link", name="Sessions").click()
            page.get_by_role("link", name="of user-write").click()
            page.get_by_role("button", name="End", exact=True).click()
            page.get_by_role("button", name="End it").click()
            page.get_by_text("There is no session").wait_for()
        assert service.subscribers.sessions.stats()["sessions"] == 0


@pytest.mark.nightly
def test_keys_that_are_texts_are_found_by_their_beginning(browser):
    with served(index={"key_type": "string"}) as (service, client):
        for key in ("ana/1", "ana/2", "bo/1"):
            assert client.ask("PUT", f"/subscriptions/{quote(key, safe='')}", {"tags": ["a"]})[0] == 200
        with opened(browser, service.http.url) as page:
            page.get_by_label("Key begins with").fill("ana/")
            page.get_by_role("button", name="Search").click()
            page.get_by_text("2 subscriptions on this page").wait_for(state="attached")
            page.get_by_role("link", name="ana/2").click()
            page.get_by_role("heading", name="Record").wait_for()


@pytest.mark.nightly
def test_a_corridor_is_a_line_with_a_width_and_a_hole_is_no_part_of_a_polygon(page):
    made = page.evaluate("""async () => {
      const { outline } = await import("./map.js");
      const texts = ["500 m of linestring(0 0, 1 1)", "polygon((0 0, 9 0, 9 9, 0 0), (4 1, 5 1, 5 2, 4 1))"];
      return texts.map((text) => outline({ text }, false));
    }""")
    assert made[0] | {"width": 0} == {"closed": False, "width": 0, "lines": [[[0, 0], [1, 1]]]}
    assert made[0]["width"] == pytest.approx(1000 / 111_195)
    assert (made[1]["closed"], [len(each) for each in made[1]["lines"]]) == (True, [4, 4])


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_a_keyboard_and_what_axe_finds(browser, scheme):
    with served() as (service, client):
        for key in range(60):
            client.ask(
                "PUT",
                f"/subscriptions/{key}",
                {
                    "tags": [f"tag-{key}", "x" * 300],
                    "where": f"a_long_name_of_an_attribute < {key}",
                    "area": "circle(1, 2, 300)" if key == 3 else None,
                },
            )
        with opened(browser, service.http.url, color_scheme=scheme) as page:
            page.set_viewport_size({"width": 390, "height": 844})
            for view in ("stored", "try", "map", "live", "sessions", "index", "calls", "record?key=3", "change?key=3"):
                page.goto(f"{service.http.url}/console/#/{view}")
                page.locator("#loading").wait_for(state="detached")
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
                assert hindrances(page) == [], view
                assert view != "map" or "1 area of 60 subscriptions, 0 positions" in page.locator("main").inner_text()
                if view == "map":
                    page.get_by_text("1 area of 60 subscriptions").first.wait_for()
            page.goto(f"{service.http.url}/console/#/try")
            page.get_by_label("Tags").focus()
            page.keyboard.type("tag-3")
            page.keyboard.press("Tab")
            page.keyboard.type("a_long_name_of_an_attribute = 1")
            for _ in range(3):
                page.keyboard.press("Tab")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            page.get_by_text("keys match.").or_(page.get_by_text("key matches.")).first.wait_for()
            assert hindrances(page) == []


#: What is too small for a finger (WCAG 2.5.8)
SMALL = """[...document.querySelectorAll("a:not(.skip), button, input, textarea, summary")]
  .filter((each) => each.getClientRects().length)
  .filter((each) => Math.min(each.getBoundingClientRect().width, each.getBoundingClientRect().height) < 24)
  .map((each) => each.outerHTML)"""


def hindrances(page: Any) -> list[str]:
    """What axe finds in a page, and targets that are too small; for a view that has hardly anything to look at, too."""
    return violations(page) + page.evaluate(SMALL)


@pytest.mark.nightly
def test_a_million_subscriptions(browser):
    count = 1_000_000
    numbers = np.arange(count)
    tags = pa.ListArray.from_arrays(
        np.arange(0, 2 * count + 1, 2).astype(np.int32),
        pa.array([f"t{i}" for i in range(2 * count // 10)]).take(pa.array(np.repeat(numbers, 2) // 10)),
    )
    with TagMatch(threads=2, device="cpu") as tm:
        tm.put_many(pa.table({"key": pa.array(numbers, pa.uint64()), "tags": tags}))
        tm.consolidate()
        with serving(tm, config()) as service, opened(browser, service.http.url) as page:
            page.get_by_role("link", name="Next page").click()
            page.get_by_role("link", name="50", exact=True).wait_for()
            page.get_by_label("Has the tag").fill("t77777")
            page.get_by_role("button", name="Search").click()
            page.get_by_role("link", name="777770", exact=True).wait_for(timeout=120_000)
            page.get_by_label("Key").fill("999999")
            page.get_by_role("button", name="Search").click()
            page.get_by_text("Key 999999").wait_for()
            page.get_by_role("link", name="Index", exact=True).click()
            page.get_by_text("1,000,000").first.wait_for()
