"""Where an index lies: a folder that Spark's driver and all its workers see under the same path."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tagmatch.errors import InvalidTypeError, InvalidValueError


def index_folder(index: str | os.PathLike[str]) -> Path:
    """Return the absolute path of an index that is given as a path or as a `file:` URI.

    Raises
    ------
    InvalidTypeError
        It is neither.
    InvalidValueError
        It is a URI of something that is no file system of this machine.
    """
    if not isinstance(index, str | os.PathLike) or not isinstance(text := os.fspath(index), str):
        raise InvalidTypeError(f"index must be a path, not {index!r}")
    uri = urlsplit(text)
    if uri.scheme == "file" and uri.netloc in ("", "localhost"):
        return Path(unquote(uri.path))
    if "://" in text or uri.scheme == "file":
        raise InvalidValueError(
            f"an index is memory-mapped, so it cannot be at {text}; give a folder that all machines mount, and copy it "
            "from or to where it is kept"
        )
    return Path(text).absolute()
