"""The command `import` puts what documents ask for, and says what it took and refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command import done, ended, refused

from tagmatch import TagMatch, casefold, words

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"


def written(path: Path, *documents: Any) -> Path:
    lines = (each if isinstance(each, str) else json.dumps(each) for each in documents)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def where_of(index: Path) -> dict[Any, str | None]:
    with TagMatch.open(index) as tm:
        return {key: record.where for key, record in tm.records.items()}


CITY = {"_id": "1", "query": {"term": {"city": "Nice"}}}


def test_all_queries_of_a_mapping(tmp_path):
    lines = (DATA / "percolator.jsonl").read_text().splitlines()
    refused_count = sum('"refused": ' in line for line in lines)
    index, taken = tmp_path / "index", len(lines) - refused_count
    arguments = ("elasticsearch", DATA / "percolator.jsonl", index, "--mapping", DATA / "mapping.json")
    said = refused("import", *arguments)
    first = f"percolator.jsonl: line {taken + 1} (row {taken}), _id 'refused-1'"
    assert f"{first}: query.nested: queries 'nested' are not taken" in said
    assert not index.exists()
    ran = ended("import", *arguments, "--skip-invalid")
    assert ran.returncode == 0
    said = ran.stderr.splitlines()
    assert said[-1] == f"tagmatch: skipped {refused_count} invalid rows"
    assert len(said) == refused_count + 1
    assert all(
        re.search(r"percolator.jsonl: line \d+ \(row \d+\), _id 'refused-[^']+': query", line) for line in said[:-1]
    )
    assert f": {taken:,} taken: " in ran.stdout
    assert "match_phrase 3" in ran.stdout
    assert "refused: query 3" in ran.stdout or "nested 3" in ran.stdout
    assert "not taken of the mapping: mapping.body: analyzer 'whitespace', mapping.notes: analyzer" in ran.stdout
    assert "mapping.span: type 'integer_range'" in ran.stdout
    assert "mapping.updated: format 'yyyy/MM/dd HH:mm:ss||yyyy/MM/dd||epoch_millis'" in ran.stdout
    assert "; multi-fields, which messages must give by these names: title.raw\n" in ran.stdout
    kept = where_of(index)
    assert len(kept) == taken
    # Once more, it changes nothing
    assert " already there" in ended("import", *arguments, "--skip-invalid").stdout
    assert where_of(index) == kept


def test_what_changes_documents_is_told(tmp_path):
    """Elasticsearch would index other values than the document has, and messages come as they are."""
    city = {"type": "keyword", "null_value": "NULL", "copy_to": "all", "ignore_above": 5}
    mapping = {"properties": {"city": city, "all": {"type": "keyword"}, "labels": {"type": "flattened"}}}
    (tmp_path / "mapping.json").write_text(json.dumps(mapping))
    labels = [{"_id": name, "query": {"term": {name: "a"}}} for name in ("labels", "labels.a.b")]
    arguments = ("elasticsearch", written(tmp_path / "a.jsonl", CITY, *labels), tmp_path / "index")
    ran = ended("import", *arguments, "--mapping", tmp_path / "mapping.json", "--skip-invalid")
    assert "mapping.city: null_value 'NULL' and copy_to 'all' and ignore_above 5, " in ran.stdout
    assert "mapping.labels: type 'flattened'" in ran.stdout
    assert "1 taken: term 1; refused: flattened 2; " in ran.stdout
    for name in ("labels", "labels.a.b"):
        assert f"query.term.{name}: field '{name}' is of a flattened object, which is not taken" in ran.stderr


def test_documents_replace_what_keys_have(tmp_path):
    index = tmp_path / "index"
    done("import", "elasticsearch", written(tmp_path / "a.jsonl", CITY), index)
    exported = {"_index": "x", "_id": "1", "_score": 1.0, "_source": {"query": {"term": {"city": "Lyon"}}}}
    done("import", "elasticsearch", written(tmp_path / "b.jsonl", exported), index)
    done("import", "vespa", written(tmp_path / "c.jsonl", {"put": "id:a", "fields": {"target": "age in [1..]"}}), index)
    rule = {"event": {"params": {"id": "r"}}, "conditions": {"any": [{"fact": "a", "operator": "equal", "value": 1}]}}
    done("import", "rules", written(tmp_path / "d.jsonl", rule), index, "--key", "event.params.id")
    assert where_of(index) == {"1": 'city = "Lyon"', "id:a": "age >= 1", "r": "a = 1"}


def test_fields_beside_the_query_are_data(tmp_path):
    """Of those columns only that the index has, or is given; also of fields within objects, and of exports."""
    index, file = tmp_path / "index", tmp_path / "a.jsonl"
    ana = CITY | {"email": "ana@x.org", "plan": {"seats": 3}, "other": 7}
    bo = {"_id": "2", "_source": {"query": CITY["query"], "email": "bo@x.org"}}
    columns = ("--data", "email=string", "--data", "plan.seats=int64")
    ran = ended("import", "elasticsearch", written(file, ana, bo), index, *columns, "--data", "emial=string")
    assert ran.stdout.endswith("; fields not taken: other; --data NAME=TYPE takes them\n")
    assert ran.stderr == "tagmatch: no row that was taken has a value for --data emial\n"
    done("import", "elasticsearch", written(file, bo | {"_id": "3"}), index)
    with TagMatch.open(index) as tm:
        found = {key: record.data for key, record in tm.records.items()}
    assert found["1"] == {"email": "ana@x.org", "plan.seats": 3}
    assert found["2"] == found["3"] == {"email": "bo@x.org"}
    said = refused("import", "elasticsearch", written(file, ana | {"plan": {"seats": "x"}}), index)
    assert "a.jsonl: line 1" in said
    assert "'plan.seats'" in said


def test_fields_and_rows_that_are_not_taken_are_named(tmp_path):
    """At most 20 of the fields, and all of the rows, as this standard error is no terminal."""
    index, file = tmp_path / "index", tmp_path / "a.jsonl"
    nested = [{"_id": str(each), "query": {"nested": {}}} for each in range(101)]
    most = CITY | {f"f{each:02}": each for each in range(21)} | {"_routing": "a", "none": None}
    ran = ended("import", "elasticsearch", written(file, most, *nested), index, "--skip-invalid")
    assert ran.stdout.endswith(" f18, f19 and others; --data NAME=TYPE takes them\n")
    *rows, last = ran.stderr.splitlines()
    assert (len(rows), last) == (101, "tagmatch: skipped 101 invalid rows")
    assert rows[-1].endswith("a.jsonl: line 102 (row 101), _id '100': query.nested: queries 'nested' are not taken")


def test_an_id_has_one_document(tmp_path):
    """Elasticsearch has no two; of another key, several queries are alternatives."""
    nice, lyon = CITY | {"user": "u"}, {"_id": 1, "_source": {"query": {"term": {"city": "Lyon"}}, "user": "u"}}
    index, file = tmp_path / "index", written(tmp_path / "a.jsonl", nice, {**CITY, "_id": "2"}, lyon)
    said = refused("import", "elasticsearch", file, index)
    assert re.search(r"a\.jsonl: line 3 \(row 2\), _id 1: _id: it is that of \S+a\.jsonl: line 1 \(row 0\), too", said)
    assert not index.exists()
    ran = ended("import", "elasticsearch", file, index, "--skip-invalid")
    assert "2 taken: term 2; refused: key 1" in ran.stdout
    assert where_of(index) == {"1": 'city = "Nice"', "2": 'city = "Nice"'}
    file = written(tmp_path / "b.jsonl", nice, lyon)
    done("import", "elasticsearch", file, tmp_path / "users", "--key", "user")
    with TagMatch.open(tmp_path / "users") as tm:
        assert tm.match_unique([], {"city": "Nice"}) == tm.match_unique([], {"city": "Lyon"}) == {"u"}


def test_integers_as_keys_and_tags(tmp_path):
    index, file = tmp_path / "index", tmp_path / "a.jsonl"
    query = {"bool": {"filter": [{"match": {"text": {"query": "Bonsai Tree", "operator": "and"}}}, CITY["query"]]}}
    done("import", "elasticsearch", written(file, {"id": 7, "alert": query}), index, "--key-type", "integer",
         "--tags", "text", "--field", "alert", "--expires", "30d")  # fmt: skip
    with TagMatch.open(index) as tm:
        assert tm.match(["bonsai", "tree"], {"city": "Nice"}) == [7]
        assert tm.get(7).expires is not None
    assert "query: there is no such field" in refused("import", "elasticsearch", written(file, {"id": 7}), index)
    said = refused("import", "elasticsearch", written(file, {"id": "a", "query": CITY["query"]}), index)
    assert said.endswith("a.jsonl: line 1 (row 0), id 'a': id: 'a' is no integer, as the keys of this index are\n")
    assert "_id: there is no key" in refused("import", "elasticsearch", written(file, {"query": CITY["query"]}), index)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "list where an object must be"),
        ('{"_id": 1, "_id": 2}', 'an object has "_id" more than once'),
        ("{", "Expecting property name"),
        ("7", "int where an object must be"),
    ],
)
def test_lines_that_are_no_documents(tmp_path, line, said):
    file, index = written(tmp_path / "a.jsonl", CITY, line, {**CITY, "_id": "2"}), tmp_path / "index"
    assert (
        f"a.jsonl: line 2 (row 1) is not a JSON object: {said}" in refused("import", "elasticsearch", file, index)
        or said == "is not a JSON object"
    )
    ran = ended("import", "elasticsearch", file, index, "--skip-invalid")
    assert (ran.returncode, sorted(where_of(index))) == (0, ["1", "2"])


def test_other_mistakes(tmp_path):
    file, index = written(tmp_path / "a.jsonl", CITY), tmp_path / "index"
    assert "documents are JSON Lines" in refused("import", "elasticsearch", file, index, "--format", "csv")
    mapping = written(tmp_path / "m.json", {"settings": {}})
    assert "mapping: there are no properties" in refused("import", "elasticsearch", file, index, "--mapping", mapping)
    assert "are of Elasticsearch" in refused("import", "rules", file, index, "--tags", "text")
    assert ended("import", "solr", file, index).returncode == 2
    assert "no such file" in refused("import", "elasticsearch", tmp_path / "none.jsonl", index)
    assert not index.exists()


def test_phrases_need_an_index_with_words(tmp_path):
    phrase = {"_id": "2", "query": {"match_phrase": {"title": "big flat"}}}
    index, file = tmp_path / "index", written(tmp_path / "a.jsonl", CITY, phrase)
    said = refused("import", "elasticsearch", file, index)
    assert (
        "line 2 (row 1), _id '2': query.match_phrase.title: a phrase of several words needs an index that keeps" in said
    )
    assert ended("import", "elasticsearch", file, index, "--skip-invalid").returncode == 0
    assert where_of(index) == {"1": 'city = "Nice"'}
    declared = {"attributes": {"title": "string"}, "analyzers": {"title": casefold(words())}}
    with TagMatch(tmp_path / "other", key_type="string", **declared) as tm:
        tm.consolidate()
    done("import", "elasticsearch", file, tmp_path / "other")
    with TagMatch.open(tmp_path / "other") as tm:
        assert tm.match([], {"title": "A Big flat"}) == ["2"]


def test_a_new_index_has_the_attributes_of_the_mapping(tmp_path):
    """One that is there keeps its own."""
    phrase = {"_id": "2", "query": {"match_phrase": {"title": "big flat"}}}
    mapping = written(
        tmp_path / "m.json",
        {"properties": {"title": {"type": "text"}, "city": {"type": "keyword"}}, "dynamic": "strict"},
    )
    file, index, other = written(tmp_path / "a.jsonl", CITY, phrase), tmp_path / "index", tmp_path / "other"
    done("import", "elasticsearch", file, index, "--mapping", mapping)
    with TagMatch.open(index) as tm:
        assert tm.stats()["attributes"] == {"city": "string", "title": "string, casefold(words())"}
        assert tm.stats()["strict"]
        assert tm.match([], {"title": "A Big flat"}) == ["2"]
    with TagMatch(other, key_type="string", attributes={"city": "string"}) as tm:
        tm.consolidate()
    said = refused("import", "elasticsearch", file, other, "--mapping", mapping)
    assert (
        "line 2 (row 1), _id '2': query.match_phrase.title: a phrase of several words needs an index that keeps" in said
    )
    assert ended("import", "elasticsearch", file, other, "--mapping", mapping, "--skip-invalid").returncode == 0
    with TagMatch.open(other) as tm:
        assert tm.stats()["attributes"] == {"city": "string"}


def test_fields_of_nested_objects_are_declared_by_their_paths(tmp_path):
    """So that messages may have them if the mapping is strict; queries of them are refused still."""
    rooms = {"type": "nested", "properties": {"size": {"type": "integer"}}}
    mapping = {"properties": {"city": {"type": "keyword"}, "rooms": rooms}, "dynamic": "strict"}
    large = {"_id": "2", "query": {"range": {"rooms.size": {"gte": 20}}}}
    index, file = tmp_path / "index", written(tmp_path / "a.jsonl", CITY, large)
    ran = ended("import", "elasticsearch", file, index, "--mapping", written(tmp_path / "m.json", mapping),
                "--skip-invalid")  # fmt: skip
    assert "query.range.rooms.size: field 'rooms.size' is nested, which is not taken" in ran.stderr
    with TagMatch.open(index) as tm:
        assert tm.match([], {"city": "Nice", "rooms.size": [12, 20]}) == ["1"]
