"""The outbox of a subscriber behaves as a plain list of notifications, under any calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.notified import Clock, is_balanced, notifications, size_of

from tagmatch.broker.outbox import Outbox
from tagmatch.model.errors import InvalidValueError, SessionError, SlowSubscriberError


class Model:
    """One notification at a time, in lists: offset, payload, expiry, whether it is handed over again."""

    def __init__(self, guarantee: str, when_full: str, most: int, most_bytes: int, clock: Clock) -> None:
        self.guarantee, self.when_full, self.clock = guarantee, when_full, clock
        self.most, self.most_bytes = most, most_bytes
        self.waiting: list[tuple[int, bytes, int | None, bool]] = []
        self.in_flight: list[tuple[int, bytes, int | None, bool]] = []
        self.offered = self.delivered = self.dropped = self.expired = self.last = 0
        self.is_slow = self.is_connected = False

    def fits(self, extra: list[bytes]) -> bool:
        payloads = [each[1] for each in self.waiting + self.in_flight] + extra
        return len(payloads) <= self.most and sum(map(size_of, payloads)) <= self.most_bytes

    def expire(self) -> None:
        lasting = [each for each in self.waiting if each[2] is None or each[2] > self.clock.now]
        self.expired += len(self.waiting) - len(lasting)
        self.waiting = lasting

    def offer(self, payloads: list[bytes], expires: list[int | None]) -> None:
        if not self.fits(payloads):
            self.expire()
        is_full = False
        for payload, expiry in zip(payloads, expires, strict=True):
            self.offered += 1
            if self.when_full == "drop_oldest":
                room = self.most_bytes - sum(size_of(each[1]) for each in self.in_flight)
                if size_of(payload) > room or len(self.in_flight) == self.most:
                    # Not even if all that waits made room
                    self.dropped += 1
                    continue
                self.waiting.append((self.offered, payload, expiry, False))
                while not self.fits([]):
                    del self.waiting[0]
                    self.dropped += 1
            elif not is_full and self.fits([payload]):
                self.waiting.append((self.offered, payload, expiry, False))
            else:
                is_full = True
                self.dropped += 1
        self.is_slow |= is_full and self.when_full == "disconnect" and self.is_connected

    def connect(self) -> None:
        self.waiting = [(*each[:3], True) for each in self.in_flight] + self.waiting
        self.in_flight = []
        self.is_connected, self.is_slow = True, False

    def take(self, most: int) -> list[tuple[int, bytes, bool]]:
        self.expire()
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        self.last = max([self.last, *(each[0] for each in taken)])
        if self.guarantee == "at_most_once":
            self.delivered += len(taken)
        else:
            self.in_flight += taken
        return [(each[0], each[1], each[3]) for each in taken]

    def acknowledge(self, offset: int) -> None:
        for parts in (self.waiting, self.in_flight):
            gone = [each for each in parts if each[0] <= offset]
            self.delivered += len(gone)
            del parts[: len(gone)]


EXPIRIES = st.none() | st.integers(0, 30)


class OutboxMachine(RuleBasedStateMachine):
    @initialize(
        guarantee=st.sampled_from(["at_most_once", "at_least_once"]),
        when_full=st.sampled_from(["disconnect", "drop_oldest", "drop_newest"]),
        most=st.integers(1, 12),
        most_bytes=st.integers(40, 900) | st.integers(2, 30).map(lambda count: 20 * count),
    )
    def begin(self, guarantee: str, when_full: str, most: int, most_bytes: int) -> None:
        self.clock = Clock()
        self.outbox = Outbox(guarantee, when_full, most, most_bytes, self.clock)
        self.model = Model(guarantee, when_full, most, most_bytes, self.clock)
        self.connection = 0

    # Sizes that often add up to the same
    @rule(new=st.lists(st.tuples(st.sampled_from([b"", b"a" * 10, b"b" * 20, b"x" * 300]), EXPIRIES), max_size=15))
    def offer(self, new: list[tuple[bytes, int | None]]) -> None:
        payloads = [payload for payload, _ in new]
        expires = [None if expiry is None else self.clock.now + expiry for _, expiry in new]
        self.outbox.offer(notifications(payloads, expires))
        self.model.offer(payloads, expires)

    @rule()
    def connect(self) -> None:
        self.connection = self.outbox.connect()
        self.model.connect()

    @precondition(lambda self: self.model.is_connected)
    @rule()
    def disconnect(self) -> None:
        assert self.outbox.disconnect(self.connection)
        self.model.is_connected = False

    @rule(microseconds=st.integers(0, 20))
    def time_passes(self, microseconds: int) -> None:
        self.clock.now += microseconds

    @rule(most=st.integers(1, 15))
    def take(self, most: int) -> None:
        if not self.model.is_connected:
            with pytest.raises(SessionError):
                self.outbox.take(self.connection, most, timeout=0)
        elif self.model.is_slow:
            with pytest.raises(SlowSubscriberError, match="connect again"):
                self.outbox.take(self.connection, most, timeout=0)
        else:
            taken, expected = self.outbox.take(self.connection, most, timeout=0), self.model.take(most)
            rows = [] if taken is None else taken.to_pylist()
            assert [(row["offset"], row["payload"], row["redelivered"]) for row in rows] == expected
            assert all(row["id"] == row["payload"] and row["keys"] == [7] for row in rows)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.model.last + 1))
        if self.model.guarantee == "at_most_once" or offset > self.model.last:
            with pytest.raises(InvalidValueError):
                self.outbox.acknowledge(offset)
        else:
            self.outbox.acknowledge(offset)
            self.model.acknowledge(offset)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "outbox"):
            return
        counts = self.outbox.stats()
        assert is_balanced(counts)
        model = self.model
        for name in ("offered", "delivered", "dropped", "expired"):
            assert counts[name] == getattr(model, name), name
        assert counts["waiting"] <= model.most
        assert counts["bytes"] <= model.most_bytes
        assert counts["bytes"] == sum(size_of(each[1]) for each in model.waiting + model.in_flight)
        first = min((each[0] for each in model.waiting + model.in_flight), default=model.offered + 1)
        assert self.outbox.progress() == (first - 1, model.offered)


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50, deadline=None)


def outbox_of(guarantee: str = "at_most_once", when_full: str = "drop_newest", most: int = 100) -> Outbox:
    return Outbox(guarantee, when_full, most, 1 << 20)


@pytest.mark.parametrize("end", ["disconnect", "another", "close", "offer"])
def test_a_subscriber_that_waits_is_woken(end):
    outbox = outbox_of()
    connection = outbox.connect()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(outbox.take, connection, timeout=60)
        {
            "disconnect": lambda: outbox.disconnect(connection), "another": outbox.connect, "close": outbox.close,
            "offer": lambda: outbox.offer(notifications([b"a"])),
        }[end]()  # fmt: skip
        if end == "offer":
            assert waiting.result(60)["payload"].to_pylist() == [b"a"]
        else:
            with pytest.raises(SessionError, match="ended"):
                waiting.result(60)


def test_the_last_one_that_is_acknowledged_goes_too():
    outbox = outbox_of("at_least_once")
    outbox.offer(notifications([b"a", b"b", b"c"]))
    outbox.take(outbox.connect())
    outbox.acknowledge(2)
    assert (outbox.stats()["delivered"], outbox.progress()) == (2, (2, 3))
    assert outbox.take(outbox.connect())["payload"].to_pylist() == [b"c"]


def test_bytes_that_are_taken_at_once_are_bounded():
    outbox = outbox_of()
    connection = outbox.connect()
    outbox.offer(notifications([b"x" * 100] * 10))
    sizes = [len(outbox.take(connection, most_bytes=2 * size_of(b"x" * 100) + 1)) for _ in range(2)]
    assert sizes == [2, 2]
    assert len(outbox.take(connection, most_bytes=1)) == 1  # at least one


def test_what_waits_does_not_keep_the_memory_of_others():
    """A session that gets one notification of each large batch."""
    outbox = outbox_of(most=1_000)
    for _ in range(50):
        batch = notifications([b"x" * 100_000] * 20 + [b"mine"])
        outbox.offer(batch.part(20, 21))
    connection = outbox.connect()
    held = 0
    while (taken := outbox.take(connection, 1, timeout=0)) is not None:
        held = max(held, taken.get_total_buffer_size())
        assert taken["payload"].to_pylist() == [b"mine"]
    assert held < 10_000
    assert outbox.stats()["delivered"] == 50


def test_an_outbox_that_is_closed_takes_nothing():
    outbox = outbox_of()
    outbox.offer(notifications([b"a", b"b"]))
    outbox.close()
    assert outbox.offer(notifications([b"c"])) == 0
    counts = outbox.stats()
    assert is_balanced(counts)
    assert counts["dropped"] == 2
    with pytest.raises(SessionError):
        outbox.connect()
