"""Sessions outlive connections, are bounded, and follow keys as sets of keys would."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.notified import Clock, is_balanced, notifications, size_of

from tagmatch.broker.config import SessionOptions
from tagmatch.broker.outbox import KEY_TYPES
from tagmatch.broker.sessions import KeyFollowers, SessionConnection, Sessions
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, SessionError

integers = st.integers(0, 9) | st.sampled_from([2**63, 2**64 - 1])
names = st.sampled_from(["", "a", "b", "ab", "é", "日本", "x" * 50, "A", "c", "d", "b\0"])
changes = st.lists(
    st.tuples(st.sampled_from(["follow", "unfollow", "forget"]), st.integers(0, 3), st.lists(st.integers(0, 8))),
    max_size=30,
)


@pytest.mark.parametrize("key_type", ["integer", "string"])
@given(data=st.data())
def test_routes_are_sets_of_pairs(key_type, data):
    every, kind = (integers, pa.uint64()) if key_type == "integer" else (names, pa.large_string())
    keys = data.draw(st.lists(every, min_size=9, max_size=9, unique=True))
    found, pairs = KeyFollowers(key_type), set()
    for name, session, places in data.draw(changes):
        chosen = {keys[place] for place in places}
        present = {key for key, follower in pairs if follower == session}
        if name == "follow":
            found.follow(session, chosen - present)
            pairs |= {(key, session) for key in chosen}
        else:
            gone = chosen & present if name == "unfollow" else present
            found.unfollow(session, gone)
            pairs -= {(key, session) for key in gone}
        asked = data.draw(st.lists(every, max_size=12))
        places, sessions = found.lookup(pa.array(asked, kind))
        expected = [(place, follower) for place, key in enumerate(asked) for each, follower in pairs if each == key]
        assert Counter(zip(places.tolist(), sessions.tolist(), strict=True)) == Counter(expected)
        assert places.tolist() == sorted(places.tolist())
        assert len(found) == len(pairs)


@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_keys_that_nobody_follows_are_forgotten(key_type):
    sessions, as_key = Sessions(key_type), str if key_type == "string" else int
    last = sessions.connect("last", keys=[as_key(1)])
    for number in range(1, 20):
        with sessions.connect(f"{number}", keys=map(as_key, range(500))) as one:
            assert sessions.stats()["keys"] == 501
            one.close(end=True)
    assert (sessions.stats()["keys"], len(sessions.followers._numbers)) == (1, 1)
    found = sessions.followers.lookup(pa.array([as_key(9), as_key(1)], KEY_TYPES[key_type]))
    assert [each.tolist() for each in found] == [[1], [0]]
    last.close(end=True)
    assert not sessions.followers._slots.any()


def payloads(connection: SessionConnection) -> list[bytes]:
    taken = connection.take(timeout=0)
    return [] if taken is None else taken["payload"].to_pylist()


def offer(sessions: Sessions, *new: bytes, **times: Any) -> None:
    """To the session that follows key 7."""
    for number in sessions.followers.lookup(pa.array([7], pa.uint64()))[1].tolist():
        sessions.offer(number, notifications(new, **times))


@pytest.mark.parametrize("jump", [3_600_000_000, -3_600_000_000])
def test_a_session_outlives_its_connection_and_a_clock_that_jumps(jump):
    """As do messages that last for some seconds; those that expire at a time of day do so by the clock."""
    clock, steady = Clock(), Clock()
    clock.now = 10_000_000_000
    sessions = Sessions("integer", SessionOptions(linger=300), clock, steady)
    sessions.connect("phone", "ana", keys=[7], guarantee="at_least_once").close()
    offer(sessions, b"for a minute", until=[steady.now + 60_000_000])
    offer(sessions, b"until noon", expires=[clock.now + 60_000_000])
    left = [b"until noon"] if jump < 0 else []
    clock.now += jump
    steady.now += 30_000_000
    (listed,) = sessions.listed()
    assert (listed["ends_in"], listed["waiting"]) == (270, 2)
    with sessions.connect("phone", "ana", guarantee="at_least_once") as phone:
        assert phone.keys == {7}
        got = phone.take(timeout=0)
        assert got["payload"].to_pylist() == [b"for a minute", *left]
        # What is left of it, by the clock as it is now
        assert got["expires"].cast(pa.int64())[0].as_py() == clock.now + 30_000_000
    steady.now += 30_000_000
    with sessions.connect("phone", "ana", guarantee="at_least_once") as phone:
        assert payloads(phone) == left
    steady.now += 299_999_999
    sessions.end_expired()
    assert (len(sessions.listed()), sessions.stats()["ended"]) == (1, 0)
    steady.now += 1
    sessions.end_expired()
    assert (sessions.listed(), sessions.stats()["ended"]) == ([], 1)
    with sessions.connect("phone", "ana", guarantee="at_least_once") as phone:
        assert phone.keys == set()


def test_sessions_are_listed_and_ended():
    clock = Clock()
    sessions = Sessions("integer", SessionOptions(), clock)
    phone = sessions.connect("phone", "ana", keys=[7, 8])
    sessions.connect("every", "bo", every_key=True, guarantee="at_least_once", linger=60).close()
    sessions.connect("mqtt", "\0gateway", every_key=True)
    offer(sessions, b"a")
    clock.now += 10_000_000
    first = {"session": "phone", "user": "ana", "connected": True, "guarantee": "at_most_once", "keys": 2}
    second = {"session": "every", "user": "bo", "connected": False, "guarantee": "at_least_once", "keys": None}
    assert sessions.listed() == [
        {**first, "waiting": 1, "bytes": size_of(b"a"), "ends_in": None},
        {**second, "waiting": 0, "bytes": 0, "ends_in": 50.0},
    ]
    assert [each["session"] for each in sessions.listed("bo")] == ["every"]
    ended = [("phone", "bo"), ("mqtt",), ("none",), ("phone", "ana"), ("every",)]
    assert [sessions.end(*each) for each in ended] == [False, False, False, True, True]
    assert sessions.listed() == []
    with pytest.raises(SessionError, match="has ended"):
        phone.take(timeout=0)
    counts = sessions.stats()
    assert (counts["sessions"], counts["keys"], counts["dropped"]) == (1, 0, 1)
    assert is_balanced(counts)


def test_a_session_lingers_for_a_bounded_time():
    sessions = Sessions("integer", SessionOptions(max_linger=60, linger=10))
    sessions.connect("a", linger=60)
    with pytest.raises(InvalidValueError, match="linger must be at most 60 seconds, not 61"):
        sessions.connect("b", linger=61)
    with pytest.raises(InvalidValueError, match="linger must be at most max_linger"):
        SessionOptions(max_linger=60)
    assert SessionOptions().max_linger <= 7 * 86_400
    few = [SessionOptions(**given).user_sessions for given in ({}, {"max_sessions": 50}, {"max_sessions": 2})]
    assert 1 < few[0] < SessionOptions().max_sessions
    assert few[1:] == [5, 1]


def test_a_connection_takes_a_session_over():
    sessions = Sessions("integer")
    first = sessions.connect("phone", "ana", keys=[7], guarantee="at_least_once")
    offer(sessions, b"a", b"b")
    assert payloads(first) == [b"a", b"b"]
    first.acknowledge(1)
    for wrong, message in ((("bo",), "another subscriber"), (("ana",), "at_least_once")):
        with pytest.raises(SessionError, match=message):
            sessions.connect("phone", *wrong)
    second = sessions.connect("phone", "ana", guarantee="at_least_once")
    with pytest.raises(SessionError, match="taken its session over"):
        first.take(timeout=0)
    first.close()  # which is not the present one
    assert second.take(timeout=0).select(["offset", "redelivered"]).to_pylist() == [{"offset": 2, "redelivered": True}]
    assert sessions.stats()["connected"] == 1


def test_sessions_and_keys_are_bounded():
    sessions = Sessions("integer", SessionOptions(max_sessions=2, max_user_sessions=2, max_keys=3))
    one, two = sessions.connect("a"), sessions.connect("b", keys=[1, 2])
    with pytest.raises(SessionError, match="the most allowed"):
        sessions.connect("c")
    two.follow([2, 3])
    with pytest.raises(SessionError, match="cannot follow 4 keys"):
        two.follow([4])
    assert two.keys == {1, 2, 3}
    two.unfollow([1, 5])
    assert two.keys == {2, 3}
    one.close(end=True)
    with pytest.raises(SessionError, match="cannot follow 4 keys"):
        sessions.connect("c", keys=range(4))
    sessions.connect("c", keys=range(3))
    assert (sessions.stats()["refused"], sessions.stats()["keys"]) == (1, 5)
    sessions = Sessions("integer", SessionOptions(max_user_sessions=1))
    first = sessions.connect("a", "ana")
    with pytest.raises(SessionError, match="you have 1 sessions"):
        sessions.connect("b", "ana")
    sessions.connect("c", "bo")
    first.close(end=True)
    sessions.connect("b", "ana")


def test_a_session_may_follow_every_key_and_then_some():
    sessions = Sessions("string")
    one = sessions.connect("a", every_key=True)
    assert (one.keys, len(sessions.following_all())) == (None, 1)
    with pytest.raises(InvalidValueError, match="every key"):
        one.unfollow(["a"])
    assert sessions.connect("a", keys=["é", ""]).keys == {"", "é"}
    assert sessions.following_all() == []


def test_wrong_arguments_begin_no_session():
    sessions = Sessions("integer")
    for wrong in (
        {"name": ""}, {"name": "x" * 257}, {"name": 7}, {"keys": [-1]}, {"keys": ["a"]}, {"linger": -1},
        {"keys": [1], "every_key": True}, {"guarantee": "exactly_once"}, {"when_full": "wait"},
        {"linger": float("nan")},
    ):  # fmt: skip
        with pytest.raises((InvalidValueError, InvalidTypeError)):
            sessions.connect(**{"name": "a", **wrong})
    sessions.close()
    with pytest.raises(SessionError, match="ending"):
        sessions.connect("a")
    assert sessions.stats()["sessions"] == sessions.stats()["connections"] == 0


def test_many_threads_begin_and_end_sessions():
    """Every notification that was offered is counted, also of sessions that have ended."""
    sessions, stop = Sessions("integer", SessionOptions(linger=0)), threading.Event()

    def notify() -> int:
        count = 0
        while not stop.is_set():
            _, numbers = sessions.followers.lookup(pa.array([7], pa.uint64()))
            count += sum(sessions.offer(int(number), notifications([b"a", b"b"])) for number in numbers)
        return count

    def subscribe(number: int) -> None:
        for _ in range(100):
            with sessions.connect(f"{number}", keys=[7]) as connection:
                connection.take(1, timeout=0.01)

    with ThreadPoolExecutor(5) as threads:
        notifier = threads.submit(notify)
        for subscriber in [threads.submit(subscribe, number) for number in range(4)]:
            subscriber.result(120)
        stop.set()
    counts = sessions.stats()
    assert (counts["sessions"], counts["ended"], counts["keys"]) == (0, 400, 0)
    assert counts["offered"] == notifier.result() > 0
    assert is_balanced(counts)
