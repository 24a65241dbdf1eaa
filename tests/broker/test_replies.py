"""Futures of single messages are futures as any other; the threads of a stream do not write to it at once."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from types import SimpleNamespace

import pytest

from tagmatch.broker.connection import MessageStream
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
