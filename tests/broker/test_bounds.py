"""Every resource that a client can take has a bound, and comes back in bounded time; many columns take no more work."""

import contextlib
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight
from support.agreement import index_of
from support.brokers import Proxy
from support.command import done, from_json_lines, tagmatch
from support.raw_flight import RawClient, data, descriptor, field, never, stream
from support.service import USERS, Served, Slowed, command, config, exchanged, messages, options, put, value, written
from support.waiting import wait_until as until

from tagmatch import Overloaded, TagMatch, connect
from tagmatch.broker import connection
from tagmatch.broker import flight as transport
from tagmatch.broker.access import Bucket
from tagmatch.broker.config import User
from tagmatch.broker.service import serving
from tagmatch.broker.wire import MAX_FIELDS, MAX_JSON, batch_of, check_schema
from tagmatch.model.errors import InvalidValueError, UnavailableError

MATCH = {"command": "match"}


@pytest.fixture
def index():
    with index_of([["a"], ["b"]], [1, 2], threads=1, device="cpu") as index:
        yield index


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An index with more rows than the way to a client has room for."""
    sets = [[f"{number} {'x' * 1000}"] for number in range(50_000)]
    path = tmp_path_factory.mktemp("large") / "a.index"
    with index_of(sets, range(len(sets)), path, threads=1, device="cpu") as index:
        yield index


@pytest.mark.slow
def test_bytes_of_strangers(tmp_path):
    """To a service as a process, so that it may crash. What Zstandard makes of a batch of zeros is never there."""
    index_of([["a"]], [1], tmp_path / "a.index").close()
    served = Served(tmp_path / "a.index", "--port", 0, "--config", written(tmp_path, "[metrics]\nenabled = false"))
    values = pa.array(["\0" * 1_000_000] * 100)
    batch = pa.RecordBatch.from_arrays([pa.ListArray.from_arrays([0, len(values)], values)], ["tags"])
    sent = stream([batch], MATCH, compression="zstd")
    assert sum(map(len, sent)) < 1_000_000
    before = peak(served)
    with RawClient(served.url) as client, RawClient(served.url, compression=grpc.Compression.Gzip) as zipping:
        for _ in range(2):
            code, details, _ = client.call("DoExchange", sent)
            assert (code, "67,108,864 bytes" in details) == ("UNKNOWN", True)
        code, details, _ = zipping.call("DoExchange", stream([batch], MATCH))
        assert (code, "gzip" in details) == ("UNIMPLEMENTED", True)
        assert peak(served) - before < 90 << 20
        for method in ("DoExchange", "DoPut", "DoGet", "DoAction", "GetSchema", "GetFlightInfo"):
            broken = (b"", b"\xff" * 30, b"\x0a\x7f", descriptor(**MATCH)[:-3], field(1, b"\xff"), data(b"", b"x"))
            for some in ([], *([each] for each in broken)):
                code, details, _ = client.call(method, some)
                assert code == "UNKNOWN", (method, some, details)
            assert client.call(method, [field(2, bytes(80 << 20))])[0] == "RESOURCE_EXHAUSTED"
        assert client.call("Handshake", [b""])[0] == "UNIMPLEMENTED"
    with connect(served.url) as tm:
        assert tm.match(["a"]) == [1]
    served.process.terminate()
    code, log = served.end()
    assert (code, "a call has failed" in log) == (0, False)
    assert all(json.loads(line) for line in log.splitlines())  # none is gRPC's


def peak(served: Served) -> int:
    text = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) << 10


def opened(client: flight.FlightClient, token: str | None = None) -> Any:
    writer, reader = client.do_exchange(command(**MATCH), options(token))
    writer.begin(messages([]).schema)
    writer.write_batch(messages([["a"]]))
    assert reader.read_chunk().data.num_rows == 1
    return writer


@pytest.mark.parametrize("limit", ["max_connections", "max_calls"])
def test_connections_and_calls_have_a_limit(index, limit):
    with serving(index, config(**{limit: 2})) as service, ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        clients = [stack.enter_context(flight.connect(service.url, generic_options=own)) for _ in range(3)]
        streams = [opened(client) for client in clients[:2]]
        with pytest.raises(flight.FlightUnavailableError, match=f"2 {limit.removeprefix('max_')}"):
            opened(clients[2])
        assert list(clients[2].do_action(("health", b""), options()))
        if limit == "max_connections":  # who is there already may go on
            streams.append(opened(clients[0]))
        for writer in streams:
            writer.close()
        until(lambda: service.limits.stats()["calls"] == 0)
        opened(clients[2]).close()


def test_administrators_get_in_when_all_calls_are_taken(index):
    with serving(index, config(USERS, max_calls=8, max_user_calls=4)) as service, ExitStack() as stack:
        client = stack.enter_context(flight.connect(service.url))
        taken = [opened(client, f"token-{role}") for role in ("read", "write") for _ in range(4)]
        with pytest.raises(flight.FlightUnavailableError, match="user 'user-read' has 4 calls"):
            opened(client, "token-read")
        with connect(service.url, token="token-admin") as tm:
            assert tm.match(["a"]) == [1]
            assert tm.stats()["sets"] == 2
            found = tm._engine.act("calls")["users"]
            expected = {"user-read": 4, "user-write": 4, "user-admin": 2}
            assert {name: each["calls"] for name, each in found.items()} == expected
        assert list(client.do_action(("health", b""), options()))
        assert value(service, "tagmatch_calls_under_way") >= 8
        for writer in taken:
            writer.close()
        until(lambda: service.limits.stats()["calls"] == 0)
        opened(client, "token-read").close()


@pytest.mark.slow
def test_calls_without_a_token_are_few_and_short(index, monkeypatch):
    monkeypatch.setattr(transport, "FIRST_S", 3.0)
    with serving(index, config(USERS)) as service, RawClient(service.url) as client:
        began = [client.begin("DoAction", never()) for _ in range(8)]
        until(lambda: service.limits.stats()["calls"] == 8)
        code, details, _ = client.call("DoAction", [field(1, b"health")])
        assert (code, "without a token" in details) == ("UNAVAILABLE", True)
        with connect(service.url, token="token-read") as tm:
            assert tm.match(["a"]) == [1]
        assert {each.code().name for each in began} == {"UNAVAILABLE"}
        until(lambda: service.limits.stats()["calls"] == 0)
        assert client.call("DoAction", [field(1, b"health")])[0] == "OK"


@pytest.mark.slow
def test_who_takes_a_session_over_ends_the_call_before(index):
    """Though its client does not read, so that the call cannot go on; its thread goes, too."""
    with serving(index, config(drain_seconds=0.1)) as service, ExitStack() as stack:
        publisher = stack.enter_context(connect(service.url))
        asked = {"command": "notify", "session": "phone", "keys": [1], "when_full": "drop_oldest"}
        sessions, begun = service.subscribers.sessions, []
        for number in range(1, 5):
            client = stack.enter_context(RawClient(service.url))
            first, *_ = stream([pa.record_batch({"acknowledge": pa.array([], pa.int64())})], asked)
            begun.append(client.begin("DoExchange", never(first)))
            until(lambda number=number: sessions.stats()["connections"] == number)
            publisher.publish([["a"]] * 2, [bytes(8 << 20)] * 2)
            until(lambda number=number: sessions.stats()["delivered"] >= number)
        until(lambda: service.limits.stats()["calls"] == 1)
        assert value(service, "tagmatch_calls_cancelled_total") >= 1


@pytest.mark.parametrize("name", ["match", "publish"])
def test_what_waits_for_its_rate_goes_with_its_client(index, name):
    """Messages that are left behind do not count."""
    with serving(index, config(USERS, rate=10)) as service, RawClient(service.url, "token-write") as client:
        sent = stream([messages([["a"]] * 5000)], {"command": name})
        begun = client.begin("DoExchange" if name == "match" else "DoPut", never(*sent))
        until(lambda: service.limits.bucket("user-write")._left < 0)
        begun.cancel()
        until(lambda: service.limits.stats()["calls"] == 0)
        with connect(service.url, token="token-write") as tm:
            assert tm.stats()["sets"] == 2


def test_buckets():
    now = [0.0]
    bucket = Bucket(10, 20, lambda: now[0])
    assert [bucket.take_at_once(count) for count in (15, 6, 5)] == [True, False, True]
    now[0] = 1.0
    assert (bucket.take(30), bucket.take_at_once(1)) == (2.0, False)
    now[0] = 100.0
    assert bucket.take_at_once(1000), "more than a full bucket may be taken from a full one"
    assert not bucket.take_at_once(1)


def test_a_user_who_sends_too_fast_is_slowed_down_or_refused(index):
    with (
        serving(index, config(USERS, rate=200, burst=0.1)) as service,
        connect(service.url, token="token-write") as tm,
        connect(service.url, token="token-read") as other,
    ):
        assert len(tm.match_many([["a"]] * 60)) == 60  # as many as it likes, but no faster
        assert value(service, "tagmatch_throttled_seconds_total") > 0
        bucket = service.limits.bucket("user-write")
        until(lambda: bucket.take(0) == 0 and bucket._left >= 20)
        tm.add_sets([["a"]] * 20, range(20))
        with pytest.raises(Overloaded, match="user-write"):
            tm.add_sets([["a"]] * 2000, range(2000))
        assert other.match(["a"]) == [1]  # each user has their own rate
        assert value(service, "tagmatch_refused_total", reason="limit") >= 1
        index.consolidate()


def test_batches_and_calls_have_limits(index):
    limits = config(max_batch_rows=10, max_message_bytes=4096)
    with serving(index, limits) as service, flight.connect(service.url) as client:
        for rows, text in [([["a"]] * 11, "at most 10 rows"), ([["x" * 5000]], "4,096 bytes")]:
            with pytest.raises(flight.FlightServerError, match=text):
                exchanged(client, command(**MATCH), messages(rows))
        table = pa.table({"key": [1], "tags": [["x" * 1500]]})
        with pytest.raises(flight.FlightServerError, match="bytes"):
            put(client, command(command="add"), *[table] * 4)  # each is small enough, together they are not
        assert index.stats()["staged"] == 0


def test_memory_is_counted_and_given_back(index, monkeypatch):
    slow = Slowed(index, monkeypatch)
    with (
        serving(index, config(max_message_bytes=1 << 20)) as service,
        connect(service.url) as tm,
        ThreadPoolExecutor(4) as threads,
    ):
        found = [threads.submit(tm.match_many, [["a" * 1000]] * 3000) for _ in range(4)]
        until(lambda: service.limits.stats()["bytes"] > 3 << 20)
        assert value(service, "tagmatch_held_bytes") == service.limits.stats()["bytes"] <= 4 << 20
        assert tm._engine.act("calls")["users"]["anyone"]["bytes"] == service.limits.stats()["bytes"]
        with pytest.raises(Overloaded, match="sends too much at once"):
            tm.add_sets([["a" * 1000]] * 900, range(900))
        slow.let.set()
        assert [len(each.result(60)) for each in found] == [3000] * 4
        until(lambda: service.limits.stats()["bytes"] == 0)


@pytest.mark.slow
def test_connections_that_ask_for_nothing_are_few_and_short(index, monkeypatch):
    monkeypatch.setattr(transport, "HANDSHAKE_S", 2.0)
    with serving(index, config(max_connections=2)) as service, ExitStack() as stack:
        place = ("127.0.0.1", service.port)
        idle = [stack.enter_context(socket.create_connection(place)) for _ in range(20)]
        for each in idle:
            each.settimeout(60)
        assert [bool(each.recv(1)) for each in idle] == [True] * 8 + [False] * 12
        with connect(service.url, wait=60) as tm:
            assert tm.match(["a"]) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ((transport, "UNREAD_S", 0.5), flight.FlightUnavailableError, "not sent or read anything for too long"),
        ((User, "has_expired", lambda _: True), flight.FlightUnauthenticatedError, "expired"),
    ],
    ids=["unread", "expired"],
)
def test_what_is_being_got_ends(large, monkeypatch, change, kind, message):
    with serving(large, config(USERS)) as service, flight.connect(service.url) as client:
        if is_unread := change[0] is transport:
            monkeypatch.setattr(*change)
        reader = client.do_get(flight.Ticket(b'{"get": "rows"}'), options("token-read"))
        reader.read_chunk()
        assert service.limits.stats()["calls"] == 1
        monkeypatch.setattr(*change)
        until(lambda: service.limits.stats()["calls"] == 0)
        with pytest.raises(kind, match=message):
            reader.read_all()
        until(lambda: value(service, "tagmatch_calls_cancelled_total") >= is_unread)


@pytest.mark.slow
def test_clients_that_give_no_sign_of_life_are_found(index, monkeypatch):
    monkeypatch.setattr(transport, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(transport, "GONE_S", 4.0)
    with (
        serving(index, config(drain_seconds=0.1)) as service,
        closing(Proxy(service.port)) as proxy,
        connect(f"grpc://127.0.0.1:{proxy.port}") as tm,
        tm.subscriber("phone", keys=[1]),
    ):
        until(lambda: service.limits.stats()["calls"] == 1)
        before = proxy.pieces
        until(lambda: proxy.pieces > before + 3)  # who says nothing, but is there, answers, and stays
        assert service.limits.stats()["calls"] == 1
        proxy.pause()
        until(lambda: service.limits.stats()["calls"] == 0)
        proxy.cut()


def test_a_service_may_be_far_away(index):
    with serving(index, config(drain_seconds=0.1)) as service, closing(Proxy(service.port)) as proxy:
        proxy.pause()
        timer = threading.Timer(1.0, proxy.resume)
        timer.start()
        with connect(f"grpc://127.0.0.1:{proxy.port}") as tm:
            assert len(tm) == len(index)
        timer.join()


@pytest.mark.slow
def test_a_service_that_gives_no_sign_of_life_is_found(index, monkeypatch):
    """A client that waits for notifications, or for answers, writes nothing, so that nothing else would tell."""
    for module in (transport, connection):
        monkeypatch.setattr(module, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(connection, "GONE_S", 4.0)
    with (
        serving(index, config(drain_seconds=0.1)) as service,
        closing(Proxy(service.port)) as proxy,
        connect(f"grpc://127.0.0.1:{proxy.port}") as tm,
        tm.subscriber("phone", keys=[1]) as phone,
    ):
        until(lambda: service.limits.stats()["calls"] == 1)
        before = proxy.pieces
        until(lambda: proxy.pieces > before + 20)  # a service that says nothing, but is there, lets clients ask
        assert service.limits.stats()["calls"] == 1
        proxy.pause()
        with pytest.raises(UnavailableError, match="ping timeout"):
            next(iter(phone))
        proxy.cut()


@pytest.mark.slow
def test_sigterm_ends_a_service_whose_client_does_not_read(large, tmp_path):
    """At once, if there is a second signal."""
    large.save(tmp_path / "a.index")
    settings = written(tmp_path, "[server]\nport = 0\ndrain_seconds = 600\n[metrics]\nenabled = false")
    served = Served(tmp_path / "a.index", "--config", settings)
    with flight.connect(served.url) as client:
        reader = client.do_get(flight.Ticket(b'{"get": "rows"}'), options())
        reader.read_chunk()
        served.process.terminate()
        while b"draining" not in served.process.stderr.readline():
            pass
        served.process.terminate()
        assert served.end()[0] == 0  # without waiting for the client
        with TagMatch(tmp_path / "a.index", device="cpu") as index:
            index.add_set(["a"], 1)


_INT, _ONE = pa.int8(), pa.array([1], pa.int8())


def _names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _batch(names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_ONE] * len(names), names=names)


@pytest.mark.slow
def test_many_attributes_match():
    """With work that grows as the square of the columns, it would take hours."""
    names = _names(100_000)
    struct = pa.StructArray.from_arrays([_ONE] * len(names), names=names)
    with index_of([[]], [7], where="c1 = 1", device="cpu") as tm:
        for right in (_batch(names), pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "x"])):
            assert tm.match_many(right).to_pylist() == [[7]]
        twice = pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "c9"])
        for wrong, message in ((_batch([*names, "c9"]), "one column 'c9', not 2"), (twice, "'c9'")):
            with pytest.raises(InvalidValueError, match=message):
                tm.match_many(wrong)
        with serving(tm) as service, connect(service.url) as client:
            assert client.match_many(_batch(_names(MAX_FIELDS))).to_pylist() == [[7]]
            for call in (client.match_many, client.publish):
                with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
                    call(_batch(_names(MAX_FIELDS + 1)))


@pytest.mark.slow
def test_the_command_reads_many_columns(tmp_path):
    names, queries, sets = _names(5_000), tmp_path / "queries.csv", tmp_path / "sets.jsonl"
    queries.write_text("\n".join([",".join(["tags", *names]), ",".join(["a", *["1"] * len(names)])]))
    sets.write_text(json.dumps({"tags": ["a"], "key": 7, "where": "c1 = 1", **dict.fromkeys(names, 1)}))
    done("build", sets, tmp_path / "x.index")
    (answer,) = from_json_lines(tagmatch("match", tmp_path / "x.index", queries, "--attributes", "*"))
    assert answer["keys"] == [7]


def test_a_stream_has_a_bound():
    fields = [(name, _INT) for name in _names(MAX_FIELDS)]
    struct = pa.struct(fields)
    kinds = {"attributes": struct, "x": pa.dictionary(_INT, pa.list_(struct)), "y": pa.opaque(struct, "a", "b")}
    for wide in ([*fields, ("last", _INT)], *([each] for each in kinds.items())):
        with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
            check_schema(pa.schema(wide))


def test_attributes_of_one_message_as_json_have_a_bound():
    """As nothing else goes on while JSON is read."""
    longest = json.dumps({"a": "x" * (MAX_JSON - 10)})
    for text, error in ((longest, None), (longest + "  ", r"row 1 has 1,048,57. bytes, more than 1,048,576")):
        batch = pa.record_batch({"attributes": ["{}", text]})
        with pytest.raises(InvalidValueError, match=error) if error else contextlib.nullcontext():
            batch_of(batch)
