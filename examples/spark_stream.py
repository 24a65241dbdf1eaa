"""Tell, tweet by tweet, which users are interested: a stream that Spark joins with an index.

Generates users' interests and builds an index of them, then writes tweets into a folder for some seconds, a file a
second, which Structured Streaming joins with the index. Needs the extra `spark` and Java.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tagmatch import TagMatch
from tagmatch.spark import spark_session, subset_join
from tagmatch.workloads.queries import arrival_times, paced, rows, stream_to_folder
from tagmatch.workloads.twitter import Twitter, TwitterOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TWEETS = "id long, tags array<string>"
TWEETS_AT_ONCE = 8192


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=5_000, help="users with interests [%(default)s]")
    parser.add_argument("--rate", type=float, default=10_000, help="tweets a second [%(default)s]")
    parser.add_argument("--seconds", type=int, default=20, help="for how long tweets come [%(default)s]")
    parser.add_argument("--master", default="local[2]", help="of Spark [%(default)s]")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="tagmatch-") as folder:
        index, tweets = Path(folder, "interests.index"), Path(folder, "tweets")
        model = Twitter(TwitterOptions())
        build(model, arguments.users, index)
        spark = spark_session("tagmatch stream", arguments.master)
        tweets.mkdir()
        stream = spark.readStream.schema(TWEETS).option("maxFilesPerTrigger", 1).parquet(str(tweets))
        query = subset_join(stream, index, output="lists").writeStream.foreachBatch(report).start()
        write_tweets(model, tweets, arguments.rate, arguments.seconds)
        query.processAllAvailable()
        query.stop()
        spark.stop()


def build(model: Twitter, users: int, index: Path) -> None:
    """Build an index of the interests of some users, whose numbers are the keys."""
    with TagMatch(index) as tm:
        interests = model.sets(0, users)
        tm.add_sets(interests["tags"], interests["key"])
        tm.consolidate()
        print(f"{len(interests):,} interests of {users:,} users, {len(tm):,} of them different", flush=True)


def write_tweets(model: Twitter, folder: Path, rate: float, seconds: int) -> None:
    """Write tweets when they are due, a file a second."""
    batches = rows(partial(model.plain_tweets, seed=1), round(rate * seconds), TWEETS_AT_ONCE)
    for _ in stream_to_folder(paced(batches, arrival_times(rate)), folder, interval=1.0):
        pass


def report(batch: DataFrame, number: int) -> None:
    """Match the tweets of a micro-batch and say how fast that went."""
    start = time.perf_counter()
    tweets, answers = batch.selectExpr("count(*)", "coalesce(sum(size(keys)), 0)").first()
    took = time.perf_counter() - start
    print(
        f"micro-batch {number}: {tweets:,} tweets for {answers:,} users in {took:.2f} s, {tweets / took:,.0f} a second",
        flush=True,
    )


if __name__ == "__main__":
    main()
