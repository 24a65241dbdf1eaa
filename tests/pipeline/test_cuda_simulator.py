"""The tests of `cuda` under Numba's simulator: each with one layout and few examples, and at night all of them."""

import pytest
from support.simulated import FILES, PARTS, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("part", ["answers", "matchers"])
def test_each_test_with_one_layout(part: str) -> None:
    simulate(PARTS[part], "gpu and not slow")


@pytest.mark.nightly
@pytest.mark.parametrize("file", FILES)
def test_all_tests_with_more_examples(file: str) -> None:
    simulate([file], "gpu", SIMULATED_EXAMPLES="8")
