"""Systems in C++ (`peers.cpp`), compiled here and called by ctypes with Arrow arrays. All of them have one thread."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import F64Array
from tagmatch.pipeline.unique import merge_all
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.hash_tables import known_tags
from tagmatch_bench.systems.matcher import Plain, UnavailableError, list_array, lists_in

_SOURCE = Path(__file__).with_name("peers.cpp")
_OPTIONS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC")
#: Bytes of an array by Arrow's C data interface
_ARROW_ARRAY = 80


@cache
def _library() -> ctypes.PyDLL:
    """Compile the source code; raises UnavailableError."""
    name = os.environ.get("CXX", "g++")
    compiler = shutil.which(name)
    if compiler is None:
        raise UnavailableError(f"needs a C++ compiler: there is no {name} (Debian package g++; CXX names another one)")
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as folder:
        made = str(Path(folder, "peers.so"))
        done = subprocess.run([compiler, *_OPTIONS, "-o", made, str(_SOURCE)], capture_output=True, text=True)
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise UnavailableError(f"{compiler} cannot compile {_SOURCE}, as C++20 for this machine: {said}")
        library = ctypes.PyDLL(made)
    for function, kind in (("build", ctypes.c_void_p), ("bytes", ctypes.c_int64)):
        for system in ("rarest", "grid"):
            getattr(library, f"{system}_{function}").restype = kind
    library.rarest_match_one.restype = ctypes.py_object
    return library


def _exported(array: pa.Array) -> Any:
    """An array by Arrow's C data interface, which the function that it is given to releases."""
    there = ctypes.create_string_buffer(_ARROW_ARRAY)
    array._export_to_c(ctypes.addressof(there))
    return there


class _Native(Plain):
    """A system that gives Arrow keys, whose memory is used again for a later answer."""

    _name: str  # its functions begin so

    def _call(self, function: str, *given: Any) -> Any:
        columns = (_exported(each) if isinstance(each, pa.Array) else each for each in given)
        return getattr(_library(), f"{self._name}_{function}")(*columns)

    def _lists(self, function: str, *given: Any, kind: pa.DataType, unique: bool = False) -> pa.ListArray:
        out = ctypes.create_string_buffer(_ARROW_ARRAY)
        self._call(function, *given, out)
        found = pa.Array._import_from_c(ctypes.addressof(out), pa.list_(kind))
        return list_array(merge_all(lists_in(found))) if unique else found


class _Stored(_Native):
    """One that is built, and kept until it is closed."""

    def __init__(self, *columns: pa.Array) -> None:
        self._built = ctypes.c_void_p(self._call("build", *columns))

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return int(self._call("bytes", self._built))

    def close(self) -> None:
        """Free the memory."""
        self._call("free", self._built)


class CppRarest(_Stored):
    """What a good C++ programmer writes in an afternoon: a hash map of rarest tags, and a stamp for each tag. Exact.

    Sets are sorted ranks under their rarest tag, each with a signature of 64 bits. Queries are taken one after the
    other, or in blocks of 256, whose tags and candidates are prefetched. Pairs of a set and a key must differ, and
    offsets of strings have 32 bits. Unique keys are made so in Python.
    """

    _name = "rarest"

    def __init__(self, sets: pa.Table, *, threads: int = 1, in_blocks: bool = False) -> None:  # noqa: ARG002
        self._in_blocks = int(in_blocks)
        super().__init__(self.prepare(sets["tags"].combine_chunks()), sets["key"].combine_chunks())

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries.cast(pa.list_(pa.string()))

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        return self._lists("match", self._built, self._in_blocks, queries, kind=pa.uint64(), unique=unique)

    def match(self, query: list[str]) -> list[int]:
        """Return the keys of the stored sets that match one query."""
        found: list[int] = _library().rarest_match_one(self._built, ctypes.py_object(query))
        return found


class TTJoin(_Native):
    """J. Yang, W. Zhang, S. Yang, Y. Zhang, X. Lin, "TT-Join: Efficient Set Containment Join", ICDE 2017. Exact.

    A join of all sets with all queries of a call, both as ranks of tags. Sets are in a tree by their four least
    frequent tags, and queries in the order of a prefix tree by descending frequency, which is walked and not stored.
    """

    _name = "tt"

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        _library()
        tags, self._keys = sets["tags"].combine_chunks(), sets["key"].combine_chunks()
        counted = pc.value_counts(tags.flatten())
        self._vocabulary = counted.field("values").take(pc.sort_indices(counted.field("counts")))
        self._stored = self.prepare(tags)

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Convert to ranks of known tags, the rarest first."""
        return list_array(known_tags(queries, self._vocabulary))

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Build what the join needs, and return the keys of the stored sets that match, for each query in order."""
        universe = ctypes.c_int64(len(self._vocabulary))
        return self._lists("join", universe, self._stored, self._keys, queries, kind=pa.uint64(), unique=unique)


class LimitPlus(TTJoin):
    """LIMIT+: P. Bouros, N. Mamoulis, S. Ge, M. Terrovitis, "Set Containment Join Revisited", KAIS 49, 2016. Exact.

    Sets are in the order of a prefix tree, the rarest tag first; lists of queries by tag are intersected on the way
    down. Simplified: lengths of lists and of queries alone decide where candidates are verified instead.
    """

    _name = "limit"


class CppGrid(_Stored):
    """A uniform grid of circles, each in all cells that it reaches, where a point tests those of its cell. Exact."""

    _name = "grid"

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        super().__init__(*map(pa.array, (circles.x, circles.y, circles.radius)))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        found = self._lists("stab", self._built, *map(pa.array, (x, y)), kind=pa.uint32())
        return Found(found.offsets.to_numpy().astype(np.int64), found.values.to_numpy())
