"""One client's connection to a service: its calls, whose errors are those that the service has raised."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tagmatch.broker.files import check_certificates, check_pair
from tagmatch.broker.wire import error_of_flight, error_of_text, read_json, write_json
from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError, UnavailableError

#: What Flight raises
FAULTS = (pa.ArrowException, flight.FlightError, OSError)

_URL = re.compile(r"grpc(\+tls|\+tcp)?://(\[[^\]]+\]|[^:/@?#]+):\d+/?")
# Where a service is gone, it is looked for again so soon
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
]


class Connection:
    """A connection, which comes back by itself when the service does.

    Parameters are those of `tagmatch.connect`.

    Attributes
    ----------
    url : str
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        cert_chain: bytes | None = None,
        private_key: bytes | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(url, str):
            raise InvalidTypeError(f"url must be a string, not {shown(url)}")
        if not _URL.fullmatch(url):
            raise InvalidValueError(f"url must be grpc+tls://host:port or grpc://host:port, not {shown(url)}")
        if token is not None and (
            not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token.strip()
        ):
            raise InvalidValueError(
                "token must be a string of one line without spaces around it, as `tagmatch token` makes it; of a file, "
                "take read_text().strip()"
            )
        _check_certificates(url, tls_root_certs, cert_chain, private_key)
        self.url = url
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._streaming = flight.FlightCallOptions(headers=headers)
        self._calling = self._streaming if timeout is None else flight.FlightCallOptions(timeout, headers=headers)
        try:
            self._client = flight.FlightClient(
                url,
                tls_root_certs=tls_root_certs,
                cert_chain=cert_chain,
                private_key=private_key,
                generic_options=_OPTIONS,
            )
        except FAULTS as error:
            raise error_of_flight(error, url) from None

    def act(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for an action; what it answers."""
        try:
            (result,) = self._client.do_action((name, write_json(body or {})), self._calling)
            return read_json(result.body.to_pybytes(), "the answer")
        except FAULTS as error:
            raise error_of_flight(error, self.url) from None

    def put(self, command: Mapping[str, Any], table: pa.Table, most_rows: int) -> dict[str, Any]:
        """Make changes; what the service counts."""
        descriptor = flight.FlightDescriptor.for_command(write_json(command))
        try:
            writer, answers = self._client.do_put(descriptor, table.schema, self._calling)
            with writer:
                writer.write_table(table, most_rows)
                writer.done_writing()
                answer = answers.read()
            return read_json(b"" if answer is None else answer.to_pybytes(), "the answer")
        except FAULTS as error:
            raise error_of_flight(error, self.url) from None

    def get(self, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Ask for what is stored."""
        try:
            reader = self._client.do_get(flight.Ticket(write_json({"get": name})), self._calling)
            return reader.schema, self._batches(reader)
        except FAULTS as error:
            raise error_of_flight(error, self.url) from None

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in reader:
                yield chunk.data
        except FAULTS as error:
            raise error_of_flight(error, self.url) from None

    def open_stream(self, schema: pa.Schema, command: Mapping[str, Any]) -> MessageStream:
        """Begin a stream of messages."""
        descriptor = flight.FlightDescriptor.for_command(write_json(command))
        try:
            writer, reader = self._client.do_exchange(descriptor, self._streaming)
            writer.begin(schema)
        except FAULTS as error:
            raise error_of_flight(error, self.url) from None
        return MessageStream(self.url, writer, reader)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def _check_certificates(url: str, roots: object, chain: object, key: object) -> None:
    """Check the arguments, as gRPC would only say that it cannot connect."""
    if (chain is None) != (key is None):
        raise InvalidValueError("cert_chain and private_key must be given together")
    given = {"tls_root_certs": roots, "cert_chain": chain, "private_key": key}
    pems = {name: _pem(name, each) for name, each in given.items() if each is not None}
    if pems and not url.startswith("grpc+tls://"):
        raise InvalidValueError(f"{next(iter(pems))} needs encryption: connect to grpc+tls://, not to {url}")
    if roots is not None:
        check_certificates(pems["tls_root_certs"], "tls_root_certs")
    if chain is not None:
        check_pair(pems["cert_chain"], pems["private_key"], "cert_chain", "private_key")


def _pem(name: str, given: object) -> bytes:
    """A PEM, which is not the path of one."""
    if not isinstance(given, bytes | str):
        raise InvalidTypeError(f"{name} must be bytes of PEM, not {type(given).__name__}; take read_bytes() of a file")
    pem = given.encode() if isinstance(given, str) else given
    if b"-----BEGIN " not in pem:
        raise InvalidValueError(f"{name} must be bytes of PEM, not {shown(given)[:60]}; take read_bytes() of a file")
    return pem


class MessageStream:
    """A stream of messages and their answers. One thread may write while another reads.

    Attributes
    ----------
    is_draining : bool
        The service asks to end it.
    was_told : bool
        Whether its reader has taken notice of that.
    refused : TagMatchError, optional
        Why the messages of the last batch that was read have no answers, if so.
    """

    def __init__(self, url: str, writer: Any, reader: Any) -> None:
        self._url, self._writer, self._reader = url, writer, reader
        # gRPC ends the process where a thread says that all is written while another writes, or says so
        self._writing = threading.Lock()
        self.is_draining = self.was_told = False
        self.refused: TagMatchError | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages; if the service has ended the stream, the error is that of the service."""
        try:
            with self._writing:
                self._writer.write_batch(batch)
        except FAULTS as error:
            raise self._why(error) from None

    def read(self) -> pa.RecordBatch | None:
        """The next answers; `None` at the end, or when the service asks to end the stream."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except FAULTS as error:
            raise error_of_flight(error, self._url) from None
        text = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        known = error_of_text(text)
        if chunk.data is not None:
            self.refused = known
            return chunk.data
        if known is not None:
            raise known
        self.is_draining = True
        return None

    def done_writing(self) -> None:
        """Say that no more messages come."""
        try:
            with self._writing:
                self._writer.done_writing()
        except FAULTS as error:
            raise self._why(error) from None

    def close(self) -> None:
        """End the stream, whatever is still on its way."""
        with contextlib.suppress(*FAULTS), self._writing:
            self._writer.close()

    def _why(self, error: BaseException) -> TagMatchError:
        """Why nothing can be written: closing tells."""
        try:
            with self._writing:
                self._writer.close()
        except FAULTS as found:
            error = found
        found_error = error_of_flight(error, self._url)
        if type(found_error) is TagMatchError:
            return UnavailableError(f"the service at {self._url} has ended the stream: {found_error}")
        return found_error
