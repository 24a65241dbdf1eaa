"""Brokers of both kinds, for tests of gateways: each test has its own, which starts in some hundredths of a second."""

from __future__ import annotations

import contextlib

import pytest
from support.brokers import Proxy


@pytest.fixture(params=["mqtt", "nats"])
def side(request):
    from support.gateway_sides import SIDES

    return SIDES[request.param]


@pytest.fixture
def start(side, tmp_path):
    """Starts a broker, with more lines of its configuration."""
    with contextlib.ExitStack() as started:
        yield lambda more="": started.enter_context(side.start(tmp_path, more))


@pytest.fixture
def broker(start):
    return start()


@pytest.fixture
def proxy(broker):
    with contextlib.closing(Proxy(broker.port)) as found:
        yield found
