"""Futures of single messages are futures as any other, whenever somebody looks at them."""

from __future__ import annotations

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
    assert early.done()
    assert late.done()
    assert (early.result(), late.result(0), late.exception(0)) == (0, 10, None)
    assert not late.cancel()
    assert not late.running()
    with pytest.raises(CancelledError):
        cancelled.result(0)
    failed.set_exception(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        failed.result()
    with pytest.raises(TimeoutError):
        Reply().result(0.001)
    assert isinstance(late, Future)


def test_waiting_meanwhile():
    for _ in range(200):
        replies = [Reply() for _ in range(20)]
        found = []
        waiter = threading.Thread(
            target=lambda replies=replies, found=found: found.extend(r.result(30) for r in replies)
        )
        waiter.start()
        give(replies, lambda place: place)
        waiter.join(30)
        assert found == list(range(20))


def test_with_what_takes_futures():
    replies = [Reply() for _ in range(3)]
    give(replies[:2], lambda place: place)
    done, left = wait(replies, timeout=0.01)
    assert (done, left) == (set(replies[:2]), set(replies[2:]))
    threading.Timer(0.01, give, [replies[2:], lambda _: 2]).start()
    assert sorted(each.result() for each in as_completed(replies, timeout=30)) == [0, 1, 2]

    async def asked():
        more = [Reply() for _ in range(10)]
        threading.Timer(0.01, give, [more, lambda place: place]).start()
        return await asyncio.gather(*map(asyncio.wrap_future, more))

    assert asyncio.run(asked()) == list(range(10))
