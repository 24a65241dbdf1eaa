"""Exact subset matching: the keys of every stored tag set that is contained in a query set.

>>> from tagmatch import TagMatch
>>> tm = TagMatch()
>>> tm.add_set(["cat", "fr"], 7)
>>> tm.consolidate()
>>> tm.match(["cat", "dog", "fr"])
[7]
"""

from __future__ import annotations

import importlib

from tagmatch.version import VERSION

# `typing` takes longer to import than all of this, and Ctrl-C is not yet taken care of
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tagmatch.engine import TagMatch as TagMatch
    from tagmatch.errors import ClosedError as ClosedError
    from tagmatch.errors import DeviceError as DeviceError
    from tagmatch.errors import DeviceMemoryError as DeviceMemoryError
    from tagmatch.errors import DeviceWarning as DeviceWarning
    from tagmatch.errors import IndexChangedError as IndexChangedError
    from tagmatch.errors import IndexCorruptError as IndexCorruptError
    from tagmatch.errors import IndexExistsError as IndexExistsError
    from tagmatch.errors import IndexNotFoundError as IndexNotFoundError
    from tagmatch.errors import IndexVersionError as IndexVersionError
    from tagmatch.errors import InputFileError as InputFileError
    from tagmatch.errors import InvalidTypeError as InvalidTypeError
    from tagmatch.errors import InvalidValueError as InvalidValueError
    from tagmatch.errors import InvariantError as InvariantError
    from tagmatch.errors import NullError as NullError
    from tagmatch.errors import Overloaded as Overloaded
    from tagmatch.errors import ResultTooLargeError as ResultTooLargeError
    from tagmatch.errors import StagedChangesWarning as StagedChangesWarning
    from tagmatch.errors import TagMatchError as TagMatchError
    from tagmatch.options import CudaOptions as CudaOptions
    from tagmatch.options import PipelineOptions as PipelineOptions
    from tagmatch.warmup import warm_up as warm_up

__version__ = VERSION

_HOME = {
    "TagMatch": "tagmatch.engine",
    "ClosedError": "tagmatch.errors",
    "CudaOptions": "tagmatch.options",
    "DeviceError": "tagmatch.errors",
    "DeviceMemoryError": "tagmatch.errors",
    "DeviceWarning": "tagmatch.errors",
    "IndexChangedError": "tagmatch.errors",
    "IndexCorruptError": "tagmatch.errors",
    "IndexExistsError": "tagmatch.errors",
    "IndexNotFoundError": "tagmatch.errors",
    "IndexVersionError": "tagmatch.errors",
    "InputFileError": "tagmatch.errors",
    "InvalidTypeError": "tagmatch.errors",
    "InvalidValueError": "tagmatch.errors",
    "InvariantError": "tagmatch.errors",
    "NullError": "tagmatch.errors",
    "Overloaded": "tagmatch.errors",
    "PipelineOptions": "tagmatch.options",
    "ResultTooLargeError": "tagmatch.errors",
    "StagedChangesWarning": "tagmatch.errors",
    "TagMatchError": "tagmatch.errors",
    "warm_up": "tagmatch.warmup",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    # Names load on first use: `partitioner` and `pipeline` import the data model from this package while the
    # engine imports them, so importing the engine here would close a circle.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
