"""A schema registry in a thread, as Confluent's answers, and values by its schemas."""

import io
import json
import struct
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto


class Registry:
    """Answers with schemas by their numbers, as long as it is up."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.serialized: dict[int, str] = {}
        self.is_up, self.wanted = True, None
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                code, answer = registry.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, Any]]:
        if not self.is_up:
            return 503, {}
        if self.wanted is not None and login != self.wanted:
            return 401, {"error_code": 401}
        place, _, query = path.partition("?")
        number = int(place.rpartition("/")[2])
        found = self.schemas.get(number)
        if not place.startswith("/schemas/ids/") or found is None:
            return 404, {"error_code": 40403}
        return 200, {**found, "schema": self.serialized[number]} if query == "format=serialized" else found

    def avro(self, number: int, schema: dict[str, Any]) -> Any:
        """Add a schema; a function that writes values by it."""
        self.schemas[number] = {"schema": json.dumps(schema)}

        def write(value: Any) -> bytes:
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
            return struct.pack(">bI", 0, number) + stream.getvalue()

        return write

    def protobuf(self, number: int) -> Any:
        """Add a file with three messages; a function that writes values of the third."""
        file = descriptor_pb2.FileDescriptorProto(name="place.proto", package="shop", syntax="proto3")
        file.dependency.append("google/protobuf/timestamp.proto")
        file.message_type.add(name="Other").field.add(name="x", number=1, type=_FIELD.TYPE_INT32, label=1)
        said = file.message_type.add(name="Said")
        for place, (name, kind) in enumerate([("price", _FIELD.TYPE_INT64), ("city", _FIELD.TYPE_STRING)], 1):
            said.field.add(name=name, number=place, type=kind, label=1)
        said.field.add(name="at", number=3, type=_FIELD.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
        offer = file.message_type.add(name="Offer")
        offer.field.add(name="tags", number=1, type=_FIELD.TYPE_STRING, label=3)
        offer.field.add(name="attributes", number=2, type=_FIELD.TYPE_MESSAGE, label=1, type_name=".shop.Said")
        offer.field.add(name="location", number=3, type=_FIELD.TYPE_DOUBLE, label=3)
        self.schemas[number] = {"schemaType": "PROTOBUF", "schema": "message ...;"}
        self.serialized[number] = b64encode(file.SerializeToString()).decode()
        pool = descriptor_pool.DescriptorPool()
        from google.protobuf import timestamp_pb2

        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Offer"))

        def write(**fields: Any) -> bytes:
            # One place, the third message of the file, as numbers that change sign by turns
            return struct.pack(">bI", 0, number) + b"\x02\x04" + kind(**fields).SerializeToString()

        return write

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
