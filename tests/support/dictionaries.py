"""Rows of tags as Arrow arrays whose tags are in dictionaries."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tagmatch.model.arrow import numpy_type

Rows = list[list[str]]

INDICES = (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64())
STRINGS = (pa.string(), pa.large_string(), pa.string_view())


def _tags(rows: Rows) -> list[str]:
    return list(itertools.chain.from_iterable(rows))


def _ends(rows: Rows) -> list[int]:
    return list(itertools.accumulate(map(len, rows), initial=0))


def _views(kind: type[pa.Array], width: pa.DataType) -> Callable[[Rows, Any], pa.Array]:
    def views(rows: Rows, encode: Any) -> pa.Array:
        """Lists that lie in the opposite order."""
        tags = encode(_tags(rows[::-1]))
        return kind.from_arrays(pa.array(_ends(rows[::-1])[-2::-1], width), pa.array(list(map(len, rows)), width), tags)

    return views


#: Lists of what `encode` makes of all tags
LISTS: dict[str, Callable[[Rows, Any], pa.Array]] = {
    "list": lambda rows, encode: pa.ListArray.from_arrays(pa.array(_ends(rows), pa.int32()), encode(_tags(rows))),
    "large_list": lambda rows, encode: pa.LargeListArray.from_arrays(
        pa.array(_ends(rows), pa.int64()), encode(_tags(rows))
    ),
    "fixed_size_list": lambda rows, encode: pa.FixedSizeListArray.from_arrays(encode(_tags(rows)), len(rows[0])),
    "list_view": _views(pa.ListViewArray, pa.int32()),
    "large_list_view": _views(pa.LargeListViewArray, pa.int64()),
}


def dictionary_array(
    rng: random.Random, tags: list[str], unused: list[str | None], index: pa.DataType, kind: pa.DataType
) -> pa.DictionaryArray:
    """Tags in a dictionary in which some are twice and some others are, too; each tag is any of those equal to it."""
    values = [*set(tags), *unused]
    values += rng.choices(sorted(set(tags)), k=min(3, len(set(tags)))) if tags else []
    rng.shuffle(values)
    places = defaultdict(list)
    for place, value in enumerate(values):
        places[value].append(place)
    indices = pa.array([rng.choice(places[tag]) for tag in tags], index)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()).cast(kind))


@st.composite
def encoded(draw: st.DrawFn, rows: Rows) -> tuple[Rows, pa.Array | pa.ChunkedArray]:
    """Rows, which fixed-size lists must have cut, and the same in Arrow: a slice, and perhaps chunks."""
    rng = draw(st.randoms(use_true_random=False))
    most = len(set(_tags(rows))) + 10
    fitting = [index for index in INDICES if np.iinfo(numpy_type(index)).max > most]
    index, kind, name = (draw(st.sampled_from(some)) for some in (fitting, STRINGS, sorted(LISTS)))
    unused = draw(st.lists(st.none() | st.sampled_from(["unused", "a", "n1"]), max_size=3))
    if name == "fixed_size_list":
        size = max(1, min(map(len, rows), default=0))
        rows = [row[:size] for row in rows if len(row) >= size]
    filler = ["before"] * (len(rows[0]) if rows else 1)

    def encode(tags: list[str]) -> pa.DictionaryArray:
        return dictionary_array(rng, tags, unused, index, kind)

    def array(some: Rows) -> pa.Array:
        return LISTS[name]([filler, *some, filler], encode).slice(1, len(some))

    cuts = sorted({0, len(rows), *draw(st.lists(st.integers(0, len(rows)), max_size=3))})
    parts = list(itertools.pairwise(cuts)) or [(0, 0)]
    how = draw(st.sampled_from(["array", "chunks", "chunks of one dictionary"]))
    if how == "chunks":
        return rows, pa.chunked_array([array(rows[a:b]) for a, b in parts])
    whole = array(rows)
    return rows, whole if how == "array" else pa.chunked_array([whole.slice(a, b - a) for a, b in parts])
