"""Real brokers for tests: mosquitto and nats-server, each on a free port of this machine, ended by their process id."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.servers import needs


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """A program that listens on a port; it may be killed and started again there."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(1_000):
            assert self._process.poll() is None, self._log.read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise AssertionError(f"{self._command[0]} does not listen: {self._log.read_text()}")

    def read_again(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """As `kill -9` does, or by another signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def stop(self) -> None:
        """Let it write down what it keeps."""
        self.kill(signal.SIGTERM)


def mosquitto(folder: Path, more: str = "") -> Server:
    """A broker of MQTT, which keeps its sessions over a restart; with more lines of its configuration."""
    port = free_port()
    config, anonymous = folder / "mosquitto.conf", "false" if "password_file" in more else "true"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous {anonymous}\nmax_queued_messages 0\n"
        f"persistence true\npersistence_location {folder}/\nlog_dest stderr\nuser root\n{more}"
    )
    return Server([needs("mosquitto", "mosquitto"), "-c", str(config)], port, folder / "mosquitto.log")


def nats_server(folder: Path, more: str = "") -> Server:
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f"host: 127.0.0.1\nport: {port}\n{more}")
    return Server([needs("nats-server", "nats-server"), "-c", str(config)], port, folder / "nats.log")


class Proxy:
    """A proxy of a server, on its own port; holds back messages, and cuts connections, when it is told to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock, self._sockets = threading.Lock(), list[socket.socket]()
        self._flows = threading.Event()
        self._flows.set()
        self._lines_left: int | None = None
        self._fatal = b""
        #: How much has come from clients, in pieces of any size
        self.pieces = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._sockets += [client, server]
                threading.Thread(target=self._copy, args=(client, server, self._until_cut), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, bytes), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket, kept: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._flows.wait()
                other.sendall(kept(data))
        _end(one, other)

    def _until_cut(self, data: bytes) -> bytes:
        self.pieces += 1
        if self._fatal and self._fatal in data:
            self.cut()
            return b""
        with self._lock:
            if self._lines_left is None:
                return data
            lines = data.splitlines(keepends=True)[: self._lines_left]
            self._lines_left -= len(lines)
            is_last = self._lines_left == 0 and bool(lines)
        if is_last:
            threading.Timer(0.05, self.cut).start()  # the server's answer still comes
        return b"".join(lines)

    def pause(self) -> None:
        """Take messages, and keep them; if connections are cut, they are lost."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def cut_at(self, text: bytes) -> None:
        """End all connections whenever this comes, as a broker does that cannot bear it."""
        self._fatal = text

    def cut_after(self, lines: int) -> None:
        """Let `lines` more lines go to the server, and its answers come back; then end all connections."""
        self._lines_left = lines

    def cut(self) -> None:
        """End all connections; messages on their way are lost."""
        with self._lock:
            self._lines_left = None
            _end(*self._sockets)
            self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
