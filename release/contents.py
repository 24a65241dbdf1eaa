"""What a wheel and a source distribution contain, compared with `wheel.txt` and `sdist.txt` next to this file.

These hold patterns. Each file has to have one, each pattern a file, and every module that Git knows has to be there:
`tagmatch/` links to its sister folders, and a builder that stopped following the links would leave most of it out.
"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]


def wheel_faults(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    return [*_unexpected(names, _patterns("wheel.txt")), *(f"- {name}" for name in sorted(set(_modules()) - names))]


def sdist_faults(sdist: Path) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(sdist) as archive:
        # Beneath one folder with the name and the version
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    return _unexpected(names, _patterns("sdist.txt"))


def _unexpected(names: set[str], patterns: list[str]) -> list[str]:
    """Files without a pattern (`+`), and patterns without a file (`-`)."""
    extra = [f"+ {name}" for name in sorted(names) if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    missing = [f"- {pattern}" for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    return extra + missing


def _patterns(name: str) -> list[str]:
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _modules() -> Iterator[str]:
    """Modules that Git knows, as they are called in the package."""
    package = ROOT / "tagmatch"
    for folder in (package, *(link for link in package.iterdir() if link.is_symlink())):
        listed = ["git", "ls-files", "-z", "--", f"{folder.resolve()}/*.py"]
        for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
            if name:
                yield (folder.relative_to(ROOT) / (ROOT / name).relative_to(folder.resolve())).as_posix()
