"""Indexes as a stranger may make them, with right checksums: a program that uses one goes on, with any contents.

Tables, manifests, logs of staged changes and positions are spoilt, and all is done with each index that a user may do.
"""

import functools
import itertools
import json
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import xxhash
from faults.damage import TAGS, make_index
from faults.driver import Case, Length, Program, describe
from faults.mutations import mutated
from support.index_files import buffers_in, read_manifest, with_file
from support.segments import cut_every, segments_stay

import tagmatch
from tagmatch import InvariantError, TagMatch, TagMatchError
from tagmatch.model.options import KeyType, Layout
from tagmatch.model.storage import positions
from tagmatch.model.storage.format import manifest_text

_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
_ANSWERED = "answered"
#: Columns of data of keys
DATA = {"name": "dictionary", "rank": "int64"}
#: The number of the snapshot that `make_index` makes last
KEPT = 3

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32, 2**63 - 1, 2**64, 1.5, 1e300, "", "a", "..", "/", [], {}, [[]],
    "0123456789abcdef",
)  # fmt: skip

Spoil = Callable[[Path, random.Random], None]


def indexes(folder: Path) -> Iterator[Path]:
    """Make indexes of all kinds, small ones, that have every kind of file."""
    rng = random.Random(3)
    for layout, key_type in itertools.product(get_args(Layout), get_args(KeyType)):
        path, copy = folder / f"{layout} {key_type} first", folder / f"{layout} {key_type}"
        keys: list[Any] = [rng.randrange(2**40) if key_type == "integer" else f"key {i}" for i in range(60)]
        put: list[Any] = [2**41 + i if key_type == "integer" else f"put {i}" for i in range(30)]
        pairs = [(rng.sample(TAGS, rng.randrange(5)), key) for key in keys]
        make_index(path, pairs, rng, layout=layout, key_type=key_type, max_partition_size=7)
        tagmatch.backup(path, copy, keep_snapshots=1)
        with (
            segments_stay(),  # the others, whose tables are whole
            warnings.catch_warnings(),
            cut_every(),
            TagMatch(path, **_OPTIONS, data=DATA) as tm,
        ):
            warnings.simplefilter("ignore")
            tm.put_many(pa.table({
                "key": put, "tags": [["put"]] * 30, "where": ["x > 1 or x < 0", None, 'name = "a"'] * 10,
                "name": ["a", None, "b"] * 10, "rank": range(30),
            }))  # fmt: skip
            tm.consolidate()
            tm.add_sets([["near"]] * 9, keys[:9], where=[f"within circle({i}, {i / 2}, {10**i})" for i in range(9)])
            tm.move(keys[:30], [float(i) for i in range(30)], [i / 2 for i in range(30)])
            tm.save_positions()
            tagmatch.backup(path, copy)
        with TagMatch(copy, layout=layout, **_OPTIONS) as tm:
            tm.add_set(["later"], keys[0], where="x > 5")
            tm.remove_sets([tags for tags, _ in pairs[5:7]], keys[5:7])
            tm.put(put[1], ["later"], where="x > 5 or x < 3", data={"rank": 7})
            tm.put_many(pa.table({"key": keys[50:53], "tags": [["later"]] * 3, "name": ["a", "b", None]}))
            tm.delete(put[2])
        kinds = (
            "*/records.arrow",
            "staged-*",
            "changes-*",
            "MANIFEST-*",
            "POSITIONS*",
            "deleted-*",
            "*/vocabulary.arrow",
            "*/*.arrow.0*",
        )
        assert all(any(copy.glob(kind)) for kind in kinds)
        yield copy


# -- mistakes in files -------------------------------------------------------------------------------------------------


def _any_file(path: Path, rng: random.Random, *patterns: str) -> Path:
    return rng.choice(sorted(file for pattern in patterns for file in path.glob(pattern)))


def a_table(path: Path, rng: random.Random) -> None:
    file = _any_file(path, rng, "segment-*/*", "deleted-*")
    with_file(path, str(file.relative_to(path)), mutated(rng, file.read_bytes()))


def numbers_of_a_table(path: Path, rng: random.Random) -> None:
    """Only the values of columns: most mistakes elsewhere are noticed by Arrow."""
    file = _any_file(path, rng, "segment-*/*.arrow", "deleted-*")
    with_file(path, str(file.relative_to(path)), _spoilt(file.read_bytes(), rng))


def _spoilt(data: bytes, rng: random.Random) -> bytes:
    """The file of a table with mistakes in the numbers of some columns."""
    spoilt = bytearray(data)
    columns = pa.ipc.open_file(pa.py_buffer(data)).schema.names
    places = [place[2:] for column in columns for place in buffers_in(data, column)]
    for first, last in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
        spoilt[first:last] = mutated(rng, data[first:last])[: last - first].ljust(last - first, b"\0")
    return bytes(spoilt)


def conditions(path: Path, rng: random.Random) -> None:
    """The stored form of conditions among the tags, which is compiled when the index is opened."""
    file = _any_file(path, rng, "segment-*/vocabulary.arrow*")
    data = bytearray(file.read_bytes())
    places = [match.end() for match in re.finditer(rb"\0[+-]", data)]
    for _ in range(rng.choice((1, 1, 2, 5)) if places else 0):
        place = rng.choice(places) + int(rng.expovariate(0.15))
        if place < len(data):
            data[place] = rng.choice(b"0123456789abcdefnrstCBN:[]^,/\0\x7f")
    with_file(path, str(file.relative_to(path)), bytes(data))


def the_text_of_a_manifest(path: Path, rng: random.Random) -> None:
    file = _any_file(path, rng, "MANIFEST*.json")
    text = mutated(rng, file.read_bytes())
    with suppress(ValueError, AttributeError, TypeError, RecursionError):  # as it is, with any checksum
        text = manifest_text({name: each for name, each in json.loads(text).items() if name != "checksum"})
    _put_manifest(path, file, text)


def a_value_of_a_manifest(path: Path, rng: random.Random) -> None:
    file = _any_file(path, rng, "MANIFEST*.json")
    found = json.loads(file.read_bytes())
    del found["checksum"]
    for _ in range(rng.choice((1, 1, 2))):
        place: Any = found
        while True:
            name = rng.choice([*place] if isinstance(place, dict) else range(len(place)))
            inner = place[name]
            if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.1:
                break
            place = inner
        what = rng.random()
        if what < 0.15:
            del place[name]
        elif what < 0.3 and isinstance(inner, str) and inner:
            place[name] = mutated(rng, inner.encode()).decode("utf-8", "replace")
        elif what < 0.5 and isinstance(inner, int):
            place[name] = inner + rng.choice((-1, 1, 10**6))
        elif what < 0.6 and isinstance(place, dict):
            place[rng.choice(("x", "deleted", "keys.arrow.00000", "../keys.arrow"))] = inner
        else:
            place[name] = rng.choice(_ODD)
        if not found:
            break
    _put_manifest(path, file, manifest_text(found))


def _put_manifest(path: Path, file: Path, text: bytes) -> None:
    """Write a manifest; of an earlier snapshot, its checksum is in the current one."""
    file.write_bytes(text)
    if file.name != "MANIFEST.json":
        current = read_manifest(path)
        for entry in current["kept"]:
            if entry["name"] == file.name:
                entry.update(bytes=len(text), xxh3_64=xxhash.xxh3_64_hexdigest(text))
        (path / "MANIFEST.json").write_bytes(manifest_text(current))


def a_log(path: Path, rng: random.Random) -> None:
    """One that is here, or came with the copy; its records get the right checksums, or some of them."""
    file = _any_file(path, rng, "staged-*", "changes-*")
    data = bytearray(file.read_bytes())
    ends, begin = [], 40
    while begin < len(data):
        ends.append((begin, begin + 64 + int.from_bytes(data[begin + 40 : begin + 48], "little")))
        begin = ends[-1][1]
    if rng.random() < 0.2:
        fields = mutated(rng, bytes(data[:32]))[:32].ljust(32, b"\0")
        data[:40] = fields + xxhash.xxh3_64_digest(fields)
    else:
        first, last = rng.choice(ends)
        header, body = bytes(data[first : first + 64]), bytes(data[first + 64 : last])
        if rng.random() < 0.8:
            body = mutated(rng, body)
        else:
            header = mutated(rng, header)[:64].ljust(64, b"\0")
        fields = header[:40] + len(body).to_bytes(8, "little") + xxhash.xxh3_64_digest(body)
        data[first:last] = fields + xxhash.xxh3_64_digest(fields) + body
    if file.name.startswith("changes-"):
        with_file(path, file.name, bytes(data))
    else:
        file.write_bytes(data)


def the_positions(path: Path, rng: random.Random) -> None:
    file = path / "POSITIONS.arrow"
    if rng.random() < 0.3:
        file.write_bytes(mutated(rng, file.read_bytes()))
        return
    spoilt = _spoilt(file.read_bytes(), rng)
    (batch,) = pa.ipc.open_file(pa.py_buffer(spoilt)).read_all().to_batches()
    try:
        checksum = positions._checksum(*batch.columns)
    except (IndexError, ValueError):
        checksum = b""
    file.write_bytes(spoilt.replace(batch.schema.metadata[b"xxh64"], checksum or b"0" * 16))


#: With how often each comes
SPOILS: dict[Spoil, int] = {
    numbers_of_a_table: 8, a_table: 4, conditions: 3, a_value_of_a_manifest: 3, the_text_of_a_manifest: 1, a_log: 3,
    the_positions: 1,
}  # fmt: skip


# -- uses of such an index ---------------------------------------------------------------------------------------------


def uses(path: Path, place: Path, rng: random.Random) -> Iterator[Callable[[], object]]:
    """All that a user may do with an index."""
    queries = [rng.sample(TAGS, 60) for _ in range(3)]
    columns = {"x": [1.5, None, 30.0], "name": ["IBM", "a", None], "location": [{"lon": 9.0, "lat": 4.5}] * 3}
    table = pa.table({"tags": queries, **columns})

    def reads() -> None:
        with TagMatch.open(path, **_OPTIONS) as tm:
            calls: list[Callable[[], object]] = [
                lambda: tm.match(queries[0], attributes={"x": 5, "name": "IBM"}),
                lambda: tm.match_many(queries),
                lambda: tm.match_many(table),
                lambda: tm.explain(queries[1], location=(9.0, 4.5)),
                lambda: [*tm.records.values()], lambda: [tm.get(key) for key in [*tm.records][:5]],
                lambda: tm.match_many([["put", "later"]], columns=["name", "rank"]),
                lambda: tm.match_best([["put", "later"]], limit=3, order_by="rank"),
                lambda: tm.match_many([["put", "later"]], only='name = "a" or rank > 5'),
                lambda: tm.match(queries[2], within=tagmatch.Circle(9.0, 4.5, 10.0**6)),
                tm.to_arrow, lambda: dict(tm), lambda: queries[0] in tm, tm.stats, tm.check,
            ]  # fmt: skip
            if failed := [each for each in map(_try, calls) if each != _ANSWERED]:
                raise InvariantError(f"after opening: {failed}")

    def changes(*, full: bool) -> None:
        with TagMatch(path, **_OPTIONS) as tm:
            key: Any = {"integer": 7, "string": "seven"}[tm.stats()["key_type"]]
            tm.add_set(["new"], key)
            tm.remove_set(TAGS[:2], key)
            tm.put(key, ["new"], where="x = 1")
            tm.delete_many([*tm.records][:3])
            tm.consolidate(full=full)
            tm.match_many(queries)
            tm.check()

    yield reads
    yield lambda: tagmatch.backup(path, place / "backup")
    yield lambda: tagmatch.restore(path, place / "restored", snapshot=KEPT)
    yield lambda: TagMatch.open(path, snapshot=KEPT, **_OPTIONS).close()
    yield lambda: changes(full=False)
    yield lambda: changes(full=True)


def _try(call: Callable[[], object]) -> str:
    try:
        call()
    except TagMatchError as error:
        return type(error).__name__
    return _ANSWERED


def bears(index: Path, spoil: Spoil, folder: Path, rng: random.Random) -> str:
    """Use a spoilt copy of an index; returns the first bad end, if there was one."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, place = shutil.copytree(index, folder / "index"), folder / "place"
        place.mkdir(parents=True)
        spoil(path, rng)
        for number, use in enumerate(uses(path, place, rng)):
            try:
                found.append(_try(use))
            except Exception as error:
                raise AssertionError(f"use {number}: {describe(error)}") from error
    return next((each for each in found if each != _ANSWERED), _ANSWERED)


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    made = list(indexes(folder))
    for index in made:  # kernels are there before processes are forked
        found = bears(index, lambda *_: None, folder / f"{index.name}, sound", rng)
        assert found == _ANSWERED, f"an index that is not spoilt is refused: {found}"
    for number in range(rounds):
        index, (spoil,) = rng.choice(made), rng.choices([*SPOILS], [*SPOILS.values()])
        yield Case(spoil.__name__, f"{index.name} {number}", functools.partial(bears, index, spoil))


PROGRAM = Program(_cases, Length(30, 500), wanted=("IndexCorruptError", _ANSWERED))
