"""A client of `tagmatch serve` that needs `pyarrow` alone, as any client of Arrow Flight in any language may be.

    python examples/flight_client.py grpc://127.0.0.1:8815 TOKEN

It puts two subscriptions, has them take effect, and sends messages in three batches over one stream.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from pyarrow import flight


def main(url: str, token: str | None = None) -> None:
    """Subscribe, publish, and print the subscribers to tell."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(headers=headers)
    with flight.connect(url) as client:
        put_subscriptions(client, options)
        send_messages(client, options)
        (stats,) = client.do_action(("stats", b"{}"), options)
        print("sets:", json.loads(stats.body.to_pybytes())["sets"])


def command(**fields: object) -> flight.FlightDescriptor:
    """What a call is to do, as JSON."""
    return flight.FlightDescriptor.for_command(json.dumps(fields))


def put_subscriptions(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    """`DoPut`: rows as in files of sets; `commit` has them take effect."""
    rows = pa.table({"key": [7, 8], "tags": [["flat", "fr"], ["flat"]], "where": ["price < 900", None]})
    writer, answers = client.do_put(command(command="add", commit=True), rows.schema, options)
    with writer:
        writer.write_table(rows)
        writer.done_writing()
        print("put:", json.loads(answers.read().to_pybytes()))


def send_messages(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    """`DoExchange`: messages go out, and for each batch its keys come back, in order."""
    schema = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string())), ("attributes", pa.string())])
    writer, reader = client.do_exchange(command(command="match_unique"), options)
    with writer:
        writer.begin(schema)
        for number, price in enumerate((500, 850, 1200)):
            message = {"id": f"offer {number}", "tags": ["flat", "fr", "new"], "attributes": f'{{"price": {price}}}'}
            writer.write_batch(pa.RecordBatch.from_pylist([message], schema))
        writer.done_writing()
        for chunk in reader:
            if chunk.data is None:  # the service asks to end the stream, or reports an error
                print("told:", chunk.app_metadata.to_pybytes().decode())
                continue
            for answer in chunk.data.to_pylist():
                print(answer["id"], "->", sorted(answer["keys"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
