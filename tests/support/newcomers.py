"""The pages that a newcomer reads, and a newcomer who follows them."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from support.documents import ROOT, Block, blocks_in

TUTORIALS, HOW_TO = (
    [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
    for folder in ("tutorials", "howto")
)
START = "docs/index.md"
#: It needs Java
ON_SPARK = "docs/tutorials/spark.md"
PAGES = [START, *TUTORIALS]

#: Why the start page's way to install is not among what runs in an empty folder
NEEDS_CHECKOUT = "needs a checkout"
_NEEDED = re.compile(r"`(pip install [^`]+)`")
# What is not part of the source code, but of working on it
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "site", "bench-results", "build", "dist")


def needed_for(page: str) -> list[str]:
    """The commands under **You need** of a page, which install its needs."""
    return _NEEDED.findall((ROOT / page).read_text().partition("\n## ")[0])


class Newcomer:
    """Has the source code in a folder, and nothing else: no environment, and none of what this one has.

    The folder is empty at first. Packages come from where `pip` is configured to find them, as when this environment
    was made.
    """

    def __init__(self, folder: Path) -> None:
        self.source, self._folder = folder / "tagmatch", folder
        shutil.copytree(ROOT, self.source, symlinks=True, ignore=_LEFT_OUT)
        own = {str(Path(sys.executable).parent), str(Path(sys.prefix, "bin"))}
        # `python3` is the Python of this environment
        path = [f"{sys.base_prefix}/bin", *(each for each in os.environ["PATH"].split(os.pathsep) if each not in own)]
        kept = [name for name in os.environ if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))]
        self._environment = {**{name: os.environ[name] for name in kept}, "PATH": os.pathsep.join(path)}

    def follow(self, blocks: list[Block]) -> None:
        """Run blocks in the folder with the source code; an environment that they activate stays so."""
        left = self._folder / "environment"
        for block in blocks:
            self.run(["bash", "-e", "-c", f"{block.code}\nenv --null > {left}"], self.source)
            self._environment = dict(each.split("=", 1) for each in left.read_text().split("\0") if each)

    def run(self, command: list[str], folder: Path) -> str:
        """What a command prints, which has to end well; with it ends what it has started in the background."""
        started = subprocess.Popen(
            command,
            cwd=folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = started.communicate(timeout=600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        assert started.returncode == 0, printed
        return printed


def how_to_install() -> list[Block]:
    return [block for block in blocks_in(ROOT / START) if block.reason == NEEDS_CHECKOUT]
