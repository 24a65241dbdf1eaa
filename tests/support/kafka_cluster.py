"""The cluster of Kafka that librdkafka plays, with errors that brokers answer with."""

import ctypes
from pathlib import Path

import confluent_kafka

#: Requests by their numbers in Kafka's protocol
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 24, 25, 26, 28


class Cluster:
    """Three brokers. Offsets of a transaction count at once here, and records of aborted ones stay visible."""

    def __init__(self) -> None:
        site = Path(confluent_kafka.__file__).parents[1]
        (path,) = (site / "confluent_kafka.libs").glob("librdkafka-*.so*")
        self._library = ctypes.CDLL(str(path))
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

    def answer_after(self, milliseconds: int) -> None:
        for broker in (1, 2, 3):
            assert self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds) == 0

    def fail(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, by their numbers in Kafka's protocol."""
        listed = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_short(request), ctypes.c_size_t(len(errors)), listed
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)
