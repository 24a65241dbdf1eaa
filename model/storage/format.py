"""Snapshots on disk: a folder with one Arrow IPC file per table, made current by one atomic rename.

Layout of an index folder ::

    MANIFEST.json            format version, options, counts, and size and XXH3-64 of every file; its own checksum
    snapshot-<checksum>/     vocabulary.arrow, tagsets.arrow, keys.arrow, partitions.arrow
                             key_names.arrow where keys are strings
    LOCK                     empty; held by the program that writes

A snapshot is written to a folder of its own, synced, and only then named by a new manifest that replaces the old one
in one step: a reader sees the old snapshot or the new one, wholly. The name comes from the contents, so writing the
same snapshot twice changes nothing. Files are memory-mapped when opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    IndexVersionError,
    TagMatchError,
)
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.tables import KeyTable, Snapshot, TagsetTable, Vocabulary

#: Version 2 is that of indexes whose keys are strings; others are written as version 1
FORMAT_VERSION = 2

MANIFEST = "MANIFEST.json"
#: Its lock is held by a writer; readers need none
LOCK = "LOCK"
SNAPSHOT_PREFIX = "snapshot-"
UNFINISHED_PREFIX = "unfinished-"
#: Of folders of files for the time that a snapshot takes to be made
SCRATCH_PREFIX = f"{UNFINISHED_PREFIX}job-"
_TABLES = ("vocabulary", "tagsets", "keys", "partitions")
_CHECKSUM_BLOCK = 1 << 24
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ADVICE = "build the index again or restore it from a copy"


def is_uri(path: str | os.PathLike[str]) -> bool:
    """Whether a path is none, but a URI."""
    return _URI.match(os.fspath(path)) is not None


def index_exists(path: Path) -> bool:
    """Whether an index stands at the path.

    Raises
    ------
    IndexExistsError
        Something else does, so that no index can be written there.
    TagMatchError
        It cannot be seen what does.
    """
    try:
        if (path / MANIFEST).is_file():
            return True
        if path.exists() and not path.is_dir():
            raise IndexExistsError(f"{path} is a file, not an index folder; choose another path")
        if path.is_dir():
            reject_other_files(path, os.listdir(path))
        return False
    except OSError as error:
        raise TagMatchError(f"cannot look into {path}: {error.strerror or error}") from error


def reject_other_files(path: object, names: Iterable[str]) -> None:
    """See that a folder, of whose files these are the names, has nothing in it but what an index has.

    Raises
    ------
    IndexExistsError
        It has.
    """
    ours = (f"{MANIFEST}.new", SNAPSHOT_PREFIX, UNFINISHED_PREFIX, LOCK)
    if not all(name.startswith(ours) for name in names):
        raise IndexExistsError(f"{path} is a folder with other files in it; choose an empty or a new folder")


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Make `snapshot` the current one of the index at `path`, which is created if need be, whatever it has now.

    Another writer is waited for, and what one that was killed has left is removed.

    Raises
    ------
    IndexExistsError
        `path` holds something that is not an index.
    TagMatchError
        The files cannot be written (disk full, no permission); the index stays as it was.
    """
    _save(snapshot, path, set(), lambda: None)


def update_snapshot(snapshot: Snapshot, path: Path, known: set[str]) -> str:
    """`save_snapshot`, but not where the index at `path` has got a snapshot that `snapshot` does not come from.

    Returns the name of `snapshot`.

    Parameters
    ----------
    known : set
        Names of the snapshots that it comes from. It gets the name of `snapshot` just before that becomes the current
        one: should this be interrupted, either may be.

    Raises
    ------
    IndexChangedError
        The index has another one; it stays as it is.
    IndexExistsError, TagMatchError
        As `save_snapshot`.
    """

    def is_known() -> None:
        if index_exists(path) and read_manifest(path)["snapshot"] not in known:
            raise IndexChangedError(
                f"another program has saved changes to the index {path}; staged changes are still staged: call "
                "reload() and then consolidate() again"
            )

    return _save(snapshot, path, known, is_known)


def _save(snapshot: Snapshot, path: Path, known: set[str], check: Callable[[], None]) -> str:
    index_exists(path)
    created: list[Path] = []
    try:
        created = _make_folder(path)
        with locked(path / LOCK):
            check()
            _remove_unfinished(path)
            with unfinished_folder(path) as folder:
                manifest = _write_files(snapshot, folder)
                known.add(manifest["snapshot"])
                commit(path, folder, manifest)
                return str(manifest["snapshot"])
    except (OSError, pa.ArrowException) as error:
        if created:
            with contextlib.suppress(OSError):
                (path / LOCK).unlink(missing_ok=True)
                path.rmdir()
        raise TagMatchError(f"cannot write the index {path}: {error}") from error


def _make_folder(path: Path) -> list[Path]:
    """Make a folder and those that it is in, so that they survive a crash; returns which were not there."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)
    return missing


def _remove_unfinished(path: Path) -> None:
    """Remove what a writer that was killed has left. Jobs on several machines do that for their own files."""
    for left in path.glob(f"{UNFINISHED_PREFIX}*"):
        if not left.name.startswith(SCRATCH_PREFIX):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def unfinished_folder(path: Path) -> Iterator[Path]:
    """A new folder in that of an index, for the files of a snapshot; is removed if it is not committed."""
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=path))
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """See that a folder has the files that a manifest names; IndexCorruptError."""
    for name, expected in manifest["files"].items():
        _check_contents(folder / name, expected)


def commit(path: Path, unfinished: Path, manifest: dict[str, Any]) -> None:
    """Make the files in the folder `unfinished` the current snapshot of the index at `path`, and remove older ones."""
    folder = path / manifest["snapshot"]
    if not is_whole(manifest, lambda name: _checksum(folder / name)):
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    _replace(path / MANIFEST, manifest_text(manifest))
    for entry in path.iterdir():
        if entry.name != manifest["snapshot"] and entry.name.startswith(SNAPSHOT_PREFIX):
            shutil.rmtree(entry, ignore_errors=True)


def open_snapshot(path: Path) -> Snapshot:
    """The current snapshot of the index at `path`, its files memory-mapped and their checksums verified.

    Raises
    ------
    IndexNotFoundError
        There is no index: no folder, or one without a manifest (nothing was ever consolidated into it).
    IndexVersionError
        A newer version of tagmatch wrote it.
    IndexCorruptError
        A file is missing, cut short or changed.
    """
    return open_named(path)[1]


def open_named(path: Path) -> tuple[str, Snapshot]:
    """The name of the current snapshot, and the snapshot; errors as `open_snapshot`."""
    while True:
        manifest = read_manifest(path)
        try:
            return manifest["snapshot"], _read_snapshot(path, manifest, _check_contents)
        except IndexCorruptError:
            # Another process may have made a newer snapshot current and removed the files of this one.
            if read_manifest(path) == manifest:
                raise


def open_unverified(path: Path, name: str) -> Snapshot:
    """The snapshot of that name, its files memory-mapped but not read, so that damage may go unnoticed.

    Raises
    ------
    IndexNotFoundError
        The index has another snapshot by now.
    IndexVersionError, IndexCorruptError
        As `open_snapshot`, but for checksums of files.
    """
    manifest = read_manifest(path)
    if manifest["snapshot"] == name:
        try:
            return _read_snapshot(path, manifest, _check_size)
        except IndexCorruptError:
            if read_manifest(path) == manifest:
                raise
    raise IndexNotFoundError(f"the index {path} no longer has {name}: a newer snapshot was saved; ask again")


def files_nbytes(manifest: dict[str, Any]) -> int:
    """Bytes of the files that a manifest names."""
    return sum(entry["bytes"] for entry in manifest["files"].values())


def key_type_of(manifest: dict[str, Any]) -> KeyType:
    """What the keys of the index are that has this manifest."""
    return manifest.get("key_type", "integer")  # type: ignore[no-any-return]


def _write_files(snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Write and sync the tables; returns the manifest, without its own checksum."""
    folder.chmod(0o755)
    whole = xxhash.xxh3_64()
    files = {}
    for name, table in _to_arrow(snapshot):
        file = folder / f"{name}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        checksum = _checksum(file)
        _sync(file)
        files[file.name] = {"bytes": file.stat().st_size, "xxh3_64": checksum}
        whole.update(f"{file.name} {checksum}\n".encode())
    _sync(folder)
    manifest = {
        "format": 1,
        "layout": snapshot.options.layout,
        "max_partition_size": snapshot.options.max_partition_size,
        "seed": snapshot.vocabulary.seed,
        "sets": len(snapshot),
        "tags": len(snapshot.vocabulary),
        "snapshot": SNAPSHOT_PREFIX + whole.hexdigest(),
        "files": files,
    }
    return manifest if snapshot.keys.names is None else {**manifest, "format": 2, "key_type": snapshot.keys.type}


def _to_arrow(snapshot: Snapshot) -> Iterator[tuple[str, pa.Table]]:
    vocabulary, tagsets = snapshot.vocabulary, snapshot.tagsets
    yield (
        "vocabulary",
        _table(
            tag=from_strings(vocabulary.tags),
            hash=pa.array(vocabulary.hashes),
            frequency=pa.array(vocabulary.frequencies),
        ),
    )
    signatures = tagsets.signatures
    if signatures is None:
        signatures = signatures_of(tagsets.ranks, vocabulary.hashes)
    yield "tagsets", _table(signature=from_words(signatures), ranks=from_lists(tagsets.ranks))
    yield "keys", _table(keys=from_lists(snapshot.keys.keys))
    if snapshot.keys.names is not None:
        yield "key_names", _table(name=from_strings(snapshot.keys.names))
    yield "partitions", _table(**rules_of(snapshot.options).to_arrow(snapshot.partitions))


def _table(**columns: pa.Array) -> pa.Table:
    return pa.table([*columns.values()], pa.schema([(name, array.type) for name, array in columns.items()]))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the index at `path`; errors as `open_snapshot`."""
    file = path / MANIFEST
    try:
        if not path.exists():
            raise IndexNotFoundError(f"there is no index at {path}: no such folder")
        if not path.is_dir():
            raise IndexNotFoundError(f"there is no index at {path}: it is a file, not a folder")
        return parse_manifest(file.read_bytes(), path)
    except FileNotFoundError:
        raise manifest_missing(path) from None
    except OSError as error:
        raise TagMatchError(f"cannot read {file}: {error}") from error


def manifest_missing(path: object) -> IndexNotFoundError:
    """Return the error that there is no manifest."""
    return IndexNotFoundError(
        f"there is no index at {path}: it has no {MANIFEST}; it is not an index, or its build did not finish"
    )


def parse_manifest(text: bytes, path: object) -> dict[str, Any]:
    """The manifest of the index at `path`, of which this is the text; errors as `open_snapshot`."""
    try:
        manifest = json.loads(text)
        version = manifest["format"]
        newer = isinstance(version, int) and version > FORMAT_VERSION
    except (ValueError, KeyError, TypeError):
        raise IndexCorruptError(f"{path}/{MANIFEST} is damaged; {_ADVICE}") from None
    if newer:
        raise IndexVersionError(
            f"the index {path} has format {version}, this version of tagmatch reads up to {FORMAT_VERSION}; "
            "upgrade tagmatch"
        )
    checksum = manifest.pop("checksum", None)
    # Written one way only: any other spelling of the same contents has been tampered with or damaged.
    if text != manifest_text(manifest) or checksum is None:
        raise IndexCorruptError(f"{path}/{MANIFEST} does not have the checksum that it was written with; {_ADVICE}")
    return manifest  # type: ignore[no-any-return]


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """The manifest as it is written, with its checksum."""
    body = json.dumps(manifest, indent=1, sort_keys=True)
    checksum = xxhash.xxh3_64_hexdigest(body.encode())
    return (json.dumps({**manifest, "checksum": checksum}, indent=1, sort_keys=True) + "\n").encode()


def _read_snapshot(path: Path, manifest: dict[str, Any], check: Callable[[Path, dict[str, Any]], None]) -> Snapshot:
    folder, files = path / manifest["snapshot"], manifest["files"]
    key_type = key_type_of(manifest)
    wanted = _TABLES if key_type == "integer" else (*_TABLES, "key_names")
    tables = {name: _read_table(folder / f"{name}.arrow", files[f"{name}.arrow"], check) for name in wanted}
    vocabulary, tagsets = tables["vocabulary"], tables["tagsets"]
    options = LayoutOptions(manifest["layout"], manifest["max_partition_size"])
    return Snapshot(
        options,
        Vocabulary(
            to_strings(vocabulary["tag"]),
            to_numbers(vocabulary["hash"]),
            to_numbers(vocabulary["frequency"]),
            manifest["seed"],
        ),
        TagsetTable(to_words(tagsets["signature"]), to_lists(tagsets["ranks"])),
        KeyTable(
            to_lists(tables["keys"]["keys"]), None if key_type == "integer" else to_strings(tables["key_names"]["name"])
        ),
        rules_of(options).from_arrow(tables["partitions"], len(tagsets["ranks"])),
    )


def _check_size(file: Path, expected: dict[str, Any]) -> None:
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise IndexCorruptError(f"{file} has {size} bytes instead of {expected['bytes']}; {_ADVICE}")


def _check_contents(file: Path, expected: dict[str, Any]) -> None:
    _check_size(file, expected)
    if _checksum(file) != expected["xxh3_64"]:
        raise IndexCorruptError(f"{file} does not have the checksum that it was written with; {_ADVICE}")


def _read_table(
    file: Path, expected: dict[str, Any], check: Callable[[Path, dict[str, Any]], None]
) -> dict[str, pa.Array]:
    """Columns of a table, each one chunk of the memory-mapped file, which `check` has accepted."""
    try:
        check(file, expected)
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except FileNotFoundError:
        raise IndexCorruptError(f"{file} is missing; {_ADVICE}") from None
    except OSError as error:
        raise TagMatchError(f"cannot read {file}: {error}") from error
    return {
        name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def is_whole(manifest: dict[str, Any], checksum: Callable[[str], str]) -> bool:
    """Whether the files of a manifest are there already, undamaged: then readers may be using them."""
    try:
        return all(checksum(name) == expected["xxh3_64"] for name, expected in manifest["files"].items())
    except OSError:
        return False


def _checksum(file: Path) -> str:
    with file.open("rb", buffering=0) as source:
        return checksum_of(source)


def checksum_of(source: Any) -> str:
    """XXH3-64 of what is left in an open file, as manifests have it."""
    digest = xxhash.xxh3_64()
    block = bytearray(_CHECKSUM_BLOCK)
    view = memoryview(block)
    while count := source.readinto(block):
        digest.update(view[:count])
    return digest.hexdigest()


def _replace(file: Path, text: bytes) -> None:
    """Replace a file's contents in one step that survives a crash."""
    new = file.with_name(file.name + ".new")
    new.write_bytes(text)
    _sync(new)
    _sync(file.parent)
    new.replace(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
