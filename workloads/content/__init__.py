"""The content-based workload that matchers of constraints on attributes were measured with.

A subscription is a filter: a conjunction of constraints on attributes, with the number of its interface as its key. A
message has a value for each of some attributes.

PCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1),
2014. CCM: the same authors, "High Performance Content-Based Matching Using GPUs", DEBS 2011.
"""

from tagmatch.workloads.content.generate import Content as Content
from tagmatch.workloads.content.options import SCENARIOS as SCENARIOS
from tagmatch.workloads.content.options import ContentOptions as ContentOptions
