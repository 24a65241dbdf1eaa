"""Whether the Python of Spark's workers has all that tasks need is asked once in a session, classic or Connect."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from support.index_files import make_index

from tagmatch.spark import SparkUnavailableError, match_udf, session
from tagmatch.spark.session import check_workers

SET_IT = "; set PYSPARK_PYTHON, or spark.pyspark.python"


class Asked:
    """A session of Connect, as far as it is asked: its class is no subclass of the classic one, and it has no context.

    Its workers fail with `error`, unless it is empty.
    """

    def __init__(self, error: str = "") -> None:
        self.times, self.error, self.conf = 0, error, SimpleNamespace(getAll={})

    def range(self, count: int) -> Asked:
        assert count == 1
        return self

    def select(self, function: Any) -> Any:
        def collect() -> list[list[str]]:
            self.times += 1
            if self.error:
                raise PythonException(self.error)
            return [[function(0)]]

        return SimpleNamespace(collect=collect)


@pytest.fixture(autouse=True)
def called_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that Spark would call, without Arrow: with it, one fails before it begins."""

    def udf(function: Any, kind: str, *, useArrow: bool) -> Any:  # noqa: N803
        assert (kind, useArrow) == ("string", False)
        return lambda _: function

    monkeypatch.setattr(session, "functions", SimpleNamespace(udf=udf))


def test_workers_with_all_are_asked_once() -> None:
    spark: Any = Asked()
    for _ in range(2):
        check_workers(spark)
    assert spark.times == 1
    check_workers(None)


@pytest.mark.parametrize("lacking", [["pyarrow"], ["pyarrow", "pandas"], ["tagmatch"]], ids=str)
def test_workers_that_lack_something(monkeypatch: pytest.MonkeyPatch, lacking: list[str]) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in lacking else find_spec(name))
    spark: Any = Asked()
    for _ in range(2):  # they are asked anew, as they may be mended by then
        with pytest.raises(SparkUnavailableError, match=f"lacks {', '.join(lacking)}{SET_IT}"):
            check_workers(spark)
    assert spark.times == 2


def test_workers_that_fail_before_they_begin() -> None:
    """As they do without tagmatch, if its daemon is set; other errors stay."""
    spark: Any = Asked("Traceback:\n  …\nModuleNotFoundError: No module named 'tagmatch.spark'\n")
    with pytest.raises(SparkUnavailableError, match=f"run tagmatch: their Python lacks tagmatch{SET_IT}") as raised:
        check_workers(spark)
    assert "\n" not in str(raised.value)
    with pytest.raises(PythonException, match="no such file"):
        check_workers(Asked("no such file"))  # type: ignore[arg-type]


def test_functions_of_columns_ask_the_active_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Asked("No module named 'tagmatch'")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: spark)
    with pytest.raises(SparkUnavailableError, match="lacks tagmatch"):
        match_udf(make_index(tmp_path / "index", [(["a"], 1)]))
