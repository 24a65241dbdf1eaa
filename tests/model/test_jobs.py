"""What threads make together."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tagmatch.model.jobs import Memo

THREADS, TIMEOUT = 8, 60


def in_threads(work):
    """What `work` returns in each of several threads, which begin at once."""
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
        wholes = in_threads(lambda owner=owner: memo.of(owner, lambda: ([None] * 50, range(50)), fill))
        assert all(whole is wholes[0] for whole in wholes)
        assert wholes[0] == list(range(50))
    assert set(done.values()) == {2}


def test_who_comes_early_waits_for_what_others_took():
    """Two pieces that each need the other's thread: they are done by two threads, and both see the whole."""
    memo, both = Memo(), threading.Barrier(2)

    def fill(whole, piece):
        both.wait(TIMEOUT)
        whole.append(piece)

    found = in_threads(lambda: sorted(memo.of("owner", lambda: ([], range(2)), fill)))
    assert found == [[0, 1]] * THREADS


def test_after_an_error_the_next_begins_anew():
    memo = Memo()
    with pytest.raises(ZeroDivisionError):
        memo.of("owner", lambda: (None, [0]), lambda _, piece: 1 // piece)
    for whole in ("whole", "other"):  # of which there is nothing to do, and the first is kept
        assert memo.of("owner", lambda whole=whole: (whole, ())) == "whole"
