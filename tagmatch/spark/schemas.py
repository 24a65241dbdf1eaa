"""Types of Spark's columns as Arrow has them."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

# PySpark 4.1 has no such parameter: there the zone of timestamps is UTC anyway
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def arrow_type(kind: DataType) -> pa.DataType:
    """The type of a column; timestamps are in UTC.

    Examples
    --------
    >>> from pyspark.sql.types import ArrayType, StringType
    >>> arrow_type(ArrayType(StringType()))
    ListType(list<element: string>)
    """
    return to_arrow_type(kind, **_ZONE)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types of columns, as `arrow_type` has them.

    Examples
    --------
    >>> from pyspark.sql.types import LongType, StructType
    >>> arrow_schema(StructType().add("key", LongType()))
    key: int64
    """
    return to_arrow_schema(schema, **_ZONE)
