"""The normal form of an expression: rows of tags and tests; a message must satisfy one of them.

`not` goes to the leaves, by De Morgan's laws, and `and` below `or`, by the distributive law. Then tests
that others imply are left out of rows, and rows that cannot hold, or that others imply, are left out. Tests of one
attribute between `or` become one; so do negated ones between `and`. Others stay apart: an attribute may have several
values, and each test may hold for another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeGuard

from tagmatch.model.errors import FilterError
from tagmatch.model.where.constraints import AREA, NO_TAG, PARTS, RANGES, Constraint, Cut, Interval
from tagmatch.model.where.values import NUMBERS, is_reserved, key_of

#: Most rows that are stored for one expression
MAX_CONJUNCTIONS = 1024
# Said of areas among parts: each makes rows with it and without it
_TOO_MANY_AREAS = (
    f"where: with the areas among the parts of `at least`, or among its many alternatives, the condition has more than "
    f"{MAX_CONJUNCTIONS:,} alternatives: write fewer areas there, or write them before with `and`"
)
#: Most parentheses and `not` within each other
MAX_DEPTH = 100
# All numbers, and before the least of them
_ALL_NUMBERS, _LEAST = Interval(Cut("[", NUMBERS[0]), Cut("[", NUMBERS[1])), Cut("[", key_of(-math.inf))
# Most bits of sets of values that are compared
_MOST_BITS = 1 << 27
# Most conjunctions that are made before they become fewer
_MOST_MADE = 1 << 12


class Gate(NamedTuple):
    """Whether at least `least` parts hold: all for `and`, one for `or`; another number becomes one test."""

    least: int
    parts: tuple[Expression, ...]
    is_counted: bool = False  # It is written `at least`


class Not(NamedTuple):
    """Whether the part does not hold."""

    part: Expression


#: A tag that the message has, or a test
Term = str | Constraint
Expression = Term | Gate | Not
Terms = frozenset[Term]


class Row(NamedTuple):
    """A conjunction: what a message must have, in the order of the tags that are stored, each once."""

    tags: list[str]
    constraints: list[Constraint]


def every(parts: Sequence[Expression]) -> Expression:
    """What holds if all parts do."""
    return parts[0] if len(parts) == 1 else Gate(len(parts), tuple(parts))


def one_of(parts: Sequence[Expression]) -> Expression:
    """What holds if a part does."""
    return parts[0] if len(parts) == 1 else Gate(1, tuple(parts))


def terms_in(expression: Expression) -> Iterator[Term]:
    """The tags and tests of an expression, in order."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Not):
            waiting.append(part.part)
        elif isinstance(part, Gate):
            waiting += reversed(part.parts)
        else:
            yield part


def rows_for(expression: Expression, *, is_stored: bool = False) -> list[Row]:
    """The rows of an expression, each once: a message satisfies the expression if and only if it satisfies one of them.

    A test in a stored set stays one test, also if it counts to one, or to all. More than `MAX_CONJUNCTIONS` become one
    row, with a test of parts. FilterError for more than `MAX_DEPTH` parentheses, a test without a negation, or too many
    areas among parts.
    """
    is_test = is_stored and isinstance(expression, Gate) and expression.is_counted
    plain = _without_not(expression, negated=False, depth=0)
    if is_test and isinstance(plain, Gate) and not _areas_in(plain):
        found = [frozenset([_parts(plain)])]
    else:
        found = _rows(plain)
    rows = []
    for terms in found:
        tags = sorted(term for term in terms if isinstance(term, str))
        rows.append(Row(tags, sorted((term for term in terms if isinstance(term, Constraint)), key=_tag_of)))
    return rows


def _tag_of(term: Term) -> str:
    return term if isinstance(term, str) else term.tag


def _order(terms: Terms) -> list[str]:
    return sorted(map(_tag_of, terms))


def _without_not(expression: Expression, *, negated: bool, depth: int) -> Expression:
    """An expression, or its negation, in which only tests are negated."""
    if depth > MAX_DEPTH:
        raise FilterError(
            f"where: parentheses and `not` are more than {MAX_DEPTH} within each other: write it with fewer of them"
        )
    if isinstance(expression, Not):
        return _without_not(expression.part, negated=not negated, depth=depth + 1)
    if not isinstance(expression, Gate):
        return _negation(expression) if negated else expression
    least = len(expression.parts) - expression.least + 1 if negated else expression.least
    return Gate(least, tuple(_without_not(part, negated=negated, depth=depth + 1) for part in expression.parts))


def _rows(expression: Expression) -> list[Terms]:
    """The conjunctions that an expression without `not` becomes."""
    assert not isinstance(expression, Not)
    if not isinstance(expression, Gate):
        return [frozenset([expression])]
    if expression.least not in (1, len(expression.parts)):
        return _counted(expression)
    # Each once: of a repeated part, rows with one of its alternatives and another one would be made
    parts = [*dict.fromkeys(tuple(_rows(part)) for part in _joined(expression, expression.least))]
    found: list[Terms] | None = [row for part in parts for row in part]
    if expression.least > 1:
        # Those of one row are joined at once, which takes a time that grows with their number
        found = [frozenset().union(*(part[0] for part in parts if len(part) == 1))]
        # In one order, as rows may become fewer before all are made
        for part in sorted((part for part in parts if len(part) > 1), key=lambda part: [len(part), *map(_order, part)]):
            found = None if found is None else _product(found, part)
    found = None if found is None else folded(found)
    if found is not None and len(found) <= MAX_CONJUNCTIONS:
        return found
    # One row, with a test of the alternatives
    return _counted(expression)


def _joined(expression: Expression, least: int) -> list[Expression]:
    """The parts of an `or`, if `least` is 1, or of an `and`, with those of its parts that are such ones, too."""
    if not isinstance(expression, Gate) or expression.least != (1 if least == 1 else len(expression.parts)):
        return [expression]
    return [each for part in expression.parts for each in _joined(part, least)]


def _counted(gate: Gate) -> list[Terms]:
    """One row with a test of parts; areas cannot be among these: rows with an area need fewer parts, or others."""
    areas = _areas_in(gate)
    if not areas:
        return [_terms(gate)]
    if len(set(areas)) > MAX_DEPTH:
        raise FilterError(_TOO_MANY_AREAS)
    waiting: list[tuple[Terms, Expression]] = [(frozenset(), gate)]
    found: list[Terms] = []
    while waiting:
        own, expression = waiting.pop()
        area = min(_areas_in(expression), default=None)
        if area is None:
            found += [own | row for row in _rows(expression)]
        else:
            for holds, terms in ((True, own | {_term_of_tag(area)}), (False, own)):
                left = _assumed(expression, area, holds=holds)
                if left == []:
                    found.append(terms)
                elif left:
                    waiting.append((terms, left[0]))
        if len(found) + len(waiting) > MAX_CONJUNCTIONS:
            raise FilterError(_TOO_MANY_AREAS)
    return folded(found)


def _areas_in(expression: Expression) -> list[str]:
    """The tags of the areas of an expression."""
    return [_tag_of(term) for term in terms_in(expression) if isinstance(term, Constraint) and term.kind == AREA]


def _assumed(expression: Expression, area: str, *, holds: bool) -> list[Expression] | None:
    """What is left to hold, or nothing, if an area does or does not hold; `None` if it cannot hold then."""
    assert not isinstance(expression, Not)
    if not isinstance(expression, Gate):
        return [expression] if _tag_of(expression) != area else [] if holds else None
    parts = [_assumed(part, area, holds=holds) for part in expression.parts]
    left = [part[0] for part in parts if part]
    least = expression.least - parts.count([])
    if least > len(left):
        return None
    return [] if least <= 0 else [left[0] if len(left) == 1 else Gate(least, tuple(left))]


def _product(rows: Sequence[Terms], others: Sequence[Terms]) -> list[Terms] | None:
    """The conjunctions that are one of some and one of others; `None` if they are too many."""
    if len(rows) * len(others) > _MOST_MADE:
        rows, others = folded(rows), folded(others)
        if len(rows) * len(others) > _MOST_MADE:
            return None
    return [*{each | other for each in rows for other in others}]


# -- tests of parts ----------------------------------------------------------------------------------------------------


def _terms(expression: Expression) -> Terms:
    """An expression without `not` as terms that all hold: without rows, so that it does not grow."""
    assert not isinstance(expression, Not)
    if not isinstance(expression, Gate):
        return frozenset([expression])
    if expression.least not in (1, len(expression.parts)):
        return frozenset([_parts(expression)])
    parts = [_terms(part) for part in _joined(expression, expression.least)]
    if expression.least > 1 or len(parts) == 1:
        return _conjunction(frozenset().union(*parts))
    rows = folded(frozenset(_conjuncts(each)) for part in parts for each in _disjuncts(_all_of(part)))
    return frozenset(_conjuncts(_some_of(1, [*map(_all_of, rows)])))


def _all_of(terms: Terms) -> Term:
    return _some_of(len(terms), [*terms])


def _parts(gate: Gate) -> Term:
    """A test that counts parts, also if it needs one or all."""
    return _some_of(gate.least, [_all_of(_terms(part)) for part in gate.parts])


def _some_of(least: int, terms: Sequence[Term]) -> Term:
    """So many of some terms."""
    if len(terms) == 1:
        return terms[0]
    return Constraint.at_least(least, list(map(_tag_of, terms)))


def _conjuncts(term: Term) -> list[Term]:
    """The terms that all hold if this one does, and the other way round."""
    return _within_parts(term, all_hold=True)


def _disjuncts(term: Term) -> list[Term]:
    """The terms of a disjunction that is equal to this term."""
    return _within_parts(term, all_hold=False)


def _within_parts(term: Term, *, all_hold: bool) -> list[Term]:
    if not _has_parts(term):
        return [term]
    least, tags = term.parts
    if least != (len(tags) if all_hold else 1):
        return [term]
    return [each for tag in tags for each in _within_parts(_term_of_tag(tag), all_hold=all_hold)]


def expression_of(tag: str) -> Expression:
    """What a tag of a stored set says; one that counts to one or to all becomes `or` or `and`."""
    term = _term_of_tag(tag)
    if not _has_parts(term) or term.parts[0] not in (1, len(term.parts[1])):
        return term
    return Gate(term.parts[0], tuple(map(expression_of, term.parts[1])))


def _term_of_tag(tag: str) -> Term:
    return Constraint.of_tag(tag) if is_reserved(tag) else tag


def _has_parts(term: Term) -> TypeGuard[Constraint]:
    return isinstance(term, Constraint) and term.kind == PARTS


def _negation(term: Term) -> Constraint:
    return Constraint.without_tag(term) if isinstance(term, str) else term.negation


# -- normal form -------------------------------------------------------------------------------------------------------


def folded(given: Iterable[Terms]) -> list[Terms]:
    """Rows that say the same together, in order."""
    found = {_conjunction(row) for row in given}
    opposed = {row: _opposed(row) for row in found}
    left = {row for row, terms in opposed.items() if not terms} or {min(opposed.values(), key=_order)}
    while True:
        merged = _merged(left)
        if len(merged) == len(left):
            rows = sorted(merged, key=_order)
            return _without_implied(rows) if len(rows) <= MAX_CONJUNCTIONS else rows
        left = merged


def _conjunction(terms: Terms) -> Terms:
    """The terms that no other one implies, with one negated test for each attribute."""
    ranges: dict[str, list[Constraint]] = {}
    for term in terms:
        if _is_range(term):
            ranges.setdefault(term.attribute, []).append(term)
    if all(len(tests) == 1 for tests in ranges.values()):
        return terms
    left = set(terms)
    for tests in ranges.values():
        negated = [test for test in tests if test.negated]
        left.difference_update(negated)
        left.update(united(negated))
        given = [test for test in tests if not test.negated]
        left.difference_update(given)
        asked = sorted({_less(test, negated) for test in given}, key=_tag_of)
        left.update(asked)
        # As many as may be told apart in little time
        least, sets = list[int](), _sets_of(asked if len(asked) <= MAX_CONJUNCTIONS else ())
        for test, own in sorted(sets.items(), key=lambda each: each[1].bit_count()):
            if any(not other & ~own for other in least):
                left.discard(test)
            else:
                least.append(own)
    return frozenset(left)


def _less(test: Constraint, negated: Sequence[Constraint]) -> Constraint:
    """A test without the values that negated ones rule out, if it has others and can be written so."""
    ruled_out = sorted({interval for other in negated for interval in other.intervals}, key=_place)
    if not ruled_out:
        return test
    left: list[Interval] = []
    for own in test.intervals:
        at = own.lower
        for lower, upper in ruled_out:
            if _position(lower) >= _position(own.upper):
                break
            if _position(at) < _position(lower):
                left.append(Interval(at, lower))
            at = max(at, upper, key=_position)
        if _position(at) < _position(own.upper):
            left.append(Interval(at, own.upper))
    found = _with(test, left)
    return found if left and found.can_be_written else test


def _opposed(terms: Terms) -> Terms:
    """The first terms that cannot hold together, as far as two of them say so; none if all can."""
    negated: dict[str, list[Constraint]] = {}
    for term in terms:
        if _is_range(term) and term.negated:
            negated.setdefault(term.attribute, []).append(term)
    found: list[Terms] = []
    for term in terms:
        if isinstance(term, str):
            continue
        if term.kind == RANGES and not term.negated:
            if not term.intervals:
                found.append(frozenset([term]))
            found += (frozenset([term, other]) for other in negated.get(term.attribute, ()) if _within(term, other))
        elif term.negated:
            other = term.payload if term.kind == NO_TAG else term.negation
            found += [frozenset([term, other])] if other in terms else []
    return min(found, key=_order, default=frozenset())


def _merged(rows: set[Terms]) -> set[Terms]:
    """Rows that differ in one test of an attribute as one, as far as there is a test for it."""
    groups: dict[tuple[str, Terms], dict[Constraint, Terms]] = {}
    several = set[str]()
    alike: dict[frozenset[object], list[Terms]] = {}
    for row in rows if len(rows) > 1 else ():
        alike.setdefault(frozenset(map(_head, row)), []).append(row)
    # Rows with more terms than this would take long
    found = (row for some in alike.values() if len(some) > 1 for row in some if len(row) <= MAX_CONJUNCTIONS)
    for row in sorted(found, key=_order):
        names = Counter(term.attribute for term in row if _is_asked(term))
        several.update(name for name, count in names.items() if count > 1)
        for term in row:
            if _is_asked(term):
                groups.setdefault((term.attribute, row - {term}), {})[term] = row
    _have_implied(groups, several)
    left = set(rows)
    to_merge = [(name, _order(rest), rest, tests) for (name, rest), tests in groups.items() if len(tests) > 1]
    for _, _, rest, tests in sorted(to_merge, key=lambda group: group[:2]):
        there = {test: row for test, row in tests.items() if row in left}
        if len(there) > 1:
            left.difference_update(there.values())
            left.update(_conjunction(rest | {test}) for test in united([*there]))
    return left


def _have_implied(groups: dict[tuple[str, Terms], dict[Constraint, Terms]], names: Collection[str]) -> None:
    """Give rows with more terms those tests, from rows with fewer terms, that imply the further terms.

    `names` are attributes that a row has several tests of.
    """
    alike: dict[tuple[str, Terms], list[Terms]] = {}
    for name, rest in (each for each in groups if each[0] in names):
        alike.setdefault((name, frozenset(term for term in rest if not _is_asked(term, name))), []).append(rest)
    for (name, _), rests in alike.items():
        for rest in rests if 1 < len(rests) <= MAX_CONJUNCTIONS else ():
            for other in rests:
                if other < rest:
                    more = groups[name, other].items()
                    groups[name, rest].update(
                        (test, row) for test, row in more if all(_implies(test, each) for each in rest - other)
                    )


def _without_implied(rows: list[Terms]) -> list[Terms]:
    """The rows that imply no other row."""
    if len(rows) == 1:
        return rows
    tests: dict[tuple[str, bool], set[Constraint]] = {}
    for term in chain.from_iterable(rows):
        if _is_range(term):
            tests.setdefault((term.attribute, term.negated), set()).add(term)
    sets = {test: own for (_, negated), some in tests.items() for test, own in _sets_of(some, negated=negated).items()}
    bits: dict[object, int] = {}
    heads, asked = list[int](), list[list[tuple[int, int]]]()
    for row in rows:
        own = [(bits.setdefault(_head(term), 1 << len(bits)), term) for term in row]
        heads.append(sum({bit for bit, _ in own}))
        asked.append([(bit, sets[term]) for bit, term in own if _is_range(term)])
    left = [True] * len(rows)
    for at, head in enumerate(heads):
        others = ~head
        for place in [place for place, wanted in enumerate(heads) if not wanted & others]:
            if place != at and left[place] and _all_imply(asked[at], asked[place]):
                left[at] = False
                break
    return [row for row, is_left in zip(rows, left, strict=True) if is_left]


def _head(term: Term) -> object:
    """A part that is equal in two terms if one may imply the other."""
    return (term.attribute, term.negated) if _is_range(term) else term


def _all_imply(own: Sequence[tuple[int, int]], asked: Sequence[tuple[int, int]]) -> bool:
    """Whether each set of values that is asked for has one of a row's own in it, of the same head."""
    for head, wanted in asked:
        for name, values in own:
            if not values & ~wanted and name == head:
                break
        else:
            return False
    return True


def _sets_of(tests: Collection[Constraint], *, negated: bool = False) -> dict[Constraint, int]:
    """For which values tests of one attribute hold: a bit for each range between two cuts of any of them."""
    edges = sorted({edge for test in tests for interval in test.intervals for edge in _place(interval)})
    if len(tests) * len(edges) > _MOST_BITS:  # too many to be told apart: each test implies itself alone
        return {test: 1 << place for place, test in enumerate(tests)}
    places = {edge: place for place, edge in enumerate(edges)}
    found = {}
    for test in tests:
        bits = bytearray(b"0" * (len(edges) + 1))
        for start, end in map(_place, test.intervals):
            bits[places[start] : places[end]] = b"1" * (places[end] - places[start])
        found[test] = int(bits, 2)
    everything = (1 << len(edges) + 1) - 1
    return {test: everything & ~values for test, values in found.items()} if negated else found


def _implies(term: Term, other: Term) -> bool:
    """Whether a test of ranges holds only where another one of its attribute does."""
    if not (_is_range(term) and _is_range(other)):
        return False
    if (term.attribute, term.negated) != (other.attribute, other.negated):
        return False
    return _within(other, term) if term.negated else _within(term, other)


def _is_asked(term: Term, name: str | None = None) -> TypeGuard[Constraint]:
    """Whether it is a test of ranges that is not negated, of a given attribute or of any."""
    return _is_range(term) and not term.negated and name in (None, term.attribute)


def _is_range(term: Term) -> TypeGuard[Constraint]:
    return isinstance(term, Constraint) and term.kind == RANGES


# -- ranges ------------------------------------------------------------------------------------------------------------


def _within(test: Constraint, other: Constraint) -> bool:
    """Whether the ranges of one test are in those of another one."""
    return all(_is_in(each, other.intervals) for each in test.intervals)


def _is_in(interval: Interval, others: Sequence[Interval]) -> bool:
    """Whether a range is in one of others."""
    return any(_starts(interval) >= _starts(each) and _ends(interval) <= _ends(each) for each in others)


def _position(cut: Cut) -> bytes:
    """Where a cut is; before all numbers is where the least of them begins."""
    return _LEAST.position if cut == _ALL_NUMBERS.lower else cut.position


def _starts(interval: Interval) -> bytes:
    return _position(interval.lower)


def _ends(interval: Interval) -> bytes:
    return interval.upper.position


def _place(interval: Interval) -> tuple[bytes, bytes]:
    return _starts(interval), _ends(interval)


def united(tests: Sequence[Constraint]) -> list[Constraint]:
    """Tests of one attribute as one that has the ranges of all, or as few as can be written."""
    if len(tests) < 2:
        return [*tests]
    whole = _union(tests)
    if whole.can_be_written:
        return [whole]
    found: list[Constraint] = []
    for test in sorted(tests, key=_tag_of):
        for place, other in enumerate(found):
            both = _union((other, test))
            if both.can_be_written:
                found[place] = both
                break
        else:
            found.append(test)
    return found


def _union(tests: Sequence[Constraint]) -> Constraint:
    intervals: list[Interval] = []
    for each in sorted(sorted({interval for test in tests for interval in test.intervals}), key=_place):
        start, last = _starts(each), intervals[-1] if intervals else None
        # Neighbours stay apart, as they do in a list
        if last and (start < _ends(last) or (start == _ends(last) and each.lower.key == last.upper.key)):
            if _ends(each) > _ends(last):
                intervals[-1] = Interval(last.lower, each.upper)
        else:
            intervals.append(each)
    return _with(tests[0], intervals)


def _with(test: Constraint, intervals: Iterable[Interval]) -> Constraint:
    """A test with other ranges; those that begin with all numbers begin as they can be written."""
    found = []
    for lower, upper in intervals:
        if lower in (_LEAST, _ALL_NUMBERS.lower) and upper.key != _LEAST.key:  # that value alone is written by itself
            lower = _LEAST if upper == _ALL_NUMBERS.upper else _ALL_NUMBERS.lower
        found.append(Interval(lower, upper))
    return replace(test, intervals=tuple(found))
