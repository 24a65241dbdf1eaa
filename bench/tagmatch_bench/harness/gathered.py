"""Queries one by one for systems that take calls: a thread asks those together that have come within a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import pyarrow as pa

from tagmatch_bench.systems.matcher import Matcher, answers_to_pylist

#: Queries of a call, at most
MOST = 1 << 16

_Asked: TypeAlias = tuple[float, list[str], Future[Any]]


@contextmanager
def gathering(matcher: Matcher[Any], wait: float, *, unique: bool) -> Iterator[Callable[[list[str]], Future[Any]]]:
    """Give a function that submits a query, as `TagMatch.submit` does; all are answered at the end.

    A call begins when the oldest query has waited `wait` seconds. A query that comes later is for the next one.
    """
    waiting: SimpleQueue[_Asked | None] = SimpleQueue()

    def submit(query: list[str]) -> Future[Any]:
        future: Future[Any] = Future()
        waiting.put((time.perf_counter(), query, future))
        return future

    def work() -> None:
        while (first := waiting.get()) is not None:
            gathered, goes_on = _gathered(first, waiting, wait)
            _answer(matcher, gathered, unique=unique)
            if not goes_on:
                break

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield submit
    finally:
        waiting.put(None)
        thread.join()


def _gathered(first: _Asked, waiting: SimpleQueue[_Asked | None], wait: float) -> tuple[list[_Asked], bool]:
    """The queries of a call, and whether there may be more."""
    gathered, ends = [first], first[0] + wait
    while len(gathered) < MOST:
        try:
            asked = waiting.get(timeout=max(0.0, ends - time.perf_counter()))
        except Empty:
            break
        if asked is None:
            return gathered, False
        gathered.append(asked)
    return gathered, True


def _answer(matcher: Matcher[Any], gathered: list[_Asked], *, unique: bool) -> None:
    _, queries, futures = zip(*gathered, strict=True)
    try:
        asked = matcher.prepare(pa.array(queries, pa.list_(pa.string())))
        answers = answers_to_pylist(matcher.match_many(asked, unique=unique))
    except BaseException as error:
        for future in futures:
            future.set_exception(error)
        return
    for future, keys in zip(futures, answers, strict=True):
        future.set_result(set(keys) if unique else keys)
