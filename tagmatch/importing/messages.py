"""Documents of Elasticsearch as messages: attributes by their whole paths, and the location."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date
from typing import Any

from tagmatch.importing.analysis import analysis_of
from tagmatch.importing.conditions import Place
from tagmatch.importing.dates import DEFAULT_FORMAT, MILLISECOND, instant, text_of_time
from tagmatch.importing.fields import DATES, GEO_POINT, INTEGERS, OBJECTS, WHOLE, WORDS, Field, Fields
from tagmatch.importing.places import point


class Messages:
    """Makes messages of documents, whose place is in one field of the mapping."""

    def __init__(self, fields: Fields, location: str | None) -> None:
        self._fields, self._places = fields, fields.of_type(GEO_POINT)
        if location is not None and location not in self._places:
            raise Place("mapping").refused(f"there is no geo_point {location!r:.60}")
        self._location = location

    def message(self, document: Any) -> dict[str, Any]:
        """The attributes, the location and, if a field has them, the tags of a document; NotTakenError by its path."""
        found: dict[str, list[Any]] = {}
        places: list[tuple[float, float]] = []
        tags: list[str] = []
        for field, given, place in self._values(Place("").object_of(document), None, Place("")):
            if field.type == GEO_POINT:
                places += self._points(field.name, given, place)
            elif field.is_tags:
                tags += field.words(_text(given), place)
            else:
                found.setdefault(field.name, []).extend(_values_of(field, given, place))
        made = {
            "attributes": {name: each[0] if len(each) == 1 else each for name, each in found.items() if each},
            "location": (places[0] if len(places) == 1 else places) if places else None,
        }
        return made | ({"tags": tags} if self._fields.has_tags else {})

    def _values(self, given: Any, field: Field | None, place: Place) -> Iterator[tuple[Field, Any, Place]]:
        """Each value with its field, also for its multi-fields, and its place in the document."""
        if field is not None and field.type == GEO_POINT:
            yield field, given, place
        elif isinstance(given, list):
            for each, at in place.list_of(given):
                yield from self._values(each, field, at)
        elif isinstance(given, dict) and (field is None or field.type in OBJECTS | {None}):
            for name, each in given.items():
                own = self._fields.known(f"{field.name}.{name}" if field else name)
                if own.is_taken:
                    yield from self._values(each, own, place.at(name))
        elif given is not None and field is not None:
            if isinstance(given, dict) or field.type in OBJECTS:
                raise place.refused(
                    f"{given!r:.60} is no value of field {field.name!r}, which has the type {field.type!r}"
                )
            yield field, given, place
            for name in field.options.get("fields") or ():
                if (own := self._fields.known(f"{field.name}.{name}")).is_taken:
                    yield own, given, place

    def _points(self, name: str, given: Any, place: Place) -> list[tuple[float, float]]:
        if self._location is None and len(self._places) > 1:
            raise place.refused(f"a message has one location; say which is, with location=: {', '.join(self._places)}")
        if given is None or self._location not in (None, name):
            return []
        is_one = not isinstance(given, list) or (given and isinstance(given[0], int | float))
        return [point(*each) for each in ([(given, place)] if is_one else place.list_of(given)) if each[0] is not None]


def _values_of(field: Field, given: Any, place: Place) -> list[Any]:
    """The values of an attribute of an index with the mapping."""
    if field.type is None:  # The mapping has no such field
        return [given]
    if field.type in WORDS:
        own = field.declared()[1]
        found = None if own else analysis_of(str(field.options.get("analyzer", "default")), field.settings)
        return [*found.forms(_text(given))] if found else [_text(given)]
    if field.type in WHOLE:
        return [_text(given)]
    if field.type in DATES:
        return [_time(field, given, place)]
    value = field.value(given, place)
    if field.type in INTEGERS:
        return [math.trunc(value)]
    return [value if isinstance(value, bool | float | int) else _text(given)]


def _text(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


def _time(field: Field, given: Any, place: Place) -> str:
    """A time as JSON has it; those of `date` are cut to milliseconds."""
    form = field.options.get("format") or DEFAULT_FORMAT
    if isinstance(given, date):  # Of Python, also with a time
        given, form = given.isoformat(), DEFAULT_FORMAT
    elif isinstance(given, float) and given.is_integer():
        given = int(given)
    found = instant(given, form, None, place, up=False)
    return text_of_time(found if field.type == "date_nanos" else found - found % MILLISECOND)
