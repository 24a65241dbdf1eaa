"""A JVM that drivers share, one after the other: to start one takes longer than most of what they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


class Jvm:
    """Spark's gateway, without a driver; or with one, which is this process or another.

    The driver of a process with its `environment` uses this JVM instead of another. Relative paths in it are
    those of the process that has started the JVM.
    """

    def __init__(self) -> None:
        self._gateway = launch_gateway()
        parameters = self._gateway.java_parameters
        self._address = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
        self.environment = os.environ | self._address | {"PYSPARK_PYTHON": sys.executable}

    def session(self, builder: SparkSession.Builder) -> SparkSession:
        """Return the session of this process, started if need be."""
        with mock.patch.dict(os.environ, self._address):
            return builder.getOrCreate()

    def stop_spark(self) -> None:
        """Stop Spark, of this process or of a driver that was killed, before the next one begins."""
        if mine := SparkSession.getActiveSession():
            mine.stop()
        session = self._gateway.jvm.SparkSession.getDefaultSession()
        if session.isDefined():
            session.get().stop()

    @contextmanager
    def as_started_in(self, folder: Path, settings: dict[str, str]) -> Iterator[None]:
        """Let Spark be as in a JVM that was started in a folder, with settings."""
        system, files = self._gateway.jvm.System, self._gateway.jvm.org.apache.hadoop.fs.FileSystem
        settings = {"user.dir": str(folder), **settings}
        before = {name: system.setProperty(name, value) for name, value in settings.items()}
        files.closeAll()  # the next ones begin in this folder
        try:
            yield
        finally:
            for name, value in before.items():
                system.clearProperty(name) if value is None else system.setProperty(name, value)
            files.closeAll()

    def __enter__(self) -> Jvm:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_spark()
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()  # the JVM ends with it
        self._gateway.proc.wait()
