"""Rules in JSON, as json-rules-engine documents them: `all`, `any` and `not` of facts that are compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tagmatch.importing.conditions import Condition, Place, every, negated, some

#: Where the names of rules are
KEYS = ("name", "id")
FIELD = "conditions"

#: Operators and how we write them, negated or not
_COMPARED = {
    "lessThan": "<",
    "lessThanInclusive": "<=",
    "greaterThan": ">",
    "greaterThanInclusive": ">=",
}
_EQUAL = {"equal": False, "notEqual": True, "contains": False, "doesNotContain": True}
_LISTED = {"in": False, "notIn": True}
_MEMBERS = ("fact", "operator", "value", "path", "params", "name", "priority")
_PATH = re.compile(r"\$((?:\.[A-Za-z_]\w*)+)")


def condition(rule: Any, place: Place, saw: Callable[[str], object]) -> Condition:
    """The conditions of a rule, or a part of them; `saw` is told each kind."""
    given = place.object_of(rule)
    kinds = [name for name in ("all", "any", "not", "condition", "fact") if name in given]
    if len(kinds) > 1:
        raise place.refused(f"{' and '.join(kinds)} must not be here together: put them into a list of `all` or `any`")
    for name, holds in (("all", every), ("any", some)):
        if name in given:
            saw(name)
            inside = place.at(name).of(name)
            inside_list = given[name]
            if not isinstance(inside_list, list) or not inside_list:
                raise inside.refused("a list of conditions must be here")
            return holds([condition(*each, saw) for each in inside.list_of(inside_list)])
    if "not" in given:
        saw("not")
        return negated(condition(given["not"], place.at("not").of("not"), saw))
    if "condition" in given:
        raise (
            place.at("condition")
            .of("condition")
            .refused("conditions that are shared by name are not taken; write the condition here")
        )
    return _fact(given, place, saw)


def _fact(given: dict[str, Any], place: Place, saw: Callable[[str], object]) -> Condition:
    operator = place.at("operator").text_of(given.get("operator"))
    place = place.of(operator)
    place.object_of(given, _MEMBERS)
    name = _name(given, place)
    if "value" not in given:
        raise place.refused("there is no value")
    value, at = given["value"], place.at("value")
    saw(operator)
    if operator in _LISTED:
        if not isinstance(value, list):
            raise at.refused("a list must be here")
        equal = [_equal(name, *each) for each in at.list_of(value)]
        return negated(some(equal)) if _LISTED[operator] else some(equal)
    if operator in _EQUAL:
        found_equal = _equal(name, value, at)
        return negated(found_equal) if _EQUAL[operator] else found_equal
    if operator not in _COMPARED:
        known = ", ".join((*_EQUAL, *_LISTED, *_COMPARED))
        raise place.at("operator").refused(f"{operator!r} is no operator of every rule engine; those taken are {known}")
    if isinstance(value, dict) and "fact" in value:
        return at.compared(name, _COMPARED[operator], _other(value, at))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise at.refused(f"{operator} compares numbers, not {value!r:.60}")
    return at.test(name, _COMPARED[operator], value)


def _name(given: dict[str, Any], place: Place) -> str:
    """The attribute that a fact is, or a part of it."""
    if given.get("params"):
        raise place.at("params").refused("a fact with params is computed by a program: give messages an attribute")
    name = place.at("fact").text_of(given.get("fact"))
    if "path" not in given:
        return name
    found = _PATH.fullmatch(place.at("path").text_of(given["path"]))
    if found is None:
        raise place.at("path").refused('only paths of names are taken, as in "$.owner.age"')
    return name + found[1]


def _equal(name: str, value: Any, place: Place) -> Condition:
    if value is None:
        return place.test(name, "not exists")
    if isinstance(value, dict) and "fact" in value:
        return place.compared(name, "=", _other(value, place))
    if isinstance(value, dict | list):
        raise place.refused("a number, a text, true, false or null must be here: others are never equal")
    return place.test(name, "=", value)


def _other(value: dict[str, Any], place: Place) -> str:
    """The fact that another one is compared with."""
    return _name(place.object_of(value, ("fact", "path", "params")), place)
