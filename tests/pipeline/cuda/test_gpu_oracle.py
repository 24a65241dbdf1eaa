"""The tests that compare all ways to ask with the oracle, once more, on CUDA."""

from __future__ import annotations

import pytest
from interface.test_match_oracle import *  # noqa: F403
from support.agreement import assert_agree, loaded

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]


def test_keys_that_are_strings(engine):
    pairs = [(["a"], "bob"), (["a", "b"], "alice"), (["a", "b"], "bob"), ([], "é"), (["c"], "")]
    tm, oracle = loaded(pairs, key_type="string", **engine)
    assert_agree(tm, oracle, [["a", "b", "x"], ["c"], [], ["a", "c"]])
