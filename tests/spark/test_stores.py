"""Indexes on a store: as in a folder, and copied to who uses them. The store is an S3 of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from support.index_files import make_index

from tagmatch import TagMatch
from tagmatch.model.errors import (
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatchError,
)
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.location import location_of
from tagmatch.model.storage.store_folder import StoreFolder
from tagmatch.spark import partition, subset_join
from tagmatch.spark.errors import errors_of_workers

pytest_plugins = ["support.s3_bucket"]

SCHEMA = "tags array<string>, key long"
ROWS = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4), (["é", "日本"], 5), (["a"], 6)]
QUERIES = [(1, ["b", "a"]), (2, ["x"]), (3, ["日本", "é", "c"])]
ANSWERS = [(1, [1, 2, 4, 6]), (2, [4]), (3, [3, 4, 5])]


def names(bucket: Any) -> list[str]:
    return sorted(
        info.path
        for info in bucket[0].get_file_info(pyarrow.fs.FileSelector("", recursive=True))
        if info.type == pyarrow.fs.FileType.File
    )


def test_jobs_that_fail(spark: Any, bucket: Any, uri: str) -> None:
    """They leave nothing where nothing was, and an index as it was. Joins find the job before them."""
    bad = spark.createDataFrame([(["a"], 1), (None, 2)], SCHEMA)
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    for key in (None, 1, 2):
        if key is None:
            with pytest.raises(IndexNotFoundError, match=rf"no index at s3a://{bucket[1]}/folder/index: it has no MAN"):
                subset_join(queries, uri)
        else:
            partition(spark.createDataFrame([(["a"], key)], SCHEMA), uri)
        before = names(bucket)
        assert len(before) == (5 if key else 0)
        with pytest.raises(InvalidValueError, match="tags is null: 1"):
            partition(bad, uri)
        assert names(bucket) == before
        for strategy in ("ship", "shuffle") if key else ():
            assert [row.key for row in subset_join(queries, uri, strategy=strategy).collect()] == [key]


def test_damage(spark: Any, bucket: Any, uri: str) -> None:
    queries = spark.createDataFrame(QUERIES, "id long, tags array<string>")
    partition(spark.createDataFrame(ROWS, SCHEMA), uri)
    (keys,) = (name for name in names(bucket) if name.endswith("keys.arrow"))
    with bucket[0].open_output_stream(keys) as sink:
        sink.write(b"other bytes")
    index = f"s3a://{bucket[1]}/folder/index"
    message = rf"a copy of {index} is damaged: .*keys.arrow has 11 bytes instead of"
    for ask in (lambda: subset_join(queries, uri).collect(), lambda: location_of(uri, "index").open()):
        with pytest.raises(IndexCorruptError, match=message), errors_of_workers():
            ask()
    bucket[0].delete_file(keys)
    with pytest.raises(IndexCorruptError, match=rf"{index} lacks a file: .*keys.arrow"):
        location_of(uri, "index").open()
    partition(spark.createDataFrame(ROWS, SCHEMA), uri)
    assert len(subset_join(queries, uri, output="lists").collect()) == 3
    with bucket[0].open_output_stream("folder/index/MANIFEST.json") as sink:
        sink.write(b"{}")
    with pytest.raises(IndexCorruptError, match=r"folder/index/MANIFEST.json is damaged"):
        subset_join(queries, uri)


def test_places_that_will_not_do(spark: Any, bucket: Any, uri: str) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with bucket[0].open_output_stream("folder/notes.txt") as sink:
        sink.write(b"mine")
    with pytest.raises(IndexExistsError, match=rf"^s3a://{bucket[1]}/folder is a folder with other files in it"):
        partition(frame, uri.replace("/index", ""))
    with pytest.raises(IndexExistsError, match=r"folder/notes.txt is a file, not an index folder"):
        partition(frame, uri.replace("index", "notes.txt"))
    assert names(bucket) == ["folder/notes.txt"]
    with pytest.raises(TagMatchError, match=r"cannot read s3a://bucket/index: .*NETWORK_CONNECTION"):
        partition(frame, "s3a://someone:secret@bucket/index?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
    elsewhere = uri.replace(bucket[1], "no-such-bucket")
    with pytest.raises(TagMatchError, match=r"cannot \w+ s3a://no-such-bucket/folder/index") as told:
        partition(frame, elsewhere)
    assert "secret" not in str(told.value)
    with pytest.raises(IndexNotFoundError, match=r"no index at s3a://no-such-bucket/folder/index"):
        subset_join(spark.createDataFrame(QUERIES, "id long, tags array<string>"), elsewhere)


@pytest.mark.parametrize(
    "uri", ["ftp://me:1234@host/x", "s3a://me:12/1234@bucket/x", "s3a://me:1234@bucket/a b?o=1234", "gs://me:1234@["]
)
def test_secrets_are_not_told(uri: str) -> None:
    for call in (partial(location_of, name="index"), TagMatch.open, TagMatch):
        with pytest.raises(TagMatchError) as told:
            call(uri)
        assert "1234" not in "".join(traceback.format_exception(told.value))
    with pytest.raises(InvalidTypeError, match="a URI must be a str, not a PosixPath"):
        location_of(Path("s3a://bucket/index"), "index")


def test_copying_while_a_newer_snapshot_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Any, uri: str
) -> None:
    """Which needs two attempts to be saved; to save again what is there writes nothing."""
    location = location_of(uri, "index")
    snapshot = Folder(make_index(tmp_path / "local", ROWS)).open()
    location.save(snapshot)
    newer = Folder(make_index(tmp_path / "newer", ROWS, layout="balanced")).open()
    download, upload, before = StoreFolder.download, StoreFolder.upload, names(bucket)

    def fail(store: StoreFolder, file: Path, name: str) -> None:
        if name.endswith("partitions.arrow"):
            raise TagMatchError("no room")
        upload(store, file, name)

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(StoreFolder, "download", download)
        location.save(newer)
        raise TagMatchError("gone while it was read")

    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", fail)
        location.save(snapshot)
        with pytest.raises(TagMatchError, match="no room"):
            location.save(newer)
    assert names(bucket) == before
    monkeypatch.setattr(StoreFolder, "download", interrupted)
    assert location.open().name == Folder(tmp_path / "newer").manifest()["snapshot"]


def test_a_bucket_stays(bucket: Any, uri: str) -> None:
    location = location_of(uri.replace("/folder/index", "") + "&allow_bucket_deletion=true", "index")

    def fail() -> None:
        with location.scratch() as files, files.new("x") as file:
            file.write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(bucket) == []
    assert bucket[0].get_file_info("").type == pyarrow.fs.FileType.Directory


def test_copies_of_this_process_go_with_it(tmp_path: Path, uri: str) -> None:
    """Those of workers are in folders of their executor, which removes them."""
    location_of(uri, "index").save(Folder(make_index(tmp_path / "local", ROWS)).open())
    copies = tmp_path / "temporary"
    copies.mkdir()
    program = "import sys, tagmatch; print(sorted(tagmatch.TagMatch.open(sys.argv[1]).match(['a', 'b'])))"
    environment = os.environ | {"TMPDIR": str(copies)}
    run = subprocess.run([sys.executable, "-c", program, uri], capture_output=True, text=True, env=environment)
    assert (run.stdout, run.returncode) == ("[1, 2, 4, 6]\n", 0), run.stderr
    assert os.listdir(copies) == []
