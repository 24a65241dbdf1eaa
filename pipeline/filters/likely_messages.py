"""Messages as they may come, made of the sets that ask for them."""

from __future__ import annotations

from collections.abc import Iterable

from tagmatch.model.where.constraints import Constraint, Cut, is_constraint
from tagmatch.model.where.operators import RANGES
from tagmatch.model.where.values import ATTRIBUTE, NAN, RESERVED, key_of

_BOOLS = (key_of(False), key_of(True))
_NUMBER, _TEXT = key_of(0)[0], key_of("")


def likely_message(tags: Iterable[str]) -> list[str]:
    r"""What a message has that a set's tags and constraints ask for, or nearly: of each range an end.

    Examples
    --------
    >>> likely_message(["fr", Constraint.of("price", "<", [5]).tag, Constraint.of("city", "suffix", ["me"]).tag])
    ['fr', '\x00=price\x00nc014000000000000800', '\x00=city\x00sme']
    """
    found = []
    for tag in tags:
        if not is_constraint(tag):
            found.append(tag)
            continue
        constraint = Constraint.of_tag(tag)
        if not constraint.negated:
            found.append(f"{ATTRIBUTE}{constraint.attribute}{RESERVED}{_key_for(constraint)}")
    return found


def _key_for(constraint: Constraint) -> str:
    """The key of a value."""
    if constraint.kind != RANGES:
        return _TEXT + constraint.payload
    ends = (cut for interval in constraint.intervals for cut in interval)
    return next((cut.key for cut in ends if _is_of_value(cut)), _BOOLS[True])


def _is_of_value(cut: Cut) -> bool:
    """Whether it stands beside a value, not before or after all of a type."""
    return cut.key in (NAN, *_BOOLS) or cut.key.startswith(_TEXT) or (cut.key[:1] == _NUMBER and len(cut.key) > 1)
