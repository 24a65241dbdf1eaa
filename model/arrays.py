"""NumPy array types and the two list shapes (strings, lists) that all tables are made of.

Work in pieces that threads take in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")

_PAUSE_S = 0.001


class SharedWork(Generic[T, R]):
    """Pieces of work which threads take in turn.

    Ctrl-C may come to the main thread at any moment, so that thread meets nothing here but what C does in one step: no
    future, no condition, no pool of the standard library, whose locks an interruption could leave taken for ever.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self._items = items
        self._results: list[Any] = [None] * len(items)
        self._errors: list[tuple[int, BaseException]] = []
        self._next, self._ends = count(), count(1)
        self._taken: list[int] = []
        self._ended: list[int] = []
        self._stopped = False
        self._all_ended = threading.Lock()
        if items:
            self._all_ended.acquire()

    def help(self, work: Callable[[T], R]) -> None:
        """Take pieces until there are none left, and do `work` on each."""
        while not self._stopped and (i := next(self._next)) < len(self._items):
            self._taken.append(i)
            try:
                if not self._stopped:
                    self._results[i] = work(self._items[i])
            except BaseException as error:
                self._errors.append((i, error))
            self._ended.append(i)
            if next(self._ends) == len(self._items):
                self._all_ended.release()

    def results(self) -> list[R]:
        """Wait for all pieces; any number of threads may."""
        self._all_ended.acquire()
        self._all_ended.release()
        if self._errors:
            raise min(self._errors, key=itemgetter(0))[1]
        return self._results

    def stop(self) -> None:
        """Begin no more pieces, and wait for those that have begun, even through another Ctrl-C."""
        self._stopped = True
        while len(self._ended) < len(self._taken):
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(_PAUSE_S)


class Memo:
    """What has been made of something, once for each owner."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}

    def of(self, owner: object, make: Callable[[], R]) -> R:
        """What `make` returned for this owner first."""
        made: R | None = self._made.get(owner)
        return self._made.setdefault(owner, make()) if made is None else made

    def together(self, owner: object, begin: Callable[[], tuple[R, Sequence[T]]], fill: Callable[[R, T], object]) -> R:
        """What `begin` returned for this owner, when all its pieces are done, by all threads that ask at once.

        A thread that asks while pieces are left does some; a later one waits. After an error, the next call begins
        anew.
        """
        made: tuple[R, SharedWork[T, object]] | None = self._made.get(owner)
        if made is None:
            whole, pieces = begin()
            made = self._made.setdefault(owner, (whole, SharedWork(pieces)))
        whole, job = made
        job.help(partial(fill, whole))
        try:
            job.results()
        except BaseException:
            self._made.pop(owner, None)
            raise
        return whole


U8Array = npt.NDArray[np.uint8]
U16Array = npt.NDArray[np.uint16]
U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]
F64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
#: int32 or int64, as Arrow's offsets are
IntArray = npt.NDArray[np.signedinteger[Any]]
#: uint32 or uint64
UIntArray = npt.NDArray[np.unsignedinteger[Any]]

INT32_MAX = 2**31 - 1


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view. Kernels compile once for read-only arrays, whether built in memory or memory-mapped."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def pooled(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array, not initialized, in memory that Arrow reuses for other such arrays after this one is freed.

    Memory that is new to the process takes longer to get than answers take to write.
    """
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)


def give_back() -> None:
    """Give the memory that Arrow and the C library keep unused back to the system, if they can do so (glibc)."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def narrow_offsets(offsets: npt.NDArray[Any]) -> IntArray:
    """Offsets as int32 where their last value fits, else int64 (Arrow's `list` and `large_list`)."""
    small = len(offsets) == 0 or int(offsets[-1]) <= INT32_MAX
    return offsets.astype(np.int32 if small else np.int64, copy=False)


def offsets_of(lengths: npt.NDArray[Any], dtype: type[np.signedinteger[Any]] = np.int64) -> npt.NDArray[Any]:
    """Offsets, length `len(lengths) + 1`, of lists with these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype)
    offsets[1:] = lengths  # summed in place, as summing from another type is ten times as slow
    np.cumsum(offsets, out=offsets, dtype=dtype)
    return offsets


def list_offsets(lengths: npt.NDArray[Any]) -> IntArray:
    """`narrow_offsets(offsets_of(lengths))`, without the wide offsets in between."""
    small = int(lengths.sum(dtype=np.int64)) <= INT32_MAX
    return offsets_of(lengths, np.int32 if small else np.int64)


def bytes_of(*values: Any) -> int:
    """Bytes of memory of arrays, those of devices and those in tuples, too; anything else has none."""
    return sum(bytes_of(*each) if isinstance(each, tuple) else int(getattr(each, "nbytes", 0)) for each in values)


@dataclass(frozen=True, slots=True)
class Strings:
    """UTF-8 strings: string `i` is `data[offsets[i]:offsets[i + 1]]`, as in an Arrow string array."""

    offsets: IntArray  # int32 or int64 array, length n + 1
    data: U8Array  # uint8 array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __post_init__(self) -> None:
        self.offsets.setflags(write=False)
        self.data.setflags(write=False)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.offsets.nbytes + self.data.nbytes


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of unsigned integers: list `i` is `values[offsets[i]:offsets[i + 1]]` (compressed sparse rows)."""

    offsets: IntArray  # int32 or int64 array, length n + 1
    values: UIntArray  # uint32 or uint64 array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __post_init__(self) -> None:
        if self.offsets.dtype != np.int32:
            object.__setattr__(self, "offsets", narrow_offsets(self.offsets))
        self.offsets.setflags(write=False)
        self.values.setflags(write=False)

    def lengths(self) -> I64Array:
        """Length of every list."""
        return np.diff(self.offsets).astype(np.int64, copy=False)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.offsets.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class TagLists:
    """Rows of tags before they are looked up: row `i` has the tags from place `offsets[i]` to `offsets[i + 1]`.

    The tag at place `j` is string `indices[j]` of `tags` or, without indices, string `j`.
    """

    offsets: IntArray  # int32 or int64 array, length n + 1; need not start at 0
    tags: Strings  # The tags; with indices a dictionary of them, whose strings may be equal or in no row
    # uint32 array: of each tag. An index may be beyond the end of the dictionary; then no set
    # has the tag.
    indices: U32Array | None = None
    # What has been made of the dictionary, as its ranks; several `TagLists` with the same dictionary share it
    memo: Memo = field(default_factory=Memo, repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __post_init__(self) -> None:
        self.offsets.setflags(write=False)
        if self.indices is not None:
            self.indices.setflags(write=False)

    @property
    def attributes(self) -> Any:
        """None, and so are `locations`: `Messages` may have some."""
        return None

    @property
    def locations(self) -> Any:
        """See `attributes`."""
        return None
