"""Arrow IPC messages with mistakes in them, which are refused in words, or can be used."""

import contextlib
import functools
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from faults.driver import Case, Length, Program
from faults.mutations import mutated
from support.arrow_messages import LEAVES, Message, array_of, messages_in, stream_of

from tagmatch import TagMatch, TagMatchError
from tagmatch.broker import hub
from tagmatch.broker.wire import batch_of, check_schema
from tagmatch.files.ipc import IpcReader
from tagmatch.model.input.messages import Queries

_MOST_BYTES, _MOST_ROWS = 1 << 20, 1000


class Stream(NamedTuple):
    """Messages, and what the service is asked to do with them."""

    command: str
    messages: Sequence[Message]


def _batches() -> list[tuple[str, pa.RecordBatch]]:
    tags = pa.array([["a", "b"], [], ["c"] * 4, ["a"]])
    in_dictionary = pa.array([["a"], ["b", "a"], [], ["zz"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    key = pa.array([1, 2, 3, 4], pa.uint64())
    word = pa.array(["u", None, "a word that is longer than a view", "v"])
    circle = {"kind": "circle", "lon": 1.0, "lat": 2.0, "metres": 3.0, "west": None, "south": None, "east": None}
    constraint = {"attribute": "x", "op": "<", "value": "1"}
    conditions = pa.array(["x < 1", None, "y = 1", "x > 2 and y < 1"])
    queries = [
        {"tags": tags},
        {"tags": in_dictionary},
        {"tags": tags.cast(pa.large_list(pa.large_string())), "x": pa.array([1, None, 3, 4])},
        {"tags": tags, "location": pa.array([[1.0, 2.0], None, [3.0, 4.0], None])},
        {"tags": tags, "location": pa.array([{"lon": 1.0, "lat": 2.0}, None, {"lon": 3.0, "lat": 4.0}, None])},
        {"tags": tags, "location": pa.array([[1.0, 2.0], None, [3.0, 4.0], None], pa.list_(pa.float64(), 2))},
        {"tags": tags, "within": pa.array([{**circle, "north": None}, None, None, None])},
        {"tags": tags, "attributes": pa.array([{"x": 1, "y": "t"}, None, {"x": 3, "y": None}, {"x": None, "y": "u"}])},
        {"tags": tags, "attributes": pa.array(['{"x": 1}', None, "{}", "{}"]), "id": word},
        {"tags": pa.array([["a"], ["a word that is longer than a view"], [], []], pa.list_(pa.string_view()))},
        {"tags": pa.array(tags.to_pylist(), pa.list_view(pa.string()))},
        {"tags": tags, "word": word.dictionary_encode(), "view": word.cast(pa.string_view())},
        {"tags": tags, "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 4, pa.binary(16)))},
    ]
    sets = [
        {"key": key, "tags": tags},
        {"key": key, "tags": in_dictionary, "where": conditions},
        {"key": key, "tags": tags, "expires": pa.array([None, 1, None, 2], pa.timestamp("us", "UTC"))},
        {"key": key, "tags": tags, "constraints": pa.array([[constraint], [], None, []])},
        {"key": key, "tags": tags, "area": pa.array([{**circle, "north": None}, None, None, None])},
    ]
    payload = [b"a", b"b", None, b"d"]
    published = [
        {"tags": tags, "payload": pa.array(payload)},
        {"tags": in_dictionary, "payload": pa.array(payload, pa.binary_view()), "expires": sets[2]["expires"]},
    ]
    moves = [{"client": key, "lon": pa.array([1.0, 2.0, 3.0, 4.0]), "lat": pa.array([1.0, 2.0, 3.0, 4.0])}]
    asked = [{"acknowledge": pa.array([1, None, 0, 0])}, {"follow": key}]
    commands = {"match": queries, "add": sets, "publish": published, "move": moves, "notify": asked}
    return [(command, pa.record_batch(each)) for command, all_ in commands.items() for each in all_]


def _others() -> list[pa.RecordBatch]:
    """Messages with a column of every type, and of such within others: attributes, or ids, which come back."""
    rnd = random.Random(0)
    kinds = [kind for kind in LEAVES if not isinstance(kind, pa.BaseExtensionType)]
    for _ in range(2):  # the second time, within those of the first
        kinds += [of(kind) for of in _WITHIN for kind in rnd.sample(kinds, 3)]
    tags = pa.array([["a"]] * 4)
    return [
        pa.record_batch({"tags": tags, ("any", "id")[i % 2]: array_of(rnd, each, 4)}) for i, each in enumerate(kinds)
    ]


def _with_text(kind: pa.DataType) -> list[pa.Field]:
    return [pa.field("a", kind), pa.field("b", pa.string())]


_WITHIN: list[Callable[[pa.DataType], pa.DataType]] = [
    pa.list_, pa.large_list, pa.list_view, lambda kind: pa.list_(kind, 2), lambda kind: pa.map_(pa.string(), kind),
    *(lambda kind, of=of: of(_with_text(kind)) for of in (pa.struct, pa.dense_union, pa.sparse_union)),
    lambda kind: pa.run_end_encoded(pa.int32(), kind), lambda kind: pa.list_(pa.dictionary(pa.int8(), pa.list_(kind))),
]  # fmt: skip
_OPTIONS: list[dict[str, Any]] = [
    {}, {"compression": "lz4"}, {"compression": "zstd"}, {"emit_dictionary_deltas": True}
]  # fmt: skip


def corpus() -> list[Stream]:
    """Sound streams of all that the service takes: each has a batch, a slice of it, and one of no rows."""
    found = []
    all_ = [(command, batch, options) for command, batch in _batches() for options in _OPTIONS]
    all_ += [("match", batch, _OPTIONS[i % len(_OPTIONS)]) for i, batch in enumerate(_others())]
    for command, batch, options in all_:
        stream = stream_of([batch, batch.slice(1), batch.slice(0, 0)], **options)
        found.append(Stream(command, messages_in(stream)))
    return found


def spoiled(streams: Sequence[Stream], rnd: random.Random) -> Stream:
    """One of the streams with a few mistakes in a few messages, which may be in another order, missing or another's."""
    command, sound = rnd.choice(streams)
    messages = list(sound)
    for _ in range(rnd.choice((0, 1, 1, 1, 2))):
        at = rnd.randrange(len(messages))
        header, body = messages[at]
        if rnd.random() < 0.6:
            header = mutated(rnd, header)
        else:
            body = mutated(rnd, body)
        messages[at] = Message(header, body)
    order = rnd.random()
    if order < 0.05:
        rnd.shuffle(messages)
    elif order < 0.1:
        del messages[rnd.randrange(len(messages))]
    elif order < 0.15:
        messages.insert(rnd.randrange(len(messages)), rnd.choice(rnd.choice(streams).messages))
    return Stream(command, messages)


class Reading:
    """Streams go to the reader of messages, and what it takes to an index."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._index = TagMatch(threads=1, device="cpu")
        self._index.add_sets([["a"], [], ["b"]], [1, 2, 3], where=["x > 0", None, "within circle(1, 2, 3)"])
        self._index.consolidate()
        taken = [self._outcome(stream) for stream in streams]  # and kernels are loaded
        assert taken.count("taken") > len(taken) // 2
        self._index.consolidate()

    def tried(self, streams: Sequence[Stream], folder: Path, rnd: random.Random) -> str:
        """Try a spoilt stream; returns whether it was taken, and raises if that is wrong."""
        stream = spoiled(streams, rnd)
        (folder / "messages.pickle").write_bytes(pickle.dumps(tuple(stream)))
        found = self._outcome(stream)
        if rnd.random() < 0.02:
            self._index.consolidate()
        return found

    def _outcome(self, stream: Stream) -> str:
        try:
            self._take(stream)
        except TagMatchError as error:
            if "\n" in str(error):
                raise AssertionError("a message has several lines") from error
            return "refused"
        return "taken"

    def _take(self, stream: Stream) -> None:
        reader = IpcReader(most_bytes=_MOST_BYTES, most_rows=_MOST_ROWS)
        for message in stream.messages:
            batch = reader.feed(*message)
            if batch is not None:
                batch.validate(full=True)
                with contextlib.suppress(pa.ArrowTypeError):  # Arrow 23 cannot tell it of views of lists
                    assert batch.nbytes <= 8 * _MOST_BYTES
                self._use(stream.command, batch)

    def _use(self, command: str, batch: pa.RecordBatch) -> None:
        index = self._index
        check_schema(batch.schema)
        if command == "match":
            rows = batch_of(batch).rows
            assert len(index.match_many(Queries([rows]))) == len(batch)
        elif command == "publish":
            messages = hub.messages_of(batch)
            assert messages.nbytes >= 0
            assert len(index.match_many(messages.drop_columns(hub.OWN))) == len(batch)
        elif command == "add":
            index.add_subscriptions(pa.Table.from_batches([batch]))
        elif command == "move" and sorted(batch.schema.names) == ["client", "lat", "lon"]:
            index.move(*(batch.column(name) for name in ("client", "lon", "lat")))


def _cases(rounds: int, _: Path, __: random.Random) -> Iterator[Case]:
    streams = corpus()
    attempt = functools.partial(Reading(streams).tried, streams)
    return (Case("stream", str(number), attempt) for number in range(rounds))


PROGRAM = Program(_cases, Length(1_000, 20_000), wanted=("taken", "refused"), hangs_s=30, in_a_process=2_000)
