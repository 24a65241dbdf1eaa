"""Where an index may lie: paths and URIs as users give them, and stores, from which an index is only read."""

import os
import pwd
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.fs
import pytest
from support.agreement import assert_agree, loaded
from support.command import done
from support.index_files import contents_of

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch, TagMatchError
from tagmatch.model.errors import IndexCorruptError, IndexExistsError, IndexNotFoundError
from tagmatch.model.kernels.kept import cache_folder
from tagmatch.model.options import Layout

pytest_plugins = ["support.s3_bucket"]

PAIRS = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4), (["é", "日本"], 5), (["a"], 6)]
QUERIES = [["b", "a"], ["x"], ["日本", "é", "c"], []]


def stored(bucket: Any) -> dict[str, bytes]:
    found = bucket[0].get_file_info(pa.fs.FileSelector("", recursive=True))
    files = [info.path for info in found if info.type == pa.fs.FileType.File]
    return {path: bucket[0].open_input_file(path).readall() for path in files}


@pytest.fixture
def shown(bucket: Any) -> str:
    return f"s3a://{bucket[1]}/folder/index"


def save(path: object, pairs: Any = PAIRS, **options: Any) -> None:
    tm, _ = loaded(pairs, device="cpu", **options)
    with tm:
        tm.save(path)


@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_store_answers_as_a_folder_does(tmp_path: Path, bucket: Any, uri: str, shown: str, layout: str) -> None:
    tm, oracle = loaded(PAIRS, device="cpu", layout=layout, max_partition_size=2)
    with tm:
        tm.save(uri)
        tm.save(tmp_path / "index")
    assert stored(bucket) == {f"folder/index/{name}": data for name, data in contents_of(tmp_path / "index").items()}
    with TagMatch.open(uri, device="cpu") as tm:
        assert_agree(tm, oracle, QUERIES)
        tm.check()
        assert (tm.stats()["layout"], tm.stats()["path"]) == (layout, shown)
        assert f"at '{shown}', 5 sets" in repr(tm)
        assert "secret" not in f"{tm.stats()}{tm!r}"
    with pytest.raises(InvalidValueError, match=f'keys of the index {shown} have key_type "integer", not "string"'):
        TagMatch.open(uri, key_type="string")


def test_reload_from_a_store(bucket: Any, uri: str, tmp_path: Path) -> None:
    save(uri)
    with TagMatch.open(uri) as tm, TagMatch.open(uri) as other:
        tm.save(tmp_path / "index")
        assert not tm.reload()
        with TagMatch.open(tmp_path / "index") as changed:
            changed.add_set(["b"], 7)
            changed.consolidate()
            changed.save(uri)
        assert len(stored(bucket)) == 5
        assert sorted(tm.match(["a", "b"])) == [1, 2, 4, 6]
        for each in (tm, other):  # which have one copy
            assert each.reload()
            assert sorted(each.match(["b"])) == [4, 7]
            each.check()
        # The manifest tells: nothing else is read
        (keys,) = (path for path in stored(bucket) if path.endswith("/keys.arrow"))
        bucket[0].delete_file(keys)
        assert not tm.reload()
        assert sorted(tm.match(["b"])) == [4, 7]


def test_changes_to_a_store_are_refused_at_once(bucket: Any, uri: str, shown: str) -> None:
    """As is another layout, and an index that would begin there, whether there is one or not."""
    read_only = f"cannot change {shown}: an index on a store is read-only; .*folder.*tagmatch-partition"
    with pytest.raises(InvalidValueError, match=read_only):
        TagMatch(uri)
    assert stored(bucket) == {}
    save(uri)
    before = stored(bucket)
    with TagMatch.open(uri) as tm, TagMatch.open(uri, layout="balanced") as other:
        for change in (
            lambda: tm.add_set(["b"], 2), lambda: tm.remove_set(["a"], 1), lambda: tm.add_sets([["b"]], [2]),
            lambda: tm.remove_sets([["a"]], [1]), other.consolidate, lambda: TagMatch(uri),
        ):  # fmt: skip
            with pytest.raises(InvalidValueError, match=read_only):
                change()
        assert tm.stats()["staged"] == 0
        tm.consolidate()  # as nothing is staged
        assert sorted(tm.match(["a"])) == sorted(other.match(["a"])) == [1, 4, 6]
        assert other.stats()["layout"] == "balanced"
    assert stored(bucket) == before


def test_a_store_without_an_index_or_with_a_damaged_one(bucket: Any, uri: str, shown: str) -> None:
    with pytest.raises(IndexNotFoundError, match=f"no index at {shown}: it has no MANIFEST"):
        TagMatch.open(uri)
    with bucket[0].open_output_stream("folder/notes.txt") as sink:
        sink.write(b"mine")
    with TagMatch() as tm:
        for elsewhere, told in (
            (uri.replace("/index", ""), "folder is a folder with other files in it"),
            (uri.replace("index", "notes.txt"), r"folder/notes.txt is a file, not an index folder"),
        ):
            with pytest.raises(IndexExistsError, match=told):
                tm.save(elsewhere)
    assert stored(bucket) == {"folder/notes.txt": b"mine"}
    save(uri)
    (keys,) = (path for path in stored(bucket) if path.endswith("/keys.arrow"))
    with bucket[0].open_output_stream(keys) as sink:
        sink.write(b"other bytes")
    with pytest.raises(IndexCorruptError, match=f"a copy of {shown} is damaged: .*keys.arrow has 11 bytes instead of"):
        TagMatch.open(uri)
    bucket[0].delete_file(keys)
    with pytest.raises(IndexCorruptError, match=f"{shown} lacks a file: .*keys.arrow"):
        TagMatch.open(uri)


def test_no_room_for_a_copy(uri: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(uri)
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("pathlib.Path.mkdir", full)
    with pytest.raises(TagMatchError, match=f"cannot copy {shown} to this machine: .*No space.* TMPDIR") as told:
        TagMatch.open(uri)
    assert "secret" not in str(told.value)
    monkeypatch.undo()
    with TagMatch.open(uri) as tm:
        assert len(tm) == 5


def test_a_file_uri_is_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "an index"
    uri = f"file://{tmp_path}/an%20index"
    with TagMatch(uri) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        tm.save(f"file:{tmp_path}/copy")
        assert tm.stats()["path"] == str(path)
    with TagMatch.open(uri.replace("file://", "file://localhost")) as tm, TagMatch.open(path) as other:
        tm.add_set(["b"], 2)
        tm.consolidate()
        assert other.reload()
        assert sorted(other.match(["a", "b"])) == [1, 2]
    with TagMatch.open(tmp_path / "copy") as tm:
        assert tm.match(["a", "b"]) == [1]


def test_home_and_folders_that_come_with_names_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with TagMatch("some/index") as tm:
        assert tm.stats()["path"] == "some/index"
    with TagMatch("~/index") as tm:
        tm.consolidate()
        assert tm.stats()["path"] == str(tmp_path / "home" / "index")
        tm.save(Path("~") / "copy")
    assert sorted(os.listdir(tmp_path / "home")) == ["copy", "index"]
    with pytest.raises(InvalidValueError, match="no home folder for ~no-one-of-that-name; give the whole"):
        TagMatch.open("~no-one-of-that-name/index")


WRONG: list[tuple[Any, str]] = [
    ("", "path is empty; give the path of a folder"),
    *(
        (path, "path must have neither U[+]0000 nor half of a surrogate pair, which ")
        for path in ("a\0b", "\ud800", "file:///a%00b", "s3://bucket/\ud800", "s3://bucket/\0")
    ),
    (type("BytesPath", (), {"__fspath__": lambda _: b"index"})(), "path must be a string or a path, not <"),
    (b"s3://bucket/index", "path must be a string or a path, not b's3://bucket/index'"),
    (Path("s3://bucket/index"), "a URI must be a str, not a PosixPath, which changes its slashes"),
    ("grpc://host:8815", "a service, as at 'grpc://host:8815', is called by tagmatch.connect"),
    ("ftp://host/index", "Arrow does not reach ftp://host/index: .*; give a URI that"),
    ("file://elsewhere/index", "Arrow does not reach file://elsewhere/index: .*hostname"),
]


@pytest.mark.parametrize(("path", "told"), WRONG, ids=range(len(WRONG)))
def test_what_is_neither_a_path_nor_a_uri(path: Any, told: str) -> None:
    kind = InvalidValueError if isinstance(path, str) else InvalidTypeError
    with TagMatch() as tm:
        for call in (TagMatch, TagMatch.open, tm.save):
            with pytest.raises(kind, match=told):
                call(path)


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a user id of a container that no user has, without `HOME`."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("no_home")
def test_kernels_are_not_kept(recwarn: pytest.WarningsRecorder) -> None:
    assert cache_folder.__wrapped__() is None
    assert "compiled kernels cannot be kept (there is no home folder)" in str(recwarn.pop(RuntimeWarning).message)


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("path", ["~/x.index", "~", "~no-one-has-this-name/x.index"])
def test_paths_in_it(path: str) -> None:
    with pytest.raises(InvalidValueError, match="no home folder for ~"):
        TagMatch(path)
    with pytest.raises(InvalidValueError, match="no home folder for ~"):
        done("match", "x.index", path)
