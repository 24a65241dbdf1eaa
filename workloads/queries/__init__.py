"""Queries of §4.2.2 of the TagMatch paper: a random stored set and a few tags more."""

from tagmatch.workloads.queries.extend import Extender as Extender
from tagmatch.workloads.queries.extend import QueryOptions as QueryOptions
from tagmatch.workloads.queries.stored import StoredSets as StoredSets
