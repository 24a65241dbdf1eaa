"""What the content-based workload is drawn from: every number, with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tagmatch.model.errors import InvalidValueError
from tagmatch.workloads.numbers import check_numbers, number

_MANY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    PCM and CCM: see the package. Where a range is given, each number in it is as likely as any other. The operators'
    numbers are weights, so that only their ratios count.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    interfaces: int = number(10, 1, _MANY, "Interfaces; their numbers are the keys (PCM Table 1).")
    min_filters: int = number(22_500, 1, _MANY, "Fewest filters of an interface (PCM Table 1).")
    max_filters: int = number(27_500, 1, _MANY, "Most filters of an interface (PCM Table 1).")
    min_constraints: int = number(3, 1, 10_000, "Fewest constraints of a filter (PCM Table 1).")
    max_constraints: int = number(
        5, 1, 10_000, "Most constraints of a filter, without `repeats` each on another attribute (PCM Table 1)."
    )
    repeats: int = number(
        0,
        0,
        1,
        "1 for filters with several constraints on one attribute, whose names are drawn apart (CCM §5, Type of "
        "Constraints: only so are about 7 % of interfaces selected; in PCM chosen).",
    )
    min_attributes: int = number(3, 0, 10_000, "Fewest attributes of a message (PCM Table 1).")
    max_attributes: int = number(5, 0, 10_000, "Most attributes of a message (PCM Table 1).")
    names: int = number(100, 1, 10_000, "Different names of attributes (PCM Table 1).")
    zipf: float = number(
        0.0,
        0,
        10,
        "Exponent of Zipf's law, which the frequency of names follows; with 0 all are as frequent (PCM Table 1). CCM "
        "§5, Distribution of Names, has Zipf's law too.",
    )
    strings: float = number(
        0.0, 0, 1, "Share of the names whose values are strings (PCM Table 1: 0 %; CCM Table 1: 50 % of constraints)."
    )
    values: int = number(100, 1, 2**53, "Different values of an attribute: 0, 1, 2, ... (PCM Table 1).")
    equal: float = number(25.0, 0, 1e9, "Weight of = among the operators on numbers (PCM Table 1).")
    unequal: float = number(25.0, 0, 1e9, "Weight of != (PCM Table 1).")
    less: float = number(25.0, 0, 1e9, "Weight of < (PCM Table 1).")
    greater: float = number(25.0, 0, 1e9, "Weight of > (PCM Table 1).")
    between: float = number(0.0, 0, 1e9, "Weight of intervals, of which PCM has none.")
    width: float = number(0.3, 0, 1, "Share of the values that an interval holds, at least one (chosen).")
    text_equal: float = number(25.0, 0, 1e9, "Weight of = among the operators on strings (CCM Table 1).")
    text_unequal: float = number(25.0, 0, 1e9, "Weight of != on strings (CCM Table 1).")
    text_prefix: float = number(
        25.0, 0, 1e9, "Weight of prefix, the beginning of a value (CCM Table 1; how much of it: `cut`)."
    )
    text_contains: float = number(
        25.0, 0, 1e9, "Weight of contains, the end of a value (CCM Table 1: subString; `cut`)."
    )

    cut: int = number(
        1,
        0,
        1,
        "1 for prefix and contains without a character of the value, 0 for all of it (CCM §5, Type of Constraints: "
        "only so do strings select about 1 % of interfaces; 1: chosen).",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for what in ("filters", "constraints", "attributes"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise InvalidValueError(f"min_{what} must be at most max_{what}, {high}, not {low}")
            if high > self.names and (what == "attributes" or (what == "constraints" and not self.repeats)):
                raise InvalidValueError(f"max_{what} must be at most names, {self.names}, not {high}")
        if self.strings < 1 and not any(self.number_weights):
            raise InvalidValueError("equal, unequal, less, greater and between must not all be 0")
        if self.strings > 0 and not any(self.text_weights):
            raise InvalidValueError("text_equal, text_unequal, text_prefix and text_contains must not all be 0")

    @property
    def number_weights(self) -> tuple[float, ...]:
        """Weights of =, !=, <, > and between."""
        return self.equal, self.unequal, self.less, self.greater, self.between

    @property
    def text_weights(self) -> tuple[float, ...]:
        """Weights of =, !=, prefix and contains."""
        return self.text_equal, self.text_unequal, self.text_prefix, self.text_contains


#: `pcm` is the default scenario of PCM's Table 1, `ccm` that of CCM's, where a name has one type, so that half of the
#: names have strings. In `dense`, which is chosen, every message has all of 20 attributes,
#: and each of a million filters has 10 intervals and a key of its own.
SCENARIOS: Mapping[str, ContentOptions] = {
    "pcm": ContentOptions(),
    "ccm": ContentOptions(strings=0.5, repeats=1, cut=0),
    "dense": ContentOptions(
        interfaces=1_000_000,
        min_filters=1,
        max_filters=1,
        min_constraints=10,
        max_constraints=10,
        min_attributes=20,
        max_attributes=20,
        names=20,
        values=1_000_000,
        equal=0.0,
        unequal=0.0,
        less=0.0,
        greater=0.0,
        between=1.0,
    ),
}
