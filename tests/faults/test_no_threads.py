"""A thread of Arrow's own for which there is no room is memory that is short, not a file that is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from support.command import as_json_lines

from tagmatch import TagMatch
from tagmatch.files.inputs import read_sets

NO_ROOM = "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"


def _fails(*_: Any, **__: Any) -> NoReturn:
    raise pa.ArrowException(NO_ROOM)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "x.index", device="cpu") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        tm.move([1], [0.0], [0.0])
        tm.save_positions()
    return tmp_path / "x.index"


def test_an_index_is_opened(index, monkeypatch):
    monkeypatch.setattr(pa.ipc, "open_file", _fails)
    with pytest.raises(MemoryError, match="launch worker thread"):
        TagMatch.open(index, device="cpu")
    monkeypatch.undo()
    TagMatch.open(index, device="cpu").close()


@pytest.mark.parametrize(
    ("name", "place", "attribute"),
    [("sets.csv", pa_csv, "read_csv"), ("sets.jsonl", pa_json, "read_json"), ("sets.parquet", pq, "ParquetFile")],
)
def test_files_are_read(tmp_path, monkeypatch, name, place, attribute):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table({"tags": [["a"]], "key": [1]}), path)
    else:
        path.write_bytes(as_json_lines([{"tags": ["a"], "key": 1}]) if name.endswith("jsonl") else b"tags,key\na,1\n")
    assert sum(map(len, read_sets(str(path)))) == 1
    monkeypatch.setattr(place, attribute, _fails)
    with pytest.raises(MemoryError, match="launch worker thread"):
        list(read_sets(str(path)))
