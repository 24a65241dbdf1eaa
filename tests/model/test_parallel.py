"""Threads whose start was interrupted."""

import signal
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
    assert (thread.joins, thread.is_alive()) == (3, False)
    join(threading.Thread())  # which was not started


class Slow(threading.Thread):
    """Begins when it may, as threads of a busy machine do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun = 0
        self.begins, self.may_begin = threading.Event(), threading.Event()

    def _set_ident(self) -> None:  # the first that a new thread does
        self.begun += 1
        self.begins.set()
        self.may_begin.wait(60)
        super()._set_ident()


def test_ctrl_c_stays_ctrl_c_and_a_thread_begins_once():
    """`start` is called again, as by one who could not see whether the thread had begun."""
    thread, main = Slow(), threading.main_thread().ident

    def interrupt() -> None:
        thread.begins.wait(60)  # so the main thread is within `start`
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            start(thread)
        assert thread.ident is None
        threading.Timer(0.3, thread.may_begin.set).start()
        start(thread)
    finally:
        thread.may_begin.set()
    thread.join()
    assert thread.begun == 1


def test_a_thread_that_has_begun_is_not_started_again():
    thread = Slow()
    thread.may_begin.set()
    for _ in range(2):
        start(thread)
    thread.join()
    start(thread)
    assert thread.begun == 1
