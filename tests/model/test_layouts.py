"""Each layout is one object, which knows where all layers have what they do for it."""

from dataclasses import asdict
from pkgutil import resolve_name
from typing import get_args

import pytest

from tagmatch.model.layouts import LAYOUTS
from tagmatch.model.options import Layout


def test_every_layout_is_there() -> None:
    assert set(LAYOUTS) == set(get_args(Layout))


@pytest.mark.parametrize("layout", get_args(Layout))
def test_every_implementation_is_there(layout: str) -> None:
    named = {role: name for role, name in asdict(LAYOUTS[layout].implementations).items() if name is not None}
    assert {"lay_out", "plan", "subset_match", "cuda"} <= set(named)
    for name in named.values():
        assert callable(resolve_name(name))
