"""Messages of Flight as this service writes and reads them are those of Arrow's own Flight."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import flight
from support.raw_flight import field

from tagmatch import InvalidValueError
from tagmatch.broker import flight_wire as wire

READERS = [wire.read_data, wire.read_descriptor, wire.read_ticket, wire.read_action]


@given(command=st.binary(max_size=300), name=st.text(max_size=20))
def test_what_arrow_writes(command, name):
    descriptor = flight.FlightDescriptor.for_command(command).serialize()
    assert wire.read_descriptor(descriptor) == (True, command)
    assert wire.read_descriptor(flight.FlightDescriptor.for_path(command, b"x").serialize()) == (False, b"")
    assert wire.read_ticket(flight.Ticket(command).serialize()) == command
    assert wire.read_action(flight.Action(name, command).serialize()) == (name, command)
    found = wire.read_data(field(1, descriptor) + field(1000, command) + field(2, b"header") + field(7, b"unknown"))
    assert (found.descriptor, found.header, found.body) == ((True, command), b"header", command)


@given(command=st.binary(max_size=300))
def test_what_arrow_reads(command):
    schema = pa.schema([("a", pa.int64())])
    info = flight.FlightInfo.deserialize(wire.flight_info(memoryview(schema.serialize()), command))
    assert (info.schema, info.descriptor.command, info.total_records, info.total_bytes) == (schema, command, -1, -1)
    assert [each.ticket.ticket for each in info.endpoints] == [command]
    assert flight.Result.deserialize(wire.result(command)).body.to_pybytes() == command


@given(message=st.binary(max_size=40), reader=st.sampled_from(READERS))
@example(message=b"\xff" * 20, reader=wire.read_data)  # a number without an end
@example(message=b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", reader=wire.read_data)  # longer than the message
@example(message=b"\x0b\x0c", reader=wire.read_data)  # a group
@example(message=b"\x08\x01" * 1000, reader=wire.read_ticket)
@example(message=field(1, b"\xff\xfe"), reader=wire.read_action)
def test_bytes_of_strangers(message, reader):
    with contextlib.suppress(InvalidValueError):
        reader(message)


@pytest.mark.parametrize(
    "message", [b"\xff" * 20, b"\x10\x01", b"\x0b", b"\x02\x00", b"\x12\x05abcd", field(1, b"\x12")]
)
def test_malformed(message):
    with pytest.raises(InvalidValueError, match="Protocol Buffer"):
        wire.read_data(message)
