"""Patterns of Elasticsearch as ours: those of `wildcard` as `like`, Lucene's regular expressions as `matches`."""

from __future__ import annotations

import re

from tagmatch.importing.conditions import Condition, Place

_PIECES = re.compile(r"\\(.)|([*?])|(.)", re.DOTALL)
_LIKE = {"*": "%", "?": "_"}
_COUNT = re.compile(r"\{\d{1,4}(?:,\d{0,4})?\}", re.ASCII)
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\\\]])+)\]", re.DOTALL)
_QUANTIFIERS = "?*+{"
# Of Lucene only, unless flags leave them out
_OPTIONAL = "~<>&#@"


def literals(pattern: str) -> list[str]:
    """The texts between the signs of a pattern of `wildcard`."""
    return "".join("\0" if sign else escaped or other for escaped, sign, other in _PIECES.findall(pattern)).split("\0")


def wildcard(attribute: str, pattern: str, place: Place, *, any_case: bool) -> Condition:
    """A text is as a pattern says, in which `*` is any text and `?` any character."""
    pieces = [(escaped or other, sign) for escaped, sign, other in _PIECES.findall(pattern)]
    if any_case:
        signs = {"*": ".*", "?": "."}
        return _whole(attribute, "".join(signs.get(sign) or either_case(text) for text, sign in pieces), place)
    if not any(sign for _, sign in pieces):
        return place.test(attribute, "=", "".join(text for text, _ in pieces))
    like = "".join(_LIKE.get(sign) or (f"\\{text}" if text in "%_\\" else text) for text, sign in pieces)
    return place.test(attribute, "like", like)


def beginning(attribute: str, text: str, place: Place, *, any_case: bool) -> Condition:
    """A text begins with this one."""
    if any_case:
        return _whole(attribute, f"{either_case(text)}.*", place)
    return place.test(attribute, "prefix", text)


def text_in_any_case(attribute: str, text: str, place: Place) -> Condition:
    """A text is this one, except for the case of ASCII's letters."""
    return _whole(attribute, either_case(text), place)


def regular_expression(attribute: str, pattern: str, place: Place, *, optional: bool, any_case: bool) -> Condition:
    """A text is as a regular expression of Lucene says, as a whole; `optional` operators may be among it."""
    made, at, was_quantifier = "", 0, True
    while at < len(pattern):
        sign, is_quantifier, begin = pattern[at], False, at
        at += 1
        if sign in _QUANTIFIERS:
            counted = _COUNT.match(pattern, begin)
            if was_quantifier or (sign == "{" and counted is None):
                raise place.refused(f"{pattern[begin:]!r:.40} repeats nothing, or something repeated already")
            made += counted[0] if sign == "{" and counted else sign
            at, is_quantifier = counted.end() if counted else at, True
        elif sign == "[":
            found = _CLASS.match(pattern, begin)
            if found is None or any_case:
                raise place.refused(f"the set {pattern[begin:]!r:.40} is not taken")
            made, at = made + f"[{found[1]}{_members(found[2], place)}]", found.end()
        elif sign == '"':
            end = pattern.find('"', at)
            if end < 0:
                raise place.refused("a quote is not closed")
            made, at = made + f"(?:{_literal(pattern[at:end], any_case=any_case)})", end + 1
        elif sign == "\\":
            if not pattern[at : at + 1] or pattern[at].isalnum():
                raise place.refused(f"{pattern[begin : at + 1]!r} means another thing in each version of Lucene")
            made, at = made + re.escape(pattern[at]), at + 1
        elif sign in _OPTIONAL and optional and sign != "@":
            raise place.refused(f"{sign!r} is of Lucene only, and not taken")
        elif sign in ".|()":
            is_quantifier = sign in "|("
            made += sign
        else:
            made += ".*" if sign == "@" and optional else _literal(sign, any_case=any_case)
        was_quantifier = is_quantifier
    return _whole(attribute, made, place)


def _members(text: str, place: Place) -> str:
    """What stands within a set, with all escaped that has a meaning."""
    made = ""
    for escaped, other in re.findall(r"\\(.)|(.)", text, re.DOTALL):
        if escaped.isalnum():
            raise place.refused(f"'\\{escaped}' means another thing in each version of Lucene")
        made += re.escape(escaped) if escaped else other if other == "-" else re.escape(other)
    return made


def either_case(text: str) -> str:
    """An expression for a text in any case of ASCII's letters."""
    return _literal(text, any_case=True)


def _literal(text: str, *, any_case: bool) -> str:
    return "".join(
        f"[{each.lower()}{each.upper()}]" if any_case and each.isascii() and each.isalpha() else re.escape(each)
        for each in text
    )


def _whole(attribute: str, expression: str, place: Place) -> Condition:
    return place.test(attribute, "matches", rf"\A(?s:{expression})\z")
