"""Forked children of a program that reads an index on a store: they end by themselves, and take nothing with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tagmatch import TagMatch

pytest_plugins = ["support.s3_bucket"]
pytestmark = pytest.mark.slow

PARENT = """
import os, sys
from pathlib import Path
from tagmatch import TagMatch
from tagmatch.model.storage import shared_files

def forked(end):
    child = os.fork()
    if not child:
        end()
    assert os.waitpid(child, 0)[1] == 0

uri, newer = sys.argv[1:]
tm = TagMatch.open(uri, device="cpu")
with shared_files.temporary_folder() as folder:
    forked(sys.exit)  # handlers of exit run, as in a worker of a server that forks
    assert folder.is_dir()
with TagMatch.open(newer, device="cpu") as other:
    other.save(uri)
assert tm.reload()
assert sorted(tm.match(["a"])) == [1, 2]

def follow():  # when the parent's copies are gone
    import shutil
    shutil.rmtree(shared_files.folder_for_copies())
    assert sorted(tm.match(["a"])) == [1, 2]
    with TagMatch.open(uri, device="cpu") as again:
        assert sorted(again.match(["a"])) == [1, 2]
    assert shared_files.folder_for_copies().is_dir()
    sys.exit()

forked(follow)
print(*shared_files._made)
"""


def test_the_end_of_a_child_leaves_the_copies_of_its_parent(uri: str, tmp_path: Path) -> None:
    for name, keys in (("older", [1]), ("newer", [1, 2])):
        with TagMatch(tmp_path / name, device="cpu") as tm:
            tm.add_sets([["a"] for _ in keys], keys)
            tm.consolidate()
            if name == "older":
                tm.save(uri)
    done = subprocess.run(
        [sys.executable, "-c", PARENT, uri, str(tmp_path / "newer")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
    assert not [folder for folder in done.stdout.split() if Path(folder).exists()], "it leaves them behind"
