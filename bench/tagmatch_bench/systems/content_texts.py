"""Texts as numbers, on which the systems for constraints on attributes have each operator exact.

A text is its bytes in UTF-8, the first one highest, with zeros after the last: so texts with a beginning in common are
an interval of numbers, and a text that is contained is found by shifts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.kernels.jit import inlined

if TYPE_CHECKING:
    import numpy.typing as npt

    from tagmatch.model.arrays import I64Array

#: Bytes of a text; with one more, numbers would be negative
MOST_BYTES = 7

_BYTE = 8


def packed(texts: pa.Array) -> I64Array:
    """Return texts as numbers.

    Raises
    ------
    ValueError
        A text is longer than `MOST_BYTES`, or has a character of code 0, which would be like none.
    """
    data, lengths = _bytes_of(texts)
    return _packed(data, lengths)


def beginnings(texts: pa.Array) -> tuple[I64Array, I64Array]:
    """Return the lowest and the highest number of texts that begin with each of these; errors as for `packed`."""
    data, lengths = _bytes_of(texts)
    lowest = _packed(data, lengths)
    return lowest, lowest | ((np.int64(1) << (_BYTE * (MOST_BYTES - lengths))) - 1)


def needles(texts: pa.Array) -> tuple[I64Array, I64Array]:
    """Return of each text to be searched for what `contains` takes: its number without zeros at its end, and as many
    bytes of ones; errors as for `packed`.
    """  # noqa: D205
    data, lengths = _bytes_of(texts)
    return _packed(data, lengths) >> (_BYTE * (MOST_BYTES - lengths)), (np.int64(1) << (_BYTE * lengths)) - 1


def _bytes_of(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], I64Array]:
    """All bytes of texts, one text after the other, and how many each has."""
    column = texts.cast(pa.large_binary())
    lengths = pc.binary_length(column).to_numpy().astype(np.int64)
    _, offsets, data = column.buffers()
    first = np.frombuffer(offsets, np.int64)[column.offset] if len(column) else 0
    data = np.frombuffer(data or b"", np.uint8)[first : first + lengths.sum()]
    longest = int(lengths.max(initial=0))
    if longest > MOST_BYTES:
        raise ValueError(f"a text of {longest} bytes is longer than {MOST_BYTES}")
    if not data.all():
        raise ValueError("a text has a character of code 0")
    return data, lengths


def _packed(data: npt.NDArray[np.uint8], lengths: I64Array) -> I64Array:
    ends = np.cumsum(lengths)
    numbers = np.zeros(len(lengths), np.int64)
    for place in range(MOST_BYTES):
        there = np.flatnonzero(lengths > place)
        at = ends[there] - lengths[there] + place
        numbers[there] |= data[at].astype(np.int64) << (_BYTE * (MOST_BYTES - 1 - place))
    return numbers


@inlined
def contains(text, needle, ones):
    """Whether a packed text contains another one, as `needles` has it.

    Numbers are cast as kernels are compiled for real numbers, too.
    """
    rest, wanted, mask = np.int64(text), np.int64(needle), np.int64(ones)
    while rest & mask != wanted:
        if rest <= mask:
            return False
        rest >>= 8
    return True


@inlined
def ones_of(needle):
    """The second number of `needles`, from the first."""
    ones = np.int64(0)
    while ones < np.int64(needle):
        ones = (ones << 8) | 255
    return ones
