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

from tagmatch.model.version import VERSION

# `typing` takes longer to import than all of this, and Ctrl-C is not yet taken care of
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tagmatch.engine import TagMatch as TagMatch
    from tagmatch.model.errors import ClosedError as ClosedError
    from tagmatch.model.errors import DeviceError as DeviceError
    from tagmatch.model.errors import DeviceMemoryError as DeviceMemoryError
    from tagmatch.model.errors import DeviceWarning as DeviceWarning
    from tagmatch.model.errors import IndexChangedError as IndexChangedError
    from tagmatch.model.errors import IndexCorruptError as IndexCorruptError
    from tagmatch.model.errors import IndexExistsError as IndexExistsError
    from tagmatch.model.errors import IndexNotFoundError as IndexNotFoundError
    from tagmatch.model.errors import IndexVersionError as IndexVersionError
    from tagmatch.model.errors import InputFileError as InputFileError
    from tagmatch.model.errors import InvalidTypeError as InvalidTypeError
    from tagmatch.model.errors import InvalidValueError as InvalidValueError
    from tagmatch.model.errors import InvariantError as InvariantError
    from tagmatch.model.errors import NullError as NullError
    from tagmatch.model.errors import Overloaded as Overloaded
    from tagmatch.model.errors import ResultTooLargeError as ResultTooLargeError
    from tagmatch.model.errors import StagedChangesWarning as StagedChangesWarning
    from tagmatch.model.errors import TagMatchError as TagMatchError
    from tagmatch.model.options import CudaOptions as CudaOptions
    from tagmatch.model.options import PipelineOptions as PipelineOptions
    from tagmatch.warmup import warm_up as warm_up

__version__ = VERSION

_HOME = {
    "TagMatch": "tagmatch.engine",
    "ClosedError": "tagmatch.model.errors",
    "CudaOptions": "tagmatch.model.options",
    "DeviceError": "tagmatch.model.errors",
    "DeviceMemoryError": "tagmatch.model.errors",
    "DeviceWarning": "tagmatch.model.errors",
    "IndexChangedError": "tagmatch.model.errors",
    "IndexCorruptError": "tagmatch.model.errors",
    "IndexExistsError": "tagmatch.model.errors",
    "IndexNotFoundError": "tagmatch.model.errors",
    "IndexVersionError": "tagmatch.model.errors",
    "InputFileError": "tagmatch.model.errors",
    "InvalidTypeError": "tagmatch.model.errors",
    "InvalidValueError": "tagmatch.model.errors",
    "InvariantError": "tagmatch.model.errors",
    "NullError": "tagmatch.model.errors",
    "Overloaded": "tagmatch.model.errors",
    "PipelineOptions": "tagmatch.model.options",
    "ResultTooLargeError": "tagmatch.model.errors",
    "StagedChangesWarning": "tagmatch.model.errors",
    "TagMatchError": "tagmatch.model.errors",
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
