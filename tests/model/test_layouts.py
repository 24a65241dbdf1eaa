"""Each layout stands in every table of layouts."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest

from tagmatch.model.options import Layout


@pytest.mark.parametrize(
    "module",
    ["model.layouts", "partitioner.local", "partitioner.spark.slices", "pipeline.cpu.matcher", "pipeline.cuda.matcher"],
)
def test_every_layout_is_there(module):
    assert set(importlib.import_module(f"tagmatch.{module}").LAYOUTS) == set(get_args(Layout))
