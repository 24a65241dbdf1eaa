"""Values by a schema of a registry: Avro, Protobuf or JSON, behind a zero byte and the number of the schema.

That is how clients of Confluent's write values; registries that speak its protocol are Karapace, Apicurio and
Redpanda's, too. The registry is asked for each schema once, by Python's own client of HTTP: confluent-kafka's client of
registries needs five more packages (attrs, authlib, cachetools, certifi, httpx2).
"""

from __future__ import annotations

import importlib
import io
import json
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from tagmatch.broker.config import KafkaOptions
from tagmatch.files.json import read_json
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError

#: Makes an object of the bytes behind the schema's number
_Reader = Callable[[bytes], Any]
_BEGIN = 5
#: Schemas that are kept; bytes of an answer; and seconds for which a schema that is not there is not asked for again
_MOST_KEPT, _MOST_BYTES, _MISSING_S = 10_000, 16 << 20, 30.0
#: How the registry says that it has no such schema, version or subject
_NOT_THERE = (40403, 40402, 40401)


class RegistryAway(Exception):  # noqa: N818 - a state, after which the same is asked for again
    """The registry does not answer, or not with a schema."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """So that credentials go to the registry alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Schemas:
    """The schemas of a registry, and values by them."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options, self._url = options, options.registry.rstrip("/")
        self._readers: dict[bytes, _Reader] = {}
        self._refused: dict[bytes, tuple[float, TagMatchError]] = {}

    def object_in(self, value: bytes) -> dict[str, Any]:
        """The object that a value is; InvalidValueError or InvalidTypeError names the fault; RegistryAway."""
        begin = value[:_BEGIN]
        reader = self._readers.get(begin) or self.reader_of(begin)
        try:
            found = reader(value[_BEGIN:])
        except RecursionError:
            raise InvalidValueError(f"{_named(begin)}: the value is nested too deeply") from None
        except TagMatchError:
            raise
        except Exception as error:  # of the many that readers of such formats raise
            why = f"{type(error).__name__}: {error}"[:200]
            raise InvalidValueError(f"the value is not as {_named(begin)} has it: {why}") from None
        if type(found) is not dict:
            raise InvalidTypeError(f"a value of {_named(begin)} must be a record, not {type(found).__name__}")
        return {name: each for name, each in found.items() if each is not None}

    def reader_of(self, begin: bytes) -> _Reader:
        """What reads values that begin so; errors as `object_in`."""
        if begin in self._readers:
            return self._readers[begin]
        if len(begin) < _BEGIN or begin[0]:
            raise InvalidValueError(
                "the value must begin with a zero byte and the number of its schema in 4 bytes, as Confluent's clients "
                f"write it; it begins with 0x{begin.hex() or '…'}"
            )
        since, error = self._refused.get(begin, (0.0, None))
        if error is not None and time.monotonic() - since < _MISSING_S:
            raise error
        for kept in (self._readers, self._refused):
            if len(kept) >= _MOST_KEPT:
                kept.clear()
        try:
            self._readers[begin] = found = self._make(begin)
        except TagMatchError as error:
            self._refused[begin] = time.monotonic(), error
            raise
        return found

    def _make(self, begin: bytes) -> _Reader:
        path = f"/schemas/ids/{_number(begin)}"
        found = self._ask(path, f"the registry has no {_named(begin)}")
        kind, text = found.get("schemaType") or "AVRO", found.get("schema")
        try:
            if kind == "AVRO":
                return self._avro(text, found)
            if kind == "PROTOBUF":
                return self._protobuf(begin, path)
            if kind == "JSON":
                return lambda data: read_json(data, "the value")
        except TagMatchError:
            raise
        except Exception as error:  # what makers of readers raise is not said
            why = f"{type(error).__name__}: {error}"[:200]
            raise InvalidValueError(f"{_named(begin)} cannot be used: {why}") from None
        raise InvalidValueError(f"{_named(begin)} is of type {str(kind)[:60]!r}, not AVRO, PROTOBUF or JSON")

    def _references(self, found: dict[str, Any], more: str = "") -> list[dict[str, Any]]:
        """The schemas that a schema names, those that they name first."""
        named = []
        for each in found.get("references") or ():
            subject = quote(str(each["subject"]), safe="")
            what = (
                f"the registry has no version {each['version']} of {str(each['subject'])[:60]!r}, which a schema names"
            )
            its = self._ask(f"/subjects/{subject}/versions/{each['version']}{more}", what)
            named += [*self._references(its, more), {**its, "name": each["name"]}]
        return named

    def _avro(self, text: Any, found: dict[str, Any]) -> _Reader:
        import fastavro

        known: dict[str, Any] = {}
        for each in self._references(found):
            fastavro.parse_schema(json.loads(each["schema"]), named_schemas=known)
        schema = fastavro.parse_schema(json.loads(text), named_schemas=known)
        read = fastavro.schemaless_reader

        def reader(data: bytes) -> Any:
            stream = io.BytesIO(data)
            value = read(stream, schema, None)
            if stream.tell() < len(data):
                raise ValueError(f"{len(data) - stream.tell()} bytes are left")
            return value

        return reader

    def _protobuf(self, begin: bytes, path: str) -> _Reader:
        """The registry gives the descriptor of the file, so that its text need not be read here."""
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        found = self._ask(f"{path}?format=serialized", f"the registry has no {_named(begin)}")
        pool, done = descriptor_pool.DescriptorPool(), set[str]()

        def add(text: str, name: str) -> Any:
            file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
            file.name = name
            for needed in file.dependency:
                if needed.startswith("google/protobuf/") and needed not in done:
                    done.add(needed)
                    own = importlib.import_module(needed.removesuffix(".proto").replace("/", ".") + "_pb2")
                    pool.AddSerializedFile(own.DESCRIPTOR.serialized_pb)
            if name not in done:
                done.add(name)
                pool.Add(file)
            return pool.FindFileByName(name)

        for each in self._references(found, "?format=serialized"):
            add(each["schema"], each["name"])
        file = add(found["schema"], f"schema {begin.hex()}.proto")
        tops = [*file.message_types_by_name.values()]

        def reader(data: bytes) -> Any:
            places, rest = _places_in(data)
            kinds, kind = tops, None
            for place in places:
                kind = kinds[place]
                kinds = kind.nested_types
            return _fields_of(message_factory.GetMessageClass(kind).FromString(rest))

        return reader

    def _ask(self, path: str, not_there: str) -> dict[str, Any]:
        """An answer of the registry; InvalidValueError `not_there` if it knows nothing of this; RegistryAway."""
        options, request = self._options, urllib.request.Request(self._url + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        try:
            if (secret := options.registry_secret) is not None:
                who = options.registry_username
                login = f"Bearer {secret}" if who is None else f"Basic {b64encode(f'{who}:{secret}'.encode()).decode()}"
                request.add_header("Authorization", login)
            https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=options.registry_ca))
            with urllib.request.build_opener(https, _NoRedirect).open(request, timeout=options.flush_timeout) as answer:
                found = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                code = _code_in(error.read(_MOST_BYTES))
            if error.code == 404 and code in _NOT_THERE:
                raise InvalidValueError(not_there) from None
            raise RegistryAway(f"the registry {self._url} answers {error.code} {error.reason}") from None
        except (OSError, HTTPException, ValueError, InvalidValueError) as error:
            raise RegistryAway(f"the registry {self._url} does not answer with a schema: {error}") from None
        if not isinstance(found, dict):
            raise RegistryAway(f"the registry {self._url} answers with no object")
        return found


def _code_in(answer: bytes) -> Any:
    try:
        return json.loads(answer).get("error_code")
    except (ValueError, AttributeError):
        return None


def _number(begin: bytes) -> int:
    return int.from_bytes(begin[1:], "big")


def _named(begin: bytes) -> str:
    return f"schema {_number(begin)}"


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def _places_in(data: bytes) -> tuple[list[int], bytes]:
    """Which message of its file a value is, at each level, and the rest."""
    if data[:1] == b"\0":  # the first one
        return [0], data[1:]
    count, at = _number_in(data, 0)
    places = []
    for _ in range(count):
        place, at = _number_in(data, at)
        places.append(place)
    if not places or min(places) < 0:
        raise ValueError("it does not say which message it is")
    return places, data[at:]


def _number_in(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        if shift > 35:
            raise ValueError("a number is too long")


def _fields_of(message: Any) -> Any:
    """A message as an object: a field without presence has its value also where that is the default."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        from datetime import UTC

        return message.ToDatetime(tzinfo=UTC)
    if name.startswith("google.protobuf.") and name.endswith("Value") and "value" in message.DESCRIPTOR.fields_by_name:
        return message.value
    found = {}
    for field in message.DESCRIPTOR.fields:
        if not field.has_presence or message.HasField(field.name):
            found[field.name] = _value_of(field, getattr(message, field.name))
    return found


def _value_of(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {str(key): _value_of(of, each) for key, each in value.items()}
    if field.is_repeated:
        return [_one_of(field, each) for each in value]
    return _one_of(field, value)


def _one_of(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _fields_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
