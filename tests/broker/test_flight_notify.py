"""Subscribers of a service get what the oracle says over Flight, also such as are slow, vanish and come back."""

import contextlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from support.agreement import index_of, loaded
from support.brokers import Proxy
from support.notified import is_balanced
from support.service import USERS, command, config, exchanged, value
from support.waiting import wait_until

from tagmatch import InvalidTypeError, InvalidValueError, connect
from tagmatch.broker.config import HubOptions, SessionOptions
from tagmatch.broker.service import serving
from tagmatch.model.errors import ClosedError, SessionError, SlowSubscriberError, TagMatchError

TAGS = "abcdef"
SETS = [(list(tags), key) for key, tags in enumerate(("", "a", "b", "ab", "abc", "ef", "g"))]


@contextlib.contextmanager
def served(rate: float = 0.0, **sections: Any) -> Iterator[tuple[Any, Any, Any]]:
    tm, oracle = loaded(SETS)
    with tm, serving(tm, replace(config(rate=rate), **sections)) as service, connect(service.url) as remote:
        yield service, remote, oracle


def counts(service: Any) -> dict[str, Any]:
    found: dict[str, Any] = service.subscribers.stats()["sessions"]
    return found


def has_connected(service: Any, count: int = 1) -> Callable[[], bool]:
    return lambda: counts(service)["connected"] == count


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_subscribers_get_what_the_oracle_says(rng, guarantee):
    with served() as (service, remote, oracle):
        followed = [{1, 3}, {0}, {2, 4, 5, 99}]
        subscribers = [remote.subscriber(f"{n}", keys, guarantee=guarantee) for n, keys in enumerate(followed)]
        subscribers.append(remote.subscriber("every", every_key=True, guarantee=guarantee))
        wait_until(has_connected(service, 4))
        messages = [rng.sample(TAGS, rng.randint(0, 4)) for _ in range(400)]
        for begin in range(0, 400, 50):
            published = remote.publish(messages[begin : begin + 50], [b"%d" % (begin + row) for row in range(50)])
            assert (published.messages, published.matched) == (50, 50)  # the empty set is in each
        for keys, subscriber in zip([*followed, set(range(7))], subscribers, strict=True):
            found = [(b"%d" % row, keys & set(oracle.match_unique(tags))) for row, tags in enumerate(messages)]
            expected = [
                (payload, some, offset) for offset, (payload, some) in enumerate(filter(itemgetter(1), found), 1)
            ]
            got = list(itertools.islice(subscriber, len(expected)))
            assert [(each.payload, set(each.keys), each.offset) for each in got] == expected
            if guarantee == "at_least_once":
                subscriber.acknowledge()
            subscriber.close()
        wait_until(has_connected(service, 0))
        assert is_balanced(counts(service))
        assert counts(service)["waiting"] == 0


def test_messages_have_ids_attributes_and_times():
    with (
        index_of([["flat"]], ["ana"], where="price < 900", key_type="string") as tm,
        serving(tm, config()) as service,
        connect(service.url) as remote,
        remote.subscriber("é", ["ana"]) as phone,
    ):
        wait_until(has_connected(service))
        later = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
        times = pa.array([later, None, datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        table = pa.table({"tags": [["flat"]] * 3, "price": [850, 950, 1], "id": ["a", "b", "c"], "expires": times})
        published = remote.publish(table)
        assert (published.messages, published.matched) == (3, 2)
        got = next(iter(phone))
        assert (got.id, got.payload, got.keys, got.expires) == (b"a", None, ["ana"], later)
        lasts = pa.array([timedelta(seconds=-1), timedelta(hours=1), None], pa.duration("ms"))
        more = {"tags": [["flat"]] * 3, "price": [1] * 3, "payload": ["past", "hour", "ever"], "expires": lasts}
        remote.publish(pa.table(more))
        first, second = (next(iter(phone)) for _ in range(2))
        assert (first.payload, second.payload, second.expires) == (b"hour", b"ever", None)
        assert timedelta(minutes=50) < first.expires - datetime.now(UTC) <= timedelta(hours=1)
        wait_until(lambda: counts(service)["expired"] == 2)


@pytest.mark.parametrize("kind", [pa.timestamp, pa.duration])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_that_are_too_far_away_never_come(kind, unit):
    """Nor do they go round to the past, or end a subscriber, whose Python has no time after the year 9999."""
    with served() as (service, remote, _), remote.subscriber("phone", [1]) as phone:
        wait_until(has_connected(service))
        given = kind(unit, "UTC") if kind is pa.timestamp else kind(unit)
        times = pa.array([2**63 - 1, 2**63 - 2, 2**62, 10**18, -(2**63), -(2**62)], pa.int64()).cast(given)
        remote.publish(pa.table({"tags": [["a"]] * 6, "payload": list("abcdef"), "expires": times}))
        remote.publish([["a"]], [b"last"])
        got = list(itertools.islice(phone, 5))
        assert [each.payload for each in got] == [b"a", b"b", b"c", b"d", b"last"]
        assert {each.expires for each in got} == {None}


def test_wrong_calls_are_told():
    with served(hub=HubOptions(max_waiting=10, when_busy="drop")) as (service, remote, _):
        with pytest.raises(InvalidTypeError):
            next(iter(remote.subscriber("a", ["b"])))
        columns = {"tags": [["a"]]}
        more = {"payload": [1.5]}, {"id": [7]}, {"expires": [7]}
        tables = [pa.table({"id": ["a"]}), pa.table({"tags": [7]}), *(pa.table({**columns, **each}) for each in more)]
        tables.append(pa.table([pa.array([["a"]]), pa.array(["a"]), pa.array(["b"])], ["tags", "id", "id"]))
        for given in (*((table,) for table in tables), (["a"], [7])):
            with pytest.raises((InvalidTypeError, InvalidValueError)):
                remote.publish(*given)
        with pytest.raises(InvalidValueError, match="connect with fewer keys, and then follow"):
            remote.subscriber("a", range(2**63, 2**63 + 50_000))
        with pytest.raises(InvalidValueError, match="fewer at a time"):
            remote.publish([["a"]] * 11)
        assert service.subscribers.stats()["hub"]["notifications"] == 0
        assert remote.publish([["a"]] * 10).messages == 10
        with remote.subscriber("phone", [1]) as phone:
            wait_until(has_connected(service))
            for key in ("ana", 7):
                for change in (phone.follow, phone.unfollow, lambda keys: remote.subscriber("a", keys)):
                    with pytest.raises(InvalidTypeError, match=f"must be an iterable of keys, not {key!r}.*; give"):
                        change(key)
            phone.follow([2, 5])
            phone.unfollow([1])
            wait_until(lambda: counts(service)["keys"] == 2)
            remote.publish([["a"], ["b"]], [b"a", b"b"])
            assert next(iter(phone)).payload == b"b"
            with pytest.raises((InvalidTypeError, InvalidValueError)):
                phone.follow(["a"])


def test_a_stream_ends_by_a_wrong_acknowledgement_or_another_connection():
    with served() as (service, remote, _), remote.subscriber("desk", [1]) as first:
        phone = remote.subscriber("phone", [1], guarantee="at_least_once")
        wait_until(has_connected(service, 2))
        phone.acknowledge(5)
        with pytest.raises(InvalidValueError, match="offset 5"):
            next(iter(phone))
        phone.close()
        with pytest.raises(ClosedError):
            phone.acknowledge(1)
        with remote.subscriber("desk"), pytest.raises(SessionError, match="taken its session over"):
            next(iter(first))


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_lost_connections_lose_nothing_or_give_nothing_twice(guarantee):
    """What was not acknowledged comes again: a proxy cuts connections while notifications are on their way."""
    got, expected, sure = Counter(), {b"%d" % number for number in range(600)}, guarantee == "at_least_once"
    with served() as (service, remote, _), contextlib.closing(Proxy(service.port)) as proxy:

        def take() -> None:
            with (
                contextlib.suppress(TagMatchError),
                connect(f"grpc://127.0.0.1:{proxy.port}") as own,
                own.subscriber("phone", [1], guarantee=guarantee) as phone,
            ):
                for each in phone:
                    assert not (each.payload in got and not each.redelivered)
                    got[each.payload] += 1
                    if sure and got.total() % 7 == 0:
                        phone.acknowledge()

        for begin in range(0, 600, 200):
            taker = threading.Thread(target=take)
            taker.start()
            wait_until(has_connected(service))
            for number in range(begin, begin + 200, 20):
                remote.publish([["a"]] * 20, [b"%d" % each for each in range(number, number + 20)])
            wait_until(lambda begin=begin: len(got) > begin * sure)
            proxy.cut()
            taker.join(60)
            wait_until(has_connected(service, 0))
        assert is_balanced(counts(service))
        taker = threading.Thread(target=take)
        taker.start()
        wait_until(has_connected(service))
        wait_until(lambda: got.keys() == expected if sure else counts(service)["waiting"] == 0)
        proxy.cut()
        taker.join(60)
        assert got.keys() <= expected
        assert sure or max(got.values()) == 1


def test_iteration_goes_on_where_it_was_left():
    with served() as (service, remote, _), remote.subscriber("phone", [1], guarantee="at_least_once") as phone:
        wait_until(has_connected(service))
        remote.publish([["a"]] * 100)
        got = [next(iter(phone)).offset for _ in range(3)]
        first, second = iter(phone), iter(phone)
        got += [next(each).offset for each in (first, second, first, second)]
        got += next(phone.batches())["offset"].to_pylist()
        assert got == list(range(1, len(got) + 1))
        threads = [threading.Thread(target=lambda: got.extend(each.offset for each in phone)) for _ in range(2)]
        for thread in threads:
            thread.start()
        remote.publish([["a"]] * 100)
        wait_until(lambda: len(got) == 200)
        phone.close()
        for thread in threads:
            thread.join(60)
        assert sorted(got) == list(range(1, 201))


def test_what_was_not_handed_over_is_not_acknowledged():
    """A loop that is left in the middle of a batch, and begun again after `acknowledge`, loses nothing."""
    with served() as (service, remote, _):
        got: list[bytes | None] = []
        while len(got) < 6:
            with remote.subscriber("phone", [1], guarantee="at_least_once") as phone:
                wait_until(has_connected(service))
                if not got:
                    remote.publish([["a"]] * 6, [b"%d" % number for number in range(6)])
                for _ in range(2):
                    for notification in phone:
                        got.append(notification.payload)
                        break
                phone.acknowledge()
            wait_until(has_connected(service, 0))
        assert got == [b"%d" % number for number in range(6)]
        assert counts(service)["waiting"] == 0


def test_sessions_are_their_users_or_an_administrators():
    tm, _ = loaded(SETS)
    with tm, serving(tm, config(USERS)) as service, contextlib.ExitStack() as stack:
        tokens = [f"token-{role}" for role in ("read", "write", "admin")]
        ana, bo, root = (stack.enter_context(connect(service.url, token=token)) for token in tokens)
        phone = stack.enter_context(ana.subscriber("phone", [1, 2]))
        stack.enter_context(bo.subscriber("desk", every_key=True))
        wait_until(has_connected(service, 2))
        with pytest.raises(SessionError, match="another subscriber"):
            next(iter(bo.subscriber("phone", [1])))
        (own,) = ana.sessions()
        assert (own["session"], own["user"], own["connected"], own["keys"]) == ("phone", "user-read", True, 2)
        assert {each["session"]: each["keys"] for each in root.sessions()} == {"phone": 2, "desk": None}
        assert not ana.end_session("desk")
        assert bo.end_session("desk")
        assert root.end_session("phone")
        assert not root.end_session("phone")
        with pytest.raises(SessionError, match="this session has ended"):
            next(iter(phone))
        assert root.sessions() == []


def test_following_is_within_the_rate():
    """What a subscriber follows counts as what others send: one that follows more and more waits."""
    with served(rate=100) as (service, remote, _), remote.subscriber("phone", range(100)) as phone:
        wait_until(has_connected(service))
        phone.unfollow(range(50))
        wait_until(lambda: value(service, "tagmatch_throttled_seconds_total") > 0)


def test_a_slow_subscriber_is_told_and_cut():
    """It reads nothing, so that what the network holds fills, and then its outbox."""
    options = SessionOptions(max_notifications=50, max_bytes=1 << 20)
    with served(sessions=options) as (service, remote, _):
        slow = remote.subscriber("slow", [1])
        fast = remote.subscriber("fast", [1], when_full="drop_newest")
        wait_until(has_connected(service, 2))
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.extend(each.offset for each in fast))
        thread.start()
        payload, sent = os.urandom(20_000), 0
        while counts(service)["dropped"] == 0:
            sent += remote.publish([["a"]] * 10, [payload] * 10).matched
            wait_until(lambda seen=sent: len(got) >= seen - 40)
            assert sent < 100_000
        with pytest.raises(SlowSubscriberError, match="connect again"):
            for _ in slow:
                pass
        slow.close()
        wait_until(lambda: len(got) == sent)
        fast.close()
        thread.join(60)
        assert is_balanced(counts(service))


def test_any_client_of_flight_can_subscribe():
    with served() as (service, remote, _):
        client = flight.FlightClient(service.url)
        asked = command(command="notify", session="phone", keys=[1], guarantee="at_least_once")
        writer, reader = client.do_exchange(asked)
        writer.begin(pa.schema([("acknowledge", pa.int64())]))
        wait_until(has_connected(service))
        remote.publish([["a"]], [b"a"])
        batch = reader.read_chunk().data
        assert batch.select(["offset", "payload", "keys"]).to_pylist() == [{"offset": 1, "payload": b"a", "keys": [1]}]
        writer.write_batch(pa.record_batch({"acknowledge": [1]}))
        wait_until(lambda: counts(service)["delivered"] == 1)
        writer.write_batch(pa.record_batch({"acknowledge": pa.array([None], pa.int64())}))
        writer.close()
        wait_until(has_connected(service, 0))
        with pytest.raises(flight.FlightError, match=r"columns must be .*, not 'other'"):
            exchanged(client, asked, pa.record_batch({"other": [1]}))
        client.close()
