"""A thread of Arrow's own for which there is no room is memory that is short, not a file that is damaged."""

from unittest.mock import patch

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from support.command import write

from tagmatch import TagMatch
from tagmatch.files.rows import read_sets

NO_ROOM = pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("name", "place", "attribute"),
    [
        ("x.index", pa.ipc, "open_file"),
        ("sets.csv", pa_csv, "read_csv"),
        ("sets.jsonl", pa_json, "read_json"),
        ("sets.parquet", pq, "ParquetFile"),
    ],
)
def test_files_are_read(tmp_path, name, place, attribute):
    path = tmp_path / name
    if name == "x.index":
        with TagMatch(path, device="cpu") as tm:
            tm.add_set(["a"], 1)
            tm.consolidate()
            tm.move([1], [0.0], [0.0])
            tm.save_positions()
    else:
        write(path, [{"tags": ["a"], "key": 1}])

    def sets() -> int:
        if name != "x.index":
            return sum(map(len, read_sets(str(path))))
        with TagMatch.open(path, device="cpu") as tm:
            return len(tm)

    assert sets() == 1
    with patch.object(place, attribute, side_effect=NO_ROOM), pytest.raises(MemoryError, match="launch worker thread"):
        sets()
