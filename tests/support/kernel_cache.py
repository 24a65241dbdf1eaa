"""Compiled kernels in folders of a test's own, most of them copied: to compile them all takes minutes."""

import shutil
from pathlib import Path

from tagmatch.model.kernels.kept import cache_folder


def copy_of_cache(home: Path) -> Path:
    """Copy the compiled kernels of this process to the cache below this `XDG_CACHE_HOME`."""
    found = cache_folder()
    assert found is not None
    return shutil.copytree(found, home / "tagmatch" / Path(found).name)
