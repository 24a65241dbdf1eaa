"""What the workload of areas is drawn from: every number, with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tagmatch.model.errors import InvalidValueError
from tagmatch.workloads.numbers import check_numbers, number

_MANY = 2**31 - 1
_MOST_FILTERS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class LocationOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    CLCB: see the package. Where a range is given, each number in it is as likely as any other.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    subscribers: int = number(
        250_000, 1, _MANY, "Subscribers, with a subscription each; their numbers are the keys (CLCB Table 1)."
    )
    filters_each: int = number(10, 1, 10_000, "Filters of a subscriber, each with an area (CLCB Table 1).")
    min_constraints: int = number(3, 1, 64, "Fewest constraints of a filter (CLCB Table 1).")
    max_constraints: int = number(5, 1, 64, "Most constraints of a filter, each on another attribute (CLCB Table 1).")
    min_attributes: int = number(3, 1, 64, "Fewest attributes of a message (CLCB Table 1).")
    max_attributes: int = number(5, 1, 64, "Most attributes of a message (CLCB Table 1).")
    names: int = number(100, 1, 1_000_000, "Different names of attributes (CLCB Table 1).")
    topic_names: int = number(
        5, 1, 64, "Names of a topic; a filter and a message take theirs from one (chosen; else selectivity is not met)."
    )
    values: int = number(100, 2, 2**31, "Different values of an attribute: 0, 1, 2, ... (chosen, as in PCM Table 1).")
    selectivity: float = number(
        0.005, 0, 1, "Share of the messages that a filter's content is satisfied by (CLCB Table 1)."
    )
    coverage: float = number(0.0001, 0, 1, "Share of the unit square that an area covers (CLCB Table 1).")
    spots: int = number(
        0, 0, 1_000_000, "Places that areas and messages gather around; 0 for a uniform distribution (CLCB Table 1)."
    )
    spot_exponent: float = number(
        1.0,
        0,
        10,
        "Exponent of Zipf's law, which the frequency of these places follows (chosen; CLCB §5 names the law).",
    )
    spread: float = number(0.01, 0, 1, "Standard deviation of the distance to such a place, on each axis (chosen).")
    together: int = number(
        0,
        0,
        1,
        "1 for filters of a subscriber around one place, where the subscriber is; 0 for a place each (chosen: CLCB "
        "§2 has areas of filters, not of subscribers, and §5 moves filters one by one).",
    )
    degrees: float = number(
        0.0,
        0,
        10,
        "Side of the square in degrees, around longitude and latitude 0, for areas and positions on the sphere; 0 for "
        "the unit plane.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for what in ("constraints", "attributes"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise InvalidValueError(f"min_{what} must be at most max_{what}, {high}, not {low}")
            if high > self.topic_names:
                raise InvalidValueError(f"max_{what} must be at most topic_names, {self.topic_names}, not {high}")
        if self.names % self.topic_names:
            raise InvalidValueError(f"names must be a multiple of topic_names, {self.topic_names}, not {self.names}")
        if self.filters > _MOST_FILTERS:
            raise InvalidValueError(
                f"subscribers times filters_each must be at most {_MOST_FILTERS}, not {self.filters}"
            )
        if self.min_constraints > self.max_attributes:
            raise InvalidValueError(
                f"min_constraints must be at most max_attributes, {self.max_attributes}, not {self.min_constraints}"
            )
        if not self.selectivity:
            raise InvalidValueError("selectivity must be more than 0")
        if self.values_hold > 1:
            raise InvalidValueError(
                f"selectivity must be at most {self.selectivity / self.values_hold:.3g}, the share of the messages "
                f"that have all names of a filter, not {self.selectivity:g}"
            )
        if self.constraint_holds < 1 / self.values:
            raise InvalidValueError(
                f"selectivity must be more than {self.selectivity:g}: constraints would hold for less than one of the "
                "values; have more names or more values"
            )

    @property
    def filters(self) -> int:
        """Filters of all subscribers."""
        return self.subscribers * self.filters_each

    @property
    def topics(self) -> int:
        """Topics that share out the names."""
        return self.names // self.topic_names

    @property
    def tag_topics(self) -> int:
        """Topics of tags, as many as make tags alone as selective as constraints."""
        return max(1, round(sum(self._within().values()) / self.selectivity))

    @property
    def values_hold(self) -> float:
        """Share of the messages with all names of a filter that are to satisfy its constraints."""
        return self.selectivity * self.topics / sum(self._within().values())

    @property
    def constraint_holds(self) -> float:
        """Probability that a constraint holds for the value of an attribute that a message has."""
        within = self._within()
        target = self.values_hold * sum(within.values())
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            if sum(share * middle**size for size, share in within.items()) < target:
                low = middle
            else:
                high = middle
        return high

    @property
    def radius(self) -> float:
        """Radius of each area, for which the square is a side wide; single precision has it, as CLCB's vectors do."""
        return float(np.float32(math.sqrt(self.coverage / math.pi)))

    def _within(self) -> dict[int, float]:
        """By number of a filter's constraints, how likely it is that a message of its topic has all of its names."""
        sizes = range(self.min_constraints, self.max_constraints + 1)
        others = range(self.min_attributes, self.max_attributes + 1)
        return {
            size: sum(math.comb(each, size) / math.comb(self.topic_names, size) for each in others)
            / (len(sizes) * len(others))
            for size in sizes
        }


_CLCB = LocationOptions()
#: `clcb` is the default scenario of CLCB's Table 1, `zipf` that of its Figure 4, and in `every` all content matches, as
#: in its Figure 6 (b), so that areas alone select
SCENARIOS: Mapping[str, LocationOptions] = {
    "clcb": _CLCB,
    "zipf": replace(_CLCB, spots=1000),
    "every": replace(_CLCB, names=5, min_attributes=5, selectivity=1.0),
}
