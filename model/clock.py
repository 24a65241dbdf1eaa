"""What time it is, and when keys expire, as callers say it: microseconds since 1970, UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array
from tagmatch.model.arrow import is_text
from tagmatch.model.columns import arrow_chunks, listed_in, shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.tables import NEVER, if_any
from tagmatch.model.where.types import EPOCH

#: As which times are shown
TIME = pa.timestamp("us", "UTC")

_MICROSECOND = timedelta(microseconds=1)
#: The last time that Python can still show
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
# Microseconds in each unit; nanoseconds are divided instead
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}

_ONE_KIND = "a datetime with a time zone, or a timedelta from now"
_NO_ZONE = "has no time zone; give one, as in datetime.now(timezone.utc) + timedelta(hours=1)"
_EXAMPLE = '"2027-01-31T12:00:00Z"'
_TOO_FAR = "is too far away, after the year 9999; keys without a time never expire"


def now_us() -> int:
    """Microseconds since 1970, UTC, as the system's clock has them, which may be set back or on."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """Microseconds since some moment, which do not jump with the system's clock.

    They are for durations that a user has given; the system's clock is for times of day. A machine that sleeps does not
    count them.
    """
    return time.monotonic_ns() // 1000


def is_missing(value: object) -> bool:
    """Whether a value is missing, as Python, NumPy and pandas write it: `None`, NaN, `NaT` or `NA`."""
    if value is None:
        return True
    if isinstance(value, float | np.datetime64 | np.timedelta64 | datetime):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType")


def expiry_time(value: object, now: int, name: str = "expires") -> int:
    """When one key expires, or all of a call do."""
    if is_missing(value):
        return NEVER
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidValueError(f"{name} {_NO_ZONE}")
        until = (value - EPOCH) // _MICROSECOND
    elif not isinstance(value, timedelta):
        raise InvalidTypeError(f"{name} must be {_ONE_KIND}, not {shown(value)}")
    elif value <= timedelta(0):
        raise InvalidValueError(f"{name} must be after now, not {value} from now; delete and remove_set remove a key")
    else:
        until = now + value // _MICROSECOND
    if until > LATEST:
        raise InvalidValueError(f"{name} {_TOO_FAR}")
    return until


def expiry_times(values: object, rows: int, now: int) -> I64Array | None:
    """When each of many keys expires; `None` if none does."""
    if is_missing(values) or isinstance(values, datetime | timedelta):
        until = expiry_time(values, now)
        return None if until == NEVER else np.full(rows, until)
    chunks = [_as_arrow(values)] if isinstance(values, np.ndarray) and values.dtype.kind != "O" else None
    if (chunks := chunks or arrow_chunks(values, "expires")) is not None:
        starts = accumulate(map(len, chunks), initial=0)
        parts = [times_in(chunk, "expires", first_row) for chunk, first_row in zip(chunks, starts, strict=False)]
        times = np.concatenate([np.zeros(0, np.int64), *parts])
    else:
        listed = listed_in(values, f"expires must be {_ONE_KIND}, or a column of times")
        found = [expiry_time(value, now, f"expires: row {row}") for row, value in enumerate(listed)]
        times = np.array(found, np.int64)
    if len(times) != rows:
        raise InvalidValueError(f"expires must have a time for each key; there are {len(times)}, and {rows} keys")
    return if_any(times)


def check_text(text: object, name: str) -> None:
    """See that a text, or `None`, is a time as `TIME` is read of it."""
    if text is None:
        return
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} must be a time, as {_EXAMPLE}, not {shown(text)}")
    try:
        pa.scalar(text).cast(TIME)
    except pa.ArrowInvalid:
        raise InvalidValueError(f"{name} must be a time with its zone, as {_EXAMPLE}, not {shown(text)}") from None


def times_in(chunk: pa.Array, name: str, first_row: int) -> I64Array:
    """An Arrow array of timestamps with a time zone, as times; errors as `expiry_times`."""
    kind = chunk.type
    if pa.types.is_null(kind):
        return np.full(len(chunk), NEVER)
    if not pa.types.is_timestamp(kind):
        hint = "; make texts such, as in pandas.to_datetime(column, utc=True)" if is_text(kind) else ""
        raise InvalidTypeError(f"{name} must be timestamps with a time zone, not {kind}{hint}")
    if kind.tz is None:
        raise InvalidValueError(
            f"{name} are timestamps without a time zone; say which it is, as in "
            'pyarrow.compute.assume_timezone(column, "UTC")'
        )
    known, times = chunk.is_valid().to_numpy(zero_copy_only=False), in_microseconds(chunk)
    beyond = times > LATEST
    if beyond.any():
        raise InvalidValueError(f"{name}: row {first_row + int(np.argmax(beyond))} {_TOO_FAR}")
    return np.where(known, np.maximum(times, -LATEST), NEVER)


def expiring(chunk: pa.Array, time: datetime) -> pa.Array:
    """The same, as `TIME`, with one time for those that never expire."""
    times = times_in(chunk, "expires", 0)
    return pa.array(np.where(times == NEVER, expiry_time(time, 0), times), TIME)


def in_microseconds(column: pa.Array) -> I64Array:
    """Timestamps or durations in microseconds, 0 for nulls; the nearest possible value if 64 bits are too few."""
    numbers: I64Array = column.cast(pa.int64()).fill_null(0).to_numpy()
    if column.type.unit == "ns":
        return numbers // 1_000
    factor = _UNITS[column.type.unit]
    most = NEVER // factor
    return np.clip(numbers, -most, most) * factor


def _as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """An array of NumPy's times, which are in UTC."""
    if values.dtype.kind != "M" or values.ndim != 1:
        raise InvalidTypeError(f"expires must be a one-dimensional array of datetime64, not of {values.dtype}")
    if np.datetime_data(values.dtype)[0] not in (*_UNITS, "ns"):
        values = values.astype("datetime64[s]")
    times = pa.array(values)
    return times.cast(pa.timestamp(times.type.unit, "UTC"))
