"""Commands of a device's stream that compiled code gives, message after message. Imports `numba.cuda`.

The papers launch kernels from C, which takes microseconds; Numba takes tens of them, in the interpreter. Here the
commands of one message are recorded, with marks for the numbers that differ from message to message, and a compiled
loop writes these numbers and gives the commands to the driver.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt

from tagmatch.model.kernels.intrinsics import WAIT, give
from tagmatch.model.kernels.jit import inlined
from tagmatch.pipeline.cuda.streams import Stream

cuda: Any = numba.cuda

#: Recorded commands: their words, the places of numbers that differ, which number each of them is, and who gets them
Commands = namedtuple("Commands", "words at of driver stream")

# Neither an address, nor a size or a number of anything here; it fits into every type of number
_MARK, _MOST = 0x5A17_0000, 16
# The alignment of columns, in bytes
_ALIGNED = 64


def changing(number: int, kind: Callable[[int], Any] = int) -> Any:
    """A placeholder for a number that differs from message to message, in a launch that is recorded."""
    return kind(_MARK + number)


def changing_float(number: int) -> np.float32:
    """The same for a float, which is written as its bits."""
    return np.uint32(_MARK + number).view(np.float32)


# Words of a copy, from its end
_TO, _SIZE, _SOURCE, _SAME_SIZE = range(-4, 0)


def download_some(stream: Stream, values: npt.NDArray[Any], there: Any, number: int) -> None:
    """Copy the first bytes of a device array to a pinned one: as many as that number says, which differs."""
    stream.download(values, there)
    stream._words[_SIZE] = stream._words[_SAME_SIZE] = changing(number)


def upload_row(stream: Stream, there: Any, values: npt.NDArray[Any], to: int, source: int) -> tuple[int, int]:
    """Copy one row of a pinned array to a device array; the two numbers are the addresses there and here.

    Returns the addresses of the first rows.
    """
    stream.upload(there, values[0])
    first = stream._words[_TO], stream._words[_SOURCE]
    stream._words[_TO], stream._words[_SOURCE] = changing(to), changing(source)
    return first


def recorded(stream: Stream, *, waits: bool = False) -> Commands:
    """Take the commands that a stream has gathered; it gives them no more. `waits`: until the device is done."""
    words, *rest = stream.taken()
    if waits:
        words = np.append(words, np.uint64(WAIT))
    numbers = words - np.uint64(_MARK)
    at = np.flatnonzero(numbers < _MOST)
    return Commands(words, at, numbers[at].astype(np.int64), *rest)


@inlined
def give_with(commands, numbers):
    """Give recorded commands with these numbers, uint64; returns as `give`."""
    for i in range(len(commands.at)):
        commands.words[commands.at[i]] = numbers[commands.of[i]]
    return give(commands.words, commands.driver, commands.stream)


class Columns:
    """Columns with room for some rows each, which are copied to the device together."""

    def __init__(self, types: Sequence[tuple[npt.DTypeLike, int]]) -> None:
        sizes = [-(-np.dtype(dtype).itemsize * max(1, room) // _ALIGNED) * _ALIGNED for dtype, room in types]
        ends = np.cumsum([0, *sizes]).tolist()
        self._here, self._there = cuda.pinned_array(ends[-1], np.uint8), cuda.device_array(ends[-1], np.uint8)
        parts = list(zip(pairwise(ends), types, strict=True))
        #: Pinned arrays, and those of the device
        self.here = [self._here[first:last].view(dtype) for (first, last), (dtype, _) in parts]
        self.there = [self._there[first:last].view(dtype) for (first, last), (dtype, _) in parts]

    def upload(self, stream: Stream) -> None:
        """Copy all of them."""
        stream.upload(self._there, self._here)
