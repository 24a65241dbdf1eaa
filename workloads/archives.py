"""Archives of the Twitter-like workload: real tweets that are read, and folders of Parquet shards that are written."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from tagmatch.files.formats import CSV_SUFFIXES, JSON_SUFFIXES, PARQUET_SUFFIXES, write_whole
from tagmatch.model.arrays import offsets_of
from tagmatch.model.arrow import is_text
from tagmatch.model.errors import IndexExistsError, InputFileError, TagMatchError
from tagmatch.workloads.numbers import Followed
from tagmatch.workloads.twitter import RealTweets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tagmatch.model.arrays import F64Array, I64Array
    from tagmatch.workloads.twitter import Shares

#: Written last: a folder that has it is whole
FACTS = "_workload.json"

_BEGUN = f".{FACTS}.part"
_OURS = re.compile(rf"{re.escape(FACTS)}|{re.escape(_BEGUN)}|sets-\d{{5,}}\.parquet|\.sets-\d{{5,}}\.parquet\.part")

# One thread writes 3.4 M interests a second, 19 bytes each; with Snappy 3.5 M of 30 bytes, without compression 6.6 M of
# 66. Dictionaries of tags, most of them rare, take longer and do not make files smaller.
_PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["key"], "write_statistics": ["key"]}


def shard_name(number: int) -> str:
    """Return the name of a shard's file; by name, shards are in order."""
    return f"sets-{number:05d}.parquet"


def new_folder(folder: Path, *, overwrite: bool) -> None:
    """Make a folder for shards; one that is there must be empty or, to overwrite it, hold our files only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.iterdir())
        if found and not overwrite:
            raise IndexExistsError(f"{folder} is not empty; give --overwrite to replace a workload that is in it")
        foreign = [path.name for path in found if not _OURS.fullmatch(path.name) or not path.is_file()]
        if found and not foreign and not any(path.name in (FACTS, _BEGUN) for path in found):
            foreign = [found[0].name]
        if foreign:
            raise IndexExistsError(
                f"{folder} holds {foreign[0]!r}, which tagmatch-workload has not made; remove it or name another folder"
            )
        # No longer whole once its first file is gone, but still ours until the last is
        (folder / _BEGUN).touch()
        (folder / FACTS).unlink(missing_ok=True)
        for path in found:
            if path.name not in (FACTS, _BEGUN):
                path.unlink()
    except FileExistsError:
        raise TagMatchError(f"{folder} is a file; name a folder") from None
    except OSError as error:
        raise TagMatchError(f"{error.filename or folder}: cannot be written: {error.strerror or error}") from None


def write_shards(
    folder: Path,
    shards: Sequence[Callable[[], Iterator[pa.RecordBatch]]],
    schema: pa.Schema,
    facts: dict[str, Any],
    *,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Write shards to a folder that `new_folder` made, each by one of the threads.

    Yields each batch when it has been written, in any order. At the end `facts`, with the number of rows, makes the
    folder whole; after an error nothing is left in it.
    """
    stop = Event()
    written: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()

    def write(number: int) -> None:
        try:
            with write_whole(folder / shard_name(number)) as part, pq.ParquetWriter(part, schema, **_PARQUET) as writer:
                for batch in shards[number]():
                    if stop.is_set():  # another shard has failed, which leaves nothing in the folder
                        return
                    writer.write_batch(batch)
                    written.put(batch)
        except BaseException:
            stop.set()
            raise
        finally:
            written.put(None)

    rows = 0
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="tagmatch-workload") as pool:
            futures = [pool.submit(write, number) for number in range(len(shards))]
            try:
                for _ in shards:
                    while (batch := written.get()) is not None:
                        rows += len(batch)
                        yield batch
            finally:
                stop.set()
        for future in futures:
            future.result()
        with write_whole(folder / FACTS) as part:
            part.write_text(json.dumps(facts | {"rows": rows, "shards": len(shards)}, indent=1) + "\n")
    except BaseException:
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
        raise


def read_facts(folder: Path) -> dict[str, Any] | None:
    """Return what `write_shards` noted of a folder; None for a folder that others made."""
    path = folder / FACTS
    if not path.exists():
        if (folder / _BEGUN).exists():
            raise InputFileError(f"{folder} is not whole: tagmatch-workload was stopped; generate it again")
        return None
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise InputFileError(f"{path}: is not a JSON object")
    return facts


_WORD = r"^(?P<word>[\p{L}\p{M}\p{N}_]+)"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tweets by publisher, those with the most tweets first."""

    tweets: RealTweets  # As kernels take them; the number of frequent writers is not yet known
    languages: Shares  # Number of tweets by language; empty where the file has no languages
    names: pa.StringArray  # Hashtags, and after them publishers, both by number
    most_hashtags: int  # Hashtags of a tweet; bytes of a tweet's hashtags, and of its author as a tag
    most_bytes: int

    def facts(self) -> dict[str, int]:
        """By which a file is known again."""
        tweets = self.tweets
        return {
            "publishers": len(tweets.tweets) - 1,
            "tweets": len(tweets.offsets) - 1,
            "hashtags": len(self.names) - len(tweets.tweets) + 1,
        }


_TEXTS = ("author", "language", "hashtags", "text")
_BATCH_ROWS = 65_536
_BLOCK_BYTES = 8 << 20


def _format_of(path: str, texts: Iterable[str]) -> ds.FileFormat:
    """The format by suffix; of CSV, some columns are always texts."""
    suffix = Path(path).suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        return ds.ParquetFileFormat()
    if suffix in JSON_SUFFIXES:
        return ds.JsonFileFormat(read_options=pa_json.ReadOptions(block_size=_BLOCK_BYTES))
    if suffix in CSV_SUFFIXES:
        return ds.CsvFileFormat(
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
            read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES),
        )
    known = ", ".join(sorted(PARQUET_SUFFIXES | CSV_SUFFIXES | JSON_SUFFIXES))
    raise InputFileError(f"{path}: cannot tell the format; the name must end in one of {known}")


def read_columns(path: str, columns: Sequence[str], *needed: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Those of some columns that a file has, which must have one at least of each of those needed."""
    form = _format_of(path, _TEXTS)
    try:
        os.stat(path)
        schema = ds.dataset(path, format=form, filesystem=LocalFileSystem()).schema
        for some in needed:
            if not any(column in schema.names for column in some):
                has = ", ".join(map(repr, schema.names)) or "none"
                raise InputFileError(f"{path} has no column {' or '.join(map(repr, some))}; it has {has}")
        if isinstance(form, ds.JsonFileFormat):
            schema = pa.schema(map(_settled, schema))
        table = ds.dataset(path, schema, form, LocalFileSystem())
        yield from table.to_batches(columns=[name for name in columns if name in schema.names], batch_size=_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        text = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        raise InputFileError(f"{path}: cannot be read: {text}") from None


def _settled(field: pa.Field) -> pa.Field:
    """A column of the first block of JSON, in which there may be nulls or empty lists only, or texts like dates."""
    kind = field.type
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return field.with_type(pa.string())
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return field.with_type(pa.list_(pa.string()))
    return field


def read_tweets(path: str) -> Corpus:
    """Read tweets from a Parquet, CSV or JSON Lines file.

    The file has a column `author` (strings or integers), optionally `language` (strings), and `hashtags` (lists of
    strings, or strings separated by blanks or commas; with or without `#`) or else `text`, whose words after a `#`
    are the hashtags. Hashtags are taken in lower case. Tweets without hashtags are left out. Authors with equally many
    tweets are ordered by their names.
    """
    languages = Counter[str]()
    author_parts, length_parts, tag_parts = [], [], []
    first_row = 0
    for batch in read_columns(path, _TEXTS, ["author"], ["hashtags", "text"]):
        names = _author_names(batch["author"], f"{path}: column 'author'", first_row)
        if "hashtags" in batch.schema.names:
            tweets, tags = _listed_hashtags(batch["hashtags"], f"{path}: column 'hashtags'")
        else:
            tweets, tags = _hashtags_in(_as_strings(batch["text"], f"{path}: column 'text'"))
        # Each hashtag of a tweet once, at its first place
        numbers = tags.dictionary_encode().indices.to_numpy()
        once = np.sort(np.unique((tweets << 32) | numbers, return_index=True)[1])
        tweets, lengths = np.unique(tweets[once], return_counts=True)
        tag_parts.append(tags.take(pa.array(once)))
        length_parts.append(lengths)
        author_parts.append(names.take(pa.array(tweets)))
        if "language" in batch.schema.names:
            found = _as_strings(batch["language"], f"{path}: column 'language'").take(pa.array(tweets))
            languages.update(
                {str(item["values"]): item["counts"] for item in found.drop_null().value_counts().to_pylist()}
            )
        first_row += len(batch)
    if not any(map(len, tag_parts)):
        raise InputFileError(f"{path}: no tweet has a hashtag")
    authors, tags = (pa.concat_arrays(parts).dictionary_encode() for parts in (author_parts, tag_parts))
    del languages[""]  # what CSV files have for null
    for code in languages:
        if code[0] == "@":
            raise InputFileError(f"{path}: column 'language': a language must not begin with '@', as {code!r} does")
    shares = tuple(sorted(languages.items(), key=lambda item: (-item[1], item[0])))
    return _by_publisher(authors, np.concatenate(length_parts), tags, shares)


def _as_strings(column: pa.Array, name: str, wanted: str = "strings") -> pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_null(kind) or is_text(kind)):
        raise InputFileError(f"{name} must be {wanted}, not {column.type}")
    strings = column.cast(pa.large_string())
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputFileError(f"{name}: {error}") from None
    return strings


def _author_names(column: pa.Array, name: str, first_row: int) -> pa.Array:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputFileError(f"{name}: row {first_row + row} is null where an author must be")
    if pa.types.is_integer(column.type):
        return column.cast(pa.large_string())
    return _as_strings(column, name, "strings or integers")


def _listed_hashtags(column: pa.Array, name: str) -> tuple[I64Array, pa.Array]:
    """Hashtags and the tweets, ascending, that they are of: from lists, or strings with blanks or commas between."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        column = pc.split_pattern_regex(_as_strings(column, name, "lists of strings or strings"), r"[\s,]+")
    values = _as_strings(pc.list_flatten(column), name)
    return _cleaned(pc.list_parent_indices(column), values)


def _hashtags_in(texts: pa.Array) -> tuple[I64Array, pa.Array]:
    """Hashtags and the tweets, ascending, that they are of: words that follow a `#` in the text."""
    pieces = pc.split_pattern(texts, "#")
    tweets = pc.list_parent_indices(pieces)
    words = pc.struct_field(pc.extract_regex(pc.list_flatten(pieces), _WORD), "word")
    # What is before a text's first '#' is no hashtag
    numbers = tweets.to_numpy()
    after = pa.array(np.concatenate([np.zeros(min(1, len(numbers)), np.bool_), numbers[1:] == numbers[:-1]]))
    return _cleaned(tweets.filter(after), words.filter(after))


def _cleaned(tweets: pa.Array, tags: pa.Array) -> tuple[I64Array, pa.Array]:
    """In lower case, without `#` and blanks before and after; empty ones are left out."""
    tags = pc.utf8_lower(pc.utf8_ltrim(pc.utf8_trim_whitespace(tags), characters="#"))
    kept = pc.fill_null(pc.greater(pc.binary_length(tags), 0), False)
    return tweets.filter(kept).to_numpy().astype(np.int64), tags.filter(kept)


def _by_publisher(
    authors: pa.DictionaryArray, lengths: I64Array, tags: pa.DictionaryArray, languages: Shares
) -> Corpus:
    """Order authors by number of tweets, then name, and tweets with the lengths of their tags, by author."""
    author_of = authors.indices.to_numpy()
    tweets = np.bincount(author_of)
    by = pa.table({"tweets": tweets, "name": authors.dictionary})
    publishers = pc.sort_indices(by, [("tweets", "descending"), ("name", "ascending")]).to_numpy()
    rank = np.empty(len(publishers), np.int64)
    rank[publishers] = np.arange(len(publishers))
    order = np.argsort(rank[author_of], kind="stable")
    lists = pa.LargeListArray.from_arrays(offsets_of(lengths), tags.indices.cast(pa.int64())).take(pa.array(order))
    offsets, numbers = lists.offsets.to_numpy(), lists.values.to_numpy()
    names = authors.dictionary.take(pa.array(publishers))
    tag_bytes = np.add.reduceat(pc.binary_length(tags.dictionary).to_numpy()[numbers], offsets[:-1])
    return Corpus(
        RealTweets(0, offsets_of(tweets[publishers]), offsets, numbers),
        languages,
        pa.concat_arrays([tags.dictionary, names]).cast(pa.string()),
        int(lengths.max()),
        int(tag_bytes.max()) + 1 + pc.max(pc.binary_length(names)).as_py(),
    )


def read_followed(path: str) -> Followed:
    """Read a distribution of the number of followed publishers from a Parquet, CSV or JSON Lines file.

    The file has a column `followers` (integers, zero or more) and optionally `users` (numbers, zero or more), how many
    users of a row.
    """
    values: list[I64Array] = [np.zeros(0, np.int64)]
    weights: list[F64Array] = [np.zeros(0)]
    first_row, names = 0, ["followers"]
    for batch in read_columns(path, ["followers", "users"], ["followers"]):
        names = batch.schema.names
        found = _numbers(batch["followers"], f"{path}: column 'followers'", first_row, whole=True).astype(np.int64)
        users = np.ones(len(batch))
        if "users" in names:
            users = _numbers(batch["users"], f"{path}: column 'users'", first_row, whole=False).astype(np.float64)
        different, which = np.unique(found, return_inverse=True)
        values.append(different)
        weights.append(np.bincount(which, users, len(different)).astype(np.float64))
        first_row += len(batch)
    different, which = np.unique(np.concatenate(values), return_inverse=True)
    with np.errstate(over="ignore"):
        sums = np.cumsum(np.bincount(which, np.concatenate(weights), len(different)))
    if not len(sums) or not 0 < sums[-1] < np.inf:
        raise InputFileError(f"{path}: column {names[-1]!r}: there are no users, or too many")
    return Followed(different, sums / sums[-1])


def _numbers(column: pa.Array, name: str, first_row: int, *, whole: bool) -> F64Array | I64Array:
    kind = column.type
    if not (pa.types.is_integer(kind) or (not whole and pa.types.is_floating(kind))):
        raise InputFileError(f"{name} must be {'integers' if whole else 'numbers'}, not {kind}")
    numbers: F64Array | I64Array = pc.fill_null(column, -1 if not pa.types.is_unsigned_integer(kind) else 0).to_numpy(
        zero_copy_only=False
    )
    good = (numbers >= 0) & (numbers < 2**63 if whole else np.isfinite(numbers)) & column.is_valid().to_numpy(False)
    if not good.all():
        row = int(np.argmin(good))
        raise InputFileError(
            f"{name}: row {first_row + row} must be a number of zero or more, not {column[row].as_py()}"
        )
    return numbers
