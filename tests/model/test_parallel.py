"""Threads whose start was interrupted."""

from __future__ import annotations

import threading

import pytest

from tagmatch.model.parallel import join, start


class Late(threading.Thread):
    """It has its number before it has said that it runs, as for a moment every thread has."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.joins = 0

    def join(self, timeout: float | None = None) -> None:
        self.joins += 1
        if self.joins < 3:
            raise RuntimeError("cannot join thread before it is started")
        super().join(timeout)


def test_a_thread_that_is_about_to_begin_is_waited_for():
    thread = Late()
    thread.start()
    join(thread)
    assert thread.joins == 3
    assert not thread.is_alive()


def test_a_thread_that_was_not_started_is_not():
    join(threading.Thread())


class Interrupted(threading.Thread):
    """Ctrl-C comes while it waits to hear that the thread runs, when the lock for that is not held."""

    def start(self) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()


def test_ctrl_c_stays_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        start(Interrupted())
