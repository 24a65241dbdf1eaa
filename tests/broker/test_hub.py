"""Whatever is published reaches the sessions that follow its keys, once, and every message is counted."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import index_of, loaded
from support.notified import Clock, is_balanced
from support.service import Slowed

from tagmatch import ClosedError, InvalidTypeError, InvalidValueError, Overloaded
from tagmatch.broker.config import HubOptions, SessionOptions
from tagmatch.broker.hub import Hub, Published
from tagmatch.broker.sessions import SessionConnection, Sessions

TAGS = "abcdef"
rows = st.lists(st.tuples(st.sets(st.sampled_from(TAGS), max_size=3), st.integers(0, 9)), min_size=1, max_size=20)
messages = st.lists(st.lists(st.sampled_from(TAGS), max_size=5), max_size=12)


def everything(connection: SessionConnection) -> list[dict[str, Any]]:
    taken = connection.take(100_000, most_bytes=1 << 40, timeout=0)
    return [] if taken is None else taken.to_pylist()


def is_counted(counts: dict[str, int]) -> bool:
    names = ("matched", "unmatched", "dropped", "failed", "waiting")
    return counts["in"] == sum(counts[name] for name in names)


@pytest.mark.parametrize("key_type", ["integer", "string"])
@given(rows=rows, batches=st.lists(messages, max_size=4), data=st.data())
def test_sessions_get_what_the_oracle_says(key_type, rows, batches, data):
    key_of: Callable[[int], Any] = int if key_type == "integer" else "key {}".format
    stored = [(sorted(tags), key_of(key)) for tags, key in rows]
    followed = data.draw(st.lists(st.sets(st.integers(0, 12).map(key_of)), max_size=4))
    tm, oracle = loaded(stored, key_type=key_type)
    with tm:
        sessions = Sessions(key_type)
        some = [sessions.connect(f"{number}", keys=keys) for number, keys in enumerate(followed)]
        every = sessions.connect("every", every_key=True)
        with Hub(tm, sessions) as hub:
            carried = [[b"%d.%d" % (number, row) for row in range(len(batch))] for number, batch in enumerate(batches)]
            done = [hub.publish(*each) for each in zip(batches, carried, strict=True)]
        messages = [each for both in zip(carried, batches, strict=True) for each in zip(*both, strict=True)]
        answers = [(payload, set(oracle.match_unique(tags))) for payload, tags in messages]
        for keys, connection in zip(followed, some, strict=True):
            expected = [(payload, keys & found) for payload, found in answers if keys & found]
            assert [(row["payload"], set(row["keys"])) for row in everything(connection)] == expected
        expected = [(payload, found) for payload, found in answers if found]
        assert [(row["payload"], set(row["keys"])) for row in everything(every)] == expected
        matched = [sum(bool(oracle.match_unique(tags)) for tags in batch) for batch in batches]
        assert [each.result() for each in done] == list(map(Published, map(len, batches), matched))
        counts = hub.stats()
        assert is_counted(counts)
        assert (counts["in"], counts["matched"], counts["waiting"]) == (len(answers), sum(matched), 0)
        assert counts["notifications"] == sessions.stats()["offered"]


@pytest.fixture
def animals():
    sets, where = [["fr"], ["fr", "cat"], ["it"], []], [None, None, None, "price < 5"]
    with index_of(sets, [7, 8, 9, 10], where=where) as tm:
        yield tm


@pytest.fixture
def slow(animals, monkeypatch):
    return Slowed(animals, monkeypatch)


def test_wrong_messages_are_refused(animals):
    twice = pa.table([pa.array([["fr"]]), pa.array(["a"]), pa.array(["b"])], ["tags", "id", "id"])
    with Hub(animals, Sessions("integer")) as hub:
        for wrong in (["fr"], [7], [twice], [[["fr"]], [b"a", b"b"]]):
            with pytest.raises((InvalidTypeError, InvalidValueError)):
                hub.publish(*wrong)
        assert hub.stats()["in"] == 0


def test_a_full_queue_drops_and_counts(animals, slow):
    with Hub(animals, Sessions("integer"), HubOptions(max_waiting=10, when_busy="drop")) as hub:
        first = hub.publish([["fr"]] * 4)
        assert slow.began.wait(60)
        second = hub.publish([["it"]] * 6)
        with pytest.raises(Overloaded, match="publish again later"):
            hub.publish([["fr"]])
        with pytest.raises(InvalidValueError, match="fewer at a time"):
            hub.publish([["fr"]] * 11)
        counts = hub.stats()
        assert is_counted(counts)
        assert (counts["in"], counts["dropped"], counts["waiting"]) == (11, 1, 10)
        slow.let.set()
        assert (first.result().matched, second.result().matched) == (4, 6)


def test_a_publisher_waits_for_room(animals, slow):
    with Hub(animals, Sessions("integer"), HubOptions(max_waiting=10)) as hub, ThreadPoolExecutor(1) as thread:
        hub.publish([["fr"]] * 10)
        with pytest.raises(Overloaded):
            hub.publish([["fr"]], timeout=0.01)
        waiting = thread.submit(hub.publish, [["it"]] * 10)
        slow.let.set()
        assert waiting.result(60).result(60) == Published(10, 10)


def test_messages_of_many_publishers_are_matched_together(animals, slow):
    with Hub(animals, Sessions("integer"), HubOptions(batch_messages=50)) as hub:
        first = hub.publish([["fr"]])
        assert slow.began.wait(60)
        others = [hub.publish([["it"]] * 10) for _ in range(10)]
        rows = [pa.array([tags], pa.list_(pa.string())) for tags in (["fr"], ["fr", None], ["it"])]
        last = [hub.publish(pa.table({"tags": each})) for each in rows]
        slow.let.set()
        assert {future.result() for future in others} == {Published(10, 10)}
        with pytest.raises(InvalidTypeError):
            last[1].result()
        assert [future.result() for future in (first, last[0], last[2])] == [Published(1, 1)] * 3
    assert slow.calls == [1, 50, 50, 1, 1]  # the last three are not read together
    assert is_counted(hub.stats())
    assert (hub.stats()["failed"], hub.stats()["matched"]) == (1, 103)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_matches_or_drops_what_waits(animals, slow, drain):
    hub = Hub(animals, Sessions("integer"))
    first = hub.publish([["fr"]])
    assert slow.began.wait(60)
    second = hub.publish([["it"]] * 3)
    threading.Timer(0.05, slow.let.set).start()
    assert hub.close(None if drain else 0.0) == drain
    assert first.result() == Published(1, 1)
    assert isinstance(second.exception(), type(None) if drain else ClosedError)
    with pytest.raises(ClosedError):
        hub.publish([["fr"]])
    assert is_counted(hub.stats())
    assert (hub.stats()["waiting"], hub.stats()["matched"]) == (0, 4 if drain else 1)


def test_messages_expire(animals):
    clock = Clock()
    sessions = Sessions("integer", SessionOptions(message_expiry=1), clock)
    phone = sessions.connect("phone", keys=[7])
    times = pa.array([clock.now + 500_000, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with Hub(animals, sessions) as hub:
        hub.publish(pa.table({"tags": [["fr"], ["fr"]], "payload": [b"a", b"b"], "expires": times})).result()
        clock.now += 500_000
        assert [row["payload"] for row in everything(phone)] == [b"b"]
        hub.publish([["fr"]]).result()
        clock.now += 1_000_000
        assert everything(phone) == []
        assert hub.publish(pa.concat_tables([pa.table({"price": [price]}) for price in (3, 9)])).result().matched == 1
    assert phone.outbox.stats()["expired"] == 2


PUBLISHERS, BATCHES, BATCH = 3, 20, 50
Got = list[tuple[int, bytes, bool]]


def take_all(sessions: Sessions, name: str, guarantee: Any, seed: int, done: threading.Event, got: Got) -> None:
    """As a subscriber that often vanishes, with or without what it was given."""
    rng = random.Random(seed)
    while True:
        connection = sessions.connect(name, guarantee=guarantee)
        fate = 1.0
        while fate >= 0.2:
            is_last = done.is_set()
            taken = connection.take(rng.randint(1, 200), timeout=0.02)
            if taken is None and is_last:
                return
            if taken is not None:
                columns = (taken[name].to_pylist() for name in ("offset", "payload", "redelivered"))
                got += zip(*columns, strict=True)
                fate = rng.random()
                if guarantee == "at_least_once" and 0.2 <= fate < 0.8:
                    connection.acknowledge(got[-1][0])
        if fate < 0.1:  # else another one takes the session over
            connection.close()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_no_notification_is_lost_or_comes_twice(guarantee, rng):
    tm, oracle = loaded([([tag], number) for number, tag in enumerate(TAGS)])
    sessions, done = Sessions("integer", SessionOptions(max_notifications=100_000)), threading.Event()
    followed = [sorted(rng.sample(range(len(TAGS)), 3)) for _ in range(4)]
    got: list[Got] = [[] for _ in followed]
    for number, keys in enumerate(followed):
        sessions.connect(f"{number}", keys=keys, guarantee=guarantee)
    rows = range(BATCHES * BATCH)
    published = [[(rng.sample(TAGS, 2), b"%d.%d" % (by, row)) for row in rows] for by in range(PUBLISHERS)]
    with tm, Hub(tm, sessions, HubOptions(max_waiting=500)) as hub, ThreadPoolExecutor(7) as threads:

        def publish(own: list[tuple[list[str], bytes]]) -> None:
            for begin in range(0, len(own), BATCH):
                hub.publish(*zip(*own[begin : begin + BATCH], strict=True))

        takers = [
            threads.submit(take_all, sessions, f"{number}", guarantee, rng.randrange(2**32), done, each)
            for number, each in enumerate(got)
        ]
        for publisher in [threads.submit(publish, own) for own in published]:
            publisher.result(120)
        hub.close()
        done.set()
        for taker in takers:
            taker.result(120)
    for keys, came in zip(followed, got, strict=True):
        expected = [[p for tags, p in own if {*oracle.match_unique(tags)} & {*keys}] for own in published]
        firsts = [payload for _, payload, redelivered in came if not redelivered]
        for number, own in enumerate(expected):  # each once, and again only if that is said, in each publisher's order
            assert [payload for payload in firsts if payload.startswith(b"%d." % number)] == own
        assert {payload for _, payload, _ in came} == {*firsts}
        assert guarantee == "at_least_once" or len(came) == len(firsts)
    assert is_balanced(sessions.stats())
    assert is_counted(hub.stats())
    assert hub.stats()["in"] == PUBLISHERS * BATCHES * BATCH
