"""The configuration of a service: valid options are read, and a mistake is an error that names its line."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.agreement import index_of
from support.service import NO_METRICS, USERS, config, written

from tagmatch import Channel, ConfigError, FilterError, InvalidTypeError, InvalidValueError, TagMatch, TagMatchError
from tagmatch.broker.config import (
    MQTT,
    NATS,
    Config,
    HubOptions,
    LogOptions,
    MqttOptions,
    NatsOptions,
    ServerOptions,
    SessionOptions,
    User,
)
from tagmatch.broker.config_file import read_config, token_sha256
from tagmatch.broker.service import opened, serving, with_arguments
from tagmatch.model.options import channel_of

DIGEST = token_sha256("secret")
WHOLE = f"""
# a comment
[server]\nhost = "0.0.0.0"\nport = 0\nburst = 0.5
tls_cert = "server.pem"\ntls_key = "/etc/server.key"
rate = 1000          # an integer where a number may be
[index]\npath = "cats.index"\nthreads = 2\ndurability = "os"\norder = "edf"
[metrics]\nenabled = false
[log]\nformat = "text"
[[users]]\nname = "ana"\ntoken_sha256 = "{DIGEST}"\nrole = "write"\nexpires = 2030-01-31T12:00:00Z
[[users]]\nname = "bo"\ntoken_sha256 = "{DIGEST}"
[[channel]]\nname = "alarm"\ndeadline = "5ms"\npriority = 1
[[channel]]\nname = "bulk"\ndeadline = 2\nlatency_budget = "100ms"\nexpiry = "1min"
[[mqtt]]\nmessages = "a"\nusername = "ana"\npassword_file = "secret"
"""


def test_a_whole_file(tmp_path):
    (tmp_path / "secret").write_text("opensesame\n")
    found = read_config(written(tmp_path, WHOLE))
    assert (found.server.host, found.server.rate) == ("0.0.0.0", 1000.0)
    assert (found.server.tls_cert, found.server.tls_key) == (str(tmp_path / "server.pem"), "/etc/server.key")
    assert found.index.keywords["durability"] == "os"
    assert not found.metrics.enabled
    assert found.log == LogOptions("text")
    ana, bo = found.users
    assert ana == User("ana", DIGEST, "write", datetime(2030, 1, 31, 12, tzinfo=UTC))
    assert (bo.role, bo.expires) == ("read", None)
    assert [ana.may(role) for role in ("read", "write", "admin")] == [True, True, False]
    alarm, bulk = Channel("alarm", 0.005, 1), Channel("bulk", 2, latency_budget=0.1, expiry=60)
    assert [each.channel for each in found.channel] == [alarm, bulk]
    more = with_arguments(found, "other", "localhost", 7, [channel_of("alarm:1ms"), channel_of("spare")], "dfgs")
    assert (more.index.path, more.server.host, more.server.port) == ("other", "localhost", 7)
    dues = {"alarm": 0.001, "bulk": 2.0, "spare": float("inf")}
    assert {each.channel.name: each.channel.due for each in more.channel} == dues
    assert (found.index.order, more.index.order) == ("edf", "dfgs")
    (gateway,) = found.mqtt
    assert gateway.password == "opensesame"
    assert "opensesame" not in repr(gateway)
    (tmp_path / "secret").unlink()
    with pytest.raises(TagMatchError, match="cannot be read"):
        _ = gateway.password


def test_files_that_are_empty_or_cannot_be_read(tmp_path):
    assert read_config(written(tmp_path, "")) == Config()
    assert Config().server.is_local
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(tmp_path / "latin.toml")


USER, CHANNEL = f"[[users]]\nname = 'a'\ntoken_sha256 = '{DIGEST}'\n", '[[channel]]\nname = "a"\n'
MISTAKES = [
    ("[server]\nport = 8815\nhots = 'x'", 3, "'host' meant"),
    ("[server]\n\nport = 'x'", 3, "port must be an integer, not 'x'"),
    ("[server]\nport = true", 2, "port must be an integer"),
    ("[server]\n# port = 1\nport = 70000", 3, "port must be from 0 to 65535"),
    ("[server]\nrate = -1", 2, "rate must be from"), (f"[server]\nrate = 1{'0' * 400}", 2, "rate must be a number"),
    ("[server]\nhost = 'a'\ntls_cert = 'x'", 3, "tls_cert needs tls_key"),
    ("[server]\nclient_ca = 'x'", 2, "without TLS"), ("[server]\nport = \n", 2, "Invalid value"),
    ("[server]\nport = 1\nport = 2", 3, "overwrite"), ("[sever]\nport = 1", 1, "'server' meant"),
    ("\nserver = 1", 2, r"write \[server\]"), ("[index]\npath = [1]", 2, "path must be a text"),
    ('[index]\norder = "lifo"', 2, "order must be one of 'fifo', 'edf', 'dfgs'"),
    ("[log]\nlevel = 'all'", 2, "one of 'debug'"), ("[sessions]\nmax_keys = 0", 2, "max_keys"),
    ("[hub]\nwhen_busy = 1", 2, "when_busy"), ("[users]\nname = 'x'", 1, r"write \[\[users\]\]"),
    ("[[users]]\nname = 'a'", 1, "needs 'token_sha256'"),
    (f"{USER}[[users]]\nname = 'b'\ntoken_sha256 = 'secret'", 6, "never"),
    (f"{USER}role = 'root'", 4, "one of 'read'"), (f"{USER}expires = 2030-01-01T00:00:00", 4, "time zone"),
    (USER * 2, 5, r"name of \[\[users\]\] in line 5 is 'a', as is name of \[\[users\]\] in line 2;"),
    (f'{CHANNEL}deadline = "5 parsecs"', 3, "deadline must be a number and one of us, ms, s, min, h"),
    (f"{CHANNEL}\nlatency_budget = 3\ndeadline = 2", 4, "latency_budget must be less than"),
    ("[[channel]]\ndeadline = 1", 1, r"\[channel\] needs 'name'"),
    (f"{CHANNEL}expire = 1", 3, r"\[channel\] has no 'expire'; is 'expiry' meant"),
    # Gateways that could never work, or would harm
    ("[[mqtt]]\nhost = 'a'", 1, "messages"),
    ("[[mqtt]]\nmessages = 'a'\nsession = 'one'\n[[nats]]\nmessages = 'a'\nsession = 'one'",
     6, r"session of \[\[nats\]\] in line 6 is 'one', as is session of \[\[mqtt\]\] in line 3; give each"),
    ("[[nats]]\nmessages = 'a'\nport = 0", 3, "port"),
    ('[[mqtt]]\nnotifications = "out"\nmessages = "$share/g/+/+"', 3, "messages of .* notifications of"),
    ('[[mqtt]]\ncontrol = "out/#"\nnotifications = "out"', 2, "control of .* notifications of"),
    ('[[nats]]\nmessages = "in.>"\ncontrol = "in.control"', 2, "messages of .* control of"),
    ('[[nats]]\nmessages = "in.>"\nnotifications = "mid"\n'
     '[[nats]]\nsession = "two"\nmessages = "mid.>"\nnotifications = "in"',
     2, "messages of .* in line 2 .* notifications of .* in line 7"),
    ('[[nats]]\nnotifications = "in.*"', 2, "notifications must be a subject, no filter"),
    ('[[mqtt]]\nnotifications = "$share/g/out"', 2, "notifications must be a topic, no filter"),
    ('[[mqtt]]\nmessages = "in\\u0007"', 2, "messages must be a text without control characters"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES)
def test_mistakes_name_their_line(tmp_path, text, line, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_gateways_may_follow_each_other(tmp_path):
    chain = [("", "in.>", "mid"), ('session = "two"\n', "mid.*", "out"), ('session = "c"\nhost = "b"\n', "out.*", "in")]
    text = "".join(f'[[nats]]\n{more}messages = "{one}"\nnotifications = "{two}"\n' for more, one, two in chain)
    assert len(read_config(written(tmp_path, text)).nats) == 3


def test_which_index_is_opened(tmp_path):
    path = tmp_path / "cats.index"
    with pytest.raises(ConfigError, match="INDEX"):
        opened(Config())
    index_of([["cat"]], ["ana"], path, key_type="string").close()
    with opened(with_arguments(Config(), str(path), "localhost", 7)) as tm:
        assert tm.match(["cat"]) == ["ana"]
    text = f'[index]\npath = "{tmp_path}/new.index"\ncreate = true\nkey_type = "string"\n{CHANNEL}'
    with opened(read_config(written(tmp_path, text))) as tm:
        assert (tm.stats()["key_type"], list(tm.stats()["channels"])) == ("string", ["a"])


def test_others_can_reach_it_only_if_that_is_meant():
    for given in (config(host="0.0.0.0"), config(USERS, host="0.0.0.0")):
        tm = TagMatch(threads=1, device="cpu")
        with pytest.raises(TagMatchError, match="insecure"), serving(tm, given):
            pass
    for fine in (config(), config(host="0.0.0.0", insecure=True)):
        fine.check_exposure()
    replace(config(USERS), server=ServerOptions("0.0.0.0", tls_cert="a", tls_key="b")).check_exposure()


def test_channels_that_cannot_be_read():
    for text, message in (
        ("alarm:5", "channel 'alarm': deadline must be a number and one of us, ms, s, min, h, such as 5ms, not '5'"),
        ("alarm:5ms:high", "channel 'alarm': priority must be an integer, not 'high'"),
        ("alarm:5ms:1:2", "a channel must be NAME:DEADLINE:PRIORITY, such as alarm:5ms:1, not 'alarm:5ms:1:2'"),
        (":5ms", "the name of a channel must not be empty"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            channel_of(text)


OF_BOTH: list[dict[str, Any]] = [
    {"port": 0}, {"port": 65_536}, {"host": 7}, {"messages": ""}, {"form": "xml"}, {"guarantee": "exactly_once"},
    {"when_full": "disconnect"}, {"max_waiting": 0}, {"batch_messages": 0}, {"retry_first": 0}, {"username": "a\nb"},
    {"consolidate_interval": -1}, {"password_file": "x"}, {"tls_ca": "x"},
]  # fmt: skip
OF_ONE: dict[Any, list[dict[str, Any]]] = {
    MqttOptions: [
        {"messages": "a/#/b"}, {"messages": "a+/b"}, {"messages": "$share/in"}, {"messages": "in\uffff"},
        {"notifications": "out/+"}, {"session_expiry": -1}, {"keepalive": 0}, {"client_id": ""}, {"client_id": "a\0"},
    ],
    NatsOptions: [
        {"messages": "a..b"}, {"messages": "a b"}, {"control": "a.>.b"}, {"notifications": "out.*"}, {"queue": "a b"},
        {"flush_timeout": -1},
    ],
    SessionOptions: [
        {"max_sessions": 0}, {"max_keys": 1.5}, {"max_notifications": 0}, {"max_bytes": 2**41}, {"when_full": "wait"},
        {"linger": -1}, {"message_expiry": "soon"},
    ],
    HubOptions: [{"max_waiting": 0}, {"max_waiting_bytes": 0}, {"when_busy": "x"}],
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_ONE)
def test_options_are_checked(kind):
    is_gateway = kind in (MqttOptions, NatsOptions)
    for wrong in [*OF_ONE[kind], *(OF_BOTH if is_gateway else [])]:
        (name,) = wrong
        with pytest.raises((InvalidTypeError, InvalidValueError)) as error:
            kind(**({"messages": "in"} if is_gateway else {}) | wrong)
        begins = {"password_file": "password_file needs a username", "tls_ca": "tls_ca also needs tls"}.get(name, name)
        assert str(error.value).startswith(begins)


SHARE = {
    MQTT: "# out/+; +/+ out/+; out/# out; out/7 out/+; +/# out/+; $share/g/out/# out/+; $other/# $other/+; a/+/c a/b/+",
    NATS: "> out.*; *.* out.*; out.> out.*; out.7 out.*; a.*.c a.b.*",
}
SHARE_NONE = {
    MQTT: "+ out/+; out out/+; in/# out/+; $share/group/in/# out/+; # $other/+; a/+/c/d a/b/+",
    NATS: "* out.*; out.> out; out.7.> out.*; in.> out.*",
}


@pytest.mark.parametrize("naming", [MQTT, NATS])
@pytest.mark.parametrize(("filters", "share"), [(SHARE, True), (SHARE_NONE, False)])
def test_filters_that_share_topics(naming, filters, share):
    for both in filters[naming].split("; "):
        one, other = both.split()
        assert naming.overlap(one, other) == naming.overlap(other, one) == share, both


@pytest.mark.parametrize(("name", "kind"), [("mqtt", MqttOptions), ("nats", NatsOptions)])
@pytest.mark.parametrize("required", [False, True])
def test_readiness_waits_for_gateways_that_are_required(name, kind, required, monkeypatch):
    gateway = kind(messages="in", port=1, required=required)
    given = Config(ServerOptions(port=0), metrics=NO_METRICS, **{name: (gateway,)})
    with TagMatch() as tm, serving(tm, given) as service:
        ready, words = service.readiness()
        assert service.is_ready is ready is not required
        assert words.decode().startswith(
            f"{'not ready' if required else 'ready'}\n{gateway.session}: not connected for "
        )
        (own,) = service.subscribers.gateways
        own._is_connected(True)
        assert service.readiness() == (True, f"ready\n{gateway.session}: connected\n".encode())
        own._is_connected(False)  # a broker may be started again
        assert service.is_ready
        monkeypatch.setattr("tagmatch.broker.gateway.GRACE_S", 0.0)
        assert service.is_ready is not required


def test_declared_attributes_of_an_index_that_is_begun(tmp_path):
    (tmp_path / "service.toml").write_text(
        f"""[index]
path = {json.dumps(str(tmp_path / "index"))}
create = true
device = "cpu"
attributes = {{ price = "float64", title = "string" }}
analyzers = {{ title = "casefold(words())" }}
strict = true
"""
    )
    for _ in range(2):  # begun, and opened
        with opened(read_config(str(tmp_path / "service.toml"))) as tm:
            with pytest.raises(FilterError, match="\"prise\" is not declared; is 'price' meant"):
                tm.put(1, where="prise < 9")
            tm.put(1, where='price < 9 and title phrase "a b"')
            tm.consolidate()
            assert tm.match([], {"price": 3, "title": "A B"}) == [1]
