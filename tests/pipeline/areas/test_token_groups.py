"""Which is found first, contents or areas; that answers are the same either way is tested where users ask."""

import numpy as np
import pyarrow as pa
import pytest

from tagmatch import TagMatch

SETS = 3000
SMALL, HALF = 0.001, 0.4


def areas_first(tags: list[list[str]], radius: float, where: list[str] | None = None) -> int:
    """Of how many sets with circles anywhere in a square the areas are found first."""
    x, y = np.random.default_rng(1).random((2, len(tags)))
    numbers = [pa.array(each) for each in (x, y, np.full(len(tags), radius))]
    circles = pa.StructArray.from_arrays(numbers, ["lon", "lat", "metres"])
    columns = {"tags": pa.array(tags, pa.list_(pa.string())), "key": np.arange(len(tags)), "area": circles}
    with TagMatch(device="cpu", plane=True) as tm:
        tm.add_subscriptions(pa.table(columns if where is None else {**columns, "where": where}))
        tm.consolidate()
        (part,) = tm._engine.current.answering[1]
        assert part.areas is not None
        of_tokens = part.areas.of_tokens
        return 0 if of_tokens is None else int(np.count_nonzero(of_tokens.of_rows >= 0))


@pytest.mark.parametrize(
    ("name", "tags", "radius", "where", "first"),
    [
        ("few share a content", [["a", str(i)] for i in range(SETS)], SMALL, None, SETS),
        ("many share one, whose areas are small", [["a"]] * SETS, SMALL, None, SETS),
        ("many share one, whose areas are large", [["a"]] * SETS, HALF, None, 0),
        ("nothing is asked", [[]] * SETS, SMALL, None, 0),
        # A message with `all` has hardly any of the others, and is in half of the areas
        ("rare contents, large areas", [[f"{i % 50} a", f"{i // 50} b"] for i in range(SETS)], HALF, None, 0),
        ("no token", [[]] * SETS, SMALL, [f"x != {i}" for i in range(SETS)], SETS),
    ],
)  # fmt: skip
def test_what_comes_first(name, tags, radius, where, first):
    assert areas_first(tags, radius, where) == first, name
