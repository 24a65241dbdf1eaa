"""Small libraries in C that are loaded before the C library, and so take its functions' place in a process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.servers import needs


def compiled(name: str, folder: Path) -> Path:
    """Compile the library whose source is a file here, `name`, into a folder."""
    source = Path(__file__).with_name(name)
    library = folder / source.with_suffix(".so").name
    options = ["-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([needs("cc", "gcc libc6-dev"), *options, str(source)], check=True)
    return library


def preloading(library: Path | None) -> dict[str, str]:
    """Environment of a Python process under the library, if there is one; it finds what the tests import."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    # Arrow's buffers come from the C library, too
    preload = {"LD_PRELOAD": str(library), "ARROW_DEFAULT_MEMORY_POOL": "system"} if library else {}
    return {**os.environ, **preload, "PYTHONPATH": path}
