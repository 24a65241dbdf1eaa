"""Files that appear under their names only when they are whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tagmatch.model.errors import TagMatchError


@contextlib.contextmanager
def write_whole(target: Path) -> Iterator[Path]:
    """A hidden path to write to, which gets the name `target` at the end, or is removed after an error.

    Raises
    ------
    TagMatchError
        For an `OSError` in between; the message names `target`.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise TagMatchError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
