"""A DataFrame of sets in the place of an index."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame

from tagmatch.model.storage.location import Location
from tagmatch.model.storage.shared_files import folder_of_this_process
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
        folder = folder_of_this_process()
    partition(interests, folder)
    return location_in(interests.sparkSession, folder, "folder")
