"""Random work on an index: numbered steps, which can be repeated on the oracle with the seed."""

import random
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from oracle import Oracle
from support.areas import PLACES, SHAPES, At
from support.conditions import Expression, Message, any_attributes, any_expression

from tagmatch import Box, Circle

_TAGS = [f"tag {number}" for number in range(30)]
#: All sets without conditions are found by each of these, and those with conditions by some
EVERYTHING = [_TAGS, *(Message(_TAGS, any_attributes(random.Random(number))) for number in range(12))]
#: Of sets without conditions, those with areas are found by these, at places with clients
SOMEWHERE = [(_TAGS, At(place)) for place in PLACES]
# A few, which are often drawn again, so that removals meet additions; most sets have none
_WHERE = [any_expression(random.Random(number), _TAGS) for number in range(8)]
_KEYS = 40
# Most keys never expire; of the others, some have long ago
_TIMES = [None, None, None, datetime(2020, 2, 29, tzinfo=UTC), datetime(2999, 12, 31, tzinfo=UTC)]
#: What a step does, and how often
STEPS = {
    "add_set": 5, "remove_set": 3, "add_sets": 3, "remove_sets": 2, "put": 3, "delete": 1, "delete_many": 1,
    "consolidate": 4, "consolidate, full": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A call of an index, which the oracle has as well."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def do(self, database: Any) -> None:
        getattr(database, self.name.partition(", ")[0])(*self.arguments, **self.options)

    @property
    def changes(self) -> int:
        """How many changes it stages: one for each alternative."""
        oracle = Oracle()
        self.do(oracle)
        return oracle.staged


@dataclass(frozen=True)
class Work:
    seed: str
    key_type: str

    def step(self, number: int) -> Step:
        rng = random.Random(f"{self.seed} {number}")
        (name,) = rng.choices([*STEPS], [*STEPS.values()])
        if name.startswith("consolidate"):
            return Step(name, (), {"full": True} if name.endswith("full") else {})
        if name.startswith("delete"):
            return Step(name, ([self._key(rng) for _ in range(5)] if name == "delete_many" else self._key(rng),))
        if name == "put":
            options = {"where": self._where(rng), "area": self._area(rng), "expires": rng.choice(_TIMES)}
            return Step(name, (self._key(rng), self._tags(rng)), options)
        if not name.endswith("sets"):
            times = {"expires": rng.choice(_TIMES)} if name == "add_set" else {}
            return Step(
                name, (self._tags(rng), self._key(rng)), {"where": self._where(rng), "area": self._area(rng), **times}
            )
        sets = [self._tags(rng) for _ in range(rng.choice([1, 10, 60]))]
        times = {"expires": rng.choices(_TIMES, k=len(sets))} if name == "add_sets" else {}
        where = [self._where(rng) for _ in sets] if rng.random() < 0.5 else None
        return Step(name, (sets, [self._key(rng) for _ in sets]), {"where": where, "area": self._area(rng), **times})

    def after(self, oracle: Oracle, first: int, end: int, *, lasting: bool = True) -> Oracle:
        """What the oracle, which stays as it is, becomes by steps `first` up to `end`; `lasting` is what they stage."""
        done, staged = deepcopy(oracle), oracle.staged
        for number in range(first, end):
            step = self.step(number)
            step.do(done)
            if step.name.startswith("consolidate"):
                staged = 0
        if not lasting:
            done.forget_staged(staged)
        return done

    @property
    def a_key(self) -> Any:
        return self._key(random.Random(self.seed))

    def _where(self, rng: random.Random) -> Expression | None:
        return rng.choice(_WHERE) if rng.random() < 0.4 else None

    def _area(self, rng: random.Random) -> Circle | Box | None:
        return rng.choice(SHAPES) if rng.random() < 0.2 else None

    def _tags(self, rng: random.Random) -> list[str]:
        return rng.sample(_TAGS[: rng.choice([3, 10, 30])], rng.randrange(4))

    def _key(self, rng: random.Random) -> Any:
        key = rng.randrange(_KEYS)
        return f"key {key}" if self.key_type == "string" else key
