"""The data source `tagmatch` as the sink of a stream: each micro-batch becomes the index's once, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tagmatch.model.errors import IndexChangedError
from tagmatch.spark.schemas import arrow_schema
from tagmatch.spark.writing import HandedOver, Saving, check_columns, handed_over


class StreamWriter(DataSourceStreamArrowWriter):
    """What saves the changes of micro-batches.

    The manifest of the index has the number of the last micro-batch of each query, and gets it in the step in which it
    gets the changes. So one that Spark hands over once more, as it was stopped before it knew, changes nothing.
    """

    def __init__(self, saving: Saving, schema: StructType) -> None:
        self._saving, self._schema = saving, arrow_schema(schema)
        check_columns(self._schema, removals=True, match_all=saving.match_all)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HandedOver:
        """One task."""
        return handed_over(iterator, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are done. Where another program saves meanwhile, its changes come first."""
        rows = [each for each in messages if isinstance(each, HandedOver)]
        while rows:
            try:
                return self._saving.save(rows, self._schema, batchId)
            except IndexChangedError:
                continue
        return None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed: nothing has been written yet."""
