"""What threads make together, and threads whose start was interrupted."""

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tagmatch.model.arrays import Memo
from tagmatch.model.parallel import join, start

THREADS, TIMEOUT = 8, 60


def in_threads(work):
    together = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as threads:
        begun = [threads.submit(lambda: together.wait(TIMEOUT) is None or work()) for _ in range(THREADS)]
        return [each.result(TIMEOUT) for each in begun]


def test_each_piece_is_done_once_for_each_owner():
    memo, done, lock = Memo(), Counter(), threading.Lock()

    def fill(whole, piece):
        with lock:
            done[piece] += 1
        whole[piece] = piece

    for owner in ("one", "other"):
        wholes = in_threads(lambda owner=owner: memo.together(owner, lambda: ([None] * 50, range(50)), fill))
        assert all(whole is wholes[0] for whole in wholes)
        assert wholes[0] == list(range(50))
    assert set(done.values()) == {2}


def test_who_comes_early_waits_for_what_others_took():
    """Two pieces that each need the other's thread: they are done by two threads, and both see the whole."""
    memo, both = Memo(), threading.Barrier(2)

    def fill(whole, piece):
        both.wait(TIMEOUT)
        whole.append(piece)

    found = in_threads(lambda: sorted(memo.together("owner", lambda: ([], range(2)), fill)))
    assert found == [[0, 1]] * THREADS


def test_after_an_error_the_next_begins_anew():
    memo = Memo()
    with pytest.raises(ZeroDivisionError):
        memo.together("owner", lambda: (None, [0]), lambda _, piece: 1 // piece)
    for whole in ("whole", "other"):  # without work to do; the first is kept
        assert memo.together("owner", lambda whole=whole: (whole, ()), lambda _, piece: piece) == "whole"
        assert memo.of("another", lambda whole=whole: whole) == "whole"


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
