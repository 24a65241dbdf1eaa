"""Tables that point out of themselves, with right checksums, and files that others change while an index is open."""

import contextlib
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from support.agreement import index_of
from support.index_files import contents_of, numbers_in, read_manifest, with_file, with_manifest
from support.segments import segments_stay
from support.waiting import wait_until

from tagmatch import IndexCorruptError, TagMatch, TagMatchError
from tagmatch.model.options import Layout

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
SETS = [[f"tag {i}", "all"] for i in range(60)]
KEYS = [f"key {i}" for i in range(60)]


@pytest.fixture(scope="module", params=get_args(Layout))
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "index"
    options = {"layout": request.param, "max_partition_size": 7, "key_type": "string", **OPTIONS}
    with segments_stay(), index_of(SETS, KEYS, path, expires=timedelta(days=99), **options) as tm:
        tm.remove_set(SETS[3], KEYS[3])
        tm.consolidate()
    return path


@pytest.fixture
def index(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "index"))


#: A table, a column, and offsets or values; places of numbers there, and the wrong numbers
_OFFSETS, _EVERYWHERE = [-1, 2**30, -(2**30)], [0, 1, 30, -1]
NUMBERS: list[tuple[str, str, str, list[int], list[int]]] = [
    ("vocabulary", "tag", "offsets", _EVERYWHERE, _OFFSETS),
    ("tagsets", "ranks", "offsets", _EVERYWHERE, _OFFSETS),
    ("tagsets", "ranks", "values", _EVERYWHERE, [61, 2**31, 2**32 - 1]),
    ("keys", "keys", "offsets", _EVERYWHERE, _OFFSETS),
    ("keys", "keys", "offsets", [-1], [59]),
    ("keys", "keys", "values", _EVERYWHERE, [60, 2**31, 2**32 - 1]),
    ("key_names", "name", "offsets", _EVERYWHERE, [-1, 2**40, -(2**40)]),
    ("partitions", "first_row", "values", [0, 1, -1], _OFFSETS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column", "what", "places", "numbers"), NUMBERS)
def test_numbers_that_point_elsewhere_are_refused(
    index: Path, table: str, column: str, what: str, places: list[int], numbers: list[int]
) -> None:
    file = next(index.glob(f"segment-*/{table}.arrow"))
    right = file.read_bytes()
    for place in places:
        for number in numbers:
            wrong, found = numbers_in(right, column, what)
            if not len(found):
                continue
            found[place] = number
            with_file(index, str(file.relative_to(index)), bytes(wrong))
            with pytest.raises(IndexCorruptError, match=rf"{index}/segment-\w+(/{table}\.arrow)? is no"):
                TagMatch.open(index, **OPTIONS)
            with pytest.raises(IndexCorruptError, match="is no"), TagMatch(index, **OPTIONS) as tm:
                tm.consolidate(full=True)
    with_file(index, str(file.relative_to(index)), right)
    with TagMatch.open(index, **OPTIONS) as tm:
        tm.check()
        tm.consolidate(full=True)


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def test_tables_that_are_not_those_of_an_index_are_refused(index: Path) -> None:
    file = next(index.glob("segment-*/keys.arrow"))
    right = file.read_bytes()
    table = pa.ipc.open_file(pa.py_buffer(right)).read_all()
    column = table.column("keys").combine_chunks()
    others = [
        column.cast(pa.list_(pa.int64())), pa.array([None, *column[1:].to_pylist()], column.type), column[1:],
        pa.array([[None], *column[1:].to_pylist()], column.type), pa.chunked_array([column[:5], column[5:]]),
        pa.array([], column.type),
    ]  # fmt: skip
    tables = [table.rename_columns(["other"]), table.append_column("more", column)]
    wrong = [*map(written, tables), *(written(pa.table({"keys": each})) for each in others)]
    texts = [b"", b"ARROW1", right[:-10], right[8:], b"\xff" * len(right)]
    for each in (*wrong, *texts):
        with_file(index, str(file.relative_to(index)), each)
        with pytest.raises(IndexCorruptError, match=r"is no (table of an index|segment)" if each in wrong else None):
            TagMatch.open(index, **OPTIONS)


def test_deletions_of_other_rows_are_refused(index: Path) -> None:
    file = next(index.glob("deleted-*"))
    wrong = [written(pa.table({"deleted": [True] + [False] * (rows - 1)})) for rows in (8, 65)]
    for place in (0, -1):
        other, found = numbers_in(file.read_bytes(), "deleted", "values")
        found[place] = 255
        wrong.append(bytes(other))
    for each in wrong:
        with_file(index, file.name, each)
        with pytest.raises(IndexCorruptError, match="deletions"):
            TagMatch.open(index, **OPTIONS)


def test_numbers_of_rows_that_the_manifest_has_otherwise_are_refused(index: Path) -> None:
    right = read_manifest(index)["segments"][0]
    for name in ("rows", "tags"):
        for more in (-1, 1, 2**40):
            wrong = {**right, name: right[name] + more}
            with_manifest(index, lambda manifest, wrong=wrong: manifest["segments"][0].update(wrong))
            with pytest.raises(IndexCorruptError, match="is no segment"):
                TagMatch.open(index, **OPTIONS)


@pytest.mark.parametrize("wrong", [b"", b"/", b"1/", b"99", b"9" * 25, b"-", b"1:[", b"\x7f"])
def test_conditions_that_are_none_never_hold(tmp_path: Path, wrong: bytes) -> None:
    """Their lengths are written in digits: others led out of the tag."""
    path = tmp_path / "index"
    sets, where = [["a"], ["a", *(f"more {i}" for i in range(40))]], ['city in {"Rome", "Oslo"}', None]
    index_of(sets, [1, 2], path, where=where, **OPTIONS).close()
    file = next(path.glob("segment-*/vocabulary.arrow"))
    data = file.read_bytes()
    at = data.index(b"[5:sOslo") + 1
    for count in {1, len(wrong)}:
        text = data[:at] + wrong[:count].ljust(count, b"/") + data[at + count :]
        with_file(path, str(file.relative_to(path)), text)
        with contextlib.suppress(TagMatchError), TagMatch.open(path, **OPTIONS) as tm:
            assert tm.match(["a"], attributes={"city": "Oslo"}) in ([], [1])
            assert len(tm.match_many(pa.table({"tags": [["a"]], "city": ["Oslo"]}))) == 1
            tm.explain(["a"], attributes={"city": "Oslo"})


QUERY = ["all", *(f"tag {i}" for i in range(60)), "new"]


@pytest.fixture(params=get_args(Layout))
def plain(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "plain"
    options = {"layout": request.param, "key_type": "string", "max_partition_size": 9, **OPTIONS}
    index_of(SETS, KEYS, path, expires=timedelta(days=999), **options).close()
    shutil.copytree(path, tmp_path / "copy")
    return path


def cut(file: Path) -> None:
    """Not to nothing: who reads behind the last page is ended by the system."""
    os.truncate(file, file.stat().st_size // 2)


def overwrite(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(bytes(size))


def cut_and_filled(file: Path) -> None:
    """As of a program that writes files anew in place: `cp`, `rsync --inplace`."""
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def tables(path: Path) -> list[Path]:
    return sorted(path.glob("segment-*/*.arrow"))


@pytest.mark.parametrize("damage", [cut, overwrite, cut_and_filled])
@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_saved_from_files_that_have_changed(
    plain: Path, tmp_path: Path, damage: Callable[[Path], None], full: bool
) -> None:
    def others() -> dict[str, bytes]:
        return {name: contents for name, contents in contents_of(path).items() if "staged-" not in name}

    for number in range(6):
        path = Path(shutil.copytree(plain, tmp_path / "damaged"))
        with TagMatch.open(path, **OPTIONS) as tm:
            tm.add_set(["new"], "staged")
            file = tables(path)[number]
            damage(file)
            before = others()
            for save in (lambda tm=tm: tm.consolidate(full=full), lambda tm=tm: tm.save(tmp_path / "saved")):
                with pytest.raises(IndexCorruptError, match=rf"{file.name} was overwritten or cut short"):
                    save()
            assert not (tmp_path / "saved").exists()
            assert others() == before
        shutil.rmtree(path)


CALLS: list[Callable[[TagMatch[Any]], object]] = [
    lambda tm: tm.match(QUERY), lambda tm: tm.match_many([QUERY]), lambda tm: tm.submit(QUERY).result(),
    lambda tm: tm.explain(QUERY), lambda tm: tm.to_arrow(), list, lambda tm: SETS[0] in tm, lambda tm: tm.check(),
    lambda tm: tm.stats(),
]  # fmt: skip


def is_told(tm: TagMatch[Any]) -> bool:
    try:
        tm.stats()
    except IndexCorruptError:
        return True
    return False


@pytest.mark.parametrize("damage", [cut, overwrite])
def test_it_is_told_and_goes_on_when_the_files_are_back(plain: Path, damage: Callable[[Path], None]) -> None:
    with TagMatch.open(plain, **OPTIONS) as tm:
        tm.add_set(["new"], "staged")
        for file in tables(plain):
            right = file.read_bytes()
            damage(file)
            wait_until(lambda: is_told(tm))
            for call in CALLS:
                with pytest.raises(IndexCorruptError, match="was overwritten or cut short"):
                    call(tm)
            assert "60 sets" in repr(tm)
            file.unlink()
            file.write_bytes(right)
            assert tm.reload()
            assert sorted(tm.match(QUERY)) == sorted(KEYS)
            os.utime(file)  # one that is only touched is good
        tm.consolidate()
        for file in tables(plain):
            file.unlink()  # one that is removed, too
        assert sorted(tm.match(QUERY)) == sorted([*KEYS, "staged"])
        tm.check()


@pytest.mark.usefixtures("segments_stay")
def test_segments_are_not_merged_from_files_that_have_changed(plain: Path) -> None:
    with TagMatch.open(plain, **OPTIONS) as tm:
        old = tables(plain)
        tm.add_sets([["new", f"tag {i}"] for i in range(50)], KEYS[:50])
        tm.consolidate()
        assert tm.stats()["to_merge"] > 1
        cut(next(file for file in old if file.name == "keys.arrow"))
        with pytest.raises(IndexCorruptError, match=r"keys.arrow was overwritten or cut short"):
            tm._engine.changing.merge()
        assert len(list(plain.glob("segment-*"))) == 2


@pytest.mark.usefixtures("segments_stay")
def test_a_commit_sees_that_files_that_stay_are_whole(plain: Path) -> None:
    """Replaced by others, so that the mapped ones stay good, but the next program would not find these."""
    with TagMatch.open(plain, **OPTIONS) as tm:
        tm.add_set(["new"], "staged")
        file = tables(plain)[0]
        right = file.read_bytes()
        copy = plain.parent / "copy" / file.relative_to(plain)
        for replaced, says in (
            (lambda: file.write_bytes(right[:-8]), "has"),
            (lambda: file.symlink_to(copy), "is a link"),
            (lambda: file.write_bytes(right), None),
        ):
            file.unlink()
            replaced()
            with pytest.raises(IndexCorruptError, match=f"{file.name} {says}") if says else nullcontext():
                tm.consolidate()
        assert sorted(tm.match(QUERY)) == sorted([*KEYS, "staged"])
