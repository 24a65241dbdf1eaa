"""Patterns as automata that read the bytes of a text, and what a text must have that a pattern finds.

A state is a set of nodes at which the pattern may be (Rabin and Scott, 1959). An automaton has at most `MOST_STATES`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.patterns import LAST, Node, Ranges, of_expression, of_like

#: Most states of an automaton
MOST_STATES = 1000
#: States after which nothing changes any more: the pattern is not found, and it is
NEVER, FOUND = 0, 1
# Most nodes, and most of them that are looked at until all states are known
_MOST_NODES, _MOST_LOOKS = 5_000, 2_000_000
# The most texts in a list whose texts are alternatives
_MOST_NEEDED = 16
# As many patterns as are stored again when a segment is made
_REMEMBERED = 1 << 14

_BYTES = 256
_WORD = sum(1 << byte for byte in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_NEWLINE = 1 << ord("\n")
# Bytes of a character but its first one
_WITHIN_CHARACTER = (1 << 0xC0) - (1 << 0x80)
# What stands before a place, or after it: an end of the text, a newline, a character of a word, a byte within a
# character, another byte
_EDGE, _AFTER_LINE, _IN_WORD, _WITHIN, _OTHER = range(5)
# Places that what follows decides, and which bytes the kinds of nodes tell apart
_DECIDED_AFTER = ("end", "line end", "word", "no word")
_TOLD_APART = (
    ("line", _NEWLINE), ("line end", _NEWLINE), ("word", _WORD), ("no word", _WORD), ("no word", _WITHIN_CHARACTER),
)  # fmt: skip


class Automaton(NamedTuple):
    """A pattern as a table; its states begin with `NEVER` and `FOUND`, and a text with `first`."""

    first: int
    classes: bytes  # of each byte
    steps: array[int]  # [states, classes], 16 bits each: the state after each
    at_end: bytes  # of each state, whether the pattern is found if the text ends there


class Needed(NamedTuple):
    """Texts: a pattern is found only if one of them is there, at a place."""

    operator: Literal["=", "prefix", "suffix", "contains"]
    texts: tuple[str, ...]


@lru_cache(_REMEMBERED)
def automaton_of(pattern: str, *, is_like: bool) -> Automaton:
    """The automaton of a pattern; PatternError, and InvalidValueError if it is too large."""
    return _Automata(of_like(pattern) if is_like else of_expression(pattern)).made()


def finds(pattern: str, text: str, *, is_like: bool) -> bool:
    """Whether a text has what a pattern says, as kernels find it."""
    own = automaton_of(pattern, is_like=is_like)
    state = own.first
    for byte in text.encode():
        state = own.steps[state * (max(own.classes) + 1) + own.classes[byte]]
    return bool(own.at_end[state])


# -- automata ----------------------------------------------------------------------------------------------------------


def _byte_ranges(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """Code points as ranges of bytes, one after the other: all texts of such bytes are these."""
    for bound in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if first <= bound < last:
            yield from _byte_ranges(first, bound)
            yield from _byte_ranges(bound + 1, last)
            return
    if 0xD800 <= first <= 0xDFFF:  # no text has these
        return
    for place in range(1, len(chr(first).encode())):
        rest = (1 << 6 * place) - 1
        if first & ~rest != last & ~rest and (first & rest or last & rest != rest):
            middle = first | rest if first & rest else (last & ~rest) - 1
            yield from _byte_ranges(first, middle)
            yield from _byte_ranges(middle + 1, last)
            return
    yield list(zip(chr(first).encode(), chr(last).encode(), strict=True))


class _Automata:
    """Nodes of a pattern: each takes a byte, or is a place, or goes on to others; the last one is reached if found."""

    def __init__(self, pattern: Node) -> None:
        # For each node: the bytes that it takes, as bits; its kind if it takes no byte; and the nodes that follow
        self._bytes, self._kinds, self._next = [0], [""], [0]
        self._also: dict[int, list[int]] = {}
        self._shared: dict[Any, int] = {}
        self._reached_before: dict[tuple[int, int, int | None], int] = {}
        self._looks = 0
        self._first = self._from(pattern, 0)

    def _node(self, kind: str, taken: int, following: int) -> int:
        if len(self._bytes) >= _MOST_NODES:
            raise _too_large()
        self._bytes.append(taken)
        self._kinds.append(kind)
        self._next.append(following)
        return len(self._bytes) - 1

    def _from(self, part: Node, following: int) -> int:
        """The node from which a part is looked for, which then goes on to another one."""
        if part.kind == "set":
            return self._any_of(part.ranges, following)
        if part.kind == "all":
            for each in reversed(part.parts):
                following = self._from(each, following)
            return following
        if part.kind == "any":
            return self._split([self._from(each, following) for each in part.parts])
        if part.kind != "times":
            return self._node(part.kind, 0, following)
        (one,), least = part.parts, part.least
        if part.most is None:
            again = self._split([following])
            any_bytes = self._any_bytes(one, again)
            first = any_bytes or self._from(one, again)
            self._also[again].append(first)
            # The last one that must be there is the one that may come again
            is_last = least > 0 and any_bytes is None
            following, least = (first, least - 1) if is_last else (again, least)
        else:
            end = following
            for _ in range(part.most - least):
                following = self._split([self._from(one, following), end])
        for _ in range(least):
            following = self._from(one, following)
        return following

    def _any_bytes(self, one: Node, again: int) -> int | None:
        """Any number of characters, among which all beyond ASCII are, as any bytes: what follows begins a character."""
        if one.kind != "set" or not one.ranges or one.ranges[-1][1] != LAST or one.ranges[-1][0] > 0x80:
            return None
        ascii_bytes = sum((1 << last + 1) - (1 << first) for first, last in one.ranges[:-1])
        return self._node("", ascii_bytes | ((1 << _BYTES) - (1 << one.ranges[-1][0])), again)

    def _split(self, ways: list[int]) -> int:
        node = self._node("split", 0, ways[0])
        self._also[node] = ways
        return node

    def _any_of(self, ranges: Ranges, following: int) -> int:
        return self._one_of([each for ends in ranges for each in _byte_ranges(*ends)], following)

    def _one_of(self, sequences: Sequence[Sequence[tuple[int, int]]], following: int) -> int:
        """The node from which one of some sequences of bytes is looked for; their first bytes are alike or apart."""
        key = (tuple(map(tuple, sequences)), following)
        if key not in self._shared:
            ways: dict[int, int] = {}
            for (first, last), alike in groupby(sequences, itemgetter(0)):
                rest = [each[1:] for each in alike]
                at = self._one_of(rest, following) if rest[0] else following
                ways[at] = ways.get(at, 0) | ((1 << last + 1) - (1 << first))
            nodes = [self._node("", taken, at) for at, taken in ways.items()] or [self._node("", 0, following)]
            self._shared[key] = nodes[0] if len(nodes) == 1 else self._split(nodes)
        return self._shared[key]

    # -- states --------------------------------------------------------------------------------------------------------

    def _reached(self, nodes: Iterable[int], before: int, after: int | None) -> int:
        """The nodes, as bits, to which one comes without a byte, by the kinds of what precedes and follows."""
        found, waiting = 0, [*nodes]
        while waiting:
            node = waiting.pop()
            self._looks += 1
            if found >> node & 1:
                continue
            found |= 1 << node
            kind = self._kinds[node]
            if kind == "split":
                waiting += self._also[node]
            elif kind and _is_there(kind, before, after):
                waiting.append(self._next[node])
        return found & self._lasting

    @cached_property
    def _lasting(self) -> int:
        """Nodes that take a byte, the last one, and places that what follows decides."""
        lasting = [node for node, kind in enumerate(self._kinds) if kind not in ("split", "begin", "line")]
        return sum(1 << node for node in lasting)

    def _reached_from(self, node: int, before: int, after: int | None) -> int:
        """The same of one node, which is known the next time."""
        found = self._reached_before.get((node, before, after))
        if found is None:
            found = self._reached_before[node, before, after] = self._reached([node], before, after)
        return found

    def made(self) -> Automaton:
        """The automaton whose states are sets of nodes."""
        classes, examples = self._classes()
        kinds = [_kind_of(byte) for byte in examples]
        takes = [sum(1 << node for node, taken in enumerate(self._bytes) if taken >> byte & 1) for byte in examples]
        deciding = sum(1 << node for node, kind in enumerate(self._kinds) if kind in _DECIDED_AFTER)
        known = {_EDGE, *(_AFTER_LINE for kind in self._kinds if kind == "line")}
        known |= {_IN_WORD for kind in self._kinds if kind in ("word", "no word")}
        befores = [kind if kind in known else _OTHER for kind in kinds]
        starts = {before: self._reached_from(self._first, before, None) for before in {_EDGE, *befores}}
        ever_begins = any(starts[before] for before in befores)
        first = (starts[_EDGE], _EDGE)
        numbers, steps, at_end = {first: FOUND + 1}, [NEVER] * len(examples) + [FOUND] * len(examples), [0, 1]
        left = [first]
        if starts[_EDGE] & 1:
            numbers[first] = FOUND
            left = []
        for nodes, before in left:
            at_end.append(self._here(nodes, deciding, before, _EDGE) & 1)
            for place, kind in enumerate(kinds):
                here, after = self._here(nodes, deciding, before, kind), befores[place]
                following = here & 1 or starts[after]
                for node in _bits(here & takes[place]):
                    following |= self._reached_from(self._next[node], after, None)
                    self._looks += 1
                if following & 1:
                    steps.append(FOUND)
                elif not following and not ever_begins:
                    steps.append(NEVER)
                else:
                    state = (following, after)
                    if state not in numbers:
                        numbers[state] = len(left) + FOUND + 1
                        left.append(state)
                    steps.append(numbers[state])
                if self._looks > _MOST_LOOKS or len(left) + FOUND >= MOST_STATES:
                    raise _too_large()
        return Automaton(numbers[first], classes, array("H", steps), bytes(at_end))

    def _here(self, nodes: int, deciding: int, before: int, after: int) -> int:
        """The nodes, and those to which one comes if it is known what follows."""
        for node in _bits(nodes & deciding):
            nodes |= self._reached_from(node, before, after)
        return nodes

    def _classes(self) -> tuple[bytes, list[int]]:
        """The class of each byte, and a byte of each: those of a class are alike to all nodes."""
        masks = {*self._bytes, *(mask for kind, mask in _TOLD_APART if kind in self._kinds)}
        parts = [(1 << _BYTES) - 1]
        for mask in masks:
            parts = [each for part in parts for each in (part & mask, part & ~mask) if each]
        classes = bytearray(_BYTES)
        for number, part in enumerate(parts):
            for byte in _bits(part):
                classes[byte] = number
        return bytes(classes), [(part & -part).bit_length() - 1 for part in parts]


def _kind_of(byte: int) -> int:
    if _WITHIN_CHARACTER >> byte & 1:
        return _WITHIN
    return _AFTER_LINE if _NEWLINE >> byte & 1 else _IN_WORD if _WORD >> byte & 1 else _OTHER


def _is_there(kind: str, before: int, after: int | None) -> bool:
    """Whether this is a place; `None` for what follows says that this is not known yet."""
    if kind in ("begin", "line"):
        return before == _EDGE or (kind == "line" and before == _AFTER_LINE)
    if after is None:
        return False
    if kind in ("end", "line end"):
        return after == _EDGE or (kind == "line end" and after == _AFTER_LINE)
    return after != _WITHIN and ((before == _IN_WORD) != (after == _IN_WORD)) == (kind == "word")


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _too_large() -> InvalidValueError:
    return InvalidValueError(
        f"the pattern would have an automaton of more than {MOST_STATES} states: count fewer repetitions, begin it "
        "with ^, or write it as several that are joined by `and` or `or`"
    )


# -- what must be there ------------------------------------------------------------------------------------------------


@lru_cache(_REMEMBERED)
def needed(pattern: str, *, is_like: bool) -> Needed:
    """What a text must have that a pattern finds: `prefix ""` if only that it is a text."""
    parts = _flat(of_like(pattern) if is_like else of_expression(pattern))
    begins, ends = parts[:1] == [Node("begin")], parts[-1:] == [Node("end")]
    inner = parts[begins : len(parts) - ends]
    letters = [_letter(part) for part in inner]
    if begins and ends and None not in letters:
        return Needed("=", ("".join(filter(None, letters)),))
    count = letters.index(None) if None in letters else len(letters)
    if begins and count:
        return Needed("prefix", ("".join(filter(None, letters[:count])),))
    at_end = letters[::-1].index(None) if None in letters else len(letters)
    if ends and at_end:
        return Needed("suffix", ("".join(filter(None, letters[len(letters) - at_end :])),))
    found = _contained(Node("all", parts=tuple(inner)))
    return Needed("contains", found) if found else Needed("prefix", ("",))


def _flat(part: Node) -> list[Node]:
    return [each for inner in part.parts for each in _flat(inner)] if part.kind == "all" else [part]


def _letter(part: Node) -> str | None:
    is_one = part.kind == "set" and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]
    return chr(part.ranges[0][0]) if is_one else None


def _contained(part: Node) -> tuple[str, ...]:
    """Alternative texts: each found text contains at least one of them; empty if that cannot be said."""
    if part.kind == "times":
        return _contained(part.parts[0]) if part.least else ()
    if part.kind == "any":
        each = [_contained(way) for way in part.parts]
        return tuple(sorted({*chain(*each)})) if all(each) and len(each) <= _MOST_NEEDED else ()
    if part.kind == "set":
        return (letter,) if (letter := _letter(part)) else ()
    # The longest text, or the ways whose shortest text is longest
    found: list[tuple[str, ...]] = []
    run = ""
    for inner in [*_flat(part), Node("end")]:
        letter = _letter(inner)
        run += letter or ""
        if letter is None:
            found += [(run,)] if run else []
            run = ""
            if inner.kind in ("times", "any"):
                found += [some] if (some := _contained(inner)) else []
    return max(found, key=lambda some: (min(map(len, some)), -len(some)), default=())
