"""What a compared system needs from the machine, and what is said when it is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tagmatch_bench.systems.matcher import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needed(package: str) -> Iterator[None]:
    """Run an import; says how to get the Python package `package` if it is missing.

    Raises
    ------
    UnavailableError
        The package is not installed, or something that it needs is not.
    """
    try:
        yield
    except ImportError as error:
        message = f"needs the Python package {package} (pip install ./bench): {error}"
        raise UnavailableError(message) from error
