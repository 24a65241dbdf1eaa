"""The command `tagmatch`, as a person or a script runs it: sets become an index, and queries get its answers."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import Oracle
from support.command import COMMAND, Record, done, from_json_lines, read, refused, tagmatch, write

from tagmatch import IndexNotFoundError, TagMatch

STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema({"tags": STRINGS, "key": pa.uint64()})


def in_any_order(answers: list[Record]) -> list[Record]:
    """The keys of each answer sorted."""
    return [{**answer, "keys": sorted(answer["keys"])} for answer in answers]


class Data(NamedTuple):
    folder: Path
    sets: list[Record]
    queries: list[list[str]]
    oracle: Oracle

    def answers(self, ids: list[Any] | None = None, unique: bool = False) -> list[Record]:
        """What `match` has to write."""
        match = self.oracle.match_unique if unique else self.oracle.match
        return [
            {"id": name, "keys": sorted(match(query))}
            for name, query in zip(range(len(self.queries)) if ids is None else ids, self.queries, strict=True)
        ]


@pytest.fixture(scope="module")
def data(tmp_path_factory, seed):
    rng = random.Random(seed)
    vocabulary = ["", "é", "日本語", '"', "\\", "\n", *(f"tag{i}" for i in range(60))]
    weights = [1 / (rank + 2) for rank in range(len(vocabulary))]
    folder = tmp_path_factory.mktemp("data")
    sets = [
        {"tags": rng.choices(vocabulary, weights, k=rng.randint(0, 5)), "key": rng.choice((i // 3, 2**64 - 1 - i))}
        for i in range(1_000)
    ]
    queries = [rng.choices(vocabulary, weights, k=rng.randint(0, 12)) for _ in range(400)]
    oracle = Oracle()
    oracle.add_sets([row["tags"] for row in sets], [row["key"] for row in sets])
    oracle.consolidate()
    for suffix in (".parquet", ".jsonl"):
        write(folder / f"sets{suffix}", sets)
        write(folder / f"queries{suffix}", [{"tags": query} for query in queries])
    return Data(folder, sets, queries, oracle)


@pytest.fixture(scope="module")
def index(data):
    """A small index that no test changes."""
    path = data.folder / "index"
    with TagMatch(path, layout="balanced") as tm:
        tm.add_sets([row["tags"] for row in data.sets], [row["key"] for row in data.sets])
        tm.consolidate()
    return path


# -- build and match ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "suffix"), [("rarest", ".parquet"), ("balanced", ".jsonl")])
def test_build_and_match(data, tmp_path, layout, suffix):
    built = tmp_path / "index"
    options = ["--layout", layout, "--max-partition-size", 50, "--threads", 2]
    assert done("build", data.folder / f"sets{suffix}", built, *options) == ""
    with TagMatch.open(built) as tm:
        tm.check()
        stats = tm.stats()
        assert (stats["layout"], stats["max_partition_size"], len(tm)) == (layout, 50, len(data.oracle))
    for kind in (".parquet", ".jsonl"):
        output = from_json_lines(done("match", built, data.folder / f"queries{kind}"))
        assert in_any_order(output) == data.answers()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("unique", [False, True], ids=["all", "unique"])
def test_output_file(index, data, tmp_path, suffix, unique):
    output = tmp_path / f"answers{suffix}"
    flags = ["--unique"] if unique else []
    assert done("match", index, data.folder / "queries.parquet", "-o", output, "--threads", 2, *flags) == ""
    assert in_any_order(read(output)) == data.answers(unique=unique)
    assert list(tmp_path.iterdir()) == [output]
    if suffix == ".parquet":
        assert pq.read_schema(output).field("keys").type.value_type == pa.uint64()


NUMBERS, TEXTS = [5, 0, 100], ["", 'with "quotes"\n', "é🙂\\"]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (NUMBERS, pa.int8()), ([2**64 - 1, 0, 1], pa.uint64()), (TEXTS, pa.string()), (TEXTS, pa.large_string()),
        *((ids, None) for ids in ([5, 0, -(2**63)], [1, 2**63 - 1, 2], TEXTS, [2**64 - 1, 0, 1], [0, 1, 2**64 - 1])),
    ],
)  # fmt: skip
def test_ids(index, data, tmp_path, ids, kind):
    """Of Parquet, of a type, and of JSON Lines."""
    some = data._replace(queries=data.queries[: len(ids)])
    records = [{"other": 1, "id": name, "tags": query} for name, query in zip(ids, some.queries, strict=True)]
    schema = None if kind is None else pa.schema({"other": pa.int32(), "id": kind, "tags": STRINGS})
    path = write(tmp_path / ("queries.jsonl" if kind is None else "queries.parquet"), records, schema)
    assert in_any_order(from_json_lines(done("match", index, path))) == some.answers(ids)


@pytest.mark.parametrize(
    ("suffix", "ids"),
    [
        *itertools.product([".parquet"], [[1.5, 2.5], [True, False], [b"a", b"b"]]),
        *itertools.product([".jsonl"], [[1.5, 2.5], [True, False], [[1], [2]], [1, "b"], ["a", 2], [1, 2.5]]),
    ],
    ids=str,
)
def test_ids_must_be_integers_or_strings(index, tmp_path, suffix, ids):
    queries = write(tmp_path / f"queries{suffix}", [{"id": name, "tags": ["a"]} for name in ids])
    message = refused("match", index, queries, "-o", tmp_path / "answers.jsonl")
    assert str(queries) in message
    assert re.search(r"\bid\b", message)


def test_ids_in_parquet_answers(index, tmp_path):
    """The first query decides whether ids are numbers or strings; row numbers stand for those that are missing."""
    answers = tmp_path / "answers.parquet"
    for ids, expected in ((["x", None], ["x", "1"]), ([None, 7], [0, 7]), ([None, "x"], None)):
        queries = write(tmp_path / "queries.jsonl", [{"tags": [], "id": name} for name in ids])
        if expected is None:
            assert "do not fit one Parquet column" in refused("match", index, queries, "-o", answers)
        else:
            done("match", index, queries, "-o", answers)
            assert pq.read_table(answers)["id"].to_pylist() == expected


def test_no_exact(index, data):
    output = from_json_lines(done("match", index, data.folder / "queries.parquet", "--no-exact"))
    for found, exact in zip(output, data.answers(), strict=True):
        assert Counter(found["keys"]) >= Counter(exact["keys"])


@pytest.mark.parametrize("suffix", [".json", ".ndjson"])
def test_other_suffixes_and_line_ends(tmp_path, suffix):
    sets = tmp_path / f"sets{suffix}"
    sets.write_bytes(b'{"tags": ["a"], "key": 1}\r\n\n  \n{"key": 2, "tags": [], "more": {"x": [1]}}')
    done("build", sets, tmp_path / "index", "--ignore-columns", "more")
    with TagMatch.open(tmp_path / "index") as tm:
        assert dict(tm.explain(["a"])) == {frozenset("a"): (1,), frozenset(): (2,)}


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_no_rows(tmp_path, suffix):
    sets = write(tmp_path / f"sets{suffix}", [], SCHEMA)
    assert "has no set, so no index is made" in refused("build", sets, tmp_path / "index")
    assert_no_index(tmp_path / "index")
    done("build", sets, tmp_path / "index", "--allow-empty")
    assert len(TagMatch.open(tmp_path / "index")) == 0
    queries = write(tmp_path / f"queries{suffix}", [], pa.schema({"tags": STRINGS}))
    assert done("match", tmp_path / "index", queries) == ""
    done("match", tmp_path / "index", queries, "-o", tmp_path / "answers.parquet")
    assert pq.read_table(tmp_path / "answers.parquet").to_pydict() == {"id": [], "keys": []}


def test_other_types_in_parquet(data, tmp_path):
    few = data.sets[:50]
    table = pa.table(
        {
            "key": pa.array(range(len(few)), pa.int16()),
            "tags": pa.ListArray.from_arrays(
                pa.array(itertools.accumulate((len(row["tags"]) for row in few), initial=0), pa.int32()),
                pa.array([tag for row in few for tag in row["tags"]]).dictionary_encode(),
            ).cast(pa.large_list(pa.dictionary(pa.int32(), pa.string()))),
        }
    )
    pq.write_table(table, tmp_path / "sets.parquet")
    done("build", tmp_path / "sets.parquet", tmp_path / "index")
    oracle = Oracle()
    oracle.add_sets([row["tags"] for row in few], range(len(few)))
    oracle.consolidate()
    with TagMatch.open(tmp_path / "index") as tm:
        everything = [tag for row in few for tag in row["tags"]]
        assert dict(tm.explain(everything)) == dict(oracle.explain(everything))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", pytest.param(".jsonl", marks=pytest.mark.nightly)])
def test_many_queries(index, data, tmp_path, suffix):
    """70,000, more than one batch of any reader."""
    path = write(tmp_path / f"long{suffix}", [{"tags": [*data.queries[i % 7], "x" * 120]} for i in range(70_000)])
    output = from_json_lines(done("match", index, path, "--unique"))
    assert [answer["id"] for answer in output] == list(range(70_000))
    expected = [data.oracle.match_unique(query) for query in data.queries[:7]]
    assert all(set(answer["keys"]) == expected[answer["id"] % 7] for answer in output)


# -- the command itself -----------------------------------------------------------------------------------------------


def test_info(index, data):
    shown, text = json.loads(done("info", index, "--json")), done("info", index)
    assert (shown["sets"], shown["layout"]) == (len(data.oracle), "balanced")
    assert "balanced" in text
    assert str(len(data.oracle)) in text
    command = [sys.executable, "-m", "tagmatch", "info", index, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == shown


def test_help():
    overview = tagmatch("--help")
    changing, reading = ["build", "add", "remove", "restore"], ["match", "explain", "export", "dump", "info", "check"]
    assert all(command in overview for command in (*changing, *reading, "backup", "warmup"))
    assert "--max-partition-size" in tagmatch("build", "--help")


def test_completion():
    for words, offered in (("w", ["warmup"]), ("ex", ["explain", "export"])):
        own = {"_TAGMATCH_COMPLETE": "complete_bash", "COMP_WORDS": f"tagmatch {words}", "COMP_CWORD": "1"}
        ran = subprocess.run([COMMAND], env=os.environ | own, capture_output=True, text=True)
        assert sorted(ran.stdout.split()) == offered


@pytest.mark.parametrize(
    "arguments",
    [
        "build sets.parquet", "frobnicate", "build sets.parquet index --layout fastest", "info index --xml",
        "build sets.parquet index --threads 0", "build sets.parquet index --max-partition-size 0",
        "match index queries.parquet --threads many", "add", "add index", "remove index a b", "explain i",
        "add index sets --overwrite", "backup index", "restore place index --snapshot last",
    ],
)  # fmt: skip
def test_usage(arguments):
    tagmatch(*arguments.split(), code=2)


def test_check(index, tmp_path):
    assert done("check", index)
    damaged = tmp_path / "damaged"
    with TagMatch(damaged) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    largest = max((file for file in damaged.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    contents = bytearray(largest.read_bytes())
    contents[len(contents) // 2] ^= 1
    largest.write_bytes(contents)
    for command in ("check", "info"):
        assert str(damaged) in refused(command, damaged)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_index_is_replaced_only_with_overwrite(tmp_path):
    index = tmp_path / "index"
    with TagMatch(index) as tm:
        tm.add_set(["older"], 1)
        tm.consolidate()
    sets = write(tmp_path / "sets.jsonl", [{"tags": ["newer"], "key": 2}])
    assert "--overwrite" in refused("build", sets, index)
    assert "nowhere.jsonl" in refused("build", tmp_path / "nowhere.jsonl", index, "--overwrite")
    bad = write(tmp_path / "bad.jsonl", [{"tags": ["newer"], "key": 2}, {"tags": ["newer"], "key": -2}])
    assert "row 1" in refused("build", bad, index, "--overwrite")
    with TagMatch.open(index) as tm:
        assert tm.match(["older", "newer"]) == [1]
    done("build", sets, index, "--overwrite", "--layout", "balanced")
    with TagMatch.open(index) as tm:
        tm.check()
        assert tm.explain(["older", "newer"]) == [(frozenset(["newer"]), (2,))]
        assert tm.stats()["layout"] == "balanced"


def test_build_does_not_touch_other_folders_and_files(data, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for name in ("file", "folder"):
        assert name in refused("build", data.folder / "sets.parquet", tmp_path / name, "--overwrite")
    assert sorted(tmp_path.rglob("*")) == before


GOOD = {"tags": ["a"], "key": 1}

BAD_JSON_LINES = {
    "null key": ('{"tags": ["a"], "key": null}', ["key"]),
    "negative key": ('{"tags": ["a"], "key": -1}', ["key"]),
    "key of 65 bits": ('{"tags": ["a"], "key": 18446744073709551616}', ["key"]),
    "fraction": ('{"tags": ["a"], "key": 1.5}', ["key"]),
    "string for a key": ('{"tags": ["a"], "key": "1"}', ["key"]),
    "bool for a key": ('{"tags": ["a"], "key": true}', ["key"]),
    "no key": ('{"tags": ["a"]}', ["key"]),
    "null tags": ('{"tags": null, "key": 1}', ["tags"]),
    "null tag": ('{"tags": ["a", null], "key": 1}', ["tags"]),
    "string for tags": ('{"tags": "a", "key": 1}', ["tags"]),
    "number for a tag": ('{"tags": ["a", 1], "key": 1}', ["tags"]),
    "nested tags": ('{"tags": [["a"]], "key": 1}', ["tags"]),
    "no tags": ('{"key": 1}', ["tags"]),
    "no object": ("[1]", ["line 4"]),
    "no JSON": ("tags", ["line 4"]),
    "line cut short": ('{"tags": ["a"], "ke', ["line 4"]),
}


@pytest.mark.parametrize(("line", "words"), BAD_JSON_LINES.values(), ids=BAD_JSON_LINES)
def test_bad_json_lines(tmp_path, line, words):
    """The third row, on the fourth line."""
    sets = tmp_path / "sets.jsonl"
    good = json.dumps(GOOD)
    sets.write_text(f"{good}\n\n{good}\n{line}\n{good}\n")
    message = refused("build", sets, tmp_path / "index")
    for word in (str(sets), "row 2", *words):
        assert word in message
    assert_no_index(tmp_path / "index")


def assert_no_index(path: Path) -> None:
    with pytest.raises(IndexNotFoundError):
        TagMatch.open(path)
    assert not path.exists()


def parquet(**columns: pa.Array) -> Callable[[Path], object]:
    return lambda path: pq.write_table(pa.table(columns), path)


def nothing(path: Path) -> None:
    """The path stays free."""


def cut_short(path: Path) -> None:
    parquet(tags=pa.array([["a"]] * 1_000), key=pa.array(range(1_000)))(path)
    path.write_bytes(path.read_bytes()[:-100])


def late_null(path: Path) -> None:
    """A null beyond the first batch of any reader."""
    keys = pa.array([None if row == 69_999 else row for row in range(70_000)])
    pq.write_table(pa.table({"tags": pa.array([["a"]] * 70_000), "key": keys}), path, row_group_size=20_000)


TAGS, KEYS = pa.array([["a"], ["b"], ["c"]]), pa.array([1, 2, 3])

BAD_PARQUET = {
    "no column tags": (parquet(key=KEYS, tag=TAGS), ["tags"]),
    "no column key": (parquet(tags=TAGS, keys=KEYS), ["key"]),
    "strings for tags": (parquet(tags=pa.array(["a", "b", "c"]), key=KEYS), ["tags", "string"]),
    "binary tags": (parquet(tags=pa.array([[b"a"]] * 3), key=KEYS), ["tags", "binary"]),
    "numbers for tags": (parquet(tags=pa.array([[1]] * 3), key=KEYS), ["tags", "int64"]),
    "floats for keys": (parquet(tags=TAGS, key=pa.array([1.0, 2.0, 3.0])), ["key", "double"]),
    "strings for keys": (parquet(tags=TAGS, key=pa.array(["1", "2", "3"])), ["key", "string"]),
    "bools for keys": (parquet(tags=TAGS, key=pa.array([True] * 3)), ["key", "bool"]),
    "null tags": (parquet(tags=pa.array([["a"], ["b"], None]), key=KEYS), ["tags", "row 2"]),
    "null tag": (parquet(tags=pa.array([["a"], [None], []]), key=KEYS), ["tags", "row 1"]),
    "null key": (parquet(tags=TAGS, key=pa.array([1, 2, None])), ["key", "row 2"]),
    "negative key": (parquet(tags=TAGS, key=pa.array([1, -2, 3])), ["key", "row 1"]),
    "late null": (late_null, ["key", "row 69999"]),
    "cut short": (cut_short, ["Parquet"]),
    "no Parquet": (lambda path: path.write_text("tags,key\n"), ["Parquet"]),
    "empty file": (Path.touch, ["Parquet"]),
    "folder": (Path.mkdir, ["folder has no files"]),
    "missing": (nothing, ["no such file"]),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_bad_parquet(tmp_path, make, words):
    sets = tmp_path / "sets.parquet"
    make(sets)
    message = refused("build", sets, tmp_path / "index")
    for word in (str(sets), *words):
        assert word in message
    assert_no_index(tmp_path / "index")


def test_late_bad_json_line(tmp_path):
    good = json.dumps({"tags": ["x" * 120], "key": 1}) + "\n"
    sets = tmp_path / "sets.jsonl"
    sets.write_text(good * 80_000 + '{"tags": ["a"], "key": "b"}\n' + good)
    message = refused("build", sets, tmp_path / "index")
    for word in (str(sets), "line 80001", "row 80000", "key"):
        assert word in message
    assert_no_index(tmp_path / "index")


@pytest.mark.parametrize("name", ["sets.txt", "sets", "sets.parquet.gz", "sets.gz"])
def test_unknown_suffix(tmp_path, name):
    (tmp_path / name).touch()
    message = refused("build", tmp_path / name, tmp_path / "index")
    assert name in message
    assert ".parquet" in message


def test_bad_queries(index, tmp_path):
    """A file of answers is written wholly or not at all."""
    older = {suffix: tmp_path / f"answers{suffix}" for suffix in (".parquet", ".jsonl")}
    older[".jsonl"].write_text("older")
    good = write(tmp_path / "good.jsonl", [{"tags": ["a"]}])
    bad = write(tmp_path / "bad.jsonl", [{"tags": ["a"]}] * 3 + [{"tags": None}])
    before = sorted(tmp_path.iterdir())
    for output in older.values():
        message = refused("match", index, bad, "--output", output)
        for word in (str(bad), "tags", "row 3"):
            assert word in message
    assert sorted(tmp_path.iterdir()) == before
    assert older[".jsonl"].read_text() == "older"
    assert "answers.csv" in refused("match", index, good, "-o", tmp_path / "answers.csv")
    assert str(tmp_path / "no") in refused("match", index, good, "-o", tmp_path / "no" / "answers.jsonl")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [("info",), ("check",), ("match", "queries.jsonl")], ids=lambda words: words[0])
def test_missing_index(tmp_path, arguments):
    command, *others = arguments
    queries = [write(tmp_path / name, [{"tags": ["a"]}]) for name in others]
    assert str(tmp_path / "nowhere") in refused(command, tmp_path / "nowhere", *queries)
    assert not (tmp_path / "nowhere").exists()


# -- folders -----------------------------------------------------------------------------------------------------------


def test_build_and_match_of_folders(data, tmp_path):
    """Parquet files in the order of their names, without those that readers of folders leave out."""
    sets, queries = tmp_path / "sets", tmp_path / "queries"
    for folder in (sets, queries):
        folder.mkdir()
    write(sets / "b.parquet", data.sets[:300])
    write(sets / "a.parquet", data.sets[300:])
    write(queries / "2.parquet", [{"tags": query} for query in data.queries[100:]])
    write(queries / "1.parquet", [{"tags": query} for query in data.queries[:100]])
    for folder in (sets, queries):
        (folder / "_facts.parquet").write_text("left out")
        (folder / ".part.parquet").write_text("left out")
    index = tmp_path / "index"
    assert done("build", sets, index) == ""
    assert in_any_order(from_json_lines(done("match", index, queries))) == data.answers()


@pytest.mark.parametrize("name", ["_hidden.parquet", ".hidden.jsonl", "sets.txt"])
def test_folder_without_files_of_sets(tmp_path, name):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / name).touch()
    assert "no files of a known format" in refused("build", tmp_path / "sets", tmp_path / "index")


@pytest.mark.parametrize("command", ["build", "match"])
def test_folder_that_is_not_whole(index, data, tmp_path, command):
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "a.parquet", data.sets)
    (folder / "._workload.json.part").touch()
    arguments = (folder, tmp_path / "new") if command == "build" else (index, folder)
    assert "is not whole" in refused(command, *arguments)
    assert not (tmp_path / "new").exists()
