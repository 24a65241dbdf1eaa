"""One client of several services that answer alike: calls that ask go on when one is gone, others are not repeated."""

import contextlib
import random
import socket
import threading

import pytest
from support.agreement import index_of
from support.brokers import Proxy
from support.waiting import wait_until

from tagmatch import InvalidTypeError, InvalidValueError, TagMatchError, UnavailableError, connect
from tagmatch.broker.service import serving

SETS, KEYS = [["cat"], ["cat", "dog"], ["dog"]], [1, 2, 3]
NOBODY = "grpc://127.0.0.1:1"


@pytest.fixture
def service():
    with index_of(SETS, KEYS) as index, serving(index) as service:
        yield service


@pytest.fixture
def ways(service):
    """Three ways to a service; each may be cut and closed."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Proxy(service.port))) for _ in range(3)]


def urls(ways):
    return [f"grpc://127.0.0.1:{each.port}" for each in ways]


def end(way):
    with contextlib.suppress(OSError):
        way._listener.shutdown(socket.SHUT_RDWR)  # to close it alone would let one more in
    way.cut()


ASKING = {
    "match": lambda tm: sorted(tm.match(["cat", "dog"])) == KEYS,
    "match_unique": lambda tm: tm.match_unique(["cat"]) == {1},
    "match_many": lambda tm: tm.match_many([["cat"], ["dog"]]).to_pylist() == [[1], [3]],
    "count": lambda tm: tm.match_count(["cat", "dog"]) == 3,
    "explain": lambda tm: sorted(keys for _, keys in tm.explain(["cat", "dog"])) == [(1,), (2,), (3,)],
    "in": lambda tm: ["cat"] in tm,
    "len": lambda tm: len(tm) == 3,
    "stats": lambda tm: tm.stats()["sets"] == 3,
    "to_arrow": lambda tm: len(tm.to_arrow()) == 3,
    "sets": lambda tm: len([*tm]) == 3,
}


@pytest.mark.parametrize("name", ASKING)
def test_calls_that_ask_go_on_with_the_next_one(name, ways):
    ask = ASKING[name]
    with connect(urls(ways)) as tm:
        assert ask(tm)
        for way in ways[:2]:
            end(way)
            assert ask(tm)
        end(ways[2])
        with pytest.raises(UnavailableError):
            ask(tm)


def test_changes_are_not_repeated(ways):
    """It is not known whether they were made; the next call has another service."""
    with connect(urls(ways)) as tm:
        assert len(tm) == 3
        end(ways[0])
        with pytest.raises(UnavailableError):
            tm.add_set(["bird"], 4)
        tm.add_set(["bird"], 4)
        end(ways[1])
        with pytest.raises(UnavailableError):
            tm.consolidate()
        assert tm.consolidate().added == 1
        assert tm.match(["bird"]) == [4]


def test_submitted_messages_get_the_error_and_the_next_one_an_answer(ways):
    with connect(urls(ways)) as tm:
        assert tm.submit(["cat"]).result() == [1]
        end(ways[0])

        def answered():
            with contextlib.suppress(UnavailableError):
                return tm.submit(["cat"]).result() == [1]
            return False

        wait_until(answered, 60)


def test_many_threads_ask_while_services_go(service):
    """One fault moves all of them to the next service once: no caller gets an error while one is left."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, errors, counts = random.Random(seed), [], [0] * 6
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(contextlib.closing(Proxy(service.port))) for _ in range(5)]
        tm = stack.enter_context(connect(urls(ways)))
        ended = threading.Event()

        def ask(place):
            try:
                while not ended.is_set():
                    assert tm.match(["cat"]) == [1]
                    counts[place] += 1
            except BaseException as error:
                errors.append(error)

        def goes_on():
            before = [*counts]
            wait_until(lambda: errors or all(now > then for now, then in zip(counts, before, strict=True)), 60)

        threads = [threading.Thread(target=ask, args=[place]) for place in range(len(counts))]
        for each in threads:
            each.start()
        for way in ways[:-1]:
            goes_on()
            threading.Event().wait(draw.random() / 20)
            end(way)
        goes_on()
        ended.set()
        for each in threads:
            each.join()
    assert errors == []


def test_what_each_service_has_of_its_own_needs_one_address(ways):
    with connect(urls(ways)) as tm:
        for call, told in {
            lambda: tm.publish([["cat"]]): "sessions belong to one service, and this connection has 3",
            lambda: tm.subscriber("phone", [1]): "sessions belong to one service",
            tm.sessions: "sessions belong to one service",
            lambda: tm.end_session("phone"): "sessions belong to one service",
            lambda: tm.move([1], [2.0], [3.0]): "positions of clients belong to one service",
            tm.save_positions: "positions of clients belong to one service",
        }.items():
            with pytest.raises(InvalidValueError, match=told):
                call()
    with connect(urls(ways)[:1]) as tm:
        assert tm.sessions() == []


def test_the_first_that_answers_is_taken(ways):
    with connect([NOBODY, *urls(ways)]) as tm:
        assert tm.match(["cat"]) == [1]
        assert urls(ways)[0] in repr(tm)
    with pytest.raises(UnavailableError):
        connect([NOBODY, NOBODY])


@pytest.mark.parametrize(
    ("url", "error"),
    [([], InvalidValueError), (None, InvalidTypeError), (7, InvalidTypeError), ([None], InvalidTypeError),
     ([""], InvalidValueError), (["http://x:1"], InvalidValueError), ("grpc://a:1,grpc://b:2", InvalidValueError)],
)  # fmt: skip
def test_addresses_that_cannot_be_used(url, error):
    with pytest.raises(error, match="url"):
        connect(url)
    assert issubclass(error, TagMatchError)
