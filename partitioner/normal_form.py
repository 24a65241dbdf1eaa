"""What sets of a key say, as it is stored today; and whether they say what a text does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from decimal import Decimal
from itertools import combinations

from tagmatch.model.where.alternatives import Row, Term, every, expression_of, folded, one_of, rows_for
from tagmatch.model.where.constraints import PARTS, RANGES, Constraint
from tagmatch.model.where.declared import Declared, exact_decimal, reading
from tagmatch.model.where.language import terms_of
from tagmatch.model.where.types import TYPE_NAMES, TYPED
from tagmatch.model.where.values import NUMBERS, RESERVED, TEXTS, is_reserved, key_of, value_of

#: All tags of a set, or some of them
Tags = frozenset[str]

_PARTS_TAG = f"{RESERVED}+{PARTS}"
# Where ranges begin and end that have no value there
_ENDS = frozenset(
    ["", key_of(-math.inf), *NUMBERS, *TEXTS, *(TYPED + chr(ord(name) + by) for name in TYPE_NAMES for by in (0, 1))]
)


def in_normal_form(alternatives: Set[Tags]) -> set[Tags]:
    """The conditions of sets that have the same plain tags, and are alternatives."""
    terms = folded(frozenset[Term]([*row.tags, *row.constraints]) for tags in alternatives for row in _rows([{tags}]))
    return {frozenset(map(_tag_of, row)) for row in terms}


def products(sets: Set[Tags]) -> Iterator[tuple[set[Tags], set[Tags]]]:
    """Sets with the same tests of parts that are alternatives of one condition, and the sets of today for that.

    Older versions stored `(a or b) and (c or d) and …` with too many alternatives so: those of the first parts in a set
    each, with tests of the other parts.
    """
    alike: dict[Tags, set[Tags]] = defaultdict(set)
    for tags in sets:
        alike[frozenset(tag for tag in tags if tag.startswith(_PARTS_TAG))].add(tags)
    for parts, own in alike.items():
        if parts and len(own) > 1 and (factors := _factors(own)):
            yield own, {frozenset([*row.tags, *(each.tag for each in row.constraints)]) for row in _rows(factors)}


def _rows(factors: Iterable[Set[Tags]]) -> list[Row]:
    """The rows to store for one of the alternatives of each factor."""
    parts = [
        one_of([every([*map(expression_of, sorted(tags))]) for tags in sorted(own, key=sorted)]) for own in factors
    ]
    return rows_for(every(parts))


def _factors(sets: Set[Tags]) -> list[Set[Tags]]:
    """Factors whose product the sets are: each set has one alternative of each, and no combination is missing.

    There are none if some are missing.
    """
    has: dict[str, int] = defaultdict(int)  # of each tag a bit for each set
    for place, tags in enumerate(sets):
        for tag in tags:
            has[tag] |= 1 << place
    groups = {tag: {tag} for tag in has}
    for (tag, own), (other, others) in combinations(sorted(has.items()), 2):
        together = (own & others).bit_count() * len(sets)
        if groups[tag] is not groups[other] and together != own.bit_count() * others.bit_count():
            groups[tag] |= groups[other]
            groups.update(dict.fromkeys(groups[other], groups[tag]))
    factors = [{tags & group for tags in sets} for group in {id(group): group for group in groups.values()}.values()]
    is_product = math.prod(map(len, factors)) == len(sets) and all(map(all, factors))
    return [*factors] if is_product else []


def _tag_of(term: Term) -> str:
    return term if isinstance(term, str) else term.tag


# -- texts -------------------------------------------------------------------------------------------------------------


def were_read_so(sets: Iterable[Tags], text: str, declared: Declared) -> bool:
    """Whether the conditions of sets have the operands of a text as it is read with these declarations.

    Operands differ if an attribute was declared later. Older versions read decimals as the nearest doubles.
    """
    with reading(declared):
        known = {operand for term in terms_of(text) for operand in _operands(term)}
    known |= {(name, _shortened(key)) for name, key in known if name in declared.decimals and key[:1] == NUMBERS[0]}
    found = {each for tags in sets for tag in filter(is_reserved, tags) for each in _operands(Constraint.of_tag(tag))}
    return found <= known


def _operands(term: Term) -> Iterator[tuple[str, str]]:
    """What an attribute is compared with: keys of values, and texts."""
    if isinstance(term, str):
        return
    if term.kind == PARTS:
        for tag in filter(is_reserved, term.parts[1]):
            yield from _operands(Constraint.of_tag(tag))
    elif term.kind == RANGES:
        for interval in term.intervals:
            yield from ((term.attribute, cut.key) for cut in interval if cut.key not in _ENDS)
    elif term.attribute:
        yield term.attribute, term.payload


def _shortened(key: str) -> str:
    """The decimal that is written as the nearest double is."""
    value = value_of(key)
    assert isinstance(value, int | float | Decimal)
    return key_of(exact_decimal(float(value)))
