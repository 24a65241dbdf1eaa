"""Configurations of gateways that could never work, or would harm, are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command import tagmatch
from support.service import written

from tagmatch import ConfigError, TagMatch
from tagmatch.broker.config import Config, MetricsOptions, ServerOptions, read_config
from tagmatch.broker.config_files import check_files
from tagmatch.broker.gateways.options import MqttOptions, NatsOptions
from tagmatch.broker.gateways.topics import MQTT, NATS
from tagmatch.broker.running import started


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ("#", "out/+", True),
        ("+/+", "out/+", True),
        ("+", "out/+", False),
        ("out/#", "out", True),
        ("out/7", "out/+", True),
        ("out", "out/+", False),
        ("+/#", "out/+", True),
        ("in/#", "out/+", False),
        ("$share/group/out/#", "out/+", True),
        ("$share/group/in/#", "out/+", False),
        ("#", "$other/+", False),
        ("$other/#", "$other/+", True),
        ("a/+/c", "a/b/+", True),
        ("a/+/c/d", "a/b/+", False),
    ],
)
def test_filters_of_mqtt_that_share_topics(one: str, other: str, share: bool) -> None:
    assert MQTT.overlap(one, other) == MQTT.overlap(other, one) == share


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (">", "out.*", True),
        ("*.*", "out.*", True),
        ("*", "out.*", False),
        ("out.>", "out.*", True),
        ("out.>", "out", False),
        ("out.7", "out.*", True),
        ("out.7.>", "out.*", False),
        ("in.>", "out.*", False),
        ("a.*.c", "a.b.*", True),
    ],
)
def test_filters_of_nats_that_share_subjects(one: str, other: str, share: bool) -> None:
    assert NATS.overlap(one, other) == NATS.overlap(other, one) == share


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[[mqtt]]\nmessages = "#"\nnotifications = "out"', 2, "messages of .* notifications of"),
        ('[[mqtt]]\nnotifications = "out"\nmessages = "$share/g/+/+"', 3, "messages of .* notifications of"),
        ('[[mqtt]]\ncontrol = "out/#"\nnotifications = "out"', 2, "control of .* notifications of"),
        ('[[mqtt]]\nmessages = "in/#"\ncontrol = "in/control"', 2, "messages of .* control of"),
        ('[[nats]]\nmessages = ">"\nnotifications = "out"', 2, "messages of .* notifications of"),
        ('[[nats]]\nmessages = "*.*"\nnotifications = "out"', 2, "messages of .* notifications of"),
        ('[[nats]]\ncontrol = "out.>"\nnotifications = "out"', 2, "control of .* notifications of"),
        ('[[nats]]\nmessages = "in.>"\ncontrol = "in.control"', 2, "messages of .* control of"),
        (
            '[[nats]]\nmessages = "in.>"\nnotifications = "mid"\n'
            '[[nats]]\nsession = "two"\nmessages = "mid.>"\nnotifications = "in"',
            2,
            "messages of .* in line 2 .* notifications of .* in line 7",
        ),
        ('[[nats]]\nmessages = "in..x"', 2, "messages must be a subject"),
        ('[[nats]]\nmessages = "in.x y"', 2, "messages must be a subject"),
        ('[[nats]]\nnotifications = "in.*"', 2, "notifications must be a subject, no filter"),
        ('[[mqtt]]\nmessages = "in/#/x"', 2, "messages must be a topic"),
        ('[[mqtt]]\nmessages = "$share/in"', 2, "messages must be a topic"),
        ('[[mqtt]]\nnotifications = "$share/g/out"', 2, "notifications must be a topic, no filter"),
        ('[[mqtt]]\nmessages = "in\\u0007"', 2, "messages must be a text without control characters"),
        ('[[mqtt]]\nmessages = "in\\uffff"', 2, "messages must be a topic"),
        ('[[mqtt]]\nmessages = "in"\nclient_id = "a\\u0000"', 3, "client_id must be a text without control"),
        ('[[mqtt]]\nmessages = "in"\nusername = "a\\nb"', 3, "username must be a text without control"),
    ],
)
def test_places_that_cannot_work_are_refused(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_gateways_may_follow_each_other(tmp_path: Path) -> None:
    chain = (
        '[[nats]]\nmessages = "in.>"\nnotifications = "mid"\n[[nats]]\nsession = "two"\nmessages = "mid.*"\n'
        'notifications = "out"\n[[nats]]\nsession = "far"\nhost = "other"\nmessages = "out.*"\nnotifications = "in"'
    )
    assert len(read_config(written(tmp_path, chain)).nats) == 3


FILES = [
    ('username = "u"\npassword_file = "none"', "password_file .*none: cannot be read: No such file"),
    ('username = "u"\npassword_file = "."', "password_file .*: cannot be read: Is a directory"),
    ('username = "u"\npassword_file = "latin"', "password_file .*latin: cannot be read: it is no UTF-8"),
    ('tls = true\ntls_ca = "none"', "tls_ca .*none: cannot be read: No such file"),
    ('tls = true\ntls_ca = "latin"', "tls_ca .*latin holds no certificate as PEM"),
    ('dead_letters = "none/x"', "dead_letters .*none/x: cannot be written"),
]


@pytest.mark.parametrize("section", ["mqtt", "nats"])
@pytest.mark.parametrize(("text", "message"), FILES)
def test_files_that_cannot_be_read_are_named_before_anything_starts(
    tmp_path: Path, section: str, text: str, message: str
) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    config = read_config(written(tmp_path, f'[[{section}]]\nmessages = "in"\n{text}'))
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_files(config)
    with TagMatch() as tm, pytest.raises(ConfigError, match=message):
        started(tm, config)


def test_the_command_checks_gateways(tmp_path: Path) -> None:
    path = written(tmp_path, '[[mqtt]]\nmessages = "#"\nnotifications = "out"')
    assert "messages of [[mqtt]] in line 2" in tagmatch("serve", "--config", path, "--check", code=1)
    path = written(tmp_path, '[[mqtt]]\nmessages = "in"\nusername = "u"\npassword_file = "none"')
    for more in (["--check"], [str(tmp_path / "new.index")]):
        line = tagmatch("serve", "--config", path, *more, code=1)
        assert "password_file" in line
        assert "\n" not in line.strip()


@pytest.mark.parametrize("kind", [MqttOptions, NatsOptions])
def test_readiness_waits_for_gateways_that_are_required(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of others it says that they have no connection."""
    for required in (False, True):
        gateway = kind(messages="in", port=1, required=required)
        config = Config(
            ServerOptions(port=0),
            metrics=MetricsOptions(enabled=False),
            **{"mqtt" if kind is MqttOptions else "nats": (gateway,)},
        )
        with TagMatch() as tm:
            service = started(tm, config)
            try:
                assert service.is_ready is not required
                ready, words = service.readiness()
                assert ready is not required
                first, line = words.decode().splitlines()
                assert first == ("not ready" if required else "ready")
                assert line.startswith(f"{gateway.session}: not connected for ")
                (own,) = service.subscribers.gateways
                own._is_connected(True)
                assert service.readiness() == (True, f"ready\n{gateway.session}: connected\n".encode())
                own._is_connected(False)  # a broker may be started again
                assert service.is_ready
                monkeypatch.setattr("tagmatch.broker.gateways.gateway.GRACE_S", 0.0)
                assert service.is_ready is not required
                monkeypatch.undo()
            finally:
                service.drain()
                service.subscribers.end(30)
                service.shutdown()
