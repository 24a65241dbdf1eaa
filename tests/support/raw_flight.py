"""Calls of Flight as bytes over gRPC, as no client of Flight would make them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pyarrow as pa
from support.arrow_messages import messages_in, stream_of


def field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    return (b"" if number < 0x80 else bytes([number & 0x7F | 0x80])) + (
        bytes([number]) if number < 0x80 else _varint(number >> 7)
    )


def descriptor(**command: Any) -> bytes:
    return field(1, b"\x08\x02" + field(2, json.dumps(command).encode()))


def data(header: bytes, body: bytes = b"") -> bytes:
    return field(2, header) + field(1000, body)


def stream(batches: list[pa.RecordBatch], command: dict[str, Any], **options: Any) -> list[bytes]:
    """The messages of a stream, the first one with a descriptor."""
    first, *rest = (data(*message) for message in messages_in(stream_of(batches, **options)))
    return [descriptor(**command) + first, *rest]


class RawClient:
    def __init__(self, url: str, token: str | None = None, **options: Any) -> None:
        mine = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(url.removeprefix("grpc://"), options=mine, **options)
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def begin(self, method: str, messages: Iterable[bytes], timeout: float = 60) -> Any:
        path = f"/arrow.flight.protocol.FlightService/{method}"
        return self.channel.stream_stream(path)(iter(messages), metadata=self._metadata, timeout=timeout)

    def call(self, method: str, messages: Iterable[bytes], timeout: float = 60) -> tuple[str, str, list[bytes]]:
        """Status and details with which a call ends, and the answers before."""
        answers, begun = [], self.begin(method, messages, timeout)
        with contextlib.suppress(grpc.RpcError):
            answers.extend(begun)
        return begun.code().name, begun.details(), answers

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def never(*first: bytes) -> Iterator[bytes]:
    """Messages after which no more come, and no end, until the call is over."""
    yield from first
    threading.Event().wait(60)
