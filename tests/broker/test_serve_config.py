"""The configuration of a service: what is right is read, and a mistake is an error that names its line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from dataclasses import fields
from datetime import UTC, datetime

import pytest
from support.command import done, tagmatch
from support.service import written

from tagmatch import ConfigError, TagMatch
from tagmatch.broker.access import token_sha256
from tagmatch.broker.config import Config, LogOptions, User, read_config
from tagmatch.broker.logs import LOG, JsonLines, TextLines, set_up_logs
from tagmatch.broker.running import opened, with_arguments

DIGEST = token_sha256("secret")
WHOLE = f"""
# a comment
[server]
host = "0.0.0.0"
port = 0
tls_cert = "server.pem"
tls_key = "/etc/server.key"
rate = 1000          # an integer where a number may be
burst = 0.5

[index]
path = "cats.index"
threads = 2
durability = "os"

[metrics]
enabled = false

[log]
format = "text"

[[users]]
name = "ana"
token_sha256 = "{DIGEST}"
role = "write"
expires = 2030-01-31T12:00:00Z

[[users]]
name = "bo"
token_sha256 = "{DIGEST}"
"""


def test_a_whole_file(tmp_path):
    found = read_config(written(tmp_path, WHOLE))
    assert found.server.host == "0.0.0.0"
    assert found.server.rate == 1000.0
    assert (found.server.tls_cert, found.server.tls_key) == (str(tmp_path / "server.pem"), "/etc/server.key")
    assert found.index.keywords["durability"] == "os"
    assert not found.metrics.enabled
    assert found.log == LogOptions("text")
    ana, bo = found.users
    assert ana == User("ana", DIGEST, "write", datetime(2030, 1, 31, 12, tzinfo=UTC))
    assert (bo.role, bo.expires) == ("read", None)
    assert [ana.may(role) for role in ("read", "write", "admin")] == [True, True, False]
    found.check_exposure()


def test_an_empty_file_is_what_there_is_by_default(tmp_path):
    assert read_config(written(tmp_path, "")) == Config()
    assert Config().server.is_local


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[server]\nport = 8815\nhots = 'x'", 3, "'host' meant"),
        ("[server]\n\nport = 'x'", 3, "port must be an integer, not 'x'"),
        ("[server]\nport = true", 2, "port must be an integer"),
        ("[server]\n# port = 1\nport = 70000", 3, "port must be from 0 to 65535"),
        ("[server]\nrate = -1", 2, "rate must be from"),
        ("[server]\nhost = 'a'\ntls_cert = 'x'", 3, "tls_cert needs tls_key"),
        ("[server]\nclient_ca = 'x'", 2, "without TLS"),
        ("[log]\nlevel = 'all'", 2, "one of 'debug'"),
        ("[sever]\nport = 1", 1, "'server' meant"),
        ("\nserver = 1", 2, r"write \[server\]"),
        ("[users]\nname = 'x'", 1, r"write \[\[users\]\]"),
        ("[[users]]\nname = 'a'", 1, "needs 'token_sha256'"),
        (
            f"[[users]]\nname = 'a'\ntoken_sha256 = '{DIGEST}'\n[[users]]\nname = 'b'\ntoken_sha256 = 'secret'",
            6,
            "never",
        ),
        (f"[[users]]\nname = 'a'\ntoken_sha256 = '{DIGEST}'\nrole = 'root'", 4, "one of 'read'"),
        (f"[[users]]\nname = 'a'\ntoken_sha256 = '{DIGEST}'\nexpires = 2030-01-01T00:00:00", 4, "time zone"),
        (
            f"[[users]]\nname = 'a'\ntoken_sha256 = '{DIGEST}'\n" * 2,
            5,
            r"name of \[\[users\]\] in line 5 is 'a', as is name of \[\[users\]\] in line 2;",
        ),
        (
            "[[mqtt]]\nmessages = 'a'\nsession = 'one'\n[[nats]]\nmessages = 'a'\nsession = 'one'",
            6,
            r"session of \[\[nats\]\] in line 6 is 'one', as is session of \[\[mqtt\]\] in line 3; give each",
        ),
        ("[server]\nport = \n", 2, "Invalid value"),
        ("[server]\nport = 1\nport = 2", 3, "overwrite"),
        ("[index]\npath = [1]", 2, "path must be a text"),
    ],
)
def test_mistakes_name_their_line(tmp_path, text, line, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(tmp_path / "latin.toml")


def test_every_section_is_a_dataclass_with_defaults():
    assert {field.name for field in fields(Config)} >= {"server", "index", "metrics", "log", "users"}
    assert Config() == Config()


def test_which_index_is_opened(tmp_path):
    path = tmp_path / "cats.index"
    config = with_arguments(Config(), str(path), "localhost", 7)
    assert (config.server.host, config.server.port) == ("localhost", 7)
    with pytest.raises(ConfigError, match="INDEX"):
        opened(Config())
    with TagMatch(path, key_type="string") as tm:
        tm.add_set(["cat"], "ana")
        tm.consolidate()
    with opened(config) as tm:
        assert tm.match(["cat"]) == ["ana"]
    text = f'[index]\npath = "{tmp_path}/new.index"\ncreate = true\nkey_type = "string"'
    with opened(read_config(written(tmp_path, text))) as tm:
        assert tm.stats()["key_type"] == "string"


def test_the_command_checks_a_configuration(tmp_path):
    assert "ok" in done("serve", "--config", written(tmp_path, "[server]\nport = 1"), "--check")
    line = tagmatch("serve", "--config", written(tmp_path, "[server]\nprot = 1"), "--check", code=1)
    assert f"{tmp_path}/service.toml:2: [server] has no 'prot'; is 'port' meant?" in line
    assert "insecure" in tagmatch("serve", "x.index", "--host", "0.0.0.0", "--check", code=1)
    assert "there is no index" in tagmatch("serve", code=1)


def test_the_command_makes_tokens(tmp_path):
    printed = done("token", "ana", "--role", "write")
    token = printed.splitlines()[0].rpartition(" ")[2]
    (user,) = read_config(written(tmp_path, printed)).users
    assert user == User("ana", token_sha256(token), "write")
    printed = done("token", "bo", "--output", tmp_path / "bo.token")
    assert (tmp_path / "bo.token").stat().st_mode & 0o077 == 0
    kept = (tmp_path / "bo.token").read_text().strip()
    (user,) = read_config(written(tmp_path, printed)).users
    assert user.token_sha256 == token_sha256(kept)
    assert kept not in printed
    message = tagmatch("token", "bo", "--output", tmp_path / "bo.token", code=1)
    assert f"{tmp_path / 'bo.token'} is there already" in message
    assert (tmp_path / "bo.token").read_text().strip() == kept
    tagmatch("token", "bo", "--output", "/dev/null")
    assert "write, admin" in tagmatch("token", "x", "--role", "root", code=2)


def test_log_lines():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "refused %s", ("it",), None)
    record.fields = {"user": "ana"}
    found = json.loads(JsonLines().format(record))
    assert (found["level"], found["message"], found["user"]) == ("warning", "refused it", "ana")
    assert TextLines().format(record).endswith("warning refused it user='ana'")
    try:
        raise ValueError("x")
    except ValueError:
        failed = LOG.makeRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert "ValueError: x" in json.loads(JsonLines().format(failed))["traceback"]
    assert "\n    ValueError: x" in TextLines().format(failed)


@pytest.mark.parametrize("form", ["json", "text"])
def test_every_line_of_the_log_is_one_of_the_logger(form, capsys, monkeypatch):
    """What gateways, libraries and threads say has a time and a level, and cannot look like two lines."""
    root, ours = logging.getLogger(), logging.getLogger("tagmatch")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    before = root.level, ours.level
    forged = '1\n{"level": "error"}\r\x1b[31m\u2028\x85\ud800'
    try:
        set_up_logs(LogOptions(form, "warning"))
        for name in ("tagmatch.gateways", "tagmatch.subscribers", "tagmatch.broker", "nats.aio.client"):
            logging.getLogger(name).info("left out")
            logging.getLogger(name).warning("of %s: %s", name, forged, extra={"fields": {"topic": forged}})
        ended = threading.Thread(target=lambda: 1 // 0)
        ended.start()
        ended.join()
    finally:
        root.setLevel(before[0])
        ours.setLevel(before[1])
        logging.captureWarnings(False)
    lines = capsys.readouterr().err.splitlines()
    whole = [line for line in lines if not line.startswith("    ")]
    assert len(whole) == 5
    for line in whole:
        level = json.loads(line)["level"] if form == "json" else line.split()[1]
        assert level in ("warning", "error")
    assert any("ZeroDivisionError" in line for line in lines)


def test_the_level_of_the_log_holds_for_gateways():
    root, ours = logging.getLogger(), logging.getLogger("tagmatch")
    before = root.handlers[:], root.level, ours.level, threading.excepthook
    try:
        set_up_logs(LogOptions("text", "error"))
        assert logging.getLogger("tagmatch.gateways").getEffectiveLevel() == logging.ERROR
        assert logging.getLogger("nats").getEffectiveLevel() == logging.ERROR
        set_up_logs(LogOptions("text", "debug"))
        assert LOG.getEffectiveLevel() == logging.DEBUG
        assert logging.getLogger("nats").getEffectiveLevel() == logging.WARNING
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])
        threading.excepthook = before[3]
        logging.captureWarnings(False)


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_without_the_extra(tmp_path, more):
    """It is said at once, before an index is looked for, or a configuration."""
    code = 'import sys; sys.modules["prometheus_client"] = None; from tagmatch.cli import main; main()'
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        str(tmp_path / "x.index"),
        "--config",
        str(tmp_path / "none"),
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    line = "tagmatch: the service needs prometheus-client; install it with: pip install 'tagmatch[serve]'\n"
    assert done.stderr == line
