"""The cluster of Kafka that librdkafka plays, with errors that brokers answer with."""

import ctypes
from pathlib import Path

import confluent_kafka

#: Requests by their numbers in Kafka's protocol
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 24, 25, 26, 28


# Kinds of arguments of `rd_kafka_producev`, by their numbers
_END, _TOPIC, _VALUE, _HEADER = map(ctypes.c_int, (0, 1, 4, 9))


def _library() -> ctypes.CDLL:
    site = Path(confluent_kafka.__file__).parents[1]
    (path,) = (site / "confluent_kafka.libs").glob("librdkafka-*.so*")
    return ctypes.CDLL(str(path))


def produce_with_header(servers: str, topic: str, value: bytes, name: bytes) -> None:
    """Send a message with a header of any name, which Python's client takes as UTF-8 only."""
    library, why = _library(), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), why, ctypes.c_size_t(512)) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, why, ctypes.c_size_t(512)))
    body = _VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value))
    header = _HEADER, ctypes.c_char_p(name), ctypes.c_char_p(b"x"), ctypes.c_ssize_t(1)
    assert library.rd_kafka_producev(producer, _TOPIC, ctypes.c_char_p(topic.encode()), *body, *header, _END) == 0
    assert library.rd_kafka_flush(producer, 20_000) == 0
    library.rd_kafka_destroy(producer)


class Cluster:
    """Three brokers. Offsets of a transaction count at once here, and records of aborted ones stay visible."""

    def __init__(self) -> None:
        self._library = _library()
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        why = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        self._handle = ctypes.c_void_p(self._library.rd_kafka_new(0, conf, why, len(why)))
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._handle, 3))
        self.servers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self.port = int(self.servers.partition(",")[0].rpartition(":")[2])

    def topic(self, name: str, partitions: int = 4) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 3) == 0

    def fail(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, by their numbers in Kafka's protocol."""
        listed = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_short(request), ctypes.c_size_t(len(errors)), listed
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)
