"""The command `tagmatch`, as a person or a script runs it: sets become an index, and queries get its answers."""

import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import Oracle
from support.agreement import index_of
from support.command import COMMAND, FORMATS, Record, done, from_json_lines, refused, tagmatch, write
from support.index_files import contents_of

from tagmatch import IndexNotFoundError, TagMatch

STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema({"tags": STRINGS, "key": pa.uint64()})


def in_any_order(printed: str) -> list[Record]:
    return [{**answer, "keys": sorted(answer["keys"])} for answer in from_json_lines(printed)]


class Data(NamedTuple):
    """Sets and queries in files of JSON Lines, and in folders of Parquet."""

    folder: Path
    sets: list[Record]
    queries: list[list[str]]
    oracle: Oracle

    def answers(self, ids: Iterable[Any] | None = None) -> list[Record]:
        names = range(len(self.queries)) if ids is None else ids
        return [{"id": name, "keys": self.oracle.match(query)} for name, query in zip(names, self.queries, strict=True)]


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
    for name, rows, cut in (("sets", sets, 300), ("queries", [{"tags": query} for query in queries], 100)):
        write(folder / f"{name}.jsonl", rows)
        (folder / name).mkdir()
        write(folder / name / "b.parquet", rows[cut:])
        write(folder / name / "a.parquet", rows[:cut])
        for left_out in ("_facts.parquet", ".part.parquet"):  # by readers of folders
            (folder / name / left_out).write_text("left out")
    return Data(folder, sets, queries, oracle)


@pytest.fixture(scope="module")
def index(data):
    path = data.folder / "index"
    index_of([row["tags"] for row in data.sets], [row["key"] for row in data.sets], path, layout="balanced").close()
    return path


# -- build and match ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "sets"), [("rarest", "sets"), ("balanced", "sets.jsonl")])
def test_build_and_match(data, tmp_path, layout, sets):
    """From folders, whose files come in the order of their names, and from files."""
    built = tmp_path / "index"
    options = ["--layout", layout, "--max-partition-size", 50, "--threads", 2]
    assert done("build", data.folder / sets, built, *options) == ""
    with TagMatch.open(built) as tm:
        tm.check()
        stats = tm.stats()
        assert (stats["layout"], stats["max_partition_size"], len(tm)) == (layout, 50, len(data.oracle))
    for queries in ("queries", "queries.jsonl"):
        assert in_any_order(done("match", built, data.folder / queries)) == data.answers()


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
    assert in_any_order(done("match", index, path)) == some.answers(ids)


OTHER_IDS = [(".parquet", ids) for ids in ([1.5, 2.5], [True, False], [b"a", b"b"])]
OTHER_IDS += [(".jsonl", ids) for ids in ([1.5, 2.5], [True, False], [[1], [2]], [1, "b"], ["a", 2], [1, 2.5])]


@pytest.mark.parametrize(("suffix", "ids"), OTHER_IDS, ids=str)
def test_ids_must_be_integers_or_strings(index, tmp_path, suffix, ids):
    queries = write(tmp_path / f"queries{suffix}", [{"id": name, "tags": ["a"]} for name in ids])
    assert re.search(rf"{queries}.*\bid\b", refused("match", index, queries, "-o", tmp_path / "answers.jsonl"))


def test_ids_in_parquet_answers(index, tmp_path):
    """The first query decides whether ids are numbers or strings; row numbers replace missing ones."""
    answers = tmp_path / "answers.parquet"
    for ids, expected in ((["x", None], ["x", "1"]), ([None, 7], [0, 7]), ([None, "x"], None)):
        queries = write(tmp_path / "queries.jsonl", [{"tags": [], "id": name} for name in ids])
        if expected is None:
            assert "do not fit one Parquet column" in refused("match", index, queries, "-o", answers)
        else:
            done("match", index, queries, "-o", answers)
            assert pq.read_table(answers)["id"].to_pylist() == expected


def test_no_exact(index, data):
    output = from_json_lines(done("match", index, data.folder / "queries", "--no-exact"))
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
    for name in ("jsonl", "csv.gz", "parquet"):
        done("export", tmp_path / "index", tmp_path / f"again.{name}")
        done("build", tmp_path / f"again.{name}", tmp_path / name, "--allow-empty")
        assert contents_of(tmp_path / name) == contents_of(tmp_path / "index")
    queries = write(tmp_path / f"queries{suffix}", [], pa.schema({"tags": STRINGS}))
    assert done("match", tmp_path / "index", queries) == ""
    done("match", tmp_path / "index", queries, "-o", tmp_path / "answers.parquet")
    assert pq.read_table(tmp_path / "answers.parquet").to_pydict() == {"id": [], "keys": []}


# -- the command itself -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_help():
    overview = tagmatch("--help")
    changing, reading = ["build", "add", "remove", "restore"], ["match", "explain", "export", "dump", "info", "check"]
    assert all(command in overview for command in (*changing, *reading, "backup", "warmup"))
    assert "--max-partition-size" in tagmatch("build", "--help")


@pytest.mark.slow
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
        "match index queries.parquet --threads many", "add", "add index", "remove index a b", "explain",
        "add index sets --overwrite", "backup index", "restore place index --snapshot last",
    ],
)  # fmt: skip
def test_usage(arguments):
    tagmatch(*arguments.split(), code=2)


def test_check(index, tmp_path):
    assert done("check", index)
    damaged = tmp_path / "damaged"
    index_of([["a"]], [1], damaged).close()
    (file,) = damaged.glob("segment-*/keys.arrow")
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    for command in ("check", "info", "export"):
        assert str(file) in refused(command, damaged)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_index_is_replaced_only_with_overwrite(tmp_path):
    index = tmp_path / "index"
    index_of([["older"]], [1], index).close()
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


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=str)
def test_what_another_program_saves_during_a_build_stays(tmp_path, monkeypatch, options):
    index, consolidate = tmp_path / "index", TagMatch.consolidate
    if options:
        index_of([["older"]], [1], index).close()

    def late(tm: TagMatch[int], **given: Any) -> Any:
        monkeypatch.setattr(TagMatch, "consolidate", consolidate)
        index_of([["other"]], [7], index).close()
        return tm.consolidate(**given)

    monkeypatch.setattr(TagMatch, "consolidate", late)
    sets = write(tmp_path / "sets.jsonl", [{"tags": ["newer"], "key": 2}])
    assert "another program has saved changes to the index" in refused("build", sets, index, *options)
    with TagMatch.open(index) as tm:
        assert tm.match(["older", "newer", "other"]) == ([1, 7] if options else [7])


def test_build_does_not_touch_other_folders_and_files(data, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for name in ("file", "folder"):
        assert name in refused("build", data.folder / "sets", tmp_path / name, "--overwrite")
    assert sorted(tmp_path.rglob("*")) == before


def test_dictionaries_in_lists_may_be_of_several_row_groups(tmp_path):
    """Arrow reads no batch of such a column that two of them have."""
    lists = pa.array([["a"], ["b", "c"], []] * 100, pa.list_(pa.dictionary(pa.int32(), pa.string())))
    table = pa.table({"tags": lists, "key": pa.array(range(300), pa.uint64())})
    for size in (7, 100, 1000):
        pq.write_table(table, tmp_path / "sets.parquet", row_group_size=size)
        done("build", tmp_path / "sets.parquet", tmp_path / "index", "--overwrite")
        with TagMatch.open(tmp_path / "index") as tm:
            assert sorted(tm.match(["b", "c"])) == [key for key in range(300) if key % 3]


def parquet(**columns: Any) -> Callable[[Path], object]:
    return lambda path: pq.write_table(pa.table(columns), path, row_group_size=20_000)


def line(text: str) -> Callable[[Path], object]:
    """The third row, on the fourth line."""
    good = '{"tags": ["a"], "key": 1}\n'
    return lambda path: path.write_text(f"{good}\n{good}{text}\n{good}")


def text(data: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data.encode() if isinstance(data, str) else data)


def cut_short(path: Path) -> None:
    parquet(tags=[["a"]] * 1_000, key=range(1_000))(path)
    path.write_bytes(path.read_bytes()[:-100])


TAGS, KEYS, ROW = [["a"], ["b"], ["c"]], [1, 2, 3], {"tags": ["a"], "key": 1}
#: Beyond the first batch of any reader
LATE_KEYS, LATE_LINES = [*range(69_999), None], '{"tags": ["a"], "key": 1}\n' * 80_000
BAD_KEYS = ("null", -1, 2**64, 1.5, '"1"', "true")
BAD_TAGS = ("null", '["a", null]', '"a"', '["a", 1]', '[["a"]]')
OVER_LINES = ("", ', "area": {"lon": 8.9, "lat": 44.4, "metres": 20000}', ', "wher": 1', ', "name": 1')
BAD_LINES = [
    *((line(f'{{"tags": ["a"], "key": {key}}}'), ["row 2", "key"]) for key in BAD_KEYS),
    *((line(f'{{"tags": {tags}, "key": 1}}'), ["row 2", "tags"]) for tags in BAD_TAGS),
    (line('{"tags": ["a"]}'), ["row 2", "key"]), (line('{"key": 1}'), ["row 2", "tags"]),
    *((line(other), ["line 4 (row 2)"]) for other in ("[1]", "tags", '{"tags": ["a"], "ke')),
    *((line(f'{{"tags": ["b"],\n"key": 2{more}}}'), ["line 4 (row 2) is not a JSON object"]) for more in OVER_LINES),
    (text(LATE_LINES + '{"tags": ["a"], "key": "b"}'), ["line 80001", "row 80000", "key"]),
]  # fmt: skip
BAD_CSV = [
    (text("tags,id\na,1\n"), ["no column 'key'", "'tags', 'id'"]), (text(""), ["no column 'tags'"]),
    (text("tags,keys\na,1\n"), ["column 'keys'", "is 'key' meant?"]),
    (text("tags,key\na,1\na,\n"), ["line 3", "row 1", "'key'"]),
    (text("tags,key\na,1\n,1\n"), ["line 3", "row 1", "empty", "write [] for the empty set"]),
    (text("tags,key\na,1\n[1],1\n"), ["line 3", "row 1", "'tags'"]),
]  # fmt: skip
BAD_PARQUET = [
    (parquet(key=KEYS, tag=TAGS), ["tags"]), (parquet(tags=TAGS, keys=KEYS), ["key"]),
    *((parquet(tags=[tags] * 3, key=KEYS), ["tags", kind]) for tags, kind in (("a", "string"), ([1], "int64"))),
    *((parquet(tags=TAGS, key=[key] * 3), ["key", kind]) for key, kind in ((1.0, "double"), (True, "bool"))),
    (parquet(tags=[["a"], ["b"], None], key=KEYS), ["tags", "row 2"]),
    (parquet(tags=[["a"], [None], []], key=KEYS), ["tags", "row 1"]),
    *((parquet(tags=TAGS, key=[1, key, 3]), ["key", "row 1"]) for key in (None, -2)),
    (parquet(tags=[["a"]] * 70_000, key=LATE_KEYS), ["key", "row 69999"]), (cut_short, ["Parquet"]),
    (text("tags,key\n"), ["Parquet"]), (Path.touch, ["Parquet"]), (Path.mkdir, ["folder has no files"]),
    (lambda _: None, ["no such file"]),
]  # fmt: skip
BAD_SETS: list[tuple[str, Callable[[Path], object], list[str]]] = [
    *((".jsonl", *each) for each in BAD_LINES), *((".csv", *each) for each in BAD_CSV),
    *((".parquet", *each) for each in BAD_PARQUET),
    *((name, text(b"no such thing"), [""]) for name in (".jsonl.gz", ".jsonl.zst", ".csv.gz")),
    *((f".{name}", text(FORMATS[name]([ROW])[:-9]), [""]) for name in ("jsonl.gz", "jsonl.zst", "csv.gz")),
    *((suffix, Path.touch, ["cannot tell the format", ".parquet"]) for suffix in (".txt", "", ".parquet.gz", ".gz")),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "make", "words"), BAD_SETS, ids=range(len(BAD_SETS)))
def test_sets_that_cannot_be_used(tmp_path, suffix, make, words):
    make(sets := tmp_path / f"sets{suffix}")
    message = refused("build", sets, tmp_path / "index")
    assert [word for word in (str(sets), *words) if word not in message] == []
    assert_no_index(tmp_path / "index")


def assert_no_index(path: Path) -> None:
    with pytest.raises(IndexNotFoundError):
        TagMatch.open(path)
    assert not path.exists()


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["_hidden.parquet", ".hidden.jsonl", "sets.txt"])
def test_folders_that_cannot_be_used(index, tmp_path, name):
    sets = tmp_path / "sets"
    sets.mkdir()
    (sets / name).touch()
    assert "no files of a known format" in refused("build", sets, tmp_path / "index")
    write(sets / "a.parquet", [{"tags": ["a"], "key": 1}])
    (sets / "._workload.json.part").touch()
    assert "is not whole" in refused("match", index, sets)


def test_names_and_types_are_shown_and_read_as_they_are(tmp_path, monkeypatch):
    """With brackets, colons, commas and quotes; an index whose name begins with ~ is no home folder."""
    monkeypatch.chdir(tmp_path)
    names = {"note[en]": "x", ":smile:": "y", "city, country": "Rome", '"q"': "z", "at": "2026-01-01T00:00:00+00:00"}
    write(Path("s.jsonl"), [{"tags": ["cat"], "key": 1, **names}])
    kinds = dict.fromkeys(names, "string") | {"at": "timestamp[ms, UTC]"}
    columns = [part for name, kind in kinds.items() for part in ("--data", f"{name}={kind}")]
    done("build", "s.jsonl", "./~i", *columns, "--attribute", "price[/eur]=float64")
    assert Path("./~i").is_dir()
    told = " ".join(done("info", "./~i").split())
    for name, kind in {f"data {name}": kind for name, kind in kinds.items()}.items():
        assert f"{name} {kind}" in told
    assert "attribute price[/eur] float64" in told
    for file in ("o.csv", "o.jsonl", "o.parquet"):
        done("export", "./~i", file)
        done("build", file, f"{file}.index", *columns)
        assert json.loads(done("get", f"{file}.index", 1))["data"] == names
    with TagMatch("spaces", data={" a ": "string"}, device="cpu") as tm:
        tm.put(1, ["a"], data={" a ": "x"})
        tm.consolidate()
    assert "the column ' a ' has no form in CSV" in tagmatch("export", "spaces", "o.csv", code=1)


def test_a_number_that_json_has_rounded_is_no_decimal(tmp_path):
    for text, kept in (("1234567890123.45", "1234567890123.45"), ('"12345678901234567.89"', "12345678901234567.89")):
        (tmp_path / "s.jsonl").write_text(f'{{"tags": ["a"], "key": 1, "amount": {text}}}\n')
        done("build", tmp_path / "s.jsonl", tmp_path / "i", "--data", "amount=decimal(20, 2)", "--overwrite")
        assert json.loads(done("get", tmp_path / "i", 1))["data"] == {"amount": kept}
    for text in ("12345678901234567.89", "0.12345678901234567", "1.0000000000000003e16", "1.0000000000000001E16"):
        (tmp_path / "s.jsonl").write_text(f'{{"tags": ["a"], "key": 1, "amount": {text}}}\n')
        told = tagmatch("build", tmp_path / "s.jsonl", tmp_path / "j", "--data", "amount=decimal(38, 17)", code=1)
        assert "line 1" in told
        assert "more digits than JSON's numbers keep" in told


def test_a_link_to_nothing_in_a_folder_is_a_missing_file(tmp_path):
    (tmp_path / "f").mkdir()
    write(tmp_path / "f" / "a.jsonl", [{"tags": ["a"], "key": 1}])
    (tmp_path / "f" / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert "b.jsonl: no such file" in tagmatch("build", tmp_path / "f", tmp_path / "i", code=1)
    assert not (tmp_path / "i").exists()
