"""The Spark job that partitions offline (§3.1): the local partitioner's snapshot, from any DataFrame of sets."""
