"""Brokers of all kinds, for tests of gateways: each test has its own, which starts in some hundredths of a second."""

import contextlib
import gc

import pytest
from support.brokers import Proxy


@pytest.fixture(params=["mqtt", "nats"])
def side(request, caplog):
    """One of the kinds; after the test, asyncio has had no task to complain of that a gateway has left."""
    from support.gateway_sides import SIDES

    yield SIDES[request.param]
    if request.param == "nats":
        gc.collect()
        records = [each for when in ("call", "teardown") for each in caplog.get_records(when)]
        assert [each.getMessage() for each in records if (each.name, each.levelname) == ("asyncio", "ERROR")] == []


@pytest.fixture
def start(side, tmp_path):
    with contextlib.ExitStack() as started:
        yield lambda more="": started.enter_context(side.start(tmp_path, more))


@pytest.fixture
def broker(start):
    return start()


@pytest.fixture
def proxy(broker):
    with contextlib.closing(Proxy(broker.port)) as found:
        yield found
