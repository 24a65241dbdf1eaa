"""A service over Arrow Flight gives what the index itself gives, to any client of Flight."""

import asyncio
import json
import os
import re
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from pyarrow import flight
from support import filters, strategies
from support.agreement import assert_agree, assert_keys, change_all, index_of
from support.areas import subscriptions
from support.service import Slowed, command, config, exchanged, messages, options, put, remote, value
from support.waiting import wait_until

from tagmatch import Box, ChangeCounts, Circle, Near, TagMatch, TagMatchError, Where, connect
from tagmatch.broker.connection import TAGS_ONLY, MessageStream, Pipelined, Reply, give
from tagmatch.broker.service import serving
from tagmatch.files.columns import AREA_COLUMN
from tagmatch.model.errors import (
    ClosedError,
    FilterError,
    InvalidTypeError,
    InvalidValueError,
    NotStoredError,
    NullError,
)
from tagmatch.model.input.messages import Queries, joined, queries_in

few = settings(max_examples=max(1, settings().max_examples // 2))


@few
@given(
    changes=st.lists(strategies.changes(), min_size=1, max_size=2),
    named=strategies.changes(strategies.named_pairs),
    queries=strategies.query_lists,
)
def test_every_way_to_ask_agrees_with_the_oracle(changes, named, queries):
    for key_type, each in (("integer", changes), ("string", [named])):
        oracle = Oracle()
        with remote(TagMatch(key_type=key_type, threads=2, device="cpu")) as (_, tm):
            for some in each:
                change_all(some, tm, oracle)
                assert_agree(tm, oracle, queries)
                for query in queries:
                    assert sorted(tm.submit(query).result()) == oracle.match(query)
                    assert asyncio.run(tm.amatch(query, unique=True)) == set(oracle.match(query))


def test_few_messages_of_many_batches_are_matched_as_those_of_one():
    words = pa.array(["a", "b", "c"] * 4)
    numbers, lists = pa.array(range(12)), pa.array(range(13), pa.int32())
    points = pa.array([None, (3.0, 4.0)] * 6, pa.list_(pa.float64()))
    circles = [{"kind": "circle", "lon": 3.0, "lat": 4.0, "metres": 5.0}]
    table = pa.table(
        {
            "tags": pa.ListArray.from_arrays(lists, words),
            "age": numbers,
            "attributes": pa.array([[("city", word)] for word in words.to_pylist()], pa.map_(pa.string(), pa.string())),
            "location": points,
            "within": pa.array([None] * 11 + circles, AREA_COLUMN),
        }
    )
    with index_of([["a"], [], [], []], range(4), where=[None, "age < 7", 'city = "b"', None], device="cpu") as tm:
        tm.add_set([], 9, area=Circle(3, 4, 5))
        tm.consolidate()
        tm.move([3], 3.0, 4.0)
        for names in (["tags"], ["tags", "age"], ["tags", "attributes"], table.column_names):
            for encoded in (False, True):
                given = table.select(names)
                if encoded:
                    tags = pa.ListArray.from_arrays(lists, words.dictionary_encode())
                    given = given.set_column(0, "tags", tags)
                parts = [queries_in(batch, plane=False)[0] for batch in given.to_batches(5)]
                assert tm.match_many(Queries([joined(parts)])).to_pylist() == tm.match_many(given).to_pylist()


@pytest.mark.slow
@few
@given(data=st.data(), plane=st.booleans(), spelling=filters.spellings)
def test_conditions_areas_and_clients_that_move(data, plane, spelling):
    drawn = data.draw(st.lists(subscriptions(plane=plane), min_size=1, max_size=5))
    trees = data.draw(st.lists(st.tuples(st.sets(filters.tags, max_size=2), filters.trees), min_size=1, max_size=4))
    with remote(TagMatch(plane=plane, threads=2, device="cpu")) as (index, tm):
        for each in drawn:
            tm.add_set(each.tags, each.client, where=each.where, area=each.area)
        for key, (tags, tree) in enumerate(trees):
            tm.add_set(tags, 1_000 + key, where=filters.text_of(tree, spelling))
        tm.consolidate()
        assert dict(tm) == dict(index)
        clients = sorted({each.client for each in drawn})
        tm.move(clients, [1.0] * len(clients), 2.0)
        asked = [(each.tags, None) for each in drawn] + [data.draw(filters.messages(tree)) for _, tree in trees]
        for given in asked:
            assert set(tm.submit(*given).result()) == index.match_unique(*given)
            for place in ({}, {"location": (1.0, 2.0)}, {"within": Circle(1, 2, 5)}, {"within": Box(0, 0, 1, 1)}):
                assert sorted(tm.match(*given, **place)) == sorted(index.match(*given, **place))
                assert tm.match_unique(*given, **place) == index.match_unique(*given, **place)
                if re.search(r"\b(nan|inf)\b", str(list((given[1] or {}).values()))):
                    with pytest.raises(InvalidValueError, match="no form in JSON"):
                        tm.explain(*given, **place)
                else:
                    assert dict(tm.explain(*given, **place)) == dict(index.explain(*given, **place))


def test_rows_as_tables_and_one_by_one():
    table = pa.table({
        "key": pa.array([1, 2, 3], pa.uint64()),
        "tags": [["a"], None, []],
        "where": [None, 'x < 3 and y in {"u"}', None],
        "area": [None, None, {"lon": 1.0, "lat": 2.0, "metres": 3.0}],
    })  # fmt: skip
    with remote() as (index, tm), TagMatch() as alike:
        for each in (tm, alike):
            each.add_subscriptions(table)
            each.add_sets([["b"], ["c"]], [4, 5], where=["x = 1", None], area=[Near(5), None])
            each.add_sets([["d"], ["e"]], [6, 7], where="x = 1", area=Circle(1, 2, 3))
            assert each.add_set(["f"], 8, where="x = 1 or y = 2") == 2
            assert each.remove_set(["f"], 8, where="y = 2 or x = 1", missing="error") == 2
            assert each.add_set(["f"], 8) == 1
            assert each.consolidate().removed == 2
        assert dict(tm) == dict(index) == dict(alike)
        assert tm.to_arrow().equals(alike.to_arrow())
        ((stored, keys),) = [each for each in tm if {"b"} <= each[0]]
        assert stored in tm
        tm.remove_set(stored, keys[0])
        tm.remove_subscriptions(table)
        tm.remove_sets([["d"], ["e"]], [6, 7], where="x = 1", area=Circle(1, 2, 3))
        with pytest.raises(NotStoredError, match="is not stored with the set"):
            tm.remove_subscriptions(table, missing="error")
        assert tm.consolidate(full=True) == ChangeCounts(removed=6)
        assert dict(tm) == {frozenset(["c"]): (5,), frozenset(["f"]): (8,)}
        assert (stored in tm, tm.stats()["sets"], len(tm)) == (False, 2, 2)
        with pytest.raises(InvalidValueError, match="nothing to reload"):
            tm.reload()


def test_large_calls_are_cut_into_batches(rng):
    oracle, tags = Oracle(), [f"t{i}" for i in range(20)]
    with remote(max_batch_rows=150, max_message_bytes=1 << 20) as (_, tm):
        sets = [rng.sample(tags, rng.randrange(3)) for _ in range(700)]
        for each in (tm, oracle):
            each.add_sets(sets, range(700))
            each.consolidate()
        queries = [rng.sample(tags, rng.randrange(4)) for _ in range(1200)]
        assert_keys(tm.match_many(queries, unique=True), [oracle.match(query) for query in queries])
        assert tm.match_many(queries).to_pylist() == tm.match_many(pa.table({"tags": queries})).to_pylist()
        assert len(tm.match_many([])) == 0
        with pytest.raises(InvalidValueError, match="send fewer rows"):
            tm.add_sets([["x" * 1000]] * 2000, range(2000))


def test_errors_are_those_of_the_index():
    with remote() as (_, tm):
        for wrong, kind, text in [
            (lambda: tm.add_set(["a"], 1, where="x <"), FilterError, "expected a value"),
            (lambda: tm.add_set("a", 1), InvalidTypeError, "bare string"),
            (lambda: tm.add_set(["a"], -1), InvalidValueError, r"2\*\*64"),
            (lambda: tm.add_set(["a"], 1, area=7), InvalidTypeError, "Circle"),
            (lambda: tm.add_sets([["a"]], [1, 2]), InvalidValueError, "same length"),
            (lambda: tm.add_sets([["a"]], [1], where=["x = 1", None]), InvalidValueError, "1 sets"),
            (lambda: tm.add_sets([["a"]], [1], area=[7]), InvalidTypeError, "row 0"),
            (lambda: tm.add_subscriptions(pa.table({"kee": [1]})), InvalidValueError, "kee"),
            (lambda: tm.match("a"), InvalidTypeError, "bare string"),
            (lambda: tm.match(["a"], {"x": object()}), InvalidTypeError, "x"),
            (lambda: tm.match(["a"], location=(0, 91)), InvalidValueError, "lat"),
            (lambda: tm.match_many([["a"], None]), NullError, "row 1"),
            (lambda: tm.match_many(pa.table({"tags": [["a"], None]})), NullError, "row 1"),
            (lambda: tm.match_many(pa.table({"x": [{"a": 1}]})), InvalidTypeError, "x"),
            (lambda: tm.move([1], 181, 0), InvalidValueError, "lon"),
            (lambda: tm.save_positions(), InvalidValueError, "memory"),
            (lambda: tm.save("x"), TagMatchError, "backup"),
            (lambda: tm.snapshot, TagMatchError, "to_arrow"),
        ]:
            with pytest.raises(kind, match=text):
                wrong()
            assert tm.match(["a"]) == []
        assert tm.stats()["staged"] == 0


@pytest.fixture
def served():
    where, area = [*[None] * 3, "x > 2 and y = true", None], [*[None] * 4, Circle(9, 45, 1000)]
    sets, options = [["a"], ["b"], [], ["c"], []], {"threads": 2, "device": "cpu"}
    with (
        index_of(sets, [1, 2, 3, 4, 5], where=where, area=area, **options) as index,
        serving(index) as service,
        flight.connect(service.url) as client,
    ):
        yield service, client


def test_flight_alone(served):
    service, client = served
    writer, reader = client.do_exchange(command(command="match"), options())
    batches = [
        messages([["a"], ["c"], ["b"]], attributes=pa.array(['{"x": 3, "y": true}', None, "{}"]), id=["p", "q", "r"]),
        messages([["c"]], attributes=pa.array(['{"x": 3.5, "y": [false, true]}']), id=["s"]),
        messages([], attributes=pa.array([], pa.string()), id=pa.array([], pa.string())),
    ]
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        found = [chunk.data.to_pydict() for chunk in reader]
    assert [each["id"] for each in found] == [["p", "q", "r"], ["s"], []]
    assert [sorted(keys) for each in found for keys in each["keys"]] == [[1, 3], [3], [2, 3], [3, 4]]
    attributes = pa.array([{"x": 3, "y": True}, {"x": 1, "y": True}])
    table = messages([["c"], ["c"]], attributes=attributes, location=[[9.0, 45.0], None], id=[7, None])
    found = exchanged(client, command(command="match_unique"), table).to_pylist()
    assert found == [{"id": 7, "keys": [3, 4, 5]}, {"id": None, "keys": [3]}]
    assert value(service, "tagmatch_messages_total") == value(service, "tagmatch_answers_total") == 6
    assert value(service, "tagmatch_messages_in_flight") == value(service, "tagmatch_messages_queued") == 0


def test_a_connection_says_of_conditions_that_are_no_texts_what_an_index_says(served):
    service, _ = served
    said = []
    with connect(service.url) as connected, TagMatch() as embedded:
        for each in (connected, embedded):
            for where in ({"term": {"x": 1}}, 5, ["x = 1"]):
                with pytest.raises(InvalidTypeError) as error:
                    each.add_set(["a"], 1, where=where)
                said.append(str(error.value))
    assert said[:3] == said[3:]


def send(client, kind, table):
    return (exchanged if kind == "match" else put)(client, command(command=kind), table)


MISSPELT = [
    ("match", "tags", {"tag": [["a"]]}), ("match", "tags", {"Tags": [["a"]], "x": [1]}),
    ("match", "location", {"tags": [["a"]], "Location": [[9.0, 45.0]]}),
    ("match", "attributes", {"tags": [["a"]], "attribute": ['{"x": 3}']}),
    ("match", "id", {"tags": [["a"]], "ID": ["p"]}), ("publish", "payload", {"tags": [["a"]], "Payload": [b"p"]}),
    ("add", "where", {"key": [1], "wher": ["x = 1"]}), ("add", "key", {"Key": [1], "tags": [["a"]]}),
    ("remove", "expires", {"key": [1], "tags": [["a"]], "expiry": [None]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "meant", "columns"), MISSPELT)
def test_misspelt_columns_are_refused(served, kind, meant, columns):
    """By the service itself, as clients of any kind ask it, and by ours."""
    service, client = served
    with pytest.raises(pa.ArrowException, match=f"is '{meant}' meant"):
        send(client, kind, pa.table(columns))
    assert service.index.stats()["staged"] == 0
    with connect(service.url) as tm:
        calls = {"add": tm.add_subscriptions, "remove": tm.remove_subscriptions, "publish": tm.publish}
        with pytest.raises(InvalidValueError, match=f"is '{meant}' meant"):
            calls.get(kind, tm.match_many)(pa.table(columns))


def test_attributes_of_any_name_go_into_a_column(served):
    service, client = served
    service.index.add_set([], 6, where="Tags = 1 and id = 2")
    service.index.consolidate()
    own = {"Tags": 1, "id": 2}
    maps = pa.array([list(own.items())], pa.map_(pa.string(), pa.int64()))
    with connect(service.url) as tm:
        for given_ in (pa.array([own]), maps, pa.array([json.dumps(own)])):
            table = pa.table({"attributes": given_, "id": ["p"]})
            assert send(client, "match", table).to_pylist() == [{"id": "p", "keys": [3, 6]}]
            assert tm.match_many(table).to_pylist() == [[3, 6]]


def test_a_mistake_among_single_messages_is_told_to_its_caller_alone(rng):
    """Messages of several callers go together."""
    declared = {"price": "int64"}
    with TagMatch(threads=1, device="cpu", attributes=declared, strict=True) as index, remote(index) as (_, tm):
        index.add_set([], 1, where="price > 3")
        index.consolidate()
        prices = [rng.choice([3, 4, "much", None]) for _ in range(200)]
        futures = [tm.submit(["new"], {"prise": 1} if price is None else {"price": price}) for price in prices]
        for price, future in zip(prices, futures, strict=True):
            told = {"much": 'attribute "price": it takes an int', None: 'attribute "prise" is not declared'}.get(price)
            if told is None:
                assert future.result() == ([1] if price > 3 else [])
            else:
                with pytest.raises(InvalidValueError, match=f"^{told}"):
                    future.result()


def test_errors_of_single_calls_name_no_row():
    with TagMatch(threads=1, device="cpu", strict=True) as index, remote(index) as (_, tm):
        for call in (
            lambda: tm.put(7, [], area={"lon": 9, "lat": 45, "metres": -1}),
            lambda: tm.match([], {"prise": 1}),
            lambda: tm.match([], {"prise": 1}, limit=1),
            lambda: tm.match_count([], {"prise": 1}),
        ):
            with pytest.raises(InvalidValueError) as told:
                call()
            assert "row" not in str(told.value)


@pytest.mark.parametrize("coalesce", [False, True])
def test_small_batches_are_matched_together(served, monkeypatch, coalesce):
    service, client = served
    slow = Slowed(service.index, monkeypatch)
    writer, reader = client.do_exchange(command(command="match", coalesce=coalesce), options())
    with writer:
        writer.begin(messages([]).schema)
        for number in range(500):
            writer.write_batch(messages([["ab"[number % 2]]]))
        writer.done_writing()
        wait_until(lambda: value(service, "tagmatch_messages_total") == 500)
        slow.let.set()
        found = [chunk.data for chunk in reader]
    assert (sum(slow.calls), len(slow.calls) <= 2) == (500, True)
    assert len(found) == (len(slow.calls) if coalesce else 500)
    keys = [sorted(each) for batch in found for each in batch.column("keys").to_pylist()]
    assert keys == [[1 + number % 2, 3] for number in range(500)]


def test_subscriptions_are_put_and_got(served):
    service, client = served
    table = pa.table({"key": [10, 11], "tags": [["d"], ["e"]]})
    for commit in (False, True):
        answer = json.loads(put(client, command(command="add", commit=commit), table).to_pybytes())
        changes = {"changes": {"added": 2, "already_there": 2, "removed": 0, "missing": 0}} if commit else {}
        assert answer == {"rows": 2, "staged": 2, "committed": commit, "sets": 7 if commit else 5} | changes
    got = (client.do_get(flight.Ticket(b'{"get": "%s"}' % name), options()).read_all() for name in (b"rows", b"sets"))
    rows, sets = got
    assert rows.equals(service.index.to_arrow())
    found = [(frozenset([*each["tags"], *map(Where, each["where"])]), (*each["keys"],)) for each in sets.to_pylist()]
    assert dict(found) == dict(service.index)
    (info,) = [each for each in client.list_flights(options=options()) if b"rows" in each.endpoints[0].ticket.ticket]
    assert info.schema == rows.schema
    assert client.get_schema(command(get="sets"), options()).schema.names == ["tags", "where", "keys"]
    assert {each.type for each in client.list_actions(options())} >= {"health", "stats", "consolidate", "drain"}


def test_stats_has_details_of_segments_snapshots_the_service_and_some_positions(tmp_path):
    with remote(TagMatch(tmp_path / "index", keep_snapshots=1, threads=1)) as (index, tm):
        for count in (70_000, 1):
            tm.add_sets([[f"{count} {number}"] for number in range(count)], range(count))
            tm.consolidate()
        tm.move(range(30), [float(key) for key in range(30)], [1.0] * 30)
        tm.match(["1 0"])
        assert tm._engine.act("stats").keys() == index.stats().keys()
        found = tm._engine.act("stats", {"details": True, "positions": 10})
        sizes = [{name: each[name] for name in ("sets", "deleted", "keys", "merges")} for each in found["each_segment"]]
        assert sizes == [{"sets": count, "deleted": 0, "keys": count, "merges": False} for count in (70_000, 1)]
        assert [(each["sets"], each["until"] is None) for each in found["snapshots"]] == [
            (70_000, False),
            (70_001, True),
        ]
        assert (found["service"]["messages"], found["service"]["changes"]) == (1, {"add": 70_001, "move": 30})
        assert (found["service"]["latency"][-1], found["service"]["calls"]["stats"]) == (["+Inf", 1], 2)
        clients = found["clients"]
        assert clients["lon"] == clients["key"] == [*range(0, 30, 3)]
        assert len(tm._engine.act("stats", {"positions": 31})["clients"]["lat"]) == 30
        for wrong in (-1, 10_001):
            with pytest.raises(InvalidValueError, match="positions must be from 0 to 10,000"):
                tm._engine.act("stats", {"positions": wrong})


def test_consolidate_while_many_threads_share_a_stream():
    """Each message gets the keys of one snapshot, wholly, and none gets another's."""
    stop = threading.Event()
    with remote() as (_, tm), ThreadPoolExecutor(4) as threads:
        tm.add_sets([["x"]] * 10, range(10))
        tm.add_sets([[f"t{number}"] for number in range(4)], range(100, 104))
        tm.consolidate()

        def ask(number):
            whole, seen = [[*range(count), 100 + number] for count in (10, 20)], 0
            while not seen or (not stop.is_set() and seen < 20_000):
                futures = [tm.submit(["x", f"t{number}"]) for _ in range(50)]
                assert all(sorted(each.result(60)) in whole for each in futures)
                assert tm.match([f"t{number}"]) == [100 + number]
                seen += 50

        asking = [threads.submit(ask, number) for number in range(4)]
        for number in range(10):
            (tm.remove_sets if number % 2 else tm.add_sets)([["x"]] * 10, range(10, 20))
            tm.consolidate(full=number % 3 == 0)
        stop.set()
        for each in asking:
            each.result(60)


def test_before_and_after_the_answer():
    early, late, cancelled, failed = (Reply() for _ in range(4))
    seen = []
    early.add_done_callback(lambda future: seen.append(future.result()))
    assert not early.done()
    assert cancelled.cancel()
    give([early, late, cancelled], lambda place: place * 10)
    late.add_done_callback(lambda future: seen.append(future.result()))
    assert seen == [0, 10]
    assert (early.done(), late.done(), late.cancel(), late.running()) == (True, True, False, False)
    assert (early.result(), late.result(0), late.exception(0)) == (0, 10, None)
    failed.set_exception(ValueError("x"))
    for reply, error in ((cancelled, CancelledError), (failed, ValueError), (Reply(), TimeoutError)):
        with pytest.raises(error):
            reply.result(0.001)
    assert isinstance(late, Future)


def test_with_what_takes_futures():
    replies = [Reply() for _ in range(3)]
    give(replies[:2], lambda place: place)
    assert wait(replies, timeout=0.01) == (set(replies[:2]), set(replies[2:]))
    threading.Timer(0.01, give, [replies[2:], lambda _: 2]).start()
    assert sorted(each.result() for each in as_completed(replies, timeout=30)) == [0, 1, 2]

    async def asked():
        more = [Reply() for _ in range(10)]
        threading.Timer(0.01, give, [more, lambda place: place]).start()
        return await asyncio.gather(*map(asyncio.wrap_future, more))

    for _ in range(20):  # whether it waits already or not
        assert asyncio.run(asked()) == list(range(10))


def test_threads_write_to_a_stream_and_end_it_one_by_one():
    """Else gRPC ends the process: a service that ends makes one thread close what another says is done."""
    busy = threading.Lock()

    def use(*_):
        assert busy.acquire(blocking=False)
        time.sleep(0.001)
        busy.release()

    stream = MessageStream("grpc://x", SimpleNamespace(write_batch=use, done_writing=use, close=use), None)
    with ThreadPoolExecutor(3) as threads:
        used = [threads.submit(act) for _ in range(10) for act in (stream.done_writing, stream.close)]
        used += [threads.submit(stream.write, None) for _ in range(10)]
        assert [each.result() for each in used] == [None] * 30


class SlowStream:
    """A stream whose service answers nothing until it is told to, and then all at once."""

    def __init__(self) -> None:
        self.futures, self.sizes, self.has_ended, self.is_draining = deque(), deque(), False, False
        self.refused, self.batches, self.answering = None, [], threading.Event()

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def read(self) -> pa.RecordBatch | None:
        self.answering.wait()
        rows = sum(map(len, self.batches))
        self.batches.clear()
        self.answering.clear()
        keys = pa.array([[number] for number in range(rows)], pa.list_(pa.uint64()))
        return pa.record_batch([keys], names=["keys"]) if rows else None

    def done_writing(self) -> None:
        self.answering.set()

    close = done_writing


def test_a_slow_service_is_sent_few_batches():
    """Each batch on its way makes the next one wait longer, so that one batch has what many would have."""
    stream = SlowStream()
    pipelined = Pipelined(lambda _: stream, TAGS_ONLY, unique=False, most_rows=4096, most=10_000)
    replies = []
    for _ in range(400):
        replies.append(pipelined.submit(["a"], (), None))
        time.sleep(0.0005)
    wait_until(lambda: sum(map(len, stream.batches)) == len(replies))
    assert len(stream.batches) < 60  # one for each millisecond would be hundreds
    assert [*stream.sizes] == [*map(len, stream.batches)]
    stream.answering.set()
    assert [reply.result(30) for reply in replies] == [[number] for number in range(len(replies))]
    assert not stream.sizes
    pipelined.close(drain=True)


@pytest.mark.parametrize("is_used", [False, True])
def test_a_forked_child_must_connect_itself(is_used):
    """It has neither the threads of a connection nor those of gRPC: calls there fail at once, and do not hang."""
    with index_of([["a"]], [1], device="cpu") as tm, serving(tm, config()) as service, connect(service.url) as remote:
        if is_used:
            assert remote.match(["a"]) == remote.submit(["a"]).result() == [1]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for call in (
                lambda: remote.match(["a"]), lambda: remote.submit(["a"]), lambda: remote.match_many([["a"]]),
                lambda: remote.put(2, tags=["a"]), remote.consolidate, remote.stats,
            ):  # fmt: skip
                try:
                    call()
                except ClosedError as error:
                    os.write(write, b"." if "connect in each child" in str(error) else b"?")
            remote.close()
            os.write(write, b"closed")
            os._exit(0)
        os.close(write)
        with open(read, "rb") as told:
            assert told.read() == b"......closed"
        os.waitpid(child, 0)
        assert remote.match(["a"]) == [1]
