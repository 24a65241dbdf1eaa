"""The command `tagmatch-workload`, as a person or a script runs it."""

import json
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from support.command import growing_at_most
from support.workload import COMMAND, refused, run

from tagmatch import TagMatch
from tagmatch.cli.app import app as tagmatch_app
from tagmatch.cli.shared import run as run_app
from tagmatch.workloads.archives import read_tweets
from tagmatch.workloads.twitter import Twitter, TwitterOptions

pytestmark = pytest.mark.slow


SMALL = ["--publishers", 5000, "--hashtags", 3000, "--mean-followed", 10, "--threads", 2]
OPTIONS = TwitterOptions(publishers=5000, hashtags=3000, mean_followed=10)


def read(folder: Path) -> pa.Table:
    """All shards in the order of their names."""
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("[!._]*.parquet"))])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workload") / "sets"
    assert run("twitter", folder, "--users", 300, *SMALL) == ""
    return folder


def test_twitter(stored: Path) -> None:
    assert read(stored).equals(Twitter(OPTIONS).sets(0, 300))
    noted = json.loads((stored / "_workload.json").read_text())
    assert noted["rows"] == len(read(stored))
    assert (noted["generator"], noted["users"], noted["shards"]) == ("twitter", 300, 8)
    assert TwitterOptions(**noted["options"]) == OPTIONS
    assert {path.name[:5] for path in stored.iterdir()} == {"sets-", "_work"}


@pytest.mark.parametrize(("shards", "threads"), [(1, 1), (400, 4)])
def test_rows_do_not_depend_on_shards_and_threads(stored: Path, tmp_path: Path, shards: int, threads: int) -> None:
    run("twitter", tmp_path / "sets", "--users", 300, *SMALL, "--shards", shards, "--threads", threads)
    assert len(list(tmp_path.glob("sets/*.parquet"))) == min(shards, 300)
    assert read(tmp_path / "sets").equals(read(stored))


def test_overwrite(stored: Path, tmp_path: Path) -> None:
    run("twitter", tmp_path, "--users", 20, "--shards", 20, *SMALL)
    before = read(tmp_path)
    assert "--overwrite" in refused("twitter", tmp_path, "--users", 30, *SMALL)
    for name in ("notes.txt", "part-00000.parquet", "sets-1.parquet", ".hidden"):
        (tmp_path / name).write_text("mine")
        assert name in refused("twitter", tmp_path, "--users", 5, *SMALL, "--overwrite")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert read(tmp_path).equals(before)
    run("twitter", tmp_path, "--users", 300, *SMALL, "--overwrite")
    assert read(tmp_path).equals(read(stored))
    assert len(list(tmp_path.iterdir())) == 9


def test_a_folder_that_only_looks_like_ours_is_kept(tmp_path: Path) -> None:
    (tmp_path / "sets-00000.parquet").write_text("mine")
    assert "sets-00000.parquet" in refused("twitter", tmp_path, *SMALL, "--overwrite")
    assert (tmp_path / "sets-00000.parquet").read_text() == "mine"
    assert "is a file" in refused("twitter", tmp_path / "sets-00000.parquet", *SMALL)
    assert "is a file" in refused("twitter", tmp_path / "sets-00000.parquet", *SMALL, "--overwrite")
    assert "/proc/nowhere" in refused("twitter", "/proc/nowhere", *SMALL)


def test_an_interrupted_run(tmp_path: Path) -> None:
    """What a killed process leaves is no workload, and can be overwritten."""
    for name in ("._workload.json.part", "sets-00000.parquet", ".sets-00001.parquet.part"):
        (tmp_path / name).write_text("half")
    assert "is not whole" in refused("queries", tmp_path, tmp_path / "queries.jsonl")
    run("twitter", tmp_path, "--users", 5, *SMALL, "--overwrite", "--shards", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"_workload.json", "sets-00000.parquet"}


@pytest.mark.parametrize("command", ["twitter", "queries"])
def test_full_disk(stored: Path, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "made"
    if command == "queries":
        folder.mkdir()
        target, limit, words = folder / "queries.jsonl", 1 << 16, ["queries", stored, folder / "queries.jsonl"]
    else:
        target, limit = folder / "sets-0000", 1 << 18
        words = ["twitter", folder, "--users", "2000", "--shards", "3", "--threads", "2"]
    done = subprocess.run([*growing_at_most(limit), *COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(target) in line
    assert "too large" in line
    assert list(folder.iterdir()) == []


def test_usage(stored: Path, tmp_path: Path) -> None:
    wrong = "--users 0, --shards 0, --threads 0, --hashtags 0, --mean-followed 0.5, --publishers many"
    for options in f"{wrong}, --frequent-writers 1.1".split(", "):
        assert options.split()[0] in run("twitter", tmp_path / "sets", *options.split(), code=2)
    for options, named in ((["--mean-tags", 1.1], "mean_tags"), (["--publishers", 10], "mean_followed")):
        assert named in refused("twitter", tmp_path / "sets", *options)
    wrong = "--count 0, --min-extra 5, --draw often, --rate 0 --count 1, --burstiness -1, --tweets tweets.csv"
    for options in f"{wrong}, --rate 5 --count 1".split(", "):
        run("queries", stored, tmp_path / "queries.jsonl", *options.split(), code=2)
    assert list(tmp_path.iterdir()) == []


TWEETS = [
    {"author": "ann", "language": "en", "text": "#Cat and #dog, #cat again"},
    {"author": "bob", "language": "fr", "text": "no hashtags # here"},
    {"author": "bob", "language": "fr", "text": "un #été"},
    {"author": "ann", "language": "en", "text": "#two_words#three"},
    {"author": "cid", "language": None, "text": "#dog"},
    {"author": "ann", "language": "en", "text": "#1st"},
    {"author": "dan", "language": "fr", "text": None},
]
HASHTAGS = [["cat", "dog"], [], ["été"], ["two_words", "three"], ["dog"], ["1st"], None]
HASHTAG_STRINGS = ["#Cat #dog,#cat", "", "été", "#two_words, three", " DOG ", "1st", None]
FEW = ["--mean-followed", 2, "--threads", 2]


def write_table(path: Path, records: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".csv":
        pa_csv.write_csv(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def with_hashtags(hashtags: list[Any]) -> list[dict[str, Any]]:
    return [
        {"author": tweet["author"], "language": tweet["language"], "hashtags": tags}
        for tweet, tags in zip(TWEETS, hashtags, strict=True)
    ]


@pytest.fixture(scope="module")
def real_sets(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("real")
    run("twitter", folder / "sets", "--users", 2000, "--tweets", write_table(folder / "tweets.jsonl", TWEETS), *FEW)
    return read(folder / "sets")


@pytest.mark.parametrize(
    ("suffix", "records"),
    [
        (".parquet", TWEETS),
        (".csv", TWEETS),
        (".jsonl", TWEETS),
        (".parquet", with_hashtags(HASHTAGS)),
        (".jsonl", with_hashtags([["#CAT", "cat", "dog"], [], ["#été"], *HASHTAGS[3:]])),
        (".csv", with_hashtags(HASHTAG_STRINGS)),
        (".ndjson", with_hashtags(HASHTAG_STRINGS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[0]),
)
def test_real_tweets(tmp_path: Path, real_sets: pa.Table, suffix: str, records: list[dict[str, Any]]) -> None:
    file = write_table(tmp_path / f"tweets{suffix}", records)
    run("twitter", tmp_path / "sets", "--users", 2000, "--tweets", file, *FEW)
    found, due = (
        Counter(map(tuple, map(sorted, each["tags"].to_pylist()))) for each in (read(tmp_path / "sets"), real_sets)
    )
    assert found == due
    numbers = [{"author": 10**18 + i % 3, "hashtags": "x" if suffix == ".csv" else ["x"]} for i in range(10)]
    corpus = read_tweets(str(write_table(tmp_path / f"numbers{suffix}", numbers)))
    assert corpus.names.to_pylist() == ["x", *(str(10**18 + i) for i in (0, 1, 2))]
    assert (corpus.tweets.tweets.tolist(), corpus.languages) == ([0, 4, 7, 10], ())


def test_sets_of_real_tweets(real_sets: pa.Table) -> None:
    """The one frequent writer of three is the one with most tweets; all else are hashtags in languages."""
    tweets = [(set(HASHTAGS[place]), place in (0, 3, 5)) for place in (0, 2, 3, 4, 5)]
    first: Counter[str] = Counter()
    for tags in real_sets["tags"].to_pylist():
        hashtags = [tag for tag in tags if tag != "@ann"]
        assert ({tag.partition("_")[2] for tag in hashtags}, "@ann" in tags) in tweets
        first[hashtags[0].partition("_")[0]] += 1
    # Three of the four tweets with hashtags and a language are in English; 60 % of users have a second language, too
    assert {"en", "fr", "hi"} <= first.keys()
    assert not {"ja", "nl", "ko"} & first.keys()
    assert first["en"] > 0.5 * first.total()


NO_ROWS = pa.table({"author": [""], "text": [""]})[:0]
#: The end of a file's name, the content of the file, and words of the error
BAD_TWEETS: list[tuple[str, Any, list[str]]] = [
    (".csv", None, ["No such file"]),
    (".csv", Path.mkdir, []),
    (".csv", b"", []),
    (".txt", b"", [".parquet"]),
    (".jsonl", [{"text": "#a"}], ["'author'", "'text'"]),
    (".csv", [{"author": "a"}], ["'hashtags' or 'text'"]),
    (".csv", [{"author": "a", "text": "b"}], ["no tweet"]),
    (".parquet", lambda path: pq.write_table(NO_ROWS, path), []),
    (".jsonl", [{"author": "a", "text": "#b"}, {"author": None, "text": "#b"}], ["'author'", "row 1", "null"]),
    (".parquet", [{"author": 0.5, "text": "#b"}], ["'author'", "double"]),
    (".parquet", [{"author": 1, "hashtags": [5]}], ["'hashtags'", "int64"]),
    (".jsonl", [{"author": 1, "text": "#a", "language": "@x"}], ["'@x'"]),
    (".parquet", b"author,text\n", []),
    (".jsonl", b'{"author": "a", "text": "#b"}\n{"au', []),
    (".csv", b"author,text\na,#b\xff\n", []),
]


@pytest.mark.parametrize(("suffix", "content", "words"), BAD_TWEETS)
def test_bad_tweets(tmp_path: Path, suffix: str, content: Any, words: list[str]) -> None:
    path = tmp_path / f"tweets{suffix}"
    if isinstance(content, list):
        write_table(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        content(path)
    message = refused("twitter", tmp_path / "sets", "--tweets", path)
    assert all(word in message for word in (path.name, *words)), message
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_followers(tmp_path: Path, suffix: str) -> None:
    """Three of four users follow two publishers, the others seven; none follows none. Tweets do not depend on it."""
    records = [{"followers": number, "users": users} for number, users in ((7, 1), (2, 2.5), (0, 0), (2, 0.5))]
    file = write_table(tmp_path / f"followers{suffix}", records)
    run("twitter", tmp_path / "sets", "--followers", file, "--users", 1000, "--publishers", 10)
    counts = Counter(Counter(read(tmp_path / "sets")["key"].to_pylist()).values())
    assert counts.keys() == {2, 7}
    assert counts[2] == pytest.approx(750, abs=60)
    run("queries", tmp_path / "sets", tmp_path / "tweets.jsonl", "--plain", "--count", 5)
    assert len((tmp_path / "tweets.jsonl").read_text().splitlines()) == 5


def test_bad_followers(tmp_path: Path) -> None:
    for records, words in (
        ([{"users": 1}], ["'followers'", "'users'"]), ([{"followers": 1.5}], ["'followers'", "double"]),
        ([{"followers": 1}, {"followers": -1}], ["'followers'", "row 1", "-1"]),
        ([{"followers": 1}, {"followers": None}], ["'followers'", "row 1"]),
        ([{"followers": 1, "users": -2}], ["'users'", "row 0"]), ([{"followers": 1, "users": 0}], ["no users"]),
        ([{"followers": 0, "users": 1}], ["follows a publisher"]),
        ([{"followers": n, "users": 1e308} for n in (1, 2)], ["too many"]),
    ):  # fmt: skip
        message = refused("twitter", tmp_path / "sets", "--followers", write_table(tmp_path / "f.parquet", records))
        assert all(word in message for word in ("f.parquet", *words)), message


def test_queries(stored: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "queries.parquet", tmp_path / "queries.jsonl"]
    for out in outputs:
        assert run("queries", stored, out, "--count", 500, "--seed", 4) == ""
    table = pq.read_table(outputs[0])
    assert table.schema.equals(pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())}))
    assert table.to_pylist() == [json.loads(line) for line in outputs[1].read_text().splitlines()]
    assert table["id"].to_pylist() == list(range(500))
    sets = [set(tags) for tags in read(stored)["tags"].to_pylist()]
    for tags in table["tags"].to_pylist()[:100]:
        assert any(row <= set(tags) and 2 <= len(tags) - len(row) <= 4 for row in sets)
    run("queries", stored, tmp_path / "tweets.parquet", "--count", 50, "--plain", "--seed", 3)
    due = Twitter(OPTIONS).plain_tweets(0, 50, seed=3)
    assert pq.read_table(tmp_path / "tweets.parquet")["tags"].to_pylist() == due.to_pylist()
    shard = stored / "sets-00000.parquet"
    run("build", shard, tmp_path / "index", entry=lambda: run_app(tagmatch_app))
    table = pq.read_table(shard)
    with TagMatch.open(tmp_path / "index") as tm:
        assert table["key"][0].as_py() in tm.match(table["tags"][0].as_py())
    run(
        "match", tmp_path / "index", outputs[0], "-o", tmp_path / "answers.parquet", entry=lambda: run_app(tagmatch_app)
    )


def test_plain_real_tweets(tmp_path: Path) -> None:
    file = write_table(tmp_path / "tweets.jsonl", TWEETS)
    other = write_table(tmp_path / "other.jsonl", TWEETS[:-2])
    run("twitter", tmp_path / "sets", "--users", 20, "--tweets", file, *FEW)
    out = tmp_path / "plain.jsonl"
    run("queries", tmp_path / "sets", out, "--plain", "--tweets", file, "--count", 400)
    found = Counter(json.loads(line)["tags"][-1] for line in out.read_text().splitlines())
    assert found.keys() == {"@ann", "@bob", "@cid"}
    assert found["@ann"] == pytest.approx(240, abs=40)
    assert "--tweets" in refused("queries", tmp_path / "sets", out, "--plain")
    assert "other.jsonl" in refused("queries", tmp_path / "sets", out, "--plain", "--tweets", other)


def test_bad_sets(stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "queries.jsonl"
    tweets = write_table(tmp_path / "tweets.jsonl", TWEETS)
    assert "synthetic" in refused("queries", stored, out, "--plain", "--tweets", tweets)
    sets = write_table(tmp_path / "folder.parquet", [{"tags": ["a"]}])
    assert "tagmatch-workload twitter" in refused("queries", sets, out, "--plain")
    assert "no such file" in refused("queries", tmp_path / "nowhere.parquet", out)
    few = write_table(tmp_path / "few.parquet", [{"tags": ["a", "b"]}, {"tags": ["c"]}])
    assert "--max-extra" in refused("queries", few, out)
    none = tmp_path / "none.jsonl"
    none.touch()
    assert "holds no sets" in refused("queries", none, out)
    assert not out.exists()
    assert "queries.txt" in refused("queries", few, tmp_path / "queries.txt", "--max-extra", 0, "--min-extra", 0)


def test_stream_to_a_folder(stored: Path, tmp_path: Path) -> None:
    run("queries", stored, tmp_path / "stream", "--count", 300, "--rate", 1000, "--interval", 0.1)
    files = sorted(tmp_path.glob("stream/*"))
    assert 3 <= len(files) <= 6
    assert [row["id"] for file in files for row in pq.read_table(file).to_pylist()] == list(range(300))
    assert "not empty" in refused("queries", stored, tmp_path / "stream", "--count", 3, "--rate", 1000)


@pytest.mark.parametrize("ends", ["Ctrl-C", "its reader"])
def test_stream_without_end(stored: Path, ends: str) -> None:
    """It is written when due, not when a buffer is full, and Ctrl-C, or its reader's end, ends it without a word."""
    words = ["queries", stored, "-", "--rate", "200", "--burstiness", "0"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert [json.loads(process.stdout.readline())["id"] for _ in range(30)] == list(range(30))
        if ends == "Ctrl-C":
            process.send_signal(signal.SIGINT)
            assert re.fullmatch(rb"(.*\]}\n)?", process.stdout.read(), re.DOTALL)
        else:
            process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == (ends == "its reader")


@pytest.mark.parametrize("noted", ['"options": []', '"options": {}, "tweets": 5', '"options": {}, "tweets": {}'])
def test_notes_that_others_have_changed(tmp_path: Path, noted: str) -> None:
    (tmp_path / "_workload.json").write_text(f'{{"generator": "twitter", {noted}}}')
    message = refused("queries", tmp_path, tmp_path / "plain.jsonl", "--plain")
    assert f"{tmp_path}: its options in _workload.json cannot be used" in message
