"""JSON Lines: an object on each line."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json


class JsonLines:
    """Rows as JSON objects; a `LineFormat`."""

    name = "a JSON object"
    ids = None

    def batch(self, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """As `LineFormat` says."""
        read = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        table = pa_json.read_json(pa.BufferReader(block), read, parse)
        return table.combine_chunks().to_batches()[0]

    def record(self, line: bytes) -> dict[str, Any]:
        """As `LineFormat` says."""
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"{type(record).__name__} where an object must be")
        return record
