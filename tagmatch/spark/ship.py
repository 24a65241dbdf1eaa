"""The join where every worker has the whole index: it is opened once, memory-mapped, and asked batch by batch.

Spark sees a function of the queries' columns, whose answers it spreads over rows: so it reads only the columns
that are needed in the end, and only the rows, and an event-time watermark stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import functions

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import IndexChangedError, InvalidValueError
from tagmatch.model.options import CudaOptions, KeyType
from tagmatch.model.storage.format import POSITIONS, Manifest, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.spark.answers import Answers, as_spark, few_keys, in_parts
from tagmatch.spark.columns import AskedColumns, reject_nulls, without_invalid
from tagmatch.spark.session import NEWEST, SnapshotChoice, WorkerDevice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The indexes that this worker has opened, by place, each with its options and the state of its clients' positions: for
# each store or folder the last one, as credentials, positions and the devices of tasks may change. A worker runs one
# task at a time.
_opened: dict[str, tuple[tuple[Shipped, CudaOptions, tuple[int, int] | None], TagMatch[Any]]] = {}


@dataclass(frozen=True, slots=True)
class Shipped:
    """What all tasks ask: a snapshot of an index, or for each task the one that is current when it begins."""

    location: Repository
    key_type: KeyType
    plane: bool
    snapshot: str | None  # The name of the snapshot; `None`: the current one
    device: WorkerDevice = "cpu"

    @classmethod
    def of(
        cls,
        location: Repository,
        manifest: Manifest,
        snapshot: SnapshotChoice,
        *,
        plane: bool,
        follows: bool = False,
        device: WorkerDevice = "cpu",
    ) -> Shipped:
        """The index with this manifest or, if it is asked for or `follows`, as it will be."""
        name = None if snapshot == NEWEST or (follows and snapshot is None) else str(manifest["snapshot"])
        return cls(location, key_type_of(manifest), plane, name, device)

    def open(self) -> TagMatch[Any]:
        """The index; opened where this worker has not opened it, or another snapshot of it."""
        try:
            return self._opened()
        except InvalidValueError as error:
            found = key_type_of(self.location.manifest())
            wrong = f": {error}"
            if found != self.key_type:
                wrong = f' had key_type "{self.key_type}" when the join began, and has "{found}" now; begin it anew'
            raise InvalidValueError(f"the index {self.location}{wrong}") from None

    def _opened(self) -> TagMatch[Any]:
        files = self.location.changeable
        positions = None if files is None else files.state(POSITIONS)
        own = self, _devices_of_task() if self.device == "cuda" else CudaOptions(), positions
        asked, held = _opened.get(str(self.location), (own, None))
        if held is not None and asked == own:
            if self.snapshot is None:
                held.reload()
            return held
        self._check_snapshot()
        found: Any = self.location  # with its credentials, which no address has
        index = TagMatch.open(
            found, threads=1, device=self.device, cuda=own[1], key_type=self.key_type, plane=self.plane
        )
        self._check_snapshot()
        _opened[str(self.location)] = own, index  # another function of the same task may ask the one before
        return index

    def _check_snapshot(self) -> None:
        """IndexChangedError if the index has another snapshot now than the one to ask."""
        if self.snapshot not in (None, self.location.manifest()["snapshot"]):
            raise IndexChangedError(
                f"the index {self.location} has another snapshot than when the join, or the function, was made, so "
                "that tasks would answer from different ones; make it again, give as `snapshot` the number of one that "
                f"the index keeps, or {NEWEST!r}, for each task to answer from the one that is current when it begins"
            )


def _devices_of_task() -> CudaOptions:
    """The GPUs that Spark has given this task, by their numbers; all of the machine if Spark knows of none."""
    context = TaskContext.get()
    given = {} if context is None else context.resources()
    addresses = given["gpu"].addresses if "gpu" in given else []
    if not all(each.isdecimal() for each in addresses):
        raise InvalidValueError(
            f"device 'cuda': Spark has given this task the GPUs {', '.join(addresses)}; the addresses that the "
            "discovery script prints must be the numbers of devices, such as 0"
        )
    return CudaOptions(devices=tuple(map(int, addresses)) or None)


def ship_join(
    queries: DataFrame, index: Shipped, *, asked: AskedColumns, columns: Sequence[Column], answers: Answers
) -> DataFrame:
    """Join queries, which may be a stream, with an index that all workers reach; `asked` numbers these columns.

    Answers depend on the query and the snapshot alone: of one snapshot, and while none of its keys expires, a task that
    is run again gives the same rows.
    """

    # By the type hints Spark knows that it may give answers in other batches than queries
    def tagmatch_ship(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        opened = index.open()
        for structs in batches:
            yield from answered(opened, pa.RecordBatch.from_struct_array(structs), asked, answers)

    found = functions.arrow_udf(tagmatch_ship, answers.of_query)(functions.struct(*columns))  # type: ignore[attr-defined]
    if answers.how in ("semi", "anti"):
        return queries.where(found)
    if answers.output != "rows":  # spread over one row: of columns that it only computes, Spark may compute some twice
        return queries.select("*", functions.explode(functions.array(found)).alias(answers.fields[0].name))
    return queries.select("*", answers.spread(found))


def answered(
    index: TagMatch[Any], queries: pa.RecordBatch, asked: AskedColumns, answers: Answers
) -> Iterator[pa.Array]:
    """The answers to queries, in arrays of bounded size; those without tags to ask for have none."""
    tags = queries.column(asked.tags)
    if answers.skip_invalid:
        tags = without_invalid(tags)
    else:
        reject_nulls(tags, asked.name_of_tags)
    queries = queries.set_column(asked.tags, queries.schema.field(asked.tags), tags)

    def of_valid(some: pa.RecordBatch, ask: Callable[[pa.RecordBatch], pa.Array]) -> pa.Array:
        valid = some.column(asked.tags).is_valid()
        if valid.true_count == len(some):
            return ask(some)
        places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), 1)
        return ask(some.filter(valid)).take(pc.if_else(valid, places, None))

    def ask(some: pa.RecordBatch) -> pa.Array:
        found = answers.ask(index, asked.messages(some), [some.column(number) for number in asked.on])
        return as_spark(found, answers.of_query)

    def count(some: pa.RecordBatch) -> pa.Array:
        return answers.count(index, asked.messages(some))

    for _, found in in_parts(
        queries, lambda some: of_valid(some, ask), lambda some: pc.fill_null(of_valid(some, count), 0)
    ):
        every = pc.fill_null(pc.invert(found), fill_value=True) if answers.how == "anti" else found
        yield from (every[part] for part in few_keys(every))
