"""Subscriptions near places of the world, and messages from there.

The workload of areas as JSON Lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.files.json import concatenated
from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.workloads.content.generate import CONSTRAINT
from tagmatch.workloads.content.real import object_lines, subscription_members, value_members
from tagmatch.workloads.location.generate import (
    EARTH_METRES,
    SPHERE_AREA,
    SPHERE_POINT,
    messages_schema,
    subscriptions_schema,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tagmatch.model.arrays import I64Array

#: Columns of the places
COLUMNS = ("country", "timezone", "population", "lat", "lon")
#: Radii of alerts, and how far a subscriber is from the middle of a place, in metres
_LEAST_METRES, _MOST_METRES = 2_000.0, 100_000.0
_AROUND_METRES = 5_000.0
#: An alert wants places with more inhabitants than this
_LEAST_PEOPLE, _MOST_PEOPLE = 100.0, 1_000_000.0
_HALF = 0.5


class NearMe(NamedTuple):
    """Subscriptions, messages and moves, with columns as `Location` with `degrees` has them."""

    subscriptions: pa.Table
    messages: pa.Table
    moves: pa.Table


def near_me(places: pa.Table, filters: int, messages: int, seed: int, *, moves: int = 0) -> NearMe:
    """Alerts "near me": a circle around a subscriber, and how large a place must be.

    A subscriber is 5 km or so from a place, which is drawn by its population, as people live there. Radii are from 2 to
    100 km and least populations from 100 to a million, both evenly on a logarithmic scale. Half of the filters also ask
    for the tag of the place's country. A message is about a place, each as likely: from where it is, with tags of its
    country and time zone, and its population as an attribute. A move brings a filter to a subscriber elsewhere.
    """
    missing = [name for name in COLUMNS if name not in places.column_names]
    if missing:
        raise InvalidValueError(f"places have no column {missing[0]!r}; have {', '.join(COLUMNS)}")
    if not len(places):
        raise InvalidValueError("places has no rows; have at least one")
    random = np.random.default_rng(seed)
    people = places["population"].to_numpy().astype(np.float64)
    shares = np.maximum(people, 1.0) / np.maximum(people, 1.0).sum()
    homes = random.choice(len(places), filters, p=shares)
    radii = np.exp(random.uniform(np.log(_LEAST_METRES), np.log(_MOST_METRES), filters))
    area = pa.StructArray.from_arrays([*_around(places, homes, random), pa.array(radii)], fields=list(SPHERE_AREA))
    least = np.exp(random.uniform(np.log(_LEAST_PEOPLE), np.log(_MOST_PEOPLE), filters)).astype(np.int64)
    with_country = np.flatnonzero(random.random(filters) < _HALF)
    countries = _tags("country", places["country"].combine_chunks().take(pa.array(homes[with_country])))
    tags = _lists(np.isin(np.arange(filters), with_country).astype(np.int64), countries)
    keys = pa.array(np.arange(filters, dtype=np.uint64))
    asked = _lists(np.ones(filters, np.int64), _more_people(least))
    stored = pa.table([keys, tags, asked, area], schema=subscriptions_schema(SPHERE_AREA))

    about = pa.array(random.integers(0, len(places), messages))
    drawn = places.select(COLUMNS).take(about).combine_chunks()
    both = [_tags(name, drawn[name].combine_chunks()) for name in ("country", "timezone")]
    order = np.arange(2 * messages).reshape(2, messages).T.ravel()
    tags = _lists(np.full(messages, 2, np.int64), pa.concat_arrays(both).take(pa.array(order)))
    location = _struct(*(drawn[name].combine_chunks().cast(pa.float64()) for name in ("lon", "lat")))
    schema = messages_schema(SPHERE_POINT, {"population": pa.int64()})
    sent = pa.table([tags, location, drawn["population"].combine_chunks().cast(pa.int64())], schema=schema)

    moved = random.integers(0, max(filters, 1), moves if filters else 0)
    to = _struct(*_around(places, random.choice(len(places), len(moved), p=shares), random))
    columns = {"filter": moved.astype(np.uint32), "key": moved.astype(np.uint64), "location": to}
    return NearMe(stored, sent, pa.table(columns))


def _around(places: pa.Table, rows: I64Array, random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """Longitudes and latitudes not far from places."""
    lon, lat = (places[name].to_numpy().astype(np.float64)[rows] for name in ("lon", "lat"))
    east, north = random.normal(0.0, np.degrees(_AROUND_METRES / EARTH_METRES), (2, len(rows)))
    # On a pole, any longitude will do
    lon = lon + east / np.maximum(np.cos(np.radians(lat)), 1e-3)
    return pa.array((lon + 180.0) % 360.0 - 180.0), pa.array(np.clip(lat + north, -90.0, 90.0))


def _struct(lon: pa.Array, lat: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([lon, lat], fields=list(SPHERE_POINT))


def _tags(kind: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(kind), values.cast(pa.string()), pa.scalar(":"))


def _lists(lengths: I64Array, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets_of(lengths, np.int32)), values)


def _more_people(least: I64Array) -> pa.StructArray:
    """A constraint on the population for each filter."""
    count = len(least)
    same = [pa.repeat(pa.scalar(text), count) for text in ("population", ">")]
    columns = [*same, pa.array(least), pa.nulls(count, pa.int64()), pa.nulls(count, pa.string())]
    return pa.StructArray.from_arrays(columns, fields=list(CONSTRAINT))


_TEXT = pa.large_string()


def subscription_lines(batch: pa.RecordBatch) -> memoryview:
    """Return subscriptions as JSON Lines in UTF-8: `key`, `tags`, `area`, and constraints as an expression `where`."""
    return object_lines([*subscription_members(batch), _numbers_member("area", batch["area"])])


def message_lines(batch: pa.RecordBatch) -> memoryview:
    """Return messages, or moves, as JSON Lines in UTF-8, with the attributes that a message has."""
    others = [name for name in batch.schema.names if name != "location"]
    return object_lines([*value_members(batch.select(others)), _numbers_member("location", batch["location"])])


def _numbers_member(name: str, structs: pa.StructArray) -> pa.Array:
    """A member whose value is an object of numbers."""
    fields: Sequence[pa.Field] = list(structs.type)
    parts: list[pa.Array | str] = []
    for field, column in zip(fields, structs.flatten(), strict=True):
        parts += [f'{"," if parts else ""}"{field.name}":', column.cast(_TEXT)]
    return concatenated(f'"{name}":{{', *parts, "}")
