"""Channels check what they are given."""

import pytest

from tagmatch import Channel
from tagmatch.model.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "the name of a channel must not be empty"),
        ({"deadline": 0}, "channel 'alarm': deadline must be from 1e-09 to 86,400 seconds, not 0"),
        ({"deadline": float("nan")}, "channel 'alarm': deadline must be from 1e-09 to 86,400 seconds, not nan"),
        ({"priority": 10**7}, "channel 'alarm': priority must be from -1000000 to 1000000, not 10000000"),
        ({"latency_budget": 0.5}, "channel 'alarm': latency_budget must be less than the deadline, 0.5 seconds"),
        ({"latency_budget": -1.0}, "channel 'alarm': latency_budget must be from 0 to 86,400 seconds, not -1.0"),
        ({"expiry": 0.4}, "channel 'alarm': expiry must be at least the deadline, 0.5 seconds, not 0.4"),
    ],
)
def test_values_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Channel(**{"name": "alarm", "deadline": 0.5, **wrong})  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [{"name": 1}, {"deadline": "5ms"}, {"priority": 1.5}, {"expiry": True}])
def test_values_of_the_wrong_type(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTypeError, match=f"{next(iter(wrong))} .*must be"):
        Channel(**{"name": "alarm", "deadline": 0.5, **wrong})  # type: ignore[arg-type]
