r"""Patterns of texts: regular expressions, in the syntax of RE2, and those of SQL's `like`; how kernels search by them.

A pattern becomes a deterministic automaton over the bytes of UTF-8 (Thompson, CACM 1968): for each byte of a text one
step, so that no pattern takes longer than its text. What would need more is refused: references to groups, and looking
ahead or behind. A regular expression is searched for anywhere in a text, `like` speaks of the whole text.

There are literals, `.`, sets such as `[^a-f\d]` and `[[:alpha:]]`, `\d` `\s` `\w` and their opposites, which are of
ASCII, classes of Unicode, by general category or script, as `\pL`, `\p{Lu}` and `\P{Greek}`, groups, `|`, `*` `+` `?`
`{2,5}`, `^` `$` `\A` `\z` `\b` `\B`, and the flags `i`, `m`, `s` as in `(?i)` or `(?s:…)`. Case is ignored as by
Unicode's simple folding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from tagmatch.model.errors import InvalidValueError

if TYPE_CHECKING:
    import pyarrow as pa

# Most repetitions that are counted, and groups within each other
_MOST_COUNTED, _MOST_DEEP = 1000, 100

#: The last character of Unicode
LAST = 0x10FFFF
#: Ends of code points from one to another
Ranges = tuple[tuple[int, int], ...]


class Node(NamedTuple):
    """A part of a pattern: a `set` of characters, `all` or `any` of some parts, one repeated `times`; or a place."""

    kind: str
    ranges: Ranges = ()
    parts: tuple[Node, ...] = ()
    least: int = 0
    most: int | None = None


_NOTHING = Node("all")
# Places: the beginning and the end of the text, and of a line, an edge of a word, and no edge of one
_BEGIN, _END, _LINE, _LINE_END, _WORD, _NO_WORD = map(Node, ("begin", "end", "line", "line end", "word", "no word"))


def _ranges(characters: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, with gaps between them."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(characters):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def _others(ranges: Ranges) -> Ranges:
    ends = [-1, *(end for each in ranges for end in each), LAST + 1]
    return tuple((last + 1, first - 1) for last, first in zip(ends[::2], ends[1::2], strict=True) if last + 1 < first)


def _of(text: str) -> Ranges:
    """Ranges by their ends: `azAZ`."""
    return _ranges((ord(text[at]), ord(text[at + 1])) for at in range(0, len(text), 2))


_CLASSES = {"d": _of("09"), "s": _of("\t\n\f\r  "), "w": _of("09AZ__az")}
_CLASSES |= {name.upper(): _others(ranges) for name, ranges in _CLASSES.items()}
_NAMED = {
    "alnum": _of("09AZaz"), "alpha": _of("AZaz"), "ascii": _of("\0\x7f"), "blank": _of("\t\t  "),
    "cntrl": _of("\0\x1f\x7f\x7f"), "digit": _of("09"), "graph": _of("!~"), "lower": _of("az"), "print": _of(" ~"),
    "punct": _of("!/:@[`{~"), "space": _of("\t\r  "), "upper": _of("AZ"), "word": _of("09AZ__az"),
    "xdigit": _of("09AFaf"),
}  # fmt: skip
_ESCAPES = {"t": 9, "n": 10, "r": 13, "f": 12, "v": 11, "a": 7}
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}", re.ASCII)
_CODE = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_UNICODE = re.compile(r"([pP])(?:([A-Za-z])|\{(\^?)([A-Za-z_]+)\})")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)]))", re.ASCII)
_REFUSED = (
    (re.compile(r"\(\?<?[=!]"), "looking ahead or behind takes longer than its text: write it with `and`, `not`"),
    (re.compile(r"\(\?>|[*+?}]\+"), "a part that is not given back is not there: leave it out"),
    (re.compile(r"\(\?\(|\(\?P=|\\[1-9]|\\k"), "a reference to a group takes longer than its text"),
    (re.compile(r"\\Z"), r"the end of the text is written \z"),
)


@cache
def _folded() -> dict[int, Ranges]:
    """Of each letter that is another one in another case, all that differ from it in their case only."""
    alike: dict[str, set[str]] = {}
    for number in range(0x1E944):
        letter = chr(number)
        lower = letter.lower() if len(letter.lower()) == 1 else letter
        upper = lower.upper() if len(lower.upper()) == 1 else lower
        folded = upper.lower() if len(upper.lower()) == 1 else lower
        if folded != letter or upper != letter:
            alike.setdefault(folded, {folded}).add(letter)
    return {ord(each): _ranges((ord(one), ord(one)) for one in some) for some in alike.values() for each in some}


@lru_cache(1024)
def _in_any_case(ranges: Ranges) -> Ranges:
    folded, few = _folded(), sum(last - first for first, last in ranges) < len(ranges) + 64
    letters = (each for first, last in ranges for each in range(first, last + 1)) if few else iter(folded)
    found = [*ranges]
    for letter in letters:
        if letter in folded and (few or any(first <= letter <= last for first, last in ranges)):
            found += folded[letter]
    return _ranges(found)


@cache
def _characters() -> pa.StringArray:
    """Each character of Unicode as a text."""
    import numpy as np
    import pyarrow as pa

    numbers = np.concatenate([np.arange(0xD800), np.arange(0xE000, LAST + 1)])
    sizes = 1 + (numbers > 0x7F) + (numbers > 0x7FF) + (numbers > 0xFFFF)
    text = pa.py_buffer(numbers.astype("<u4").tobytes().decode("utf-32-le").encode())
    offsets = np.append(np.int32(0), np.cumsum(sizes, dtype=np.int32))
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), text)


@cache
def _of_unicode(name: str) -> Ranges | None:
    """The characters of a general category or a script, as Arrow's RE2 has them; `None` without one."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.match_substring_regex(_characters(), rf"\p{{{name}}}").to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    numbers = np.flatnonzero(found)
    numbers += (LAST + 1 - len(found)) * (numbers >= 0xD800)  # what are halves of characters comes before
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.append(0, ends + 1)], numbers[np.append(ends, -1)]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)) if len(numbers) else ()


class PatternError(InvalidValueError):
    """What is wrong with a pattern, and at which character of it."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(f"character {at + 1} of the pattern: {message}")
        self.at = at


class _Parser:
    """Reads a regular expression."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._flags, self._deep = text, 0, frozenset[str](), 0

    def parse(self) -> Node:
        """The whole of it; PatternError."""
        found = self._any()
        if self._at < len(self._text):
            self._wrong("this ) closes nothing: write \\)")
        return found

    def _wrong(self, message: str, at: int | None = None) -> NoReturn:
        raise PatternError(self._at if at is None else at, message)

    def _takes(self, text: str) -> bool:
        there = self._text.startswith(text, self._at)
        self._at += len(text) if there else 0
        return there

    def _any(self) -> Node:
        flags, parts = self._flags, [self._all()]
        while self._takes("|"):
            parts.append(self._all())
        self._flags = flags
        return parts[0] if len(parts) == 1 else Node("any", parts=tuple(parts))

    def _all(self) -> Node:
        parts = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Node("all", parts=tuple(parts))

    def _repeated(self) -> Node:
        begin, one = self._at, self._one()
        ends = self._times()
        if ends is None:
            return one
        if one is _NOTHING or one.kind in ("begin", "end", "line", "line end", "word", "no word"):
            self._wrong("there is nothing before this that can be repeated", begin)
        self._refuse(self._at - 1)
        self._takes("?")  # As many or as few as there may be: it is there or not all the same
        at = self._at
        if self._times() is not None:
            self._wrong("this repeats a repetition: put that in parentheses", at)
        return Node("times", parts=(one,), least=ends[0], most=ends[1])

    def _times(self) -> tuple[int, int | None] | None:
        for sign, ends in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return ends
        found = _COUNT.match(self._text, self._at)
        if found is None:
            return None
        least = int(found[1][:9])
        most = (int(found[3][:9]) if found[3] else None) if found[2] else least
        if max(least, most or 0) > _MOST_COUNTED or (most is not None and most < least):
            self._wrong(f"a count is at most {_MOST_COUNTED}, and the lesser one comes first")
        self._at = found.end()
        return least, most

    def _refuse(self, at: int) -> None:
        for pattern, why in _REFUSED:
            if pattern.match(self._text, at):
                self._wrong(why, at)

    def _one(self) -> Node:
        begin, letter = self._at, self._text[self._at]
        self._refuse(begin)
        if letter == "(":
            return self._group(begin)
        if letter in "*+?":
            self._wrong(f"there is nothing before this that can be repeated: write \\{letter}")
        self._at += 1
        if letter == "[":
            return self._cased(self._set(begin))
        if letter == ".":
            return Node("set", _others(() if "s" in self._flags else ((10, 10),)))
        if letter == "^":
            return _LINE if "m" in self._flags else _BEGIN
        if letter == "$":
            return _LINE_END if "m" in self._flags else _END
        if letter != "\\":
            return self._cased(((ord(letter), ord(letter)),))
        places = {"A": _BEGIN, "z": _END, "b": _WORD, "B": _NO_WORD}
        if (place := places.get(self._text[self._at : self._at + 1])) is not None:
            self._at += 1
            return place
        return self._cased(self._escaped(begin))

    def _cased(self, ranges: Ranges) -> Node:
        return Node("set", _in_any_case(ranges) if "i" in self._flags else ranges)

    def _group(self, begin: int) -> Node:
        flags = self._flags
        if self._text.startswith("(?", begin):
            found = _GROUP.match(self._text, begin)
            if found is None or not set((found[1] or "") + (found[2] or "")) <= {*"imsU"}:
                self._wrong("no group begins so: write (…), (?:…), (?P<name>…), or flags of i, m, s as in (?i)", begin)
            self._at = found.end()
            changed = (flags | {*(found[1] or "")}) - {*(found[2] or "")}
            if found[3] == ")":
                self._flags = changed
                return _NOTHING
            self._flags = changed
        else:
            self._at += 1
        self._deep += 1
        if self._deep > _MOST_DEEP:
            self._wrong(f"more than {_MOST_DEEP} groups are within each other", begin)
        inner = self._any()
        self._deep -= 1
        self._flags = flags
        if not self._takes(")"):
            self._wrong("nothing closes this (: write \\( for a parenthesis", begin)
        # Not to be taken for flags, which nothing repeats
        return Node("all", parts=(inner,))

    def _escaped(self, begin: int) -> Ranges:
        """What a backslash and what follows mean, as one character or a class of them."""
        letter = self._text[self._at : self._at + 1]
        if letter in ("p", "P"):
            return self._unicode_class(begin)
        if letter in _CLASSES and letter:
            self._at += 1
            return _CLASSES[letter]
        if found := _CODE.match(self._text, self._at):
            self._at, number = found.end(), int(found[1] or found[2], 16)
            if number > LAST:
                self._wrong("Unicode has no such character", begin)
            return ((number, number),)
        if not letter or (letter not in _ESCAPES and (letter.isalnum() or letter == "_")):
            self._wrong("no character is written so: a backslash is written \\\\", begin)
        self._at += 1
        number = _ESCAPES.get(letter, ord(letter))
        return ((number, number),)

    def _unicode_class(self, begin: int) -> Ranges:
        found = _UNICODE.match(self._text, self._at)
        name = "" if found is None else found[2] or found[4]
        own = _of_unicode(name) if name else None
        if found is None or own is None:
            near = next((each for each in (name.title(), name.upper()) if name and _of_unicode(each) is not None), None)
            instead = (
                rf"\p{{{near}}}" if near else r"a general category, as in \pL or \p{Lu}, or a script, as in \p{Greek}"
            )
            self._wrong(f"there is no such class of Unicode: write {instead}", begin)
        self._at = found.end()
        is_other = (found[1] == "P") != bool(found[3])
        return _others(_in_any_case(own) if "i" in self._flags else own) if is_other else own

    def _set(self, begin: int) -> Ranges:
        found: list[tuple[int, int]] = []
        is_other, first = self._takes("^"), True
        while first or not self._text.startswith("]", self._at):
            at = self._at
            one, first = self._member(begin), False
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(begin)
                if not _is_one(one) or not _is_one(last) or last < one:
                    self._wrong("a range is from one character to a later one", at)
                one = ((one[0][0], last[0][0]),)
            found += one
        self._at += 1
        ranges = _ranges(found)
        if is_other:
            return _others(_in_any_case(ranges) if "i" in self._flags else ranges)
        return ranges

    def _member(self, begin: int) -> Ranges:
        if self._at >= len(self._text):
            self._wrong("nothing closes this [: write \\[ for a bracket", begin)
        at, letter = self._at, self._text[self._at]
        if letter == "[" and (end := self._text.find(":]", at)) > 0 and self._text.startswith("[:", at):
            name = self._text[at + 2 : end]
            if name.removeprefix("^") not in _NAMED:
                self._wrong(f"there is no such class; there are {' '.join(_NAMED)}", at)
            self._at = end + 2
            own = _NAMED[name.removeprefix("^")]
            return _others(own) if name.startswith("^") else own
        self._refuse(at) if letter == "\\" else None
        self._at += 1
        return self._escaped(at) if letter == "\\" else ((ord(letter), ord(letter)),)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


# -- like --------------------------------------------------------------------------------------------------------------


def like_parts(pattern: str) -> list[tuple[bool, str]]:
    """The signs `%` and `_` of a pattern, and the texts between them, which are not signs; PatternError."""
    found: list[tuple[bool, str]] = []
    at = 0
    while at < len(pattern):
        is_sign = pattern[at] in "%_"
        at += pattern[at] == "\\"
        if at == len(pattern):
            raise PatternError(at - 1, r"a backslash comes before % _ or \, to take it as it is: write it twice")
        if not is_sign and found and not found[-1][0]:
            found[-1] = False, found[-1][1] + pattern[at]
        elif found[-1:] != [(True, "%")] or pattern[at] != "%" or not is_sign:
            found.append((is_sign, pattern[at]))
        at += 1
    return found


def of_like(pattern: str) -> Node:
    """The whole text is as a pattern of `like` says; PatternError."""
    every, found = Node("set", ((0, LAST),)), [_BEGIN]
    for is_sign, text in like_parts(pattern):
        if is_sign:
            found.append(every if text == "_" else Node("times", parts=(every,)))
        else:
            found += [Node("set", ((ord(each), ord(each)),)) for each in text]
    return Node("all", parts=(*found, _END))


def of_expression(pattern: str) -> Node:
    """What a regular expression means; PatternError."""
    return _Parser(pattern).parse()
