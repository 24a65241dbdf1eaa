"""Subscriptions of other engines, in our language: what `tagmatch import` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tagmatch.importing import json_rules, percolator, predicates
from tagmatch.importing.conditions import ALWAYS, Condition, NotTakenError, Place
from tagmatch.importing.fields import Fields
from tagmatch.importing.messages import Messages
from tagmatch.model.errors import FilterError, InputFileError, InvalidValueError
from tagmatch.model.options import KeyType, Source
from tagmatch.model.where.declared import Declared
from tagmatch.model.where.language import stored_rows

__all__ = ["NotTakenError", "declared", "elasticsearch", "message", "rules", "vespa"]

#: The most fields that are named because they are not taken
_SHOWN = 20


class Documents:
    """Makes rows, as `TagMatch.put_many` takes them, of documents of one source, and counts what kinds they have."""

    def __init__(
        self,
        source: Source,
        *,
        mapping: Mapping[str, Any] | None = None,
        tags: str | None = None,
        key: str | None = None,
        field: str | None = None,
        key_type: KeyType = "string",
        declared: Declared | None = None,
        data: Collection[str] = (),
    ) -> None:
        if source != "elasticsearch" and (mapping is not None or tags is not None):
            raise InvalidValueError(f"a mapping, and a field of tags, are of Elasticsearch, not of {source}")
        self._seen: list[str] = []
        fields = self._fields = Fields(mapping, tags, declared)
        made: tuple[tuple[str, ...], str, Callable[[Any, Place], Condition]]
        if source == "elasticsearch":
            reader = percolator.Reader(fields, self._seen.append)
            made = percolator.KEYS, fields.query, reader.condition
        else:
            module = predicates if source == "vespa" else json_rules
            made = module.KEYS, module.FIELD, lambda given, place: module.condition(given, place, self._seen.append)
        names, query, self._condition = made
        self._keys, self._field = (key,) if key else names, field or query
        self._key_type, self._data, self._declared = key_type, data, declared
        # Ids are of one document each; of other keys, and of rules, several are alternatives
        self._first: dict[Any, str] | None = {} if key is None and source != "rules" else None
        self.taken, self.refused, self._count = Counter[str](), Counter[str](), 0
        self._left: dict[str, None] = {}  # Paths of fields that are no columns

    def row_at(self, document: Any, line: str) -> dict[str, Any]:
        """`row` of the document of a line; InputFileError names the line and the key."""
        try:
            return self.row(document, line)
        except NotTakenError as error:
            name, key = self._key_in(_whole(document)) if isinstance(document, dict) else ("", None)
            raise InputFileError(f"{line}{f', {name} {key!r:.80}' if name else ''}: {error}") from None

    def row(self, document: Any, line: str = "") -> dict[str, Any]:
        """The key, the tags and the condition of a document; NotTakenError, by the path of what cannot be taken."""
        self._seen.clear()
        try:
            found = self._row(document)
            if self._first is not None and (first := self._first.setdefault(found["key"], line)) != line:
                raise Place(self._keys[0], "key").refused(f"it is that of {first}, too; an id has one document")
        except NotTakenError as error:
            self.refused[error.kind] += 1
            raise
        self.taken.update(dict.fromkeys(self._seen, 1))
        self._count += 1
        return found

    def report(self) -> str:
        """How many documents were taken with each kind of query, and how many refused for one."""
        found = [
            f"{what}: {', '.join(f'{kind} {count}' for kind, count in counts.most_common()) or 'none'}"
            for what, counts in ((f"{self._count:,} taken", self.taken), ("refused", self.refused))
        ]
        others = [f"mapping.{name}: {said}" for name, _, _, said in self._fields.attributes() if said]
        if others:
            found.append(f"not taken of the mapping: {', '.join(others)}")
        if multi := self._fields.asked_multi:
            found.append(f"multi-fields, which messages must give by these names: {_first(multi)}")
        if self._left:
            found.append(f"fields not taken: {_first(self._left)}; --data NAME=TYPE takes them")
        return "; ".join(found)

    def _row(self, document: Any) -> dict[str, Any]:
        root = Place("")
        given = _whole(root.object_of(document))
        place = Place(self._field)
        query = _member(given, self._field)
        if query is None:
            raise place.refused(f"there is no such field; the document has {', '.join(given) or 'none'}")
        condition = self._condition(query, place)
        if condition.is_never:
            raise condition.reason or place.refused("no message can satisfy it")
        row: dict[str, Any] = {"key": self._key(given), "tags": [], "where": None}
        # Other fields of the document, as the columns of data of the same names
        row |= {name: _member(given, name) for name in self._data}
        if condition is not ALWAYS:
            row["where"] = condition.text
            try:
                stored_rows(condition.text, plane=False, declared=self._declared)
            except FilterError as error:
                raise place.refused(f"{error}, in {condition.text!r:.200}") from None
        known = {self._field, *self._keys, *self._data}
        own = {name: each for name, each in given.items() if not name.startswith("_")}
        if len(self._left) <= _SHOWN:
            self._left |= dict.fromkeys(_others(own, known, ""))
        return row

    def _key_in(self, given: Mapping[str, Any]) -> tuple[str, Any]:
        """The name and the value of the first key that a document has."""
        return next(((name, key) for name in self._keys if (key := _member(given, name)) is not None), ("", None))

    def _key(self, given: Mapping[str, Any]) -> Any:
        name, key = self._key_in(given)
        if key is None:
            raise Place(self._keys[0], "key").refused("there is no key")
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise Place(name, "key").refused(f"a key must be here, not {key!r:.60}")
        if self._key_type == "string":
            return str(key)
        if isinstance(key, str) and not (key.isascii() and key.isdigit()):
            raise Place(name, "key").refused(f"{key!r:.60} is no integer, as the keys of this index are")
        return int(key)


def _whole(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a document, also as exports and answers have them, and its own, such as `_id`."""
    if not isinstance(document.get("_source"), dict):
        return document
    return {**document["_source"], **{name: each for name, each in document.items() if name.startswith("_")}}


def _first(names: Collection[str]) -> str:
    return ", ".join([*names][:_SHOWN]) + " and others" * (len(names) > _SHOWN)


def _others(given: Mapping[str, Any], known: Collection[str], prefix: str) -> Iterator[str]:
    """The paths of values that are not at known paths."""
    for name, each in given.items():
        path = prefix + name
        if path in known or each is None:
            continue
        if isinstance(each, Mapping):
            yield from _others(each, known, f"{path}.")
        else:
            yield path


def _member(given: Any, path: str) -> Any:
    """A member of an object, or of one within it; `None` if it is missing."""
    if isinstance(given, Mapping) and path not in given:
        first, _, rest = path.partition(".")
        return _member(given.get(first), rest) if rest else None
    return given[path] if isinstance(given, Mapping) else None


def elasticsearch(document: Mapping[str, Any], *, mapping: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `put` takes for a query of a percolator of Elasticsearch or OpenSearch.

    Parameters
    ----------
    document
        The document that holds the query, with its `_id`, or `id`: as it was indexed, or as exports have it, in
        `_source`. The query is in the field that has the type `percolator` in the mapping, else in `query`.
    mapping
        The mapping of the index. Without it, fields have the types of what they are compared with.

    Returns
    -------
    dict
        `key`, `tags`, which is empty, and `where`.

    Raises
    ------
    NotTakenError
        The query cannot be taken; the message begins with the path of the part that is the reason.

    Examples
    --------
    >>> from tagmatch import TagMatch, importing
    >>> query = {"bool": {"filter": [{"range": {"price": {"lt": 900}}}], "must_not": {"term": {"city": "Nice"}}}}
    >>> importing.elasticsearch({"_id": "ana", "query": query})
    {'key': 'ana', 'tags': [], 'where': 'price < 900 and not city = "Nice"'}
    >>> tm = TagMatch(key_type="string")
    >>> tm.put(**importing.elasticsearch({"_id": "ana", "query": query}))
    1
    >>> importing.elasticsearch({"_id": "bo", "query": {"nested": {"path": "rooms"}}})
    Traceback (most recent call last):
    tagmatch.importing.conditions.NotTakenError: query.nested: queries 'nested' are not taken
    >>> tm.close()
    """
    return Documents("elasticsearch", mapping=mapping).row(document)


def declared(mapping: Mapping[str, Any], *, tags: str | None = None) -> dict[str, Any]:
    """What `TagMatch` takes for the fields of a mapping of Elasticsearch: types of attributes, and analyzers.

    Parameters
    ----------
    mapping
        The mapping of the index, perhaps with the settings of its analyzers: as `GET index` gives it.
    tags : str, optional
        The field whose words are the tags of messages, which is no attribute then.

    Returns
    -------
    dict
        `attributes`, `analyzers`, and `strict`, which is `True` where the mapping has `"dynamic": "strict"`. Fields of
        other types are left out, and so are analyzers that our indexes do not have, also `whitespace` and `simple`,
        whose words `message` makes.

    Raises
    ------
    NotTakenError
        It is no mapping.

    Examples
    --------
    >>> from tagmatch import TagMatch, importing
    >>> mapping = {"properties": {"title": {"type": "text"}}}
    >>> found = importing.declared(mapping)
    >>> found
    {'attributes': {'title': 'string'}, 'analyzers': {'title': 'casefold(words())'}, 'strict': False}
    >>> tm = TagMatch(key_type="string", **found)
    >>> query = {"match_phrase": {"title": "Red bike"}}
    >>> tm.put(**importing.elasticsearch({"_id": "ana", "query": query}, mapping=mapping))
    1
    >>> changed = tm.consolidate()
    >>> tm.match([], {"title": "My red bike"})
    ['ana']
    >>> tm.close()
    """
    fields = Fields(mapping, tags)
    found = [(name, kind, own) for name, kind, own, _ in fields.attributes() if kind]
    return {
        "attributes": {name: kind for name, kind, _ in found},
        "analyzers": {name: str(own) for name, _, own in found if own is not None},
        "strict": fields.is_strict,
    }


def message(
    document: Mapping[str, Any], mapping: Mapping[str, Any], *, tags: str | None = None, location: str | None = None
) -> dict[str, Any]:
    """What `match` takes for a document of Elasticsearch, in an index that has the fields of its mapping `declared`.

    Parameters
    ----------
    document
        The document, perhaps as exports have it, in `_source`.
    mapping
        The mapping of the index, perhaps with the settings of its analyzers.
    tags : str, optional
        The field whose words are the tags of messages.
    location : str, optional
        The field of type `geo_point` that the areas of subscriptions mean, if the mapping has several.

    Returns
    -------
    dict
        `attributes`, by the whole paths of fields, also of nested objects and multi-fields: dates by their formats, as
        texts in UTC; integers without fractions; the words of a text, if its analyzer is one that indexes do not have.
        `location`: longitude and latitude, a list of several, or `None`. With `tags`, also `tags`. Fields of types that
        are not taken are left out, and so is null.

    Raises
    ------
    NotTakenError
        A value is not of the type of its field; the message begins with its path.

    Examples
    --------
    >>> from tagmatch import importing
    >>> types = {"city": "keyword", "posted": "date", "place": "geo_point"}
    >>> mapping = {"properties": {name: {"type": kind} for name, kind in types.items()}}
    >>> document = {"city": "Lyon", "posted": "2026-11-28", "place": {"lat": 45.76, "lon": 4.84}}
    >>> importing.message(document, mapping)["location"]
    (4.84, 45.76)
    >>> importing.message(document, mapping)["attributes"]
    {'city': 'Lyon', 'posted': '2026-11-28T00:00:00.000000000Z'}
    """
    own = document.get("_source") if isinstance(document, Mapping) else None
    return Messages(Fields(mapping, tags), location).message(own if isinstance(own, dict) else document)


def vespa(document: Mapping[str, Any], *, field: str = predicates.FIELD) -> dict[str, Any]:
    """What `put` takes for a document of Vespa with a predicate field.

    Parameters
    ----------
    document
        As it is fed: `{"put": "id:ads:ad::1", "fields": {"target": "age in [20..30]"}}`. The key is the id.
    field : str
        The path of the predicate.

    Returns
    -------
    dict
        As `elasticsearch`.

    Raises
    ------
    NotTakenError
        The predicate has a mistake, or no message can satisfy it.

    Examples
    --------
    >>> from tagmatch import importing
    >>> predicate = "gender not in ['male'] and age in [20..30]"
    >>> importing.vespa({"put": "id:ads:ad::1", "fields": {"target": predicate}})["where"]
    'not gender = "male" and age between 20 and 30'
    """
    return Documents("vespa", field=field).row(document)


def rules(rule: Mapping[str, Any]) -> dict[str, Any]:
    """What `put` takes for a rule of json-rules-engine, or one in the same JSON.

    Parameters
    ----------
    rule
        The rule, whose `name` is the key.

    Returns
    -------
    dict
        As `elasticsearch`.

    Raises
    ------
    NotTakenError
        The rule has facts with params or an operator of a program's own.

    Examples
    --------
    >>> from tagmatch import importing
    >>> fouls = {"fact": "fouls", "operator": "greaterThanInclusive", "value": 5}
    >>> importing.rules({"name": "out", "conditions": {"all": [fouls]}})["where"]
    'fouls >= 5'
    """
    return Documents("rules").row(rule)
