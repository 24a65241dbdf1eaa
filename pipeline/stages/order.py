"""The order of the stages (§3, Figure 1), which stands here alone: both executors take it from here.

`inline` has one thread take a packet through all stages; `threaded` has threads for each stage, and queues between
them. Every stage is the method of that name of a packet. Before the subset match there is one more stage, `batch`, for
layouts that match partition by partition, and queries that are submitted one by one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

StageName = Literal["preprocess", "subset_match", "key_lookup", "merge"]

#: All stages, from the first to the last
STAGES: tuple[StageName, ...] = ("preprocess", "subset_match", "key_lookup", "merge")

#: The stage that follows on each but the last
FOLLOWING: dict[StageName, StageName] = dict(pairwise(STAGES))
