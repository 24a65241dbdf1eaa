"""Rows of text files: which bytes are a row, and which rows can be used; and what JSON is, wherever it comes from."""

import errno
import io
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmatch import InputFileError, InvalidValueError, TagMatchError
from tagmatch.broker import wire
from tagmatch.broker.wire import batch_of
from tagmatch.files import formats
from tagmatch.files.columns import EVERY_OTHER, InvalidRows
from tagmatch.files.csv import value_in
from tagmatch.files.formats import open_output
from tagmatch.files.json import MOST_NESTED, read_json
from tagmatch.files.rows import read_queries, read_sets, rows_in
from tagmatch.model.arrow import from_tag_lists

Row = tuple[int, Any, Any]


class Recorded(InvalidRows):
    def __init__(self) -> None:
        super().__init__(skip=True)
        self.said: list[str] = []

    def found(self, error):
        self.said.append(str(error))


def queries_in(tmp_path, name: str, data: bytes) -> tuple[list[Row], list[str]]:
    """Number, id and tags of the rows that can be used, and the errors for the others."""
    path, invalid, rows = tmp_path / name, Recorded(), []
    path.write_bytes(data)
    for batch in read_queries(str(path), invalid=invalid, ignored=EVERY_OTHER):
        rows += zip(*(batch[column].to_pylist() for column in ("row", "id", "tags")), strict=True)
    return rows, [message.removeprefix(f"{path}: ") for message in invalid.said]


GOOD = b'{"tags":["a"]}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"null", "NoneType where an object must be"),
        *((line, "list where an object must be; of a file that is one list, `jq -c '.[]'` makes JSON Lines")
          for line in (b'["a"]', b"[", b' [{"tags":["a"]},')),
        (b'"tags"', "str where an object must be"), (b'{"id":"\xff","tags":["a"]}', "byte 8 is no UTF-8"),
        (b'{"tags":["\xed\xa0\x80"]}', "byte 11 is no UTF-8"),
        (b'{"tags":["a"],"other":"\xff"}', "byte 24 is no UTF-8"),
        (b'{"tags":["a"],"other":' + b"[" * 2000 + b"]" * 2000 + b"}", "it is nested more than 64 deep"),
        (b"\0" * 64, "it has zero bytes"), (b'{"tags":["a"],"tags":["b"]}', "it has 'tags' more than once"),
        (b'{"tags":["a"]} {"tags":["a"]}', "there is more behind it (from character 15 on)"),
        (b'{"tags":["a"],"attributes":{"v":NaN}}', "NaN is no value of JSON"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_used_is_one_row_that_is_skipped(tmp_path, line, why):
    rows, said = queries_in(tmp_path, "q.jsonl", GOOD * 50 + line + b"\n" + GOOD * 50)
    assert [row for row, *_ in rows] == [row for row in range(101) if row != 50]
    assert len(said) == 1
    assert said[0].startswith("line 51 (row 50) is not a JSON object: ")
    assert said[0].endswith(why)


@pytest.mark.parametrize(
    "line",
    [
        b' \t{"tags" : ["a"] }\r', b'\xef\xbb\xbf{"tags":["a"]}', b'{"tags":["a"],"other":1e400}',
        b'{"tags":["a"],"other":{"a":1,"a":2}}', b'{"tags":["a"],"other":1,"other":2}',
        b'{"tags":["a"],"other":' + b"[" * 63 + b"]" * 63 + b"}", b'{"tags":["a"],"other":[' + b"[]," * 99 + b"[]]}",
        b'{"t\\u0061gs":["\\u0061"],"id":null}', b'{"tags":\r["a"]}',
    ],
)  # fmt: skip
def test_a_line_that_arrow_reads_differently_is_a_row_as_any_other(tmp_path, line):
    rows, said = queries_in(tmp_path, "q.jsonl", GOOD * 50 + line + b"\n" + GOOD * 50)
    assert (rows, said) == ([(row, None, ["a"]) for row in range(101)], [])


@pytest.mark.parametrize("before", [b"", GOOD * 50])
def test_rows_over_lines_and_several_on_one_do_not_make_up_for_each_other(tmp_path, before):
    lines = b'{"tags":["a"]} {"tags":["b"]}\n{"tags":["c"],\n"id":null}\n'
    rows, said = queries_in(tmp_path, "q.jsonl", before + lines)
    assert (len(rows), len(said)) == (before.count(b"\n"), 3)


def test_ids_of_all_sizes(tmp_path):
    ids = [0, 2**64 - 1, -(2**63), None, 2**63]
    lines = [f'{{"tags":[],"id":{"null" if each is None else each}}}\n' for each in [*ids, 2**64, -(2**63) - 1]]
    rows, said = queries_in(tmp_path, "q.jsonl", "".join(lines).encode())
    assert [each for _, each, _ in rows] == ids
    assert ["64 bits" in message for message in said] == [True, True]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_cells_over_several_lines(tmp_path, monkeypatch, end, last, step):
    """With any ends of lines, also in any parts; numbers are those of rows, and lines of lines."""
    lines = [
        "id,tags,where", '1,"a', "", 'b|c",x', "", '"2 ""', '",d,"v = ""x"""', "3,e", '4,"[""f"",', '""g""]",',
        '5,h,5" pipe',
    ]  # fmt: skip
    read = io.BytesIO((end.join(lines) + end * last).encode()).read
    monkeypatch.setattr("tagmatch.files.formats.at_hand", lambda *_: lambda size: read(min(size, step)))
    rows, said = queries_in(tmp_path, "q.csv", b"")
    first, second = (0, "1", [f"a{end}{end}b", "c"]), (1, f'2 "{end}', ["d"])
    assert rows == [first, second, (3, "4", ["f", "g"]), (4, "5", ["h"])]
    assert said == ["line 8 (row 2) is not a row of CSV: it has 2 cells, the first row 3"]


@pytest.mark.parametrize("before", [b"", b'4,5" pipe\n'])
@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (b'1,"garden', "the quote that opens on line 52 is closed nowhere"),
        (b'"1\n2","gar\n\n3,den\n', "the quote that opens on line 53 is closed nowhere"),
        (b'1,"a"b\n2,c\n', "cell 2 goes on behind the quote that ends it"),
        (b'1,"a\n"b"\n2,c\n', "cell 2 goes on behind the quote that ends it"), (b"1,a\0\n2,c\n", "it has zero bytes"),
        (b"1,\xff\n2,c\n", "byte 3 is no UTF-8"), (b"1\n2,c\n", "it has 1 cells, the first row 2"),
        (b"1,a,\n2,c\n", "it has 3 cells, the first row 2"),
    ],
)  # fmt: skip
def test_a_row_of_csv_that_cannot_be_used(tmp_path, rest, why, before):
    rows, said = queries_in(tmp_path, "q.csv", b"id,tags\n" + b"0,a\n" * (50 - bool(before)) + before + rest)
    expected = list(range(50)) + ([51] if rest.endswith(b"2,c\n") else [])
    assert [number for number, *_ in rows] == expected
    assert len(said) == 1
    assert said[0].startswith(f"line 52 (row 50) is not a row of CSV: {why}")


def test_a_row_of_csv_with_no_text_in_a_column_that_is_left_out(tmp_path):
    rows, said = queries_in(tmp_path, "q.csv", b"id,tags,other\n0,a,\xc3\xa9\n1,b,\xff\n2,c,\n")
    assert [name for _, name, _ in rows] == ["0", "2"]
    assert said == ["line 3 (row 1) is not a row of CSV: byte 5 is no UTF-8"]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("q.csv", b"tags,tags\na,b\n", "has 2 columns 'tags'; there must be one"),
        ("q.csv", b"id,tags,id\n1,b,2\n", "has 2 columns 'id'; there must be one"),
        ("q.csv", b"\xff\xfet\0a\0g\0s\0\n\0", "is UTF-16 or UTF-32"),
        ("q.jsonl", b"\xfe\xff\0{\0}", "is UTF-16 or UTF-32"),
        ("q.csv", b"t\xffgs\na\n", "line 1 does not name the columns: byte 2 is no UTF-8"),
        ("q.csv", b'\n"tags\na\n', "line 2 does not name the columns: the quote that opens on line 2 is closed"),
        ("q.csv", b"tags;price\na;5\n", "line 1 names one column, 'tags;price'; a comma goes between columns, not ';'"),
        ("q.csv", b"tags, price\na,5\n", "line 1 has a column ' price'; there must be no spaces around its name"),
        ("q.csv", b"", "has no column 'tags' or 'attributes'; its columns are none"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, data, why):
    with pytest.raises(InputFileError) as caught:
        queries_in(tmp_path, name, data)
    assert why in str(caught.value)


@pytest.mark.parametrize("step", [1, 13, 1 << 20])
def test_a_byte_order_mark_within_csv_is_text(tmp_path, monkeypatch, step):
    """Also where a part of the file begins with it, as Arrow would leave it out."""
    mark = "\ufeff"
    read = io.BytesIO(f"{mark}tags\n{mark}a\n{mark}\n".encode()).read
    monkeypatch.setattr("tagmatch.files.formats.at_hand", lambda *_: lambda size: read(min(size, step)))
    assert queries_in(tmp_path, "q.csv", b"") == ([(0, None, [f"{mark}a"]), (1, None, [mark])], [])


@pytest.mark.parametrize("data", [b"tags", b"tags\n", b"\xef\xbb\xbftags\r", b'"tags"\r\n\r\n'])
def test_a_header_only(tmp_path, data):
    assert queries_in(tmp_path, "q.csv", data) == ([], [])


def keys_in(path: Path, text: str) -> tuple[list[int], list[str]]:
    path.write_text(text)
    invalid = Recorded()
    return [key for batch in read_sets(str(path), invalid=invalid) for key in batch["key"].to_pylist()], invalid.said


def test_columns_that_mean_nothing_are_not_looked_at(tmp_path):
    keys, said = keys_in(tmp_path / "s.csv", 'key,tags,attributes,x,x\n1,a,{,,\n2,b,",","\n",""\n3,c\n')
    assert (keys, len(said)) == ([1, 2], 1)


@pytest.mark.parametrize("cell", ["0x10", "+1", "1_0", "\u0661", "1.0", "", "9" * 5000])
@pytest.mark.parametrize("other", ["1,a\n", "x,a\n"])
def test_what_is_no_key_in_csv(tmp_path, cell, other):
    keys, said = keys_in(tmp_path / "s.csv", f"key,tags\n{cell},a\n{other}")
    assert keys == [1] * (other[0] == "1")
    assert said[0].startswith(f"{tmp_path}/s.csv: line 2: column 'key': row 0 must be")


@pytest.mark.parametrize(
    "cell", ['[],"x":[]', '[]}\n{"list":[]', "[1]", '["a"', "[[]]", "[null]", '["\ud800"]', "[" * 9999]
)
def test_what_are_no_tags_in_csv(tmp_path, cell):
    quoted = '"' + cell.replace('"', '""') + '"'
    data = f'id,tags\n0,"[""a""]"\n1,{quoted}\n2,"[""{{b[""]"\n'.encode("utf-8", "surrogatepass")
    rows, said = queries_in(tmp_path, "q.csv", data)
    assert rows == [(0, "0", ["a"]), (2, "2", ["{b["])]
    assert len(said) == 1


def test_an_error_is_one_of_tagmatch_without_skipping(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(GOOD + b"null\n" + GOOD)
    batches = read_queries(str(path))
    assert next(batches)["row"].to_pylist() == [0]
    with pytest.raises(TagMatchError, match=r"line 2 \(row 1\) is not a JSON object"):
        next(batches)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no RAM disk")
def test_a_file_on_a_ram_disk_is_a_file():
    """It is below /dev, as devices are."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "answers.jsonl")
        with open_output(str(path)) as stream:
            stream.write(b"whole")
            assert not path.exists()
        assert path.read_bytes() == b"whole"


def test_what_is_open_already_is_written_to_where_it_is(tmp_path):
    with (tmp_path / "answers").open("wb") as file:
        file.write(b"before ")
        file.flush()
        for folder in ("/dev/fd", "/proc/self/fd"):
            with open_output(f"{folder}/{file.fileno()}") as stream:
                stream.write(b"answers ")
    assert (tmp_path / "answers").read_bytes() == b"before answers answers "


def test_two_that_write_the_same_file(tmp_path):
    """The file is one of the two, and whole."""
    path = tmp_path / "a.jsonl"
    with open_output(str(path)) as first:
        first.write(b"first")
        with open_output(str(path)) as second:
            second.write(b"2")
        assert path.read_bytes() == b"2"
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_name_that_is_no_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path / "sets.parquet").replace(b"sets", b"\xff"))
    with open(path, "wb") as file:
        pq.write_table(pa.table({"tags": [["a"]], "key": [1]}), file)
    assert rows_in(path) == 1
    (rows,) = read_sets(path)
    assert rows["key"].to_pylist() == [1]


@pytest.mark.parametrize(("whole", "bad", "why"), [(b"marker", b"larker", ".*CRC"), (b"other", b"\xcbther", "")])
def test_parquet_with_damage(tmp_path, whole, bad, why):
    """A page whose checksum is wrong, and a name of a column that is no UTF-8."""
    path, options = tmp_path / "q.parquet", {"store_schema": False, "compression": "none", "use_dictionary": False}
    table = pa.table({"tags": pa.array([["marker"]], pa.list_(pa.string())), "other": ["b"]})
    pq.write_table(table, path, write_page_checksum=True, **options)
    path.write_bytes(path.read_bytes().replace(whole, bad))
    with pytest.raises(InputFileError, match=rf"q\.parquet: not a whole Parquet file: {why}"):
        list(read_queries(str(path)))


def test_parquet_that_the_system_does_not_read(tmp_path, monkeypatch):
    """As of a stream that no temporary folder has room for; it says nothing of the file."""
    path = tmp_path / "q.parquet"
    pq.write_table(pa.table({"tags": [["a"]]}), path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(formats, "seekable", full)
    with pytest.raises(InputFileError, match=r"q\.parquet: cannot be read: No space left on device"):
        list(read_queries(str(path)))


_DEEP = MOST_NESTED + 1
_WRONG = [
    (b'["\xff"]', "byte 3 is no UTF-8"), (b'["\xed\xa0\x80"]', "byte 3 is no UTF-8"),
    (b"[\x00\x00]", "it has zero bytes"), (b'["\\ud800"]', "a string has half of a surrogate pair"),
    (b'[{"a": 1, "b": 2, "a": 3}]', 'an object has "a" more than once'), (b"[NaN]", "NaN is no value of JSON"),
    (b"[-Infinity]", "-Infinity is no value of JSON"),
    (b"[" + b"9" * 5000 + b"]", "an integer has thousands of digits"),
    (b"[" * _DEEP + b"]" * _DEEP, "it is nested more than 64 deep"),
    (b"[" * 1_000_000, "it is nested more than 64 deep"), (b"[1,]", "Expecting value (character 4)"),
    (b"[1] [2]", "there is more behind it (from character 4 on)"),
]  # fmt: skip


def _as_cell(text: bytes) -> Any:
    return value_in(text.decode(errors="surrogateescape"))


def _as_attribute_of_the_service(text: bytes) -> Any:
    column = pa.array([b'{"a":' + text + b"}"], pa.binary()).view(pa.string())
    (row,) = from_tag_lists(batch_of(pa.record_batch({"attributes": column})).rows).to_pylist()
    return row


def _as_command(text: bytes) -> Any:
    return wire.read_json(b'{"a":' + text + b"}", "the command")


@pytest.mark.parametrize(("text", "why"), _WRONG)
def test_what_is_no_json_is_an_error_in_words(text, why):
    """Wherever it comes from."""
    with pytest.raises(InvalidValueError) as caught:
        read_json(text, "the payload")
    assert str(caught.value) == f"the payload is no JSON: {why}"
    for read in (_as_cell, _as_attribute_of_the_service, _as_command):
        with pytest.raises(InvalidValueError, match="is no JSON: "):
            read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1e400", math.inf), (b"-1e400", -math.inf), (b"1e-400", 0.0), (b"18446744073709551616", 2**64),
        (b'"\\ud83d\\ude00\\u0000"', "\U0001f600\0"), (b'\xef\xbb\xbf{"a":null}', {"a": None}),
        (b"[" * MOST_NESTED + b"]" * MOST_NESTED, None),
    ],
)  # fmt: skip
def test_what_is_json_is_its_value(text, value):
    found = read_json(text, "it")
    assert value is None or (found == value and type(found) is type(value))
