"""An index of sets with areas, what is right for it, and messages as rows of Spark."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from oracle import Oracle
from support.areas import FIELDS
from support.areas_and_moves import AREAS, PLACES, At, any_at, struct_of
from support.conditions import Expression
from support.trees import Test

from tagmatch import TagMatch

#: The type of a column of areas
STRUCT = f"struct<kind: string, {', '.join(f'{name}: double' for name in FIELDS)}>"
#: The types of a column of places
PLACE_TYPES = ["struct<lat: double, lon: double>", "array<double>"]
KEYS: dict[str, Callable[[int], Any]] = {"integer": int, "string": "é {}".format}
TAGS = [f"t{number}" for number in range(6)]
_CHEAP = Expression.of(Test("price", "<", (3,)), random.Random(0))


class Message(NamedTuple):
    """What is asked."""

    tags: list[str]
    price: int | None
    at: At


def stored_with_areas(path: Path, rng: random.Random, key_type: Any = "integer") -> Oracle:
    """Make an index of sets with areas, some for clients whose places its folder has; gives what is right."""
    oracle, keys = Oracle(), [KEYS[key_type](number) for number in range(120)]
    with TagMatch(path, device="cpu", key_type=key_type) as tm:
        for number in range(300):
            tags, area = rng.sample(TAGS, rng.choice([0, 1, 1, 2])), rng.choice([None, *AREAS])
            where = rng.choice([None, None, None, _CHEAP])
            for change in (tm, oracle):
                change.add_set(tags, keys[number % 120], where=where, area=area)
        places = [rng.choice(PLACES) for _ in range(120)]
        for change in (tm, oracle):
            change.consolidate()
            change.move(keys, *map(list, zip(*places, strict=True)))
            change.save_positions()
    return oracle


def any_messages(rng: random.Random, count: int) -> list[Message]:
    return [Message(rng.sample(TAGS, rng.randrange(5)), rng.choice([None, 2, 5]), any_at(rng)) for _ in range(count)]


def frame_of(spark: Any, messages: list[Message], place_type: str) -> Any:
    """Columns `id`, `tags`, `price`, `here` and `around`, in three partitions."""
    rows = []
    for number, (tags, price, at) in enumerate(messages):
        here: Any = at.location and list(map(float, at.location))
        if here and place_type.startswith("struct"):
            here = {"lon": here[0], "lat": here[1]}
        rows.append((number, tags, price, here, struct_of(at.within)))
    schema = f"id int, tags array<string>, price int, here {place_type}, around {STRUCT}"
    return spark.createDataFrame(rows, schema).repartition(3)


def answers(oracle: Oracle, messages: list[Message], *asked: str, unique: bool = False) -> dict[int, list[Any]]:
    """What is right, by number of the message; of `attributes`, `location` and `within` only some are asked for."""
    match = oracle.match_unique if unique else oracle.match
    found = {}
    for number, (tags, price, at) in enumerate(messages):
        attributes = {"price": price} if "attributes" in asked and price is not None else {}
        where = {name: value for name, value in at.options.items() if name in asked}
        found[number] = sorted(match(tags, attributes, **where))
    assert any(found.values())
    return found
