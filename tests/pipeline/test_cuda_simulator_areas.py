"""As `test_cuda_simulator.py`, of areas, constraints, and what this project is compared with."""

import pytest
from support.simulated import PARTS, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("part", ["areas", "workloads"])
def test_each_test_with_one_layout(part: str) -> None:
    simulate(PARTS[part], "gpu and not slow")
