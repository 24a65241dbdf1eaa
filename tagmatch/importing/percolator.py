"""Queries of a percolator, in the JSON of Elasticsearch and OpenSearch, as their documentation has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tagmatch.importing.conditions import ALWAYS, Condition, Place, every, negated, some
from tagmatch.importing.fields import GEO_POINT, Field, Fields
from tagmatch.importing.patterns import beginning, literals, regular_expression, text_in_any_case, wildcard
from tagmatch.importing.places import ANYWHERE, areas_of

#: Where the ids of documents are
KEYS = ("_id", "id")

# What only changes the score, or how a query is run
_SCORING = frozenset({"boost", "_name", "rewrite", "lenient"})
_OF_MATCH = frozenset(
    {"operator", "minimum_should_match", "zero_terms_query", "auto_generate_synonyms_phrase_query", *_SCORING}
)
# What clients of Java write in each query, although it is the default: no other value of these is taken
_OF_NEARLY_EQUAL = {
    "prefix_length": ("0",), "max_expansions": ("50",), "fuzzy_transpositions": ("true",), "slop": ("0",),
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "match": _OF_NEARLY_EQUAL,
    "multi_match": _OF_NEARLY_EQUAL,
    "range": {"relation": ("intersects",)},
    "regexp": {"flags_value": ("255", "65535")},  # ALL, in Lucene 9 and before
}
#: The bounds of ranges in the words of those clients, and our sides
_SIDES = {"from": ("include_lower", "gt"), "to": ("include_upper", "lt")}
# Words of a text are in small letters, if its analyzer makes such, and a pattern stays unchanged
_ANY_CASE = "a pattern is compared as it is, but with case_insensitive"
_CLAUSES = ("must", "filter", "should", "must_not")
_SPECIFIED = re.compile(r"\s*(-?\d{1,9})\s*(%?)\s*", re.ASCII)
#: Scripts of `terms_set` that are numbers, or the number of terms
_SCRIPT = re.compile(r"\s*(?:params\.num_terms|(\d{1,9}))\s*;?\s*", re.ASCII)


class Reader:
    """Makes conditions of queries; `saw` is told each kind of query."""

    def __init__(self, fields: Fields, saw: Callable[[str], object]) -> None:
        self._fields, self._saw = fields, saw
        # What messages' location is, of several fields that may be one
        self._location: str | None = None

    def condition(self, query: Any, place: Place) -> Condition:
        """What a query asks for."""
        given = place.object_of(query)
        if len(given) != 1:
            raise place.refused(f"one query must be here, not {', '.join(given) or 'none'}; bool has several")
        ((kind, body),) = given.items()
        inside = place.at(kind).of(kind)
        made = _QUERIES.get(kind)
        if made is None:
            raise inside.refused(f"queries {kind!r} are not taken")
        self._saw(kind)
        return made(self, body, inside)

    def _every(self, given: Any, place: Place) -> list[Condition]:
        return [self.condition(each, at) for each, at in place.list_of(given)]

    # -- queries of queries --------------------------------------------------------------------------------------------

    def _bool(self, body: Any, place: Place) -> Condition:
        given = place.object_of(body, (*_CLAUSES, "minimum_should_match", "adjust_pure_negative", *_SCORING))
        must, also, should, never = (
            self._every(given[name], place.at(name)) if given.get(name) is not None else [] for name in _CLAUSES
        )
        if never and not (must or also or should) and given.get("adjust_pure_negative") in (False, "false"):
            raise place.at("adjust_pure_negative").refused("with false, a query with must_not alone matches nothing")
        least = 0 if must or also else min(1, len(should))
        if "minimum_should_match" in given and (must or also or should or never):
            at = place.at("minimum_should_match")
            # A query that asks for nothing else needs one of these in any case; of no clauses, none can hold
            least = max(minimum(given["minimum_should_match"], len(should), at), least)
        return every([*must, *also, *([some(should, least)] if least else []), *map(negated, never)])

    def _dis_max(self, body: Any, place: Place) -> Condition:
        given = place.object_of(body, ("queries", "tie_breaker", *_SCORING))
        return some(self._every(given.get("queries") or [], place.at("queries")))

    def _constant_score(self, body: Any, place: Place) -> Condition:
        given = place.object_of(body, ("filter", *_SCORING))
        return self.condition(given.get("filter"), place.at("filter"))

    def _boosting(self, body: Any, place: Place) -> Condition:
        given = place.object_of(body, ("positive", "negative", "negative_boost", *_SCORING))
        return self.condition(given.get("positive"), place.at("positive"))

    def _function_score(self, body: Any, place: Place) -> Condition:
        given = place.object_of(body)
        if "min_score" in given:
            raise place.at("min_score").refused("queries have no score, so that none can be the least")
        return self.condition(given["query"], place.at("query")) if "query" in given else ALWAYS

    def _match_all(self, body: Any, place: Place) -> Condition:
        place.object_of(body, _SCORING)
        return ALWAYS

    def _match_none(self, body: Any, place: Place) -> Condition:
        place.object_of(body, _SCORING)
        return place.never("it says so")

    # -- queries of one field ------------------------------------------------------------------------------------------

    def _field(self, body: Any, place: Place, known: frozenset[str], own: str) -> tuple[Field, dict[str, Any], Place]:
        """The field that a query names, and its parameters; `own` is the one that may stand alone."""
        given = {name: each for name, each in place.object_of(body).items() if name not in _SCORING}
        if len(given) != 1:
            raise place.refused(f"one field must be here, not {', '.join(given) or 'none'}")
        ((name, each),) = given.items()
        inside = place.at(name)
        each = _with_options(each, inside, {*known, *_SCORING, own}) if isinstance(each, dict) else {own: each}
        return self._fields.field(name, inside), each, inside

    def _term(self, body: Any, place: Place) -> Condition:
        field, given, at = self._field(body, place, frozenset({"case_insensitive"}), "value")
        value = given.get("value", given.get("term"))
        if given.get("case_insensitive") and field.has_texts:
            return text_in_any_case(field.name, field.value(value, at), at)
        return field.equal(value, at)

    def _terms(self, body: Any, place: Place) -> Condition:
        given = {name: each for name, each in place.object_of(body).items() if name not in _SCORING}
        if len(given) != 1:
            raise place.refused(f"one field must be here, not {', '.join(given) or 'none'}")
        ((name, values),) = given.items()
        inside = place.at(name)
        if not isinstance(values, list):
            raise inside.refused("a list of values must be here: terms of another document are not taken")
        return self._fields.field(name, inside).equals_some(values, inside)

    def _terms_set(self, body: Any, place: Place) -> Condition:
        known = frozenset({"minimum_should_match", "minimum_should_match_script", "minimum_should_match_field"})
        field, given, at = self._field(body, place, known, "terms")
        terms = given.get("terms")
        if not isinstance(terms, list):
            raise at.at("terms").refused("a list of values must be here")
        if "minimum_should_match_field" in given:
            raise at.at("minimum_should_match_field").refused("a number that each message gives is not taken")
        parts = [*dict.fromkeys(field.equal(*each) for each in at.at("terms").list_of(terms))]
        if "minimum_should_match" in given:
            return some(
                parts, max(1, minimum(given["minimum_should_match"], len(parts), at.at("minimum_should_match")))
            )
        inside = at.at("minimum_should_match_script")
        script = given.get("minimum_should_match_script")
        found = _SCRIPT.fullmatch(str(script.get("source") if isinstance(script, dict) else script))
        if found is None:
            raise inside.refused("of scripts, only params.num_terms and numbers are taken")
        return some(parts, int(found[1]) if found[1] else len(parts))

    def _range(self, body: Any, place: Place) -> Condition:
        known = frozenset({"gt", "gte", "lt", "lte", "format", "time_zone"})
        field, given, at = self._field(body, place, known | {*_SIDES, "include_lower", "include_upper"}, "gte")
        bounds = {name: each for name, each in given.items() if name in known}
        for name, (option, side) in _SIDES.items():
            if given.get(name) is None:
                continue
            if bounds.keys() & {side, f"{side}e"}:
                raise at.at(name).refused(f"{side} and {side}e are this bound, too; give one of them")
            bounds[side if given.get(option) is False else f"{side}e"] = given[name]
        return field.between(bounds, at)

    def _exists(self, body: Any, place: Place) -> Condition:
        given, inside = place.object_of(body, ("field", *_SCORING)), place.at("field")
        names = self._fields.within(inside.text_of(given.get("field")))
        fields = [self._fields.field(name, inside) for name in names]
        if any(field.is_tags for field in fields):
            raise inside.refused("messages with and without tags are not told apart")
        return some(
            [
                self._at(ANYWHERE, field.name, inside) if field.type == GEO_POINT else place.test(field.name, "exists")
                for field in fields
            ]
        )

    # -- patterns ------------------------------------------------------------------------------------------------------

    def _pattern(self, body: Any, place: Place, *others: str) -> tuple[Field, str, dict[str, Any], Place]:
        """The field, the pattern, other parameters and the place of a query of texts."""
        field, given, at = self._field(body, place, frozenset({"case_insensitive", *others}), "value")
        if not field.has_texts:
            raise at.refused(f"field {field.name!r} has no texts, which patterns are for")
        text = at.text_of(given.get("value", given.get(place.kind)))
        if field.options.get("normalizer"):
            raise at.refused(f"field {field.name!r} has a normalizer, with which patterns are not taken")
        return field, text, given, at

    def _prefix(self, body: Any, place: Place) -> Condition:
        field, text, given, at = self._pattern(body, place)
        any_case = bool(given.get("case_insensitive"))
        if not any_case and not field.has_part(text):
            return field.no_word(text, at, _ANY_CASE)
        return beginning(field.name, text, at, any_case=any_case)

    def _wildcard(self, body: Any, place: Place) -> Condition:
        field, text, given, at = self._pattern(body, place, "wildcard")
        any_case = bool(given.get("case_insensitive"))
        if not any_case and not all(map(field.has_part, literals(text))):
            return field.no_word(text, at, _ANY_CASE)
        return wildcard(field.name, text, at, any_case=any_case)

    def _regexp(self, body: Any, place: Place) -> Condition:
        field, text, given, at = self._pattern(body, place, "flags", "max_determinized_states")
        flags = given.get("flags", "ALL")
        if flags not in ("ALL", "NONE", ""):
            raise at.at("flags").refused(f"flags {flags!r:.40} are not taken, but ALL and NONE")
        any_case = bool(given.get("case_insensitive"))
        return regular_expression(field.name, text, at, optional=flags != "NONE", any_case=any_case)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _match(self, body: Any, place: Place) -> Condition:
        field, given, at = self._field(body, place, _OF_MATCH | {"fuzziness", "analyzer"}, "query")
        return self._words(field, given, at)

    def _words(self, field: Field, given: Mapping[str, Any], place: Place) -> Condition:
        """All words of a query, or some, are words of the field."""
        query = given.get("query")
        if str(given.get("fuzziness", 0)) != "0":
            raise place.at("fuzziness").refused("words that are nearly equal are not taken")
        if "analyzer" in given:
            raise place.at("analyzer").refused(
                "the analyzer of a query is not taken: give the field one, in the mapping"
            )
        if not (field.is_text or (field.type is None and isinstance(query, str)) or field.is_tags):
            return field.equal(query, place)
        if isinstance(query, dict | list) or query is None:
            raise place.refused(f"a text must be here, not {query!r:.60}")
        words = list(dict.fromkeys(field.words(str(query), place)))
        if not words:
            if str(given.get("zero_terms_query", "none")).lower() == "all":
                return ALWAYS
            return place.never(f"{query!r:.60} has no word")
        operator = str(given.get("operator", "or")).lower()
        if operator not in ("or", "and"):
            raise place.at("operator").refused(f"{operator!r:.40} must be or, or and")
        if operator == "and":
            return every([field.equal(word, place) for word in words])
        least = 1
        if "minimum_should_match" in given:
            least = minimum(given["minimum_should_match"], len(words), place.at("minimum_should_match"))
        if least <= 1:
            return field.equals_some(words, place)
        return some([field.equal(word, place) for word in words], least)

    def _match_phrase(self, body: Any, place: Place) -> Condition:
        field, given, at = self._field(body, place, frozenset({"slop", "analyzer", "zero_terms_query"}), "query")
        return self._phrase(field, given, at)

    def _phrase(self, field: Field, given: Mapping[str, Any], place: Place) -> Condition:
        query = given.get("query")
        is_text = field.is_text or field.is_tags or (field.type is None and isinstance(query, str))
        if is_text and len(field.words(str(query), place)) > 1:
            if field.is_tags:
                raise place.refused(f"field {field.name!r} is tags of messages, which have no order for a phrase")
            if str(given.get("slop", 0)) != "0":
                raise place.at("slop").refused("a phrase with words between is not taken")
            if not self._fields.has_words_in_a_row(field.name):
                raise place.refused(
                    "a phrase of several words needs an index that keeps their order: declare "
                    f"{field.name!r} with the analyzer words() before"
                )
            return place.test(field.name, "phrase", query)
        return self._words(field, {name: each for name, each in given.items() if name != "slop"}, place)

    def _multi_match(self, body: Any, place: Place) -> Condition:
        known = {*_OF_MATCH, "query", "fields", "type", "tie_breaker", "fuzziness", "analyzer"}
        given = _with_options(body, place, known)
        kind, fields = given.get("type", "best_fields"), given.get("fields")
        if kind not in ("best_fields", "most_fields", "phrase"):
            raise place.at("type").refused(f"multi_match of type {kind!r:.40} is not taken")
        if not isinstance(fields, list) or not fields or any("*" in str(name) for name in fields):
            raise place.at("fields").refused("a list of the names of fields must be here, without wildcards")
        made = self._phrase if kind == "phrase" else self._words
        names = [(at.text_of(name).partition("^")[0], at) for name, at in place.at("fields").list_of(fields)]
        return some([made(self._fields.field(name, at), given, place) for name, at in names])

    # -- places --------------------------------------------------------------------------------------------------------

    def _geo(self, body: Any, place: Place) -> Condition:
        areas, name, is_disjoint = areas_of(body, place)
        at = place.at(name)
        self._fields.field(name, at)
        found = some([self._at(area, name, at) for area in areas])
        return every([self._at(ANYWHERE, name, at), negated(found)]) if is_disjoint else found

    def _at(self, area: str, name: str, place: Place) -> Condition:
        """That a message is in an area, by the one field that has its location."""
        if self._location not in (None, name):
            raise place.refused(f"messages have one location, and other queries take field {self._location!r} for it")
        self._location = name
        return Condition(f"within {area}")


def _with_options(given: Any, place: Place, known: Iterable[str]) -> dict[str, Any]:
    """An object with known members, without options that have their defaults."""
    defaults = _DEFAULTS.get(place.kind, {})
    found = place.object_of(given).items()
    return place.object_of(
        {name: each for name, each in found if str(each).lower() not in defaults.get(name, ())}, known
    )


def minimum(given: Any, count: int, place: Place) -> int:
    """How many clauses `minimum_should_match` asks for, such as 2, -1, "75%" and "3<90% 9<-3"."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str):
        raise place.refused(f"a number or a text must be here, not {given!r:.60}")
    chosen: str | None = str(count)  # all of them, up to the first number before <
    for part in re.sub(r"\s*<\s*", "<", given).split() if "<" in given else [given]:
        above, is_conditional, specified = part.rpartition("<")
        if is_conditional and not re.fullmatch(r"\d{1,9}", above, re.ASCII):
            raise place.refused(f"{part!r:.40} is no number of clauses, < and how many must hold")
        if not is_conditional or count > int(above):
            chosen = specified
    found = _SPECIFIED.fullmatch(chosen or "")
    if found is None:
        raise place.refused(f"{given!r:.40} is no number of clauses, such as 2, -1, 75% or 3<90%")
    number = int(found[1])
    if found[2]:
        number = abs(number) * count // 100 * (-1 if number < 0 else 1)
    if number > count:
        raise place.refused(f"{number} of {count} can never hold")
    return number if number >= 0 and not found[1].startswith("-") else max(0, count + number)


_OWN = vars(Reader)
_QUERIES: Mapping[str, Callable[[Reader, Any, Place], Condition]] = {
    **{
        name: _OWN[f"_{name}"]
        for name in (
            "bool", "dis_max", "constant_score", "boosting", "function_score", "match_all", "match_none", "term",
            "terms", "terms_set", "range", "exists", "prefix", "wildcard", "regexp", "match", "match_phrase",
            "multi_match",
        )
    },
    **dict.fromkeys(("geo_distance", "geo_bounding_box", "geo_polygon", "geo_shape"), _OWN["_geo"]),
}  # fmt: skip
