"""The examples of README and docs that need Java run as printed, and give what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tagmatch import TagMatch

RUNNER = Path(__file__).parents[1] / "support" / "documents.py"


@pytest.mark.parametrize(
    ("document", "index"), [("README.md", "interests-by-spark.index"), ("docs/spark.md", "interests.index")]
)
def test_examples(tmp_path: Path, document: str, index: str) -> None:
    command = [sys.executable, str(RUNNER), document, "needs Java"]
    # As those have it who set nothing
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": "--conf spark.python.daemon.module=pyspark.daemon pyspark-shell"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with TagMatch.open(tmp_path / index) as tm:
        assert sorted(tm.match(["cat", "fr"])) == [7, 8]
