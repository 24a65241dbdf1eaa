"""Commands reach a driver in order, as C has them; here its functions are Python's."""

import ctypes
from typing import Any

import numpy as np
import pytest

from tagmatch.model.kernels.intrinsics import COPY, DOWNLOAD, LAUNCH, NARROW, UPLOAD, WAIT, give

_STREAM, _FAILED = 77, 719
_NUMBER, _WORD = ctypes.c_uint32, ctypes.c_uint64
_LAUNCHES = ctypes.CFUNCTYPE(ctypes.c_int32, _WORD, *[_NUMBER] * 7, _WORD, ctypes.POINTER(ctypes.POINTER(_WORD)), _WORD)
_COPIES = ctypes.CFUNCTYPE(ctypes.c_int32, *[_WORD] * 4)
_WAITS = ctypes.CFUNCTYPE(ctypes.c_int32, _WORD)


class Driver:
    """Notes what it is told; the download fails."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._functions = (
            _LAUNCHES(self._launch),
            _COPIES(lambda *words: self._note(UPLOAD, words)),
            _COPIES(lambda *words: self._note(DOWNLOAD, words) or _FAILED),
            _WAITS(lambda *words: self._note(WAIT, words)),
        )
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in self._functions]
        self.addresses = np.array(addresses, np.uint64)

    def _note(self, command: int, words: Any) -> int:
        self.told.append((command, words))
        return 0

    def _launch(self, function: int, *numbers: Any) -> int:
        *shape, stream, parameters, extra = numbers
        return self._note(LAUNCH, (function, shape, stream, [parameters[i][0] for i in range(3)], extra))

    def give(self, *words: int) -> tuple[int, int]:
        error, place = give(np.array(words, np.uint64), self.addresses, np.uint64(_STREAM))
        return int(error), int(place)


def test_commands_reach_the_driver_in_order() -> None:
    driver = Driver()
    most = 2**64 - 1
    assert driver.give(UPLOAD, 1, 3, 2, 3, LAUNCH, 9, 5, 6, 128, 3, 11, 0, most, WAIT) == (0, 0)
    assert driver.told == [
        (UPLOAD, (1, 2, 3, _STREAM)),
        (LAUNCH, (9, [5, 6, 1, 128, 1, 1, 0], _STREAM, [11, 0, most], 0)),
        (WAIT, (_STREAM,)),
    ]


def test_nothing_follows_a_command_that_fails() -> None:
    driver = Driver()
    assert driver.give(WAIT, DOWNLOAD, 1, 3, 2, 3, WAIT) == (_FAILED, DOWNLOAD)
    assert [command for command, _ in driver.told] == [WAIT, DOWNLOAD]


@pytest.mark.parametrize("size", [0, 1, 63, 1000, (1 << 18) - 1, 1 << 18, (1 << 18) + 130])
@pytest.mark.parametrize(("first", "to"), [(0, 0), (3, 0), (0, 5), (7, 61)])
def test_copies_within_the_host(size: int, first: int, to: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size + 100, np.uint8)
    found = np.zeros(size + 200, np.uint8)
    Driver().give(COPY, found[to:].ctypes.data, size, source[first:].ctypes.data, size)
    wanted = np.zeros_like(found)
    wanted[to : to + size] = source[first : first + size]
    assert np.array_equal(found, wanted)


def test_numbers_become_narrow() -> None:
    source, found = np.array([0, 5, 2**31 - 1, 9]), np.zeros(4, np.int32)
    Driver().give(NARROW, found.ctypes.data, 3, source.ctypes.data, 3)
    assert found.tolist() == [0, 5, 2**31 - 1, 0]
