"""Queries of a percolator find what the documentation of Elasticsearch says, and are refused by their path."""

import ipaddress
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.percolator import NOW, Percolator, words

from tagmatch import FilterError, InvalidValueError, TagMatch, Version, casefold, importing
from tagmatch import words as words_of

DATA = Path(__file__).parent / "data"
MAPPING = json.loads((DATA / "mapping.json").read_text())
PROPERTIES = MAPPING["flats"]["mappings"]["properties"]
DOCUMENTS = [json.loads(line) for line in (DATA / "percolator.jsonl").read_text().splitlines()]
TAKEN = [document for document in DOCUMENTS if "refused" not in document]
REFUSED = [document for document in DOCUMENTS if "refused" in document]
ORACLE = Percolator(PROPERTIES)


def some(*values: Any) -> st.SearchStrategy[Any]:
    """No value, one or several."""
    one = st.sampled_from(values)
    return st.one_of(st.none(), one, st.lists(one, max_size=3))


TIMES = [
    datetime.fromisoformat(f"{text}+00:00")
    for text in (
        "2026-03-15T00:00:00", "2026-03-15T10:30:00", "2026-03-15T10:30:00.250", "2026-03-15T10:30:00.251",
        "2026-03-14T23:59:59.999", "2026-03-15T23:59:59.999", "2026-03-16T00:00:00", "2026-03-01T00:00:00",
        "2026-03-01T12:00:00", "2026-03-31T23:59:59.999", "2026-04-01T00:00:00", "2026-04-30T00:00:00",
        "2025-03-15T08:00:00", "2026-02-01T23:59:59.999", "2026-02-02T00:00:00", "2026-01-01T05:00:00",
        "2026-01-02T00:00:00", "2026-03-29T00:30:00", "2026-03-29T22:30:00", "2026-03-28T23:00:00",
        "2026-03-22T23:59:59.999", "2026-03-23T00:00:00", "2026-03-14T22:30:00", "2026-03-14T22:29:59.999",
        "2026-03-15T11:00:00", "2026-03-15T10:59:59.999", "2026-03-14T23:59:30", "2026-03-14T23:59:29.999",
    )
]  # fmt: skip
PLACES = [(4.83, 45.76), (4.9, 45.8), (4.845, 45.765), (2.35, 48.86), (7.26, 43.7), (7.2, 43.68), (-179.0, 10.0)]
FIELDS = {
    "title": some("Sunny flat", "flat, new: garden!", "a house", "SUNNY garden house", "Flat Sunny", ""),
    "body": some("Sunny flat", "sunny flat", "flat garden"),
    "city": some("Nice", "Lyon", "Paris", "London", "New York", "5", "nice"),
    "labels": some("new", "sunny", "old", "big", "true", "a"),
    "code": some("AB-12", "XAB-123", "A*B", "12"),
    "rooms": some(0, 1, 2, 3, 4, 5),
    "views": some(9007199254740992, 9007199254740993, 9007199254740994, 1),
    "price": some(450.0, 450.00000000000006, 899.5, 899.4999999999999, 900.0, 12.5),
    "rating": some(1.0, 2.5, 4.5, 5.0),
    "sold": some(True, False),
    "posted": some(*TIMES),
    "updated": some(*TIMES),
    "ip": some("10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.1.0", "192.168.3.4", "2001:db8::1", "10.0.0.0"),
    "release": some("1.9.0", "1.10.0", "2.0.0", "1.10"),
    "seller": st.fixed_dictionaries({}, optional={"name": some("ana", "bo"), "age": some(17, 18, 30, 64, 65)}),
    "place": st.one_of(st.none(), st.sampled_from([{"lon": lon, "lat": lat} for lon, lat in PLACES])),
}


def message_of(document: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The attributes and the place of a document, as the page "Coming from Elasticsearch" has them."""
    found: dict[str, Any] = {}
    made: dict[str, Any] = {"ip": ipaddress.ip_address, "version": Version}

    def add(name: str, value: Any) -> None:
        own = ORACLE.types[name]
        values = [each for each in (value if isinstance(value, list) else [value]) if each is not None]
        if own["type"] == "text":
            found[name] = [word for text in values for word in words(text, own)]
        elif values:
            found[name] = [made.get(own["type"], lambda value: value)(value) for value in values]
        for inner in own.get("fields", {}):
            found[f"{name}.{inner}"] = values

    for name, value in document.items():
        if name == "seller":
            for inner, each in value.items():
                add(f"seller.{inner}", each)
        elif name != "place":
            add(name, value)
    place = document.get("place")
    return found, None if place is None else (place["lon"], place["lat"])


class Raw(Percolator):
    """Where multi-fields have the values of their fields."""

    def values(self, name: str, document: dict[str, Any]) -> list[Any]:
        if name == "title.raw":
            name_of, document = "city", {"city": document.get("title")}
            return super().values(name_of, document)
        return super().values(name, document)


@pytest.fixture(scope="module")
def index():
    with TagMatch(key_type="string") as tm:
        for document in TAKEN:
            tm.put(**importing.elasticsearch(document, mapping=MAPPING))
        tm.consolidate()
        yield tm


def test_there_are_enough_documents():
    assert len(TAKEN) >= 200
    assert len({document["_id"] for document in DOCUMENTS}) == len(DOCUMENTS)


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_the_same_queries_match(index, document):
    attributes, place = message_of(document)
    attributes["now()"] = NOW
    found = index.match_unique([], attributes, location=place)
    oracle = Raw(PROPERTIES)
    assert found == {each["_id"] for each in TAKEN if oracle.matches(each["query"], document)}


def as_indexed(document: dict[str, Any], form: int) -> dict[str, Any]:
    """A document as it is indexed, in one of the forms that times, places and objects may have."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name == "place":
            lon, lat = (value["lon"], value["lat"]) if value else (0, 0)
            forms = (value, [lon, lat], f"{lat},{lon}", f"POINT ({lon} {lat})", [value], [[lon, lat], None])
            found[name] = value and forms[form % 6]
        elif name == "seller" and form % 2:
            found |= {f"seller.{inner}": each for inner, each in value.items()}
        elif name == "seller":
            found[name] = [{inner: each} for inner, each in value.items()]
        else:
            found[name] = as_json(value, form=0 if name == "updated" else form)
    return {"_id": "a", "_source": found} if form % 5 == 4 else found


def as_json(value: Any, form: int) -> Any:
    """A value of a document as JSON has it."""
    if isinstance(value, list):
        return [as_json(each, form) for each in value]
    if not isinstance(value, datetime):
        return value
    milliseconds = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return [milliseconds, str(milliseconds), value.isoformat(), value.isoformat().removesuffix("+00:00"), value][
        form % 5
    ]


@pytest.fixture(scope="module", params=["rarest", "balanced"])
def declared_index(request):
    with TagMatch(key_type="string", layout=request.param, **importing.declared(MAPPING)) as tm:
        for document in [*TAKEN, *NORMALIZED]:
            tm.put(**importing.elasticsearch(document, mapping=MAPPING))
        tm.consolidate()
        yield tm


NORMALIZED = [
    {"_id": "sku-1", "query": {"term": {"sku": "AB-12"}}},
    {"_id": "sku-2", "query": {"terms": {"sku": ["Ab-12", "X"]}}},
]


@given(st.fixed_dictionaries({}, optional=FIELDS), some("ab-12", "AB-12", "x", "abc"), st.integers(0, 60))
def test_documents_are_messages_of_an_index_with_the_mapping(declared_index, document, sku, form):
    """Texts become words, and texts of dates, addresses and versions values, where the mapping declares them."""
    message = importing.message(as_indexed({**document, "sku": sku}, form), MAPPING, location="place")
    assert json.loads(json.dumps(message["attributes"])) == message["attributes"]
    message["attributes"]["now()"] = NOW
    skus = [each.lower() for each in (sku if isinstance(sku, list) else [sku]) if each is not None]
    found = declared_index.match_unique(**message)
    oracle = Raw(PROPERTIES)
    expected = {each["_id"] for each in TAKEN if oracle.matches(each["query"], document)}
    expected |= {"sku-1"} if "ab-12" in skus else set()
    expected |= {"sku-2"} if {"ab-12", "x"} & {*skus} else set()
    assert found == expected


def test_messages_of_documents():
    types: dict[str, Any] = {
        "title": {"type": "text", "analyzer": "simple"}, "words": {"type": "text"}, "count": {"type": "long"},
        "time": {"type": "date", "format": "yyyy"}, "date": {"type": "date"},
        "day": {"type": "date", "format": "dd/MM/yyyy"}, "exact": {"type": "date_nanos"}, "home": {"type": "geo_point"},
        "vector": {"type": "dense_vector"}, "labels": {"type": "flattened"}, "kept": {"enabled": False},
        "rooms": {"type": "nested", "properties": {"size": {"type": "integer"}, "at": {"type": "geo_point"}}},
    }  # fmt: skip
    mapping = {"properties": types}
    document = {
        "title": "A3 Big-flat", "words": "big, flat", "count": "2.7", "day": "28/11/2026", "vector": [1.0],
        "kept": {"a": 1}, "exact": "2026-03-15T10:30:00.000000001Z", "labels": {"a": "b"}, "home": [4, 45],
        "none": None, "empty": [], "time": datetime(2026, 3, 15, 10, 0, 0, 123456), "date": TIMES[0].date(),
        "rooms": [{"size": [1, 2], "at": "45,4"}, {"size": 3}], "other": {"a": [{"b": 5}, {"b": "x"}]}, "true": True,
    }  # fmt: skip
    found = importing.message(document, mapping, tags="words", location="home")
    assert found == {
        "tags": ["big", "flat"], "location": (4.0, 45.0),
        "attributes": {
            "title": ["a", "big", "flat"], "count": 2, "day": "2026-11-28T00:00:00.000000000Z", "other.a.b": [5, "x"],
            "time": "2026-03-15T10:00:00.123000000Z", "date": "2026-03-15T00:00:00.000000000Z",
            "exact": "2026-03-15T10:30:00.000000001Z", "rooms.size": [1, 2, 3], "true": True,
        },
    }  # fmt: skip
    assert importing.message({"rooms": [{"at": [1, 2]}, {"at": [[3, 4]]}]}, mapping, location="rooms.at") == {
        "attributes": {}, "location": [(1.0, 2.0), (3.0, 4.0)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "location", "said"),
    [
        ({"home": "u09"}, None, "home: a point must be here"),
        ({"home": {"lat": 45}}, None, "home.lon: a number must be here"),
        ({"day": [1, "28.11.2026"]}, None, "day[1]: '28.11.2026' is no date of the format"),
        ({"rooms": [{"size": "big"}]}, None, "rooms[0].size: a number must be here"),
        ({"size": {"a": 1}}, None, "size: {'a': 1} is no value of field 'size', which has the type 'integer'"),
        ({"home": {"type": 5, "lat": 45}}, None, "home.lon: a number must be here"),
        ({"home": [10**400, 45]}, None, "home[0]: a number must be here"),
        ({"day": "2026-11-28T10:00:00+24:00"}, None, "day: '2026-11-28T10:00:00+24:00' is no date"),
        ({"size": 10**400}, None, "size: a number must be here"),
        ({"home": [4, 45]}, "work", "mapping: there is no geo_point 'work'"),
    ],
)
def test_documents_that_are_no_messages(document, location, said):
    sizes = {"size": {"type": "integer"}}
    types = {"home": {"type": "geo_point"}, "day": {"type": "date"}, "rooms": {"properties": sizes}, **sizes}
    with pytest.raises(importing.NotTakenError) as error:
        importing.message(document, {"properties": types}, location=location)
    assert str(error.value).startswith(said)


def test_a_document_with_one_place_of_two_fields_is_no_message():
    """Areas of queries mean one of them, and nothing says which."""
    mapping = {"properties": {name: {"type": "geo_point"} for name in ("home", "work")}}
    with pytest.raises(
        importing.NotTakenError, match=r"^home: .*one location; say which is, with location=: home, work"
    ):
        importing.message({"home": [4, 45]}, mapping)
    assert importing.message({"home": [4, 45]}, mapping, location="work")["location"] is None
    assert importing.message({"home": [4, 45], "work": [5, 46]}, mapping, location="work")["location"] == (5.0, 46.0)


ANALYSIS = {
    "filter": {"stem": {"type": "snowball", "language": "English"}, "gone": {"type": "stop"}},
    "analyzer": {
        "folded": {"tokenizer": "standard", "filter": ["lowercase", "asciifolding", "stem"]},
        "without": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "gone"]},
        "html": {"tokenizer": "standard", "char_filter": ["html_strip"]},
    },
    "normalizer": {"plain": {"type": "custom", "filter": ["lowercase", "asciifolding"]}},
}


def test_a_message_that_has_a_location_is_found_by_exists():
    """A location is no attribute of a message."""
    mapping = {"properties": {"at": {"type": "geo_point"}, "price": {"type": "long"}}}
    taken = importing.elasticsearch({"_id": "1", "query": {"exists": {"field": "at"}}}, mapping=mapping)
    with TagMatch() as tm:
        tm.put(**{**taken, "key": 1})
        tm.consolidate()
        assert [tm.match([], location=place) for place in ((-180, -90), (9.19, 45.46), None)] == [[1], [1], []]


def test_what_a_mapping_declares():
    texts = {name: {"type": "text", "analyzer": name} for name in ("folded", "without", "html", "standard")}
    others = {
        "city": {"type": "keyword", "normalizer": "plain"}, "size": {"type": "scaled_float", "scaling_factor": 100},
        "big": {"type": "unsigned_long"}, "day": {"type": "date", "format": "yyyy/MM/dd"}, "at": {"type": "geo_point"},
        "vector": {"type": "dense_vector"}, "words": {"type": "text", "search_analyzer": "whitespace"},
    }  # fmt: skip
    body = {"flats": {
        "settings": {"index": {"analysis": ANALYSIS}},
        "mappings": {"dynamic": "strict", "properties": {**texts, **others}},
    }}  # fmt: skip
    found = importing.declared(body, tags="standard")
    assert found == {
        "attributes": {
            "folded": "string", "without": "string", "html": "string", "city": "string", "size": "float64",
            "big": "uint64", "day": "timestamp", "words": "string",
        },
        "analyzers": {"folded": 'stems("english", no_accents(casefold(words())))', "city": "no_accents(casefold())"},
        "strict": True,
    }  # fmt: skip
    queries: list[dict[str, Any]] = [
        {"match": {"folded": "Les Cafés"}}, {"term": {"city": "NÎMES"}}, {"match_phrase": {"folded": "red bikes"}},
        {"range": {"day": {"gte": "2026/03/15"}}},
    ]  # fmt: skip
    with TagMatch(**found) as tm:
        for key, query in enumerate(queries):
            tm.put(**{**importing.elasticsearch({"_id": "1", "query": query}, mapping=body), "key": key})
        tm.consolidate()
        message = {"folded": "A red BIKE at the café", "city": "nimes", "day": "2026-03-15T00:00:00Z"}
        assert tm.match_unique([], message) == {0, 1, 2, 3}
        with pytest.raises(InvalidValueError, match="not declared"):
            tm.match([], {"town": "Nice"})
    with pytest.raises(importing.NotTakenError, match=r"^query\.match\.without: field 'without' has the analyzer"):
        importing.elasticsearch({"_id": "1", "query": {"match": {"without": "a"}}}, mapping=body)


def test_each_query_matches_a_document_and_not_another():
    """Of documents with one value of each field, so that the others are no empty promise."""
    oracle, held = Raw(PROPERTIES), dict[str, set[bool]]()
    title = ["Sunny flat", "flat, new: garden!", "a house", "SUNNY garden house"]
    for number in range(400):
        document: dict[str, Any] = {
            "title": title[number % 4], "body": ["Sunny flat", "sunny"][number % 2],
            "city": ["Nice", "Lyon", "Paris", "London", "New York", "5"][number % 6],
            "labels": [["new", "sunny"], ["old", "new", "big"], ["true"], ["a", "sunny"]][number // 2 % 4],
            "code": ["AB-12", "XAB-123", "A*B", "12"][number % 4], "rooms": number // 6 % 6,
            "views": 9007199254740992 + number % 3, "price": [450.0, 450.00000000000006, 899.5, 900.0][number % 4],
            "rating": [1.0, 4.5][number % 2], "sold": number % 3 == 0, "posted": TIMES[number % len(TIMES)],
            "updated": TIMES[number % len(TIMES)],
            "ip": ["10.0.0.7", "10.0.0.8", "192.168.3.4", "2001:db8::1", "10.0.1.0"][number % 5],
            "release": ["1.9.0", "1.10.0", "2.0.0"][number % 3], "seller": {"name": "ana", "age": 17 + number % 60},
            "place": dict(zip(("lon", "lat"), PLACES[number % 7], strict=True)),
        }  # fmt: skip
        if number % 3 == 1:
            del document["sold"]
        if number % 11 == 0:
            document = {"rooms": [1, 2, 3][: number % 4]}
        for each in TAKEN:
            held.setdefault(each["_id"], set()).add(oracle.matches(each["query"], document))
    always = {name for name, answers in held.items() if answers == {True}}
    assert always == {"match_all-1", "match_all-2", "function_score-2", "match-8", "bool-37"}
    assert {name for name, answers in held.items() if answers == {False}} == set()


@pytest.mark.parametrize("document", REFUSED, ids=lambda document: document["_id"])
def test_others_are_refused_by_their_path(document):
    with pytest.raises(importing.NotTakenError) as error:
        importing.elasticsearch(document, mapping=MAPPING)
    assert str(error.value).partition(": ")[0] == document["refused"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"match_none": {}}, "query.match_none: no message can satisfy it: it says so"),
        ({"exists": {"field": "offers"}}, "query.exists.field: field 'offers' is nested, which is not taken"),
        ({"match": {"title": "!!!"}}, "query.match.title: no message can satisfy it: '!!!' has no word"),
        (
            {"bool": {"must": [{"term": {"city": "Nice"}}, {"prefix": {"title": "Sun"}}]}},
            "query.bool.must[1].prefix.title: no message can satisfy it: the analyzer of 'title' makes no word 'Sun'",
        ),
        ({"range": {"posted": {"gte": "now-7d/d"}}}, "give 'now-8d', which takes at least as much"),
        ({"range": {"posted": {"gt": "now-7d/d"}}}, "give 'now-7d', which takes"),
        ({"range": {"posted": {"lte": "now/h"}}}, "give 'now+1h', which takes"),
        ({"range": {"posted": {"lt": "now/d"}}}, "give 'now', which takes"),
        ({"range": {"posted": {"gte": "now-1M"}}}, "give 'now-30d', in days, the nearest"),
        ({"range": {"posted": {"gte": "now-1y/d"}}}, "give 'now-366d', in days, the nearest"),
        ({"range": {"posted": {"gte": "now-x"}}}, "'now-x' is no date math, such as now-7d"),
        (
            {"bool": {"must_not": [{"term": {"city": "Nice"}}], "adjust_pure_negative": False}},
            "query.bool.adjust_pure_negative: with false, a query with must_not alone matches nothing",
        ),
        *(
            ({"terms_set": {"city": {"terms": [value], "minimum_should_match": 1}}}, "query.terms_set.city.terms[0]: ")
            for value in ([], {}, [["a"]])
        ),
        *(
            ({kind: {field: value if kind == "term" else {"gte": value}}}, f"query.{kind}.{field}")
            for kind in ("term", "range")
            for field, value in (
                ("rooms", 10**400),
                ("price", -(10**400)),
                ("posted", "2026-11-28T10:00:00+24:00"),
                ("posted", "9" * 5000),
                ("posted", f"now-{'9' * 5000}d"),
                ("posted", f"2026-11-28||+{'9' * 5000}d"),
            )
        ),
        *(
            (
                {"bool": {"should": [{"term": {"city": "Nice"}}], "minimum_should_match": count}},
                "minimum_should_match: ",
            )
            for count in ("9" * 5000, f"{'9' * 5000}<1", 10**400)
        ),
        ({"geo_distance": {"distance": "1km", "place": {"type": None, "lat": 10**400, "lon": 2}}}, "place.lat: "),
    ],
)
def test_why_queries_are_refused(query, said):
    with pytest.raises(importing.NotTakenError) as error:
        importing.elasticsearch({"_id": "a", "query": query}, mapping=MAPPING)
    assert said in str(error.value)


@given(st.integers(0, 3), st.sampled_from("dhm"), st.sampled_from("dhm"), st.sampled_from(["gt", "gte", "lt", "lte"]))
def test_the_remedy_for_a_rounded_time_takes_at_least_as_much(count, unit, rounded, bound):
    def query(text):
        return {"range": {"posted": {bound: text}}}

    given_, at = f"now-{count}{unit}/{rounded}", NOW.replace(hour=10, minute=20, second=30)
    with pytest.raises(importing.NotTakenError) as error:
        importing.elasticsearch({"_id": "a", "query": query(given_)}, mapping=MAPPING)
    remedy = re.search(r"give '(now[^']*)'", str(error.value))[1]
    assert importing.elasticsearch({"_id": "a", "query": query(remedy)}, mapping=MAPPING)["where"]
    for hours in range(-120, 60):
        document = {"posted": at + timedelta(hours=hours / 2, minutes=hours % 7)}
        assert ORACLE.matches(query(remedy), document) or not ORACLE.matches(query(given_), document)


def test_times_of_the_oracle():
    """A few that the documentation names."""
    assert ORACLE.matches(
        {"range": {"posted": {"gt": "2014-11-18||/M"}}}, {"posted": datetime(2014, 12, 1, tzinfo=UTC)}
    )
    last = datetime(2014, 12, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    assert not ORACLE.matches({"range": {"posted": {"gt": "2014-11-18||/M"}}}, {"posted": last})
    assert ORACLE.matches({"range": {"posted": {"lte": "2014-11-18||/M"}}}, {"posted": last})


PHRASES = [
    {"match_phrase": {"title": "sunny flat"}},
    {"match_phrase": {"title": {"query": "Flat, new", "slop": 0}}},
    {"multi_match": {"query": "sunny garden", "type": "phrase", "fields": ["title^2", "body"]}},
    {"bool": {"must_not": [{"match_phrase": {"title": "sunny flat"}}], "filter": [{"match": {"title": "flat"}}]}},
]


@given(FIELDS["title"])
def test_phrases(title):
    """For which an index keeps words in a row: it declares analyzers, and messages have whole texts."""
    properties = {"title": {"type": "text"}, "body": {"type": "text"}}
    analyzers = {name: casefold(words_of()) for name in properties}
    declared = dict.fromkeys(properties, "string")
    with TagMatch(key_type="string", attributes=declared, analyzers=analyzers, device="cpu", threads=1) as tm:
        for number, query in enumerate(PHRASES):
            tm.put(**importing.elasticsearch({"_id": str(number), "query": query}))
        tm.consolidate()
        # Words of several texts are neighbours for the oracle
        text = title[0] if isinstance(title, list) and title else title if isinstance(title, str) else ""
        oracle = Percolator(properties)
        wanted = {str(number) for number, query in enumerate(PHRASES) if oracle.matches(query, {"title": text})}
        assert tm.match_unique([], {"title": text}) == wanted


def test_phrases_that_are_refused():
    def document(query):
        return {"_id": "a", "query": {"match_phrase": {"title": {"query": "sunny flat", **query}}}}

    with pytest.raises(importing.NotTakenError, match=r"^query.match_phrase.title.slop: a phrase with words between"):
        importing.elasticsearch(document({"slop": 1}))
    with TagMatch(key_type="string") as tm, pytest.raises(FilterError, match="phrase needs an attribute with words"):
        tm.put(**importing.elasticsearch(document({})))
