"""A user without the right is refused, on every call, also if calls are encrypted."""

import json
import socket
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from support.agreement import index_of
from support.certificates import Authority
from support.service import USERS, command, config, exchanged, options, put, value

from tagmatch import AccessError, InvalidValueError, TagMatch, UnavailableError, connect
from tagmatch.broker.answers import ACTIONS, EXCHANGES, PUTS
from tagmatch.broker.config import ROLES, MetricsOptions, User
from tagmatch.broker.config_file import new_token, token_sha256
from tagmatch.broker.observe import HttpEndpoint
from tagmatch.broker.service import serving

HOUR = timedelta(hours=1)
EXPIRED = User("late", token_sha256("token-late"), "admin", datetime.now(UTC) - HOUR)
VALID = User("early", token_sha256("token-early"), "read", datetime.now(UTC) + HOUR)
WRONG = [None, "", "token", "token-late", "TOKEN-READ", "token-read ".rstrip() + "x", "x" * 5000]


def sent(name: str, **columns: Any) -> Callable[[flight.FlightClient, Any], Any]:
    act = exchanged if name in EXCHANGES else put
    more = {"session": "a", "linger": 0} if name == "notify" else {}
    if name == "match_best":
        more = {"limit": 1, "order_by": "size"}
    table = pa.table(columns or {"key": [1], "tags": [["a"]]})
    return lambda client, options: act(client, command(command=name, **more), table, given=options)


def acted(name: str) -> Callable[[flight.FlightClient, Any], Any]:
    return lambda client, options: list(client.do_action((name, b""), options))


def schema(client, options):
    """`get_schema`, which in pyarrow raises no error of Flight."""
    try:
        return client.get_schema(command(get="rows"), options)
    except OSError as error:
        kind = flight.FlightUnauthenticatedError if "Unauthenticated" in str(error) else flight.FlightUnavailableError
        raise kind(str(error), b'{"error": "AccessError"}') from None


#: Every call, and the role that it needs
CALLS: dict[str, tuple[str, Callable[[flight.FlightClient, Any], Any]]] = {
    "match": ("read", sent("match", tags=[["a"]])), "match_unique": ("read", sent("match_unique", tags=[["a"]])),
    "match_counts": ("read", sent("match_counts", tags=[["a"]])),
    "match_exists": ("read", sent("match_exists", tags=[["a"]])),
    "match_best": ("read", sent("match_best", tags=[["a"]])),
    "match_highlights": ("read", sent("match_highlights", tags=[["a"]])),
    "notify": ("read", sent("notify", acknowledge=pa.array([], pa.int64()))),
    "rows": ("read", lambda client, options: client.do_get(flight.Ticket(b'{"get": "rows"}'), options).read_all()),
    "sets": ("read", lambda client, options: client.do_get(flight.Ticket(b'{"get": "sets"}'), options).read_all()),
    "list_flights": ("read", lambda client, options: list(client.list_flights(options=options))),
    "list_actions": ("read", lambda client, options: list(client.list_actions(options))),
    "get_flight_info": ("read", lambda client, options: client.get_flight_info(command(get="rows"), options)),
    "get_schema": ("read", schema), "add": ("write", sent("add")), "remove": ("write", sent("remove")),
    "put": ("write", sent("put")), "delete": ("write", sent("delete", key=[1])),
    "records": ("read", lambda client, options: list(client.do_get(flight.Ticket(b'{"get": "records"}'), options))),
    "move": ("write", sent("move", client=[1], lon=[0.0], lat=[0.0])),
    "publish": ("write", sent("publish", tags=[["a"]])),
    **{name: (each.role, acted(name)) for name, each in ACTIONS.items() if each.role is not None},
}  # fmt: skip
# What these do is not of interest here
UNDONE = {"drain", "reload", "save_positions"}


@pytest.fixture(scope="module")
def served():
    with (
        TagMatch(threads=1, device="cpu", data={"size": "int64"}) as index,
        serving(index, config((*USERS, EXPIRED, VALID))) as service,
        flight.connect(service.url) as client,
    ):
        yield service, client


def test_every_call_is_known_here():
    assert {*EXCHANGES, *PUTS, *ACTIONS} - {"health"} <= CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_without_a_valid_token_every_call_is_refused(served, name):
    service, client = served
    for token in WRONG:
        before = value(service, "tagmatch_refused_total", reason="unauthenticated")
        with pytest.raises(flight.FlightUnauthenticatedError) as caught:
            CALLS[name][1](client, options(token))
        assert json.loads(caught.value.extra_info)["error"] in ("AccessError", "UnauthenticatedError")
        assert value(service, "tagmatch_refused_total", reason="unauthenticated") > before
    assert len(service.index) == service.index.stats()["staged"] == service.index.stats()["positions"] == 0


@pytest.mark.parametrize("name", CALLS)
def test_each_role_may_do_what_it_may_and_no_more(served, name):
    service, client = served
    needed, call = CALLS[name]
    for role in ROLES:
        before = value(service, "tagmatch_refused_total", reason="role")
        if ROLES.index(role) < ROLES.index(needed):
            with pytest.raises(flight.FlightUnauthorizedError, match=needed):
                call(client, options(f"token-{role}"))
            assert value(service, "tagmatch_refused_total", reason="role") == before + 1
        elif name not in UNDONE:
            call(client, options(f"token-{role}"))


def test_health_needs_no_token_and_says_nothing(served):
    _, client = served
    (result,) = client.do_action(("health", b"{}"), options())
    assert json.loads(result.body.to_pybytes()) == {"status": "alive"}


def test_a_client_gets_the_same_errors(served, monkeypatch):
    service, _ = served
    for token in WRONG:
        with pytest.raises(InvalidValueError if token == "" else AccessError):
            connect(service.url, token=token)
    with pytest.raises(InvalidValueError, match=r"one line without spaces around it.*strip\(\)"):
        connect(service.url, token="token-read\n")
    with connect(service.url, token="token-read") as tm:
        assert tm.match(["a"]) == []
        with pytest.raises(AccessError, match="'write'"):
            tm.add_set(["a"], 1)
        with pytest.raises(AccessError, match="'admin'"):
            tm.check()
    with connect(service.url, token="token-early") as tm:
        assert tm.match_many([["a"]]).to_pylist() == [[]]
        assert tm.match(["a"]) == []
        monkeypatch.setattr(User, "has_expired", lambda _: True)  # which ends its stream
        with pytest.raises(AccessError, match="expired"):
            tm.match(["a"])


def test_headers_are_read_as_http_has_them(served):
    _, client = served
    right = [f"{scheme} token-read" for scheme in ("bearer", "BEARER", "Bearer ")]
    for text in (*right, "Basic token-read", "token-read", "Bearer"):
        given = flight.FlightCallOptions(headers=[(b"authorization", text.encode())])  # gRPC takes no capitals here
        if text in right:
            assert CALLS["match"][1](client, given).num_rows == 1
        else:
            with pytest.raises(flight.FlightUnauthenticatedError):
                CALLS["match"][1](client, given)


def test_tokens_are_long_and_only_their_hash_is_kept():
    made = {new_token() for _ in range(50)}
    assert len({token for token, _ in made}) == 50
    assert all(len(token) >= 43 and token_sha256(token) == digest for token, digest in made)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A service with TLS whose clients must show a certificate."""
    ours, others, folder = Authority("ours"), Authority("others"), tmp_path_factory.mktemp("tls")
    server = ours.certificate("localhost")
    files = {"tls_cert": server.cert, "tls_key": server.key, "client_ca": ours.cert}
    for name, pem in files.items():
        (folder / name).write_bytes(pem)
    paths = {name: str(folder / name) for name in files}
    with index_of([["a"]], [1], threads=1, device="cpu") as index, serving(index, config(USERS, **paths)) as both:
        del paths["client_ca"]
        with serving(index, config(USERS, **paths)) as tls:
            yield tls, both, ours, others


def test_tls(secured):
    tls, _, ours, others = secured
    assert tls.url.startswith("grpc+tls://127.0.0.1:")
    with connect(tls.url, token="token-read", tls_root_certs=ours.cert) as tm:
        assert tm.match(["a"]) == [1]
    for url, root, message in [
        (tls.url, others.cert, "signed by an authority unknown here: give that as tls_root_certs"),
        (tls.url, None, "signed by an authority unknown here"),
        (tls.url.replace("+tls", ""), None, r"if it has TLS, connect with grpc\+tls://"),
    ]:
        with pytest.raises(UnavailableError, match=message):
            connect(url, token="token-read", tls_root_certs=root, timeout=60)


def test_what_speaks_something_else_is_said_in_words(served):
    service, _ = served
    with (
        closing(HttpEndpoint(MetricsOptions(port=0), lambda: b"", lambda: (True, b""))) as metrics,
        socket.socket() as free,
    ):
        free.bind(("127.0.0.1", 0))  # and listens not
        for url, message in [
            (service.url.replace("grpc", "grpc+tls"), r"speaks no TLS: connect with grpc://"),
            (metrics.url.replace("http", "grpc+tls"), r"the port of \[server\], not that of \[metrics\]"),
            (metrics.url.replace("http", "grpc"), r"is no such service, but perhaps its metrics"),
            (f"grpc://127.0.0.1:{free.getsockname()[1]}", "nothing listens there; is the service started"),
        ]:
            with pytest.raises(UnavailableError, match=message) as error:
                connect(url, timeout=60)
            assert "ipv4" not in str(error.value)


def test_mutual_tls_refuses_every_call_of_other_clients(secured):
    _, both, ours, others = secured
    good, bad = ours.certificate("someone"), others.certificate("someone")
    shown = {"cert_chain": good.cert, "private_key": good.key}
    with connect(both.url, token="token-read", tls_root_certs=ours.cert, **shown) as tm:
        assert tm.match(["a"]) == [1]
    with pytest.raises(AccessError):  # a certificate is no token
        connect(both.url, tls_root_certs=ours.cert, **shown)
    for _, call in CALLS.values():
        for chain in ({}, {"cert_chain": bad.cert, "private_key": bad.key}):
            with (
                flight.connect(both.url, tls_root_certs=ours.cert, **chain) as client,
                pytest.raises(flight.FlightUnavailableError),
            ):
                call(client, options("token-admin"))
