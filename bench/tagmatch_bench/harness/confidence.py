"""Means of some runs with different seeds, and how sure they are."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tagmatch_bench.harness.results import Row

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one value for each seed, with a confidence interval of 95 % by Student's distribution.

    Attributes
    ----------
    values : tuple of float
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return statistics.fmean(self.values)

    @property
    def half_width(self) -> float:
        """Half of the interval's width; 0 of one value, which says nothing."""
        from scipy.special import stdtrit

        if len(self.values) == 1:
            return 0.0
        error = statistics.stdev(self.values) / math.sqrt(len(self.values))
        return error * float(stdtrit(len(self.values) - 1, (1 + _CONFIDENCE) / 2))

    def over(self, other: Mean) -> Mean:
        """The mean of the ratios, seed by seed; infinite where the other is 0."""
        pairs = zip(self.values, other.values, strict=True)
        return Mean(tuple(one / another if another else float("inf") for one, another in pairs))

    def row(self, what: str, unit: str, x: str | float) -> Row:
        """A row of the mean, which keeps all values."""
        return Row(what, self.mean, unit, samples=self.values, x=x)
