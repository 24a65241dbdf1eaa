"""A user without the right is refused on every call over HTTP, and no client takes more than it may."""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.certificates import Authority
from support.service import USERS, config, value
from test_flight_security import EXPIRED, UNDONE, VALID, WRONG
from test_http import NDJSON, Http, lines, served

from tagmatch import TagMatch
from tagmatch.broker.config import ROLES, HttpOptions, User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.http.routes import ROUTES
from tagmatch.broker.service import Service, serving
from tagmatch.model.errors import InvalidValueError

Asked = tuple[str, str, Any, dict[str, str]]
MESSAGE: dict[str, Any] = {"tags": ["a"]}
#: What each route is asked here, and others nothing
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/match"): MESSAGE,
    ("POST", "/count"): MESSAGE,
    ("POST", "/exists"): MESSAGE,
    ("POST", "/explain"): MESSAGE,
    ("POST", "/match_many"): [MESSAGE],
    ("POST", "/subscriptions"): [{"key": 1, "tags": ["a"]}],
    ("POST", "/delete"): [{"key": 1}],
    ("POST", "/remove"): [{"key": 1, "tags": ["a"]}],
    ("POST", "/move"): [{"client": 1, "lon": 9.19, "lat": 45.46}],
    ("PUT", "/subscriptions/{key}"): MESSAGE,
}
#: Every call that needs a token, and its role
CALLS = {
    (method, path): route.role
    for path, methods in ROUTES.items()
    for method, route in methods.items()
    if route.role is not None
}


def asked(client: Http, call: tuple[str, str]) -> tuple[int, dict[str, str], Any]:
    method, path = call
    return client.ask(method, path.replace("{key}", "1"), BODIES.get(call))


@pytest.fixture(scope="module")
def secured():
    users = (*USERS, EXPIRED, VALID, User("few", token_sha256("few"), "write", filter="size = 1"))
    with served(users) as both:
        yield both


@pytest.mark.parametrize("call", CALLS)
def test_without_a_valid_token_every_call_is_refused(secured, call):
    service, client = secured
    for token in WRONG:
        client.token = token
        before = value(service, "tagmatch_refused_total", reason="unauthenticated")
        status, headers, problem = asked(client, call)
        assert (status, headers["www-authenticate"], problem["kind"]) == (401, "Bearer", "AccessError")
        assert value(service, "tagmatch_refused_total", reason="unauthenticated") == before + 1
    assert len(service.index) == service.index.stats()["staged"] == 0


@pytest.mark.parametrize("call", CALLS)
def test_each_role_may_do_what_it_may_and_no_more(secured, call):
    service, client = secured
    for role in ROLES:
        client.token = f"token-{role}"
        before = value(service, "tagmatch_refused_total", reason="role")
        status, _, found = asked(client, call)
        if ROLES.index(role) < ROLES.index(CALLS[call]):
            assert (status, found["kind"]) == (403, "AccessError")
            assert CALLS[call] in found["detail"]
            assert value(service, "tagmatch_refused_total", reason="role") == before + 1
        elif call[1].strip("/") not in UNDONE:
            assert status in (200, 400, 404), found
    client.token = "token-admin"
    client.ask("DELETE", "/subscriptions/1")


def test_a_user_with_a_filter_sees_and_changes_its_keys(secured):
    _, client = secured
    client.token = "token-admin"
    for key in (1, 2):
        assert client.ask("PUT", f"/subscriptions/{key}", {"tags": ["a"], "data": {"size": key}})[0] == 200
    client.token = "few"
    assert client.ask("POST", "/match", MESSAGE)[2] == {"keys": [1]}
    assert client.ask("POST", "/match_many", [MESSAGE])[2] == [{"keys": [1]}]
    assert client.ask("POST", "/count", MESSAGE)[2] == {"count": 1}
    assert client.ask("POST", "/explain", MESSAGE)[2]["sets"][0]["keys"] == [1]
    assert [each["key"] for each in client.ask("GET", "/subscriptions")[2]["subscriptions"]] == [1]
    assert [client.ask("GET", f"/subscriptions/{key}")[0] for key in (1, 2)] == [200, 404]
    for method, body in (("PUT", {"tags": ["b"], "data": {"size": 1}}), ("DELETE", None)):
        for headers in ({}, {"If_Match": "*"}):
            assert client.ask(method, "/subscriptions/2", body, **headers)[0] in (403, 404, 412)
    assert client.ask("PUT", "/subscriptions/3", {"tags": ["b"], "data": {"size": 2}})[0] == 403
    assert client.ask("POST", "/subscriptions", [{"key": 2, "tags": ["b"], "size": 1}])[0] == 403
    assert client.ask("GET", "/sessions")[0] == 403
    client.token = "token-admin"
    assert client.ask("GET", "/subscriptions/2")[2]["alternatives"][0]["tags"] == ["a"]
    for key in (1, 2):
        assert client.ask("DELETE", f"/subscriptions/{key}")[0] == 200


def test_headers_are_read_as_http_has_them(secured):
    service, _ = secured
    with contextlib.closing(Http(service)) as client:
        for text in ("bearer token-read", "BEARER token-read", "Bearer  token-read"):
            assert client.ask("POST", "/match", MESSAGE, Authorization=text)[0] == 200
        for text in ("Basic token-read", "token-read", "Bearer", "", "Bearer é"):
            assert client.ask("POST", "/match", MESSAGE, Authorization=text)[0] == 401


def test_pages_of_other_sites_may_not_ask_a_service_without_tokens(secured):
    with served() as (service, client):
        assert service.http is not None
        for origin in ("https://evil.example", "null", "http://127.0.0.1", "http://[", "\xff"):
            for call in CALLS:
                status, _, problem = client.ask(call[0], call[1].replace("{key}", "1"), BODIES.get(call), Origin=origin)
                assert (status, problem["kind"]) == (403, "InvalidValueError"), (call, origin)
            assert client.ask("GET", "/healthz", Origin=origin)[0] == 200
        for site in ("cross-site", "same-site"):  # what a page embeds has no origin
            for call in CALLS:
                headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors"}
                status, _, problem = client.ask(call[0], call[1].replace("{key}", "1"), BODIES.get(call), **headers)
                assert (status, problem["kind"]) == (403, "InvalidValueError"), (call, site)
        assert len(service.index) == service.index.stats()["staged"] == 0
        for site in ("same-origin", "none"):
            assert client.ask("GET", "/subscriptions", Sec_Fetch_Site=site)[0] == 200
        same = f"http://127.0.0.1:{service.http.port}"
        assert client.ask("POST", "/match", MESSAGE, Origin=same)[0] == 200
    _, client = secured
    client.token = "token-read"
    assert client.ask("POST", "/match", MESSAGE, Origin="https://shop.example")[0] == 200


def test_a_service_without_tokens_is_asked_by_its_own_name():
    """A page whose name leads to this machine, as its owner can have it, may not ask."""
    with served() as (service, client):
        port = service.http.port
        for host in ("evil.example", f"evil.example:{port}", "192.168.0.1", "localhost.evil.example", "[::2]", "["):
            for call in CALLS:
                status, _, problem = client.ask(call[0], call[1].replace("{key}", "1"), BODIES.get(call), Host=host)
                assert (status, problem.get("kind")) == (421, "InvalidValueError"), (call, host)
            assert client.ask("GET", "/healthz", Host=host)[0] == 200
        assert len(service.index) == service.index.stats()["staged"] == 0
        for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", "127.1.2.3:1", "[::1]:80", "a.localhost", ""):
            assert client.ask("POST", "/match", MESSAGE, Host=host)[0] == 200
    with served(USERS) as (_, client):
        assert client.ask("POST", "/match", MESSAGE, Host="shop.example")[0] == 200


@pytest.mark.parametrize("users", [(), USERS])
def test_pages_of_some_sites_may_ask(users):
    site = "https://shop.example"
    with served(users, origins=[site, "http://localhost:3000"]) as (_, client):
        for origin in (site, "http://localhost:3000"):
            status, headers, found = client.ask("POST", "/match", MESSAGE, Origin=origin)
            assert (status, found) == (200, {"keys": []})
            assert headers["access-control-allow-origin"] == origin
            assert "etag" in headers["access-control-expose-headers"]
            assert headers["vary"] == "origin"
            asked_first = {"Access_Control_Request_Method": "PUT", "Access_Control_Request_Headers": "if-match"}
            status, headers, body = client.ask("OPTIONS", "/subscriptions/1", Origin=origin, **asked_first)
            assert (status, body, headers["access-control-allow-origin"]) == (204, b"", origin)
            assert headers["access-control-allow-methods"] == "GET, PUT, DELETE, OPTIONS"
            assert headers["access-control-allow-headers"] == "if-match"
            status, headers, _ = client.ask("POST", "/match", {"tagz": []}, Origin=origin)
            assert (status, headers["access-control-allow-origin"]) == (400, origin)  # pages see the problem
        for origin in ("https://evil.example", f"{site}.evil.example", "null"):
            for method, path in (("OPTIONS", "/match"), ("POST", "/match")):
                status, headers, _ = client.ask(method, path, Origin=origin)
                assert "access-control-allow-origin" not in headers
        status, headers, _ = client.ask("OPTIONS", "/match")
        assert (status, headers["allow"]) == (204, "POST, OPTIONS")
        assert client.ask("OPTIONS", "/x")[0] == 404
    for wrong in ("*", "shop.example", "https://shop.example/", "https://", 1):
        with pytest.raises(InvalidValueError, match="origins must be sites as browsers name them"):
            HttpOptions(origins=[wrong])


def test_what_is_too_large_is_refused():
    with served(max_message_bytes=4096, max_batch_rows=100) as (service, _):
        many = [{"key": key, "tags": ["a" * 40]} for key in range(1, 1000)]
        for path, body, kind in [
            ("/match", {"tags": ["a" * (2 << 20)]}, "application/json"),
            ("/subscriptions/1", {"tags": ["a" * (2 << 20)]}, "application/json"),
            ("/subscriptions", many, "application/json"),
            ("/subscriptions", lines(many), NDJSON),
            ("/match_many", many, "application/json"),
            ("/match_many", b"x" * 100_000, NDJSON),
        ]:
            with contextlib.closing(Http(service)) as client:
                method = "PUT" if path.endswith("1") else "POST"
                status, _, problem = client.ask(method, path, body, Content_Type=kind)
                assert status in (400, 413), problem
                assert "at most" in problem["detail"]
        with contextlib.closing(Http(service)) as client:  # more messages than one may be large go by and by
            assert (
                len(client.ask("POST", "/match_many", lines([MESSAGE] * 5000), Content_Type=NDJSON)[2].splitlines())
                == 5000
            )
            status, _, problem = client.ask("GET", "/" + "a" * 200_000)
            assert status in (404, 431)


def held(service: Service, stack: contextlib.ExitStack, token: str = "") -> socket.socket:
    """A stream that is under way: a message has been answered."""
    assert service.http is not None
    raw = stack.enter_context(socket.create_connection(("127.0.0.1", service.http.port), timeout=60))
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST /match_many HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n{authorization}"
    data = lines([MESSAGE])
    raw.sendall(f"{head}Content-Type: {NDJSON}\r\n\r\n".encode() + b"%x\r\n%s\r\n" % (len(data), data))
    assert b"200 OK" in raw.recv(1000)
    return raw


def test_there_are_not_too_many_at_once():
    with served(max_calls=4) as (service, client), contextlib.ExitStack() as stack:
        for _ in range(4):
            held(service, stack)
        status, headers, problem = client.ask("POST", "/match", MESSAGE)
        assert (status, headers["retry-after"], problem["kind"]) == (429, "1", "Overloaded")
        assert client.ask("GET", "/stats")[0] == 200  # of everyone, who is an administrator here
        stack.close()
        wait_until(lambda: client.ask("POST", "/match", MESSAGE)[0] == 200)
    with served(USERS, max_calls=8, max_user_calls=2) as (service, client), contextlib.ExitStack() as stack:
        client.token = "token-read"
        for _ in range(2):
            held(service, stack, "token-read")
        assert client.ask("POST", "/match", MESSAGE)[0] == 429
        client.token = "token-write"
        assert client.ask("POST", "/match", MESSAGE)[0] == 200
    with served(USERS, rate=5) as (_, client):
        client.token = "token-read"
        assert 429 in [client.ask("POST", "/match", MESSAGE)[0] for _ in range(10)]


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_connections_have_a_bound():
    with served(max_connections=2) as (service, _), contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.http.port)))
        wait_until(lambda: len(service.http.app.connections) == 8)
        ninth = stack.enter_context(socket.create_connection(("127.0.0.1", service.http.port), timeout=30))
        with contextlib.suppress(ConnectionError):
            assert ninth.recv(10) == b""


def ends(raw: socket.socket) -> bytes:
    """What still comes, until the service closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := raw.recv(1 << 16):
            found += part
    return found


def test_slow_clients_are_cut(monkeypatch):
    monkeypatch.setattr("tagmatch.broker.http.call.FIRST_S", 0.3)
    monkeypatch.setattr("tagmatch.broker.http.connection.FIRST_S", 0.5)
    monkeypatch.setattr("tagmatch.broker.http.call.UNREAD_S", 0.5)
    with served() as (service, client), contextlib.ExitStack() as stack:
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["a"]})[0] == 200
        for begun in (
            b"",
            b"POST /match HTT",
            b"POST /match HTTP/1.1\r\nHost: localhost\r\nX",
            b"POST /match HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
            b"POST /match_many HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n[",
            b"POST /match_many HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
        ):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", service.http.port), timeout=30))
            raw.sendall(begun)
            ends(raw)
        raw = stack.enter_context(socket.create_connection(("127.0.0.1", service.http.port), timeout=30))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data = lines([MESSAGE] * 400_000)
        raw.sendall(
            b"POST /match_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
            % (NDJSON.encode(), len(data))
        )
        with contextlib.suppress(OSError):  # it reads nothing
            raw.sendall(data)
        wait_until(lambda: service.limits.stats()["calls"] == 0)
        wait_until(lambda: service.limits.stats()["bytes"] == 0)
        assert client.ask("POST", "/match", MESSAGE)[2] == {"keys": [1]}


def test_a_client_that_never_reads_its_last_answer_is_cut(monkeypatch):
    monkeypatch.setattr("tagmatch.broker.http.connection.UNREAD_S", 0.5)
    with served() as (service, client), socket.socket() as raw:
        rows = [{"key": key, "tags": ["a", f"{key}" + "x" * 20_000]} for key in range(1000)]
        assert client.ask("POST", "/subscriptions", rows)[0] == 200
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", service.http.port))
        raw.sendall(b"GET /subscriptions?limit=1000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert raw.recv(12) == b"HTTP/1.1 200"
        client.close()
        wait_until(lambda: not service.http.app.connections)


def test_a_stream_whose_client_has_had_an_answer_may_be_silent(monkeypatch):
    monkeypatch.setattr("tagmatch.broker.http.call.FIRST_S", 0.3)
    with served() as (service, _), contextlib.ExitStack() as stack:
        raw = held(service, stack)
        time.sleep(1)
        raw.sendall(b"0\r\n\r\n")
        assert raw.recv(100).endswith(b"0\r\n\r\n")


def test_a_token_that_expires_ends_its_stream(monkeypatch):
    with served((*USERS, VALID)) as (service, _), contextlib.ExitStack() as stack:
        raw = held(service, stack, "token-early")
        monkeypatch.setattr(User, "has_expired", lambda _: True)
        assert b"expired" in ends(raw)


def test_while_the_service_drains():
    with served(USERS, drain_seconds=5) as (service, client), contextlib.ExitStack() as stack:
        raw = held(service, stack, "token-read")
        service.drain()
        for call in CALLS:
            status = asked(client, call)[0]
            is_action = ROUTES[call[1]][call[0]].is_action
            assert status in ((200, 400) if is_action else (503,)), call
        raw.sendall(b"0\r\n\r\n")
        assert raw.recv(100).endswith(b"0\r\n\r\n")
        assert service.end()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", service.http.port))


def test_a_client_that_never_ends_its_handshake_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("tagmatch.broker.http.server.HANDSHAKE_S", 0.3, raising=False)
    own = Authority("ours").certificate("localhost")
    for name, pem in {"tls_cert": own.cert, "tls_key": own.key}.items():
        (tmp_path / name).write_bytes(pem)
    with served(USERS, **{name: str(tmp_path / name) for name in ("tls_cert", "tls_key")}) as (service, _):
        for begun in (b"", b"\x16\x03\x01"):
            with socket.create_connection(("127.0.0.1", service.http.port), timeout=30) as raw:
                raw.sendall(begun)
                assert ends(raw) == b""


def test_tls(tmp_path):
    ours, others = Authority("ours"), Authority("others")
    server = ours.certificate("localhost")
    for name, pem in {"tls_cert": server.cert, "tls_key": server.key, "client_ca": ours.cert}.items():
        (tmp_path / name).write_bytes(pem)
    paths = {name: str(tmp_path / name) for name in ("tls_cert", "tls_key", "client_ca")}
    with TagMatch(threads=1, device="cpu") as index, serving(index, config(USERS, **paths)) as service:
        assert service.http is not None
        assert service.http.url.startswith("https://127.0.0.1:")
        for authority, shown, is_taken in [(ours, True, True), (ours, False, False), (others, True, False)]:
            context = ssl.create_default_context(cadata=authority.cert.decode())
            context.check_hostname = False
            if shown:
                own = ours.certificate("client")
                (tmp_path / "own").write_bytes(own.cert + own.key)
                context.load_cert_chain(tmp_path / "own")
            found = b""
            with (
                contextlib.suppress(ssl.SSLError, ConnectionError),
                socket.create_connection(("127.0.0.1", service.http.port), timeout=30) as raw,
                context.wrap_socket(raw) as encrypted,
            ):
                encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                found = ends(encrypted)
            assert is_taken == found.endswith(b'{"status": "alive"}\n')
        with socket.create_connection(("127.0.0.1", service.http.port), timeout=30) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert b"alive" not in ends(raw)
