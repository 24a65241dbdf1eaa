"""Workloads for the systems that match constraints and areas, and what holds them to brute force."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from support.circle_systems import PLACES, RADII
from support.circles import matching_rows
from support.content_systems import NAMES, OTHER_NAMES, WHOLE, compare, constraints, filters_of, tables

from tagmatch.workloads.systems.catalogue import System

AREAS = st.fixed_dictionaries({"x": PLACES, "y": PLACES, "radius": RADII})
POINTS = st.fixed_dictionaries({"x": PLACES, "y": PLACES})
AREA = pa.struct({"x": pa.float64(), "y": pa.float64(), "radius": pa.float64()})
POINT = pa.struct({"x": pa.float64(), "y": pa.float64()})
_GRID = 1024


def on_a_grid(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    """Move places to a grid, where single precision has differences and their squares."""
    column = table[name].combine_chunks()
    parts = [pa.array(np.round(part.to_numpy() * _GRID) / _GRID) for part in column.flatten()]
    return table.set_column(table.column_names.index(name), name, pa.StructArray.from_arrays(parts, fields=list(kind)))


@st.composite
def located_workloads(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Subscriptions with constraints and an area, and messages with attributes and a position."""
    each = filters_of(constraints(WHOLE, NAMES))
    filters = draw(st.lists(each, max_size=15))
    messages = draw(st.lists(st.dictionaries(st.sampled_from(OTHER_NAMES), WHOLE, max_size=8), max_size=6))
    stored, sent = tables(filters, messages, pa.int64())
    areas = draw(st.lists(AREAS, min_size=len(filters), max_size=len(filters)))
    points = draw(st.lists(POINTS, min_size=len(messages), max_size=len(messages)))
    return stored.append_column("area", pa.array(areas, AREA)), sent.append_column("location", pa.array(points, POINT))


def right_keys(subscriptions: pa.Table, messages: pa.Table) -> list[list[int]]:
    keys = subscriptions["key"].to_pylist()
    matched = matching_rows(subscriptions.to_pylist(), messages.to_pylist())
    return [sorted(keys[row] for row in rows) for rows in matched]


def check_located(system: System, subscriptions: pa.Table, messages: pa.Table, threads: int = 1) -> int:
    """Compare all answers with brute force, also after all areas have moved; returns how many there are."""
    with closing(system(subscriptions, threads)) as matcher:
        prepared = matcher.prepare(messages)
        found = compare(matcher, prepared, right_keys(subscriptions, messages))
        ids = np.arange(len(subscriptions) - 1, -1, -1, dtype=np.uint32)
        area = subscriptions["area"].combine_chunks()
        x, y = (area.field(name).to_numpy()[ids] for name in ("y", "x"))
        matcher.move(ids, x, y)
        columns = [pa.array(x[::-1]), pa.array(y[::-1]), area.field("radius")]
        place, moved = subscriptions.column_names.index("area"), pa.StructArray.from_arrays(columns, fields=list(AREA))
        found += compare(matcher, prepared, right_keys(subscriptions.set_column(place, "area", moved), messages))
        assert matcher.nbytes() >= 8 * len(subscriptions)
    return found
