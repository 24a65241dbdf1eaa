"""Areas and tags as constraints on attributes, positions and tags as attributes, for systems that know nothing else.

Areas: CLCB §5. The paper does not say what its "special constraint" of an area is. Here it is two intervals, of the
least square around the circle: a square has 27 % more area, so that these filters find all that the circles find, and
more. Numbers are double, as coordinates are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of

#: Names that the workload has for no other attribute
X, Y = "x", "y"
_CONSTRAINT = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.float64(), "upper": pa.float64()})


def areas_as_constraints(subscriptions: pa.Table) -> pa.Table:
    """Return `key` and `constraints` of subscriptions on the plane, with two more for the area.

    Parameters
    ----------
    subscriptions : pyarrow.Table
        As of `Location.subscriptions` without `degrees`.

    Examples
    --------
    >>> from tagmatch.workloads.location import Location, LocationOptions
    >>> from tagmatch_bench.harness.as_constraints import areas_as_constraints
    >>> one = Location(LocationOptions(subscribers=1)).subscriptions(0, 1, content="tags")
    >>> [(each["attr"], each["op"]) for each in areas_as_constraints(one)["constraints"][0].as_py()]
    [('x', 'between'), ('y', 'between')]
    """
    rows = len(subscriptions)
    lists = subscriptions["constraints"].combine_chunks()
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    area = subscriptions["area"].combine_chunks()
    x, y, radius = (area.field(name).to_numpy() for name in ("x", "y", "radius"))
    names = pa.concat_arrays([flat.field("attr"), *(pa.repeat(pa.scalar(name), rows) for name in (X, Y))])
    operators = pa.concat_arrays([flat.field("op"), pa.repeat(pa.scalar("between"), 2 * rows)])
    values = np.concatenate([flat.field("value").cast(pa.float64()).to_numpy(), x - radius, y - radius])
    uppers = pa.concat_arrays([pa.nulls(len(flat), pa.float64()), pa.array(np.concatenate([x + radius, y + radius]))])
    joined = pa.StructArray.from_arrays([names, operators, pa.array(values), uppers], fields=list(_CONSTRAINT))
    each = np.arange(rows)
    order = np.argsort(np.concatenate([np.repeat(each, sizes), each, each]), kind="stable")
    offsets = offsets_of(sizes + 2, np.int32)
    constraints = pa.ListArray.from_arrays(pa.array(offsets), joined.take(pa.array(order)))
    return pa.table({"key": subscriptions["key"], "constraints": constraints})


def positions_as_attributes(messages: pa.Table) -> pa.Table:
    """Return the attributes of messages on the plane, as double, with two more for the position."""
    names = [name for name in messages.column_names if name not in ("tags", "location")]
    location = messages["location"].combine_chunks()
    columns = {name: messages[name].cast(pa.float64()) for name in names}
    return pa.table(columns | {X: location.field("x"), Y: location.field("y")})


def tags_as_constraints(subscriptions: pa.Table) -> pa.Table:
    """Return `key`, `constraints` and `area` of subscriptions, with a constraint for each tag instead: that it is 1."""
    tags = subscriptions["tags"].combine_chunks()
    flat = tags.flatten()
    count = len(flat)
    columns = [flat, *(pa.repeat(pa.scalar(each), count) for each in ("=", 1)), pa.nulls(count, pa.int64())]
    asked = pa.StructArray.from_arrays(columns, ["attr", "op", "value", "upper"])
    offsets = offsets_of(tags.value_lengths().to_numpy().astype(np.int64), np.int32)
    constraints = pa.ListArray.from_arrays(pa.array(offsets), asked)
    return pa.table({"key": subscriptions["key"], "constraints": constraints, "area": subscriptions["area"]})


def tags_as_attributes(messages: pa.Table) -> pa.Table:
    """Return `location` of messages, and an attribute for each tag, which is 1 where a message has it."""
    tags = messages["tags"].combine_chunks()
    encoded = tags.flatten().dictionary_encode()
    there = np.zeros((len(encoded.dictionary), len(tags)), np.bool_)
    there[encoded.indices.to_numpy(), pc.list_parent_indices(tags).to_numpy()] = True
    ones = np.ones(len(tags), np.int64)
    columns = {name: pa.array(ones, mask=~row) for name, row in zip(encoded.dictionary.to_pylist(), there, strict=True)}
    return pa.table({"location": messages["location"]} | columns)
