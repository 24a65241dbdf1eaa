"""Analyzers and normalizers of Elasticsearch: the words that they make of texts, and ours that do the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.analyzers import STEMS, WORDS, Analyzer, analyzer_of, casefold, words

_STANDARD = "standard"
#: Filters, and the steps that do the same
_FILTERS: Mapping[str, tuple[str, ...]] = {
    "lowercase": ("casefold",),
    "asciifolding": ("no_accents",),
    "icu_folding": ("nfkc", "casefold", "no_accents"),
    "icu_normalizer": ("nfkc", "casefold"),
    "porter_stem": (f"{STEMS} porter",),
}
# Names of stemmers, if those of Snowball are others
_STEMMERS = {"english": "porter", "porter2": "english"}


class Analysis(NamedTuple):
    """How the texts of a field become words, or one other text."""

    forms: Callable[[str], Sequence[str]]
    part: Callable[[str], str]  # of the beginning of a word
    own: Analyzer | None = None  # Our analyzer that does it, too


#: Analyzers that every index has, as queries see them: their words are in small letters
_KNOWN: Mapping[str, Analysis] = {
    _STANDARD: Analysis(lambda text: [each.lower() for each in words().forms(text)], str.lower, casefold(words())),
    "whitespace": Analysis(str.split, str),
    "keyword": Analysis(lambda text: [text], str),
    "simple": Analysis(lambda text: re.findall(r"[^\W\d_]+", text.lower()), str.lower),
}
TAKEN = (*_KNOWN, "those of the tokenizer standard with filters of letters and stems")


def analysis_of(name: str, settings: Mapping[str, Any]) -> Analysis | None:
    """What an analyzer does, which an index may have in its settings; `None` if that is not taken."""
    given = _member(settings, "analyzer", name)
    if given is None or (given.get("type") == _STANDARD and not given.get("stopwords")):
        return _KNOWN.get(_STANDARD if given or name == "default" else name)
    if given.get("type", "custom") != "custom" or given.get("tokenizer") != _STANDARD:
        return None
    return _steps(given, settings, (WORDS,))


def normalizer_of(name: str, settings: Mapping[str, Any]) -> Analysis | None:
    """What a normalizer does with whole texts, likewise."""
    given = _member(settings, "normalizer", name)
    if given is None:
        given = {"filter": [name]} if name == "lowercase" else {}
    return _steps(given, settings, ()) if given.get("filter") else None


def _steps(given: Mapping[str, Any], settings: Mapping[str, Any], first: tuple[str, ...]) -> Analysis | None:
    filters = given.get("filter") or []
    found = [_filter(str(each), settings) for each in (filters if isinstance(filters, list) else [filters])]
    if given.get("char_filter") or None in found:
        return None
    try:
        own = analyzer_of(Analyzer((*first, *(step for steps in found for step in steps or ()))))
    except InvalidValueError:  # There are no stems of this language
        return None
    return Analysis(own.forms, own.part, own)


def _filter(name: str, settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    given = _member(settings, "filter", name) or {"type": name}
    kind, language = given.get("type"), str(given.get("language", given.get("name", "english"))).lower()
    if kind == "snowball":
        return (f"{STEMS} {language}",)
    if kind == "stemmer":
        return (f"{STEMS} {_STEMMERS.get(language, language)}",)
    return _FILTERS.get(str(kind)) if set(given) == {"type"} else None


def _member(settings: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any] | None:
    found = (settings.get(kind) or {}).get(name)
    return found if isinstance(found, Mapping) else None
