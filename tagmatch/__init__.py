"""Exact subset matching: the keys of every stored tag set that is contained in a query set.

>>> from tagmatch import TagMatch
>>> tm = TagMatch()
>>> tm.add_set(["cat", "fr"], 7)
1
>>> tm.consolidate()
ChangeCounts(added=1, already_there=0, removed=0, missing=0)
>>> tm.match(["cat", "dog", "fr"])
[7]
"""

from __future__ import annotations

from tagmatch.calls import backup, connect, restore, upgrade, warm_up
from tagmatch.embedded import TagMatch
from tagmatch.model import VERSION
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.errors import (
    AccessError,
    ClosedError,
    ConfigError,
    DeadlineMissed,
    DeviceError,
    DeviceMemoryError,
    DeviceWarning,
    FilterError,
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexLockedError,
    IndexNotFoundError,
    IndexVersionError,
    InputFileError,
    InvalidTypeError,
    InvalidValueError,
    InvariantError,
    NotStoredError,
    NullError,
    Overloaded,
    ResultTooLargeError,
    SessionError,
    SlowSubscriberError,
    SparkUnavailableError,
    StagedChangesWarning,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.options import Channel, CudaOptions, PipelineOptions
from tagmatch.model.records import Alternative, Record
from tagmatch.model.where.analyzers import casefold, nfc, nfkc, no_accents, stems, words
from tagmatch.model.where.areas import Box, Circle, Near
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.outlines import Corridor, Polygon
from tagmatch.model.where.types import Version

__version__ = VERSION

__all__ = [
    "AccessError",
    "Alternative",
    "Box",
    "ChangeCounts",
    "Channel",
    "Circle",
    "ClosedError",
    "ConfigError",
    "Corridor",
    "CudaOptions",
    "DeadlineMissed",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceWarning",
    "FilterError",
    "IndexChangedError",
    "IndexCorruptError",
    "IndexExistsError",
    "IndexLockedError",
    "IndexNotFoundError",
    "IndexVersionError",
    "InputFileError",
    "InvalidTypeError",
    "InvalidValueError",
    "InvariantError",
    "Near",
    "NotStoredError",
    "NullError",
    "Overloaded",
    "PipelineOptions",
    "Polygon",
    "Record",
    "ResultTooLargeError",
    "SessionError",
    "SlowSubscriberError",
    "SparkUnavailableError",
    "StagedChangesWarning",
    "TagMatch",
    "TagMatchError",
    "UnavailableError",
    "Version",
    "Where",
    "__version__",
    "backup",
    "casefold",
    "connect",
    "nfc",
    "nfkc",
    "no_accents",
    "restore",
    "stems",
    "upgrade",
    "warm_up",
    "words",
]
