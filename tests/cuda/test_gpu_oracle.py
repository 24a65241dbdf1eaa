"""The tests that compare all ways to ask with the oracle, once more, on CUDA."""

from __future__ import annotations

import pytest
from test_match_oracle import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]
