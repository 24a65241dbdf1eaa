"""A DataFrame of sets in the place of an index."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from pyspark.sql import DataFrame

from tagmatch.model.storage.location import Location
from tagmatch.spark.offline import partition
from tagmatch.spark.stores import location_in


def index_of(interests: DataFrame, folder: str | os.PathLike[str] | None) -> Location:
    """Build an index of sets and keys, columns `tags` and `key`, and return where it is.

    Parameters
    ----------
    interests : DataFrame
    folder : str or path, optional
        Path or URI where it stays. By default a temporary folder of this machine, which goes when this
        process ends: for Spark in local mode.
    """
    if folder is None:
        folder = tempfile.mkdtemp(prefix="tagmatch-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    partition(interests, folder)
    return location_in(interests.sparkSession, folder, "folder")
