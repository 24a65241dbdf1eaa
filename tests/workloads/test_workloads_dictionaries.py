"""What the compared systems and generators make of sets does not depend on whether their tags are in dictionaries."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from support.dictionaries import LISTS, dictionary_array

from tagmatch.workloads.queries import StoredSets
from tagmatch.workloads.systems.signatures import signatures

RNG = random.Random(5)
ROWS = [RNG.sample([f"t{i}" for i in range(30)], RNG.randint(1, 6)) for _ in range(200)]


def encoded() -> pa.Array:
    def encode(tags: list[str]) -> pa.Array:
        return dictionary_array(RNG, tags, ["unused"], pa.int16(), pa.string())

    return LISTS["list"]([["before"], *ROWS], encode).slice(1)


def test_signatures() -> None:
    assert np.array_equal(signatures(encoded(), threads=2), signatures(pa.array(ROWS)))


def test_stored_sets() -> None:
    plain, learnt = (StoredSets.learn([rows], sample=50) for rows in (pa.array(ROWS), encoded()))
    assert learnt.tags.equals(plain.tags)
    for name in ("frequencies", "offsets", "numbers"):
        assert np.array_equal(getattr(learnt, name), getattr(plain, name))
