"""Commands that compiled code gives, with a driver whose device is memory of this process."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tagmatch.model.kernels.intrinsics import UPLOAD
from tagmatch.pipeline.cuda import streams
from tagmatch_bench.systems.clcb_cuda import give_rows
from tagmatch_bench.systems.launched import recorded, upload_row

_COPIES = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * 4)
_STREAM, _FAILED = 77, 719


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The streams and sizes of all copies; the fifth one fails."""
    told: list[tuple[int, int]] = []

    def copy(to: int, source: int, size: int, stream: int) -> int:
        told.append((stream, size))
        if len(told) > 4:
            return _FAILED
        ctypes.memmove(to, source, size)
        return 0

    function = _COPIES(copy)
    addresses = np.zeros(4, np.uint64)
    addresses[UPLOAD] = ctypes.cast(function, ctypes.c_void_p).value
    monkeypatch.setattr(streams, "_driver", lambda _=function: addresses)  # which stays as long
    return told


def moved(centres: np.ndarray, ids: list[int], places: np.ndarray) -> tuple[int, int]:
    """Move rows of `centres`, as a device's, by compiled code."""
    stream: Any = object.__new__(streams.Stream)
    vars(stream).update(_words=[], _kept=[], _handle=np.uint64(_STREAM))
    there = SimpleNamespace(device_ctypes_pointer=SimpleNamespace(value=centres.ctypes.data))
    first = np.array(upload_row(stream, there, places, 0, 1), np.uint64)
    error, function = give_rows(recorded(stream), first, np.array(ids, np.uint32), places.strides[0])
    return int(error), int(function)


@pytest.mark.parametrize("ids", [[0], [6], [3, 0, 5, 1]])
def test_moves_are_copies_of_two_floats(copied: list[tuple[int, int]], ids: list[int]) -> None:
    centres = np.arange(14, dtype=np.float32).reshape(7, 2)
    places = -np.arange(1, 1 + 2 * len(ids), dtype=np.float32).reshape(-1, 2)
    wanted = centres.copy()
    wanted[ids] = places
    assert moved(centres, ids, places) == (0, 0)
    assert centres.tolist() == wanted.tolist()
    assert copied == [(_STREAM, 8)] * len(ids)


def test_no_move_follows_one_that_fails(copied: list[tuple[int, int]]) -> None:
    centres, places = np.zeros((8, 2), np.float32), np.ones((8, 2), np.float32)
    assert moved(centres, [*range(8)], places) == (_FAILED, UPLOAD)
    assert centres[:, 0].tolist() == [1] * 4 + [0] * 4
    assert len(copied) == 5
