"""Examples of documents that need Java run as printed, and give what they say; the tutorial: test_newcomer.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import NEEDS_JAVA
from support.jvm import Jvm

from tagmatch import TagMatch

RUNNER = Path(__file__).parents[1] / "support" / "documents.py"


@pytest.mark.parametrize(
    ("document", "index", "keys"),
    [
        ("docs/guide/spark.md", "interests-by-spark.index", [7, 8]),
        ("docs/spark.md", "interests.index", [7, 8]),
    ],
)
def test_examples(tmp_path: Path, free_jvm: Jvm, document: str, index: str, keys: list[int]) -> None:
    command = [sys.executable, str(RUNNER), document, NEEDS_JAVA]
    # As those have it who set nothing; commands among the examples have a JVM of their own
    daemon = {"spark.python.daemon.module": "pyspark.daemon"}
    more = {
        "PYSPARK_SUBMIT_ARGS": "".join(f"--conf {name}={value} " for name, value in daemon.items()) + "pyspark-shell"
    }
    environment = free_jvm.environment | more
    with free_jvm.as_started_in(tmp_path, daemon):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        free_jvm.stop_spark()
    assert done.returncode == 0, done.stderr
    with TagMatch.open(tmp_path / index) as tm:
        assert sorted(tm.match(["cat", "fr"])) == keys
