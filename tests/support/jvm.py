"""A JVM that drivers share, one after the other: to start one takes longer than most of what they do."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from pyspark.java_gateway import launch_gateway


class Jvm:
    """Spark's gateway, without a driver.

    Attributes
    ----------
    environment : dict
        Of a process whose driver is to use this JVM instead of one of its own. Relative paths in it are those of the
        process that has started the JVM.
    """

    def __init__(self) -> None:
        self._gateway = launch_gateway()
        parameters = self._gateway.java_parameters
        self.environment = os.environ | {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
            "PYSPARK_PYTHON": sys.executable,
        }

    def stop_spark(self) -> None:
        """Stop what a driver that was killed has left, before the next one begins."""
        session = self._gateway.jvm.SparkSession.getDefaultSession()
        if session.isDefined():
            session.get().stop()

    def __enter__(self) -> Jvm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()  # the JVM ends with it
        self._gateway.proc.wait()
