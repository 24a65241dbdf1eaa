"""Futures of single messages are futures as any other, whenever somebody looks at them."""

import asyncio
import threading
from concurrent.futures import CancelledError, Future, as_completed, wait

import pytest

from tagmatch.broker.reply import Reply, give


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
