"""What threads make together."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tagmatch.model.jobs import Memo

THREADS = 8
TIMEOUT = 60


def in_threads(work):
    """What `work` returns in each of several threads, which begin at once."""
    together, found = threading.Barrier(THREADS), []

    def begin():
        together.wait(TIMEOUT)
        found.append(work())

    threads = [threading.Thread(target=begin) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(found) == THREADS
    return found


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


def test_nothing_to_do():
    assert Memo().of("owner", lambda: ("whole", ())) == "whole"


def test_after_an_error_the_next_begins_anew():
    memo = Memo()

    def fail(*_):
        raise MemoryError("too much")

    with pytest.raises(MemoryError, match="too much"):
        memo.of("owner", lambda: (None, [0]), fail)
    assert memo.of("owner", lambda: ("whole", ())) == "whole"
    assert memo.of("owner", lambda: ("other", ())) == "whole"
