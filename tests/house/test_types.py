"""What type checkers make of a user's program: what is right passes, what is wrong is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parent / "client" / "client.py"


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


# An error that is marked as expected but does not come is an error in both: strict mypy says so by itself


def test_mypy(tmp_path):
    (tmp_path / "mypy.ini").touch()
    assert "Success" in run(sys.executable, "-m", "mypy", "--strict", str(CLIENT), folder=tmp_path)


def test_pyright(tmp_path):
    settings = {
        "include": [str(CLIENT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        # pyarrow, which `match_many` returns arrays of, has no types
        "reportUnknownMemberType": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    assert "0 errors" in run(sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, folder=tmp_path)
