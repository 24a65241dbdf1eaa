"""Indexes on stores that Arrow reaches (`pyarrow.fs`): S3, Google Cloud Storage, Azure, HDFS.

An index there has the files of one in a folder. A reader copies them to this machine, once for all processes of
an executor; a writer uploads them, and the manifest last: then the new snapshot has become the index's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexExistsError, InvalidValueError, TagMatchError
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.format import (
    MANIFEST,
    SCRATCH_PREFIX,
    SNAPSHOT_PREFIX,
    check_files,
    checksum_of,
    commit,
    is_whole,
    manifest_missing,
    manifest_text,
    parse_manifest,
    read_manifest,
    reject_other_files,
    save_snapshot,
    unfinished_folder,
)
from tagmatch.model.tables import Snapshot

# As Hadoop calls it
_SCHEMES = {"s3a": "s3", "s3n": "s3"}

_HERE: Any = pa.fs.LocalFileSystem()


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of a store; the names of files are relative to it.

    Attributes
    ----------
    uri : str
        As Arrow understands it; the options of its query hold for all files.
    below : str
        Path of the folder below that of the URI, "" or "name/".
    """

    uri: str = field(repr=False)
    below: str = ""

    def __str__(self) -> str:
        scheme, _, rest = self.uri.partition("://")
        place = rest.partition("?")[0]
        # Without a password, which may have any character; what Azure has before the @ alone is the container
        user, _, host = place.rpartition("@")
        return f"{scheme}://{host if ':' in user else place}".rstrip("/") + f"/{self.below}".rstrip("/")

    def without_secrets(self, error: Exception) -> str:
        """What Arrow says of a URI that it does not take, in which it quotes all of the URI."""
        return _in_a_line(error).replace(self.uri, str(self)).replace(_arrow_uri(self.uri), str(self))

    def folder(self, name: str) -> Store:
        """Return a folder in this one."""
        return Store(self.uri, f"{self.below}{name}/")

    def names(self) -> list[str]:
        """Names of what is in the folder; none if there is no such folder."""
        files, path = self._reached("")
        with self._errors("read"):
            found = files.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        return [info.base_name for info in found]

    def kind(self) -> pa.fs.FileType:
        """What there is in the place of the folder."""
        files, path = self._reached("")
        with self._errors("read"):
            return files.get_file_info(path).type

    def read(self, name: str) -> bytes:
        """Contents of a file; FileNotFoundError."""
        files, path = self._reached(name)
        with self._errors("read", name), files.open_input_stream(path) as source:
            return bytes(source.read())

    def checksum(self, name: str) -> str:
        """As manifests have it; FileNotFoundError."""
        files, path = self._reached(name)
        with self._errors("read", name), files.open_input_stream(path) as source:
            return checksum_of(source)

    def write(self, name: str, contents: bytes) -> None:
        """Write a file, which appears when it is whole."""
        files, path = self._reached(name)
        with self._errors("write", name), files.open_output_stream(path) as sink:
            sink.write(contents)

    def upload(self, file: Path, name: str) -> None:
        """Copy a file of this machine, which appears when it is whole."""
        files, path = self._reached(name)
        with self._errors("write", name):
            pa.fs.copy_files(str(file), path, _HERE, files)

    def download(self, name: str, file: Path) -> None:
        """Copy a file to this machine; FileNotFoundError."""
        files, path = self._reached(name)
        with self._errors("read", name):
            pa.fs.copy_files(path, str(file), files, _HERE)

    def create(self) -> None:
        """See that there is a folder."""
        files, path = self._reached("")
        with self._errors("write"):
            files.create_dir(path, recursive=True)

    def remove(self) -> None:
        """Remove the folder with all that is in it; nothing if there is none."""
        files, path = self._reached("")
        with self._errors("remove"), contextlib.suppress(FileNotFoundError):
            files.delete_dir(path)

    def try_to_remove(self) -> None:
        """Remove the folder, or leave it to the next that comes by."""
        with contextlib.suppress(TagMatchError):
            self.remove()

    def _reached(self, name: str) -> tuple[Any, str]:
        files, path = _file_system(self.uri)
        return files, f"{path}/{self.below}{name}".rstrip("/")

    @contextlib.contextmanager
    def _errors(self, what: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot {what} {self.folder(name) if name else self}: {_in_a_line(error)}") from error


@functools.cache
def _file_system(uri: str) -> tuple[Any, str]:
    files, path = pa.fs.FileSystem.from_uri(_arrow_uri(uri))
    return files, path.rstrip("/")


def _arrow_uri(uri: str) -> str:
    scheme, colon, rest = uri.partition(":")
    return f"{_SCHEMES.get(scheme, scheme)}{colon}{rest}"


def _in_a_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 400)


@dataclass(frozen=True, slots=True)
class RemoteIndex:
    """An index on a store.

    Attributes
    ----------
    store : Store
    """

    store: Store

    @classmethod
    def at(cls, uri: str) -> RemoteIndex:
        """Return the index at a URI.

        Raises
        ------
        InvalidValueError
            Arrow has nothing for URIs of this kind.
        TagMatchError
            Nobody answers there.
        """
        store = Store(uri)
        try:
            _file_system(uri)
        except (ImportError, pa.ArrowInvalid) as error:
            raise InvalidValueError(
                f"Arrow does not reach {store}: {store.without_secrets(error)}; give a URI that "
                "`pyarrow.fs.FileSystem.from_uri` takes, or a folder that all machines mount"
            ) from None
        except OSError as error:
            raise TagMatchError(f"cannot reach {store}: {store.without_secrets(error)}") from None
        return cls(store)

    def __str__(self) -> str:
        return str(self.store)

    def index_exists(self) -> bool:
        """Whether there is an index; IndexExistsError if it is something else, as `storage.index_exists`."""
        if self.store.kind() == pa.fs.FileType.File:
            raise IndexExistsError(f"{self} is a file, not an index folder; choose another path")
        names = self.store.names()
        if MANIFEST in names:
            return True
        reject_other_files(self, names)
        return False

    def manifest(self) -> dict[str, Any]:
        """Manifest of the index; errors as `storage.open_snapshot`."""
        try:
            return parse_manifest(self.store.read(MANIFEST), self)
        except FileNotFoundError:
            raise manifest_missing(self) from None

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save on this machine, and upload.

        Raises
        ------
        IndexExistsError
            The path holds something that is not an index.
        TagMatchError
            The files cannot be written; the index stays as it was.
        """
        self.index_exists()
        with tempfile.TemporaryDirectory(prefix="tagmatch-", dir=_local_folder()) as made:
            save_snapshot(snapshot, Path(made))
            manifest = read_manifest(Path(made))
            name = manifest["snapshot"]
            self._upload(Path(made, name), manifest)
        self.store.write(MANIFEST, manifest_text(manifest))
        for other in self.store.names():
            if other.startswith(SNAPSHOT_PREFIX) and other != name:
                self.store.folder(other).try_to_remove()

    def _upload(self, files: Path, manifest: dict[str, Any]) -> None:
        """Upload the files of a snapshot, unless they are there: some stores truncate a file that is written again."""
        folder = self.store.folder(manifest["snapshot"])
        existed = folder.kind() == pa.fs.FileType.Directory
        if existed and is_whole(manifest, folder.checksum):
            return
        try:
            folder.create()
            for name in manifest["files"]:
                folder.upload(files / name, name)
        except BaseException:
            if not existed:
                folder.try_to_remove()
            raise

    def local_index(self) -> Path:
        """A copy in a folder of this machine, made anew if the index has another snapshot by now.

        Raises
        ------
        TagMatchError
            As `storage.open_snapshot`, and if the files cannot be copied.
        """
        copy = _local_folder() / f"index-{_hash(self.store)}"
        if self._is_copied(copy, self.manifest()):
            return copy
        with _one_process(copy):
            while not self._is_copied(copy, manifest := self.manifest()):
                try:
                    self._copy(manifest, copy)
                except (FileNotFoundError, TagMatchError) as error:
                    # The writer of a newer snapshot has removed the files of this one.
                    if self.manifest() != manifest:
                        continue
                    if isinstance(error, FileNotFoundError):
                        raise IndexCorruptError(f"{self} lacks a file: {_in_a_line(error)}") from None
                    if isinstance(error, IndexCorruptError):
                        raise IndexCorruptError(f"a copy of {self} is damaged: {error}") from None
                    raise
        return copy

    def _copy(self, manifest: dict[str, Any], copy: Path) -> None:
        copy.mkdir(exist_ok=True)
        with unfinished_folder(copy) as unfinished:
            for name in manifest["files"]:
                self.store.folder(manifest["snapshot"]).download(name, unfinished / name)
            check_files(unfinished, manifest)
            commit(copy, unfinished, manifest)

    def _is_copied(self, copy: Path, manifest: dict[str, Any]) -> bool:
        return (copy / MANIFEST).exists() and read_manifest(copy) == manifest

    @contextlib.contextmanager
    def scratch(self) -> Iterator[StoredFiles]:
        """A folder beside the snapshots, which is removed afterwards, as are those of scratch that was left there."""
        existed = self.store.kind() == pa.fs.FileType.Directory
        for name in self.store.names():
            if name.startswith(SCRATCH_PREFIX):
                self.store.folder(name).try_to_remove()
        store = self.store.folder(f"{SCRATCH_PREFIX}{uuid.uuid4().hex}")
        try:
            store.create()
            yield StoredFiles(store)
        finally:
            store.try_to_remove()
            with contextlib.suppress(TagMatchError):
                # Stores may keep a mark of the folder; what was there may be a whole bucket
                if not existed and not self.store.names():
                    self.store.remove()


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files on a store, which are copied to this machine when they are needed.

    Attributes
    ----------
    store : Store
    """

    store: Store

    @contextlib.contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Give a path of this machine; what is written there is uploaded afterwards."""
        part = self.local_folder() / uuid.uuid4().hex
        try:
            yield part
            self.store.upload(part, name)
        finally:
            part.unlink(missing_ok=True)

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:
        """Map a copy into memory, which goes with what maps it or, with `keep`, stays for other processes."""
        file = self.local_folder() / (f"{_hash(self.store)}-{name}" if keep else uuid.uuid4().hex)
        if not keep:
            try:
                self.store.download(name, file)
                return pa.memory_map(str(file))
            finally:
                file.unlink(missing_ok=True)
        with _one_process(file):
            if not file.exists():
                part = file.with_name(uuid.uuid4().hex)
                self.store.download(name, part)
                os.replace(part, file)
        return pa.memory_map(str(file))

    def local_folder(self) -> Path:
        """A folder of this machine."""
        return _local_folder()


def _hash(store: Store) -> str:
    return xxhash.xxh3_64_hexdigest(f"{store.uri}\n{store.below}".encode())


@functools.cache
def _local_folder() -> Path:
    """Folder for copies: our own or, in a worker of Spark, one of its executor, which removes it when it ends."""
    executors = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    if executors.name.startswith("blockmgr-"):
        folder = executors / "tagmatch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="tagmatch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _one_process(path: Path) -> contextlib.AbstractContextManager[None]:
    """Have one process of this machine at a time make what belongs at a path."""
    return locked(path.with_name(f"{path.name}.lock"))
