"""Fields of Elasticsearch: their types, of a mapping, their values as ours, equality and ranges."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tagmatch.importing.analysis import TAKEN, Analysis, analysis_of, normalizer_of
from tagmatch.importing.conditions import Condition, Place, every, some
from tagmatch.importing.dates import DEFAULT_FORMAT, Instant, after_now, instant, time_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.analyzers import Analyzer
from tagmatch.model.where.comparisons import NOW
from tagmatch.model.where.declared import Declared
from tagmatch.model.where.types import Network, Version, network_of, typed_of
from tagmatch.model.where.values import quoted

TEXT = "text"
GEO_POINT = "geo_point"
PERCOLATOR = "percolator"
FLATTENED = "flattened"
OBJECTS = frozenset({"object", "nested"})
WORDS = frozenset({TEXT, "match_only_text"})
WHOLE = frozenset({"keyword", "constant_keyword", "wildcard"})
INTEGERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
_FLOATS = frozenset({"double", "float", "half_float", "scaled_float"})
DATES = frozenset({"date", "date_nanos"})
_OTHERS = frozenset({"boolean", "ip", "version"})
#: Types, and how the attributes that they become are declared
_DECLARED: Mapping[str, str] = {
    **dict.fromkeys(WORDS | WHOLE, "string"), **dict.fromkeys(INTEGERS, "int64"), "unsigned_long": "uint64",
    **dict.fromkeys(_FLOATS, "float64"), **dict.fromkeys(DATES, "timestamp"), "boolean": "bool", "ip": "ip",
    "version": "version",
}  # fmt: skip
# What needs no attribute: the place and the query of a document, and other names
_NO_ATTRIBUTES = frozenset({GEO_POINT, PERCOLATOR, "alias", "object"})
# What changes the values that documents have, before they are indexed
_OF_DOCUMENTS = ("null_value", "copy_to", "ignore_above", "format")
_LOOKS_LIKE_DATE = re.compile(r"\d{4}-\d\d(-\d\d.*)?|.*\|\|.*|now.*", re.DOTALL)
_EXACT = 2**53
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class Field(NamedTuple):
    """A field: what messages call it, its type if a mapping tells it, and what else the mapping says."""

    name: str
    type: str | None = None
    options: Mapping[str, Any] = {}
    is_tags: bool = False  # its words are the tags of messages
    settings: Mapping[str, Any] = {}  # of analyzers

    @property
    def is_text(self) -> bool:
        """Whether it has words, not one value."""
        return self.type in WORDS

    @property
    def is_taken(self) -> bool:
        """Whether messages have something of it."""
        is_known = self.is_tags or self.type is None or self.type in _DECLARED.keys() | OBJECTS | {GEO_POINT}
        return is_known and self.options.get("enabled") is not False

    @property
    def has_texts(self) -> bool:
        """Whether its values are texts, and no tags."""
        return not self.is_tags and (self.type is None or self.type in WORDS | WHOLE)

    @property
    def _analyzer(self) -> str:
        return str(self.options.get("search_analyzer", self.options.get("analyzer", "default")))

    @property
    def analysis(self) -> Analysis | None:
        """How its texts are changed before they are compared; `None` if they are not, or if that is not taken."""
        if self.is_text or self.is_tags:
            return analysis_of(self._analyzer, self.settings)
        return normalizer_of(str(self.options.get("normalizer")), self.settings)

    def words(self, text: str, place: Place) -> Sequence[str]:
        """The words that the analyzer of the field makes of a text."""
        found = analysis_of("standard", {}) if self.type is None else self.analysis
        if found is None:
            raise place.refused(
                f"field {self.name!r} has the analyzer {self._analyzer!r}; those taken are {', '.join(TAKEN)}"
            )
        try:
            return found.forms(text)
        except InvalidValueError as error:  # A package is missing
            raise place.refused(str(error)) from None

    def equal(self, given: Any, place: Place) -> Condition:
        """A value of the field equals the given one, as a term."""
        if self.is_tags:
            return Condition(f"tags {{{quoted(place.text_of(given))}}}")
        if self.type in DATES:
            return self.between({"gte": given, "lte": given}, place)
        if not self.is_form(given, place):
            return self.no_word(given, place)
        operand = self._operand(given, place)
        return place.test(self.name, "in" if isinstance(operand, Network) else "=", operand)

    def equals_some(self, given: list[Any], place: Place) -> Condition:
        """A value of the field equals one of the given ones."""
        if not given:
            return place.never("the list of values is empty")
        if len(given) < 2 or self.type in DATES:
            return some([self.equal(*each) for each in place.list_of(given)])
        if self.is_tags:
            texts = [quoted(at.text_of(each)) for each, at in place.list_of(given)]
            return Condition(f"any of tags {{{', '.join(texts)}}}")
        found = [self._operand(*each) for each in place.list_of(given) if self.is_form(*each)]
        return place.test(self.name, "in", *found) if found else self.no_word(given[0], place)

    def no_word(self, given: str, place: Place, remedy: str = "match analyses its text") -> Condition:
        """What a term or a pattern that is no word of the analyzer asks for."""
        return place.never(f"the analyzer of {self.name!r} makes no word {given!r:.60}; {remedy}")

    def has_part(self, text: str) -> bool:
        """Whether the field may have texts or words with this part: words are as the analyzer makes them."""
        return not self.is_text or self.analysis is None or self.analysis.part(text) == text

    def is_form(self, given: Any, place: Place) -> bool:
        """Whether the field may have this term: those of texts are what the analyzer makes."""
        if not self.is_text or not isinstance(given, str):
            return True
        return self.analysis is None or list(self.words(given, place)) == [given]

    def _operand(self, given: Any, place: Place) -> Any:
        """A value, or a network of IP addresses."""
        if self.type == "ip" and "/" in str(given):
            try:
                return network_of(str(given))
            except InvalidValueError as error:
                raise place.refused(str(error)) from None
        return self.value(given, place)

    def value(self, given: Any, place: Place) -> Any:
        """A value as messages have it."""
        if given is None or isinstance(given, dict | list):
            raise place.refused(f"a value must be here, not {given!r:.60}")
        kind = self.type
        if kind is None:
            return given
        if kind in WORDS | WHOLE:
            text = str(given).lower() if isinstance(given, bool) else str(given)
            return self._normalized(text, place) if self.options.get("normalizer") else text
        if kind in INTEGERS | _FLOATS:
            return _number(given, place)
        if kind == "boolean":
            if given in (True, "true"):
                return True
            if given in (False, "false", ""):
                return False
            raise place.refused(f"field {self.name!r} is boolean, and {given!r:.60} is not")
        if kind not in _OTHERS:
            raise place.refused(f"field {self.name!r} has the type {kind!r}, which is not taken")
        try:
            return Version(str(given)) if kind == "version" else typed_of(kind, str(given))
        except InvalidValueError as error:
            raise place.refused(str(error)) from None

    def _normalized(self, text: str, place: Place) -> str:
        if (found := self.analysis) is None:
            raise place.refused(
                f"field {self.name!r} has the normalizer {self.options['normalizer']!r}, which is not taken"
            )
        return found.forms(text)[0]

    def declared(self) -> tuple[str, Analyzer | None, str]:
        """The type of the attribute that it becomes, its analyzer, and what of the mapping is not taken."""
        kind = _DECLARED.get(str(self.type), "")
        if not kind:
            return "", None, f"type {self.type!r}"
        own, lacking = self._declared_analyzer()
        others = [f"{what} {self.options[what]!r}" for what in _OF_DOCUMENTS if what in self.options]
        return kind, own, " and ".join([*lacking, *others])

    def _declared_analyzer(self) -> tuple[Analyzer | None, list[str]]:
        what = "analyzer" if self.is_text else "normalizer"
        name = self.options.get(what, "default" if self.is_text else None)
        if name is None:
            return None, []
        if self.is_text and self.options.get("search_analyzer", name) != name:
            return None, [f"search_analyzer {self.options['search_analyzer']!r}"]
        own = self.analysis.own if self.analysis else None
        return own, [] if own else [f"{what} {name!r}"]

    def between(self, body: Mapping[str, Any], place: Place) -> Condition:
        """A value of the field lies within bounds `gt`, `gte`, `lt` and `lte`; some may be missing or null."""
        given = {name: body[name] for name in ("gte", "gt", "lte", "lt") if body.get(name) is not None}
        if self.is_tags:
            raise place.refused(f"field {self.name!r} is tags of messages, which have no order")
        if len({name[0] for name in given}) < len(given):
            raise place.refused("a range has one lower and one upper bound: gt or gte, lt or lte")
        if not given:
            return place.test(self.name, "exists")
        is_date = self.type in DATES
        if self.type is None:
            is_date = all(isinstance(each, str) and _LOOKS_LIKE_DATE.fullmatch(each) for each in given.values())
        if is_date and any(str(each).startswith("now") for each in given.values()):
            return every([self._beside_now(name, each, body, place) for name, each in given.items()])
        bound = _date_bound if is_date else _bound
        lower, upper = (
            next((bound(self, name, each, body, place) for name, each in given.items() if name[0] == side), None)
            for side in "gl"
        )
        made = time_of if is_date else partial(self._bounded, place=place)
        if lower is None or upper is None:
            only, sign = (lower, ">") if lower is not None else (upper, "<")
            assert only is not None
            return place.test(self.name, sign + "=" * only.is_included, made(only.value))
        low = lower.value if lower.is_included else _next(lower.value, self, place, up=True)
        high = upper.value if upper.is_included else _next(upper.value, self, place, up=False)
        if low is None or high is None or _is_after(low, high, place):
            return place.never("no value lies between the bounds")
        if low == high:
            return place.test(self.name, "=", made(low))
        return place.test(self.name, "between", made(low), made(high))

    def _beside_now(self, name: str, given: Any, body: Mapping[str, Any], place: Place) -> Condition:
        """One bound, which may be the message's time."""
        if not str(given).startswith("now"):
            return self.between({**body, **dict.fromkeys(("gte", "gt", "lte", "lt")), name: given}, place)
        return place.compared(self.name, _SIGNS[name], NOW, after_now(str(given), name, place.at(name)))

    def _bounded(self, value: Any, place: Place) -> Any:
        if not self.is_form(value, place):
            raise place.refused(
                f"{value!r:.60} is no word of the analyzer, which ranges of words take; give gte and lte"
            )
        return typed_of("ip", str(value)) if self.type == "ip" else value


class _Bound(NamedTuple):
    value: Any
    is_included: bool


def _bound(field: Field, name: str, given: Any, body: Mapping[str, Any], place: Place) -> _Bound:
    value = field.value(given, place.at(name))
    if body.get("format") or body.get("time_zone"):
        raise place.refused(f"format and time_zone are of dates, but no mapping says that {field.name!r} is one")
    return _Bound(ipaddress.ip_address(str(given)) if field.type == "ip" else value, name.endswith("e"))


def _date_bound(field: Field, name: str, given: Any, body: Mapping[str, Any], place: Place) -> _Bound:
    """`gt` and `lte` mean the end of a day, or of another unit, `gte` and `lt` its begin."""
    form, zone = body.get("format") or field.options.get("format") or DEFAULT_FORMAT, body.get("time_zone")
    first, last = (instant(given, form, zone, place.at(name), up=up) for up in (False, True))
    if name in ("gte", "lt"):
        return _Bound(first, name == "gte")
    return _Bound(last, name == "lte")


def _number(given: Any, place: Place) -> int | float:
    for made in (int, float) if isinstance(given, str) else ():
        with contextlib.suppress(ValueError):
            given = made(given)
            break
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= sys.float_info.max:
        raise place.refused(f"a number must be here, not {given!r:.60}")
    return given


def _next(value: Any, field: Field, place: Place, *, up: bool) -> Any:
    """The value just after another, or before it; `None` if that is no address."""
    step = 1 if up else -1
    if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        try:
            return value + step
        except ipaddress.AddressValueError:
            return None
    if isinstance(value, str) and not isinstance(value, Version) and up:
        return value + "\0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.refused("a value just before this one cannot be named: give the bound with lte or gte")
    if field.type in INTEGERS:
        return (math.floor(value) if up else math.ceil(value)) + step
    if isinstance(value, Instant) or (isinstance(value, int) and abs(value) >= _EXACT):
        return type(value)(value + step)
    return math.nextafter(value, step * math.inf)


def _is_after(low: Any, high: Any, place: Place) -> bool:
    try:
        # Versions are compared by their parts, not as texts, where the test is made
        return not isinstance(low, Version) and bool(low > high)
    except TypeError:
        raise place.refused(f"both bounds must be of one type, not {low} and {high}") from None


# -- mappings ----------------------------------------------------------------------------------------------------------


class Fields:
    """The fields that a mapping tells, and the others, whose types are those of the values given."""

    def __init__(
        self, mapping: Mapping[str, Any] | None = None, tags: str | None = None, declared: Declared | None = None
    ) -> None:
        self._tags = tags
        #: What the index declares of attributes; `None` if that is not known
        self.declared = declared
        self._known: dict[str, Mapping[str, Any]] = {}
        self._multi: set[str] = set()
        #: Multi-fields that queries ask for: documents have no values by these names
        self.asked_multi: dict[str, None] = {}
        self._settings: Mapping[str, Any] = {}
        self.is_strict = False  # Documents have no other fields
        if mapping is not None:
            found, self._settings = _parts_of(mapping)
            self.is_strict = str(found.get("dynamic")).lower() == "strict"
            self._add(found["properties"], "", within_nested=False)

    def _add(self, properties: Any, prefix: str, *, within_nested: bool) -> None:
        for name, options in Place("mapping").object_of(properties).items():
            own = Place(f"mapping.{prefix}{name}").object_of(options)
            nested = within_nested or own.get("type") == "nested"
            self._known[prefix + name] = {**own, "nested": True} if nested else own
            self._multi.update(f"{prefix}{name}.{each}" for each in own.get("fields") or {})
            for inside in ("properties", "fields"):
                self._add(own.get(inside) or {}, f"{prefix}{name}.", within_nested=nested)

    def field(self, name: str, place: Place) -> Field:
        """The field of this name; the query is refused if the mapping has none of it, or one that is not taken."""
        own = self._known.get(name)
        ends = [each.start() for each in re.finditer(r"\.|$", name)]
        if any(self._known.get(name[:end], {}).get("type") == FLATTENED for end in ends):
            raise place.of(FLATTENED).refused(f"field {name!r} is of a flattened object, which is not taken")
        if name == self._tags:
            own = own or {}
            return Field(name, own.get("type"), own, is_tags=True, settings=self._settings)
        if own is None:
            if self._known:
                raise place.refused(f"the mapping has no field {name!r}")
            return Field(name)
        if own.get("type") == "alias":
            return self.field(str(own.get("path")), place)
        if own.get("nested"):
            raise place.of("nested").refused(f"field {name!r} is nested, which is not taken")
        if "properties" in own:
            raise place.refused(f"field {name!r} is an object; give the field within it")
        if name in self._multi:
            self.asked_multi[name] = None
        return self._made(name)

    def _made(self, name: str) -> Field:
        own = self._known[name]
        kind = str(own.get("type", "object" if "properties" in own else TEXT))
        return Field(name, kind, own, is_tags=name == self._tags, settings=self._settings)

    def known(self, name: str) -> Field:
        """The field of this name as documents have it; without a type if the mapping has none of it."""
        return self._made(name) if name in self._known else Field(name, is_tags=name == self._tags)

    def of_type(self, kind: str) -> list[str]:
        """The names of the fields of a type."""
        return [name for name, own in self._known.items() if own.get("type") == kind]

    @property
    def has_tags(self) -> bool:
        """Whether the words of a field are the tags of messages."""
        return self._tags is not None

    def within(self, name: str) -> list[str]:
        """The fields that an object has, or only this one if it is a plain field."""
        own = self._known.get(name, {})
        if "properties" not in own or own.get("nested"):
            return [name]
        return [
            each
            for each, own in self._known.items()
            if each.startswith(f"{name}.")
            and not ({"properties", "nested"} & own.keys())
            and own.get("type") != "alias"
        ]

    @property
    def query(self) -> str:
        """The name of the field in which queries are."""
        return next(iter(self.of_type(PERCOLATOR)), "query")

    def attributes(self) -> Iterator[tuple[str, str, Analyzer | None, str]]:
        """Of each field that messages have: its name, and what `Field.declared` says."""
        for name, own in self._known.items():
            if own.get("type") not in _NO_ATTRIBUTES and "properties" not in own and name != self._tags:
                yield name, *self._made(name).declared()

    def has_words_in_a_row(self, name: str) -> bool:
        """Whether the index keeps, or may keep, the words of an attribute in a row."""
        if self.declared is None:
            return True
        own = self.declared[name]
        return own is not None and own.analyzer is not None and own.analyzer.has_words


def _parts_of(mapping: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A mapping alone, and settings of analyzers: of the body that makes an index, or as an index tells them."""
    place = Place("mapping")
    whole: Any = place.object_of(mapping)
    if "properties" not in whole and "mappings" not in whole and len(whole) == 1:
        whole = place.object_of(next(iter(whole.values())))
    found = place.object_of(whole.get("mappings", whole))
    if "properties" not in found:
        raise place.refused("there are no properties, as Elasticsearch gives them for GET index/_mapping")
    settings = whole.get("settings") or {}
    settings = settings.get("index") or settings
    return found, settings.get("analysis") or settings.get("index.analysis") or {}
