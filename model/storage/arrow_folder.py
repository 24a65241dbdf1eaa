"""Folders of stores that Arrow reaches (`pyarrow.fs`): S3, Google Cloud Storage, Azure, HDFS."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.fs
import xxhash

from tagmatch.model.errors import InvalidValueError, TagMatchError
from tagmatch.model.storage.byte_store import ByteStore, Kind, in_a_line
from tagmatch.model.storage.files import Entry

# As Hadoop calls it
_SCHEMES = {"s3a": "s3", "s3n": "s3"}

_HERE: Any = pa.fs.LocalFileSystem()
_KINDS: dict[Any, Kind] = {pa.fs.FileType.File: "file", pa.fs.FileType.Directory: "folder"}

# Stores copy files that are moved, which may take long
_MOVES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """A file system of Arrow with credentials, which tasks on other machines make anew; its text has no secrets."""

    kind: Literal["S3FileSystem", "GcsFileSystem", "AzureFileSystem"]
    path: str  # of the folder that the URI names, for this file system; the first part is the bucket or container
    place: tuple[tuple[str, str | bool], ...] = ()  # arguments of the file system that say where the store is
    credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # arguments that are secret
    origin: str = ""  # where the arguments come from, for messages

    def file_system(self) -> Any:
        """The file system itself; OSError, ValueError."""
        arguments = dict(self.place + self.credentials)
        if self.kind == "S3FileSystem" and not {"region", "endpoint_override"} & arguments.keys():
            # As `FileSystem.from_uri` does
            arguments["region"] = pyarrow.fs.resolve_s3_region(self.path.partition("/")[0])
        return getattr(pyarrow.fs, self.kind)(**arguments)

    def without_secrets(self, text: str) -> str:
        """A text in which credentials are replaced by their names."""
        for name, secret in self.credentials:
            text = text.replace(secret, f"({name})")
        return text


@dataclass(frozen=True, slots=True)
class ArrowFolder(ByteStore):
    """A folder of a store."""

    uri: str = field(repr=False)  # as Arrow understands it; the options of its query hold for all files
    below: str = ""  # path of the folder below that of the URI, "" or "name/"
    options: StoreOptions | None = None  # for Arrow, with a URI that has neither password nor query

    @classmethod
    def at(cls, uri: str, options: StoreOptions | None = None) -> Self:
        """The folder at a URI of a kind that Arrow takes, else an InvalidValueError, if a store answers there."""
        found = cls(uri, options=options)
        try:
            _file_system(uri, options)
        except (ImportError, pa.ArrowInvalid) as error:
            raise InvalidValueError(
                f"Arrow does not reach {found}: {found._told(error)}; give a URI that "
                "`pyarrow.fs.FileSystem.from_uri` takes, or a folder that all machines mount"
            ) from None
        except OSError as error:
            raise TagMatchError(f"cannot reach {found}: {found._told(error)}") from None
        return found

    def __str__(self) -> str:
        scheme, _, rest = self.uri.partition(":/")
        place = rest.removeprefix("/").partition("?")[0]
        # Without a password, which may have any character; what Azure has before the @ alone is the container
        user, _, host = place.rpartition("@")
        path = f"{host if ':' in user else place}".rstrip("/") + f"/{self.below}"
        return f"{scheme}://{path.rstrip('/')}"

    @property
    def address(self) -> str:
        return self.uri

    @property
    def digest(self) -> str:
        place = "" if self.options is None else self.options.place
        return xxhash.xxh3_64_hexdigest(f"{self.uri}\n{self.below}{place}".encode())

    def folder(self, name: str) -> ArrowFolder:
        return replace(self, below=f"{self.below}{name}/")

    def kind(self, name: str = "") -> Kind | None:
        files, path = self._reached(name)
        with self._errors("read"):
            return _KINDS.get(files.get_file_info(path).type)

    def names(self) -> list[str]:
        files, path = self._reached()
        with self._errors("read"):
            found = files.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        return [info.base_name for info in found]

    def holds(self, files: Mapping[str, Entry]) -> bool:
        """By their sizes; see `ByteStore`. Names come from contents, and files appear whole."""
        store, _ = self._reached()
        with self._errors("read"):
            found = store.get_file_info([self._reached(name)[1] for name in files])
        return [info.size for info in found] == [expected["bytes"] for expected in files.values()]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Any]:
        files, path = self._reached(name)
        with self._errors("read", name), files.open_input_file(path) as source:
            yield source

    def write(self, name: str, text: bytes) -> None:
        files, path = self._reached(name)
        with self._errors("write", name), files.open_output_stream(path) as sink:
            sink.write(text)

    def put(self, made: Path, name: str) -> None:
        """See `ByteStore`: made files stay on this machine."""
        if not made.is_dir():
            self.upload(made, name)
            return
        place = self.folder(name)
        existed = place.kind() is not None
        try:
            place.create()
            for file in sorted(made.iterdir()):
                place.upload(file, file.name)
        except BaseException:
            if not existed:
                self.remove(name)
            raise

    def upload(self, file: Path, name: str) -> None:
        """Copy a file of this machine, which appears when it is whole."""
        files, path = self._reached(name)
        with self._errors("write", name):
            pa.fs.copy_files(str(file), path, _HERE, files)

    def adopt(self, source: Self, names: Mapping[str, str], made: Path) -> None:  # noqa: ARG002
        """See `ByteStore`: moves some at a time."""
        for folder in {name.rpartition("/")[0] for name in names.values()} - {""}:
            self.folder(folder).create()
        with ThreadPoolExecutor(_MOVES_AT_ONCE) as pool:
            for done in [pool.submit(self._move, source, name, there) for name, there in names.items()]:
                done.result()

    def _move(self, source: Self, name: str, there: str) -> None:
        files, path = source._reached(name)
        with self._errors("write", there):
            files.move(path, self._reached(there)[1])

    def remove(self, name: str) -> None:
        with contextlib.suppress(TagMatchError):
            self._remove(name)

    def _remove(self, name: str = "") -> None:
        files, path = self._reached(name)
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            if self.kind(name) == "file":
                files.delete_file(path)
            else:
                files.delete_dir(path)

    def create(self) -> None:
        files, path = self._reached()
        with self._errors("write"):
            files.create_dir(path, recursive=True)

    def remove_if_empty(self) -> None:
        """See `ByteStore`: stores may keep a mark of a folder that was there."""
        with contextlib.suppress(TagMatchError):
            if not self.names():
                self._remove()

    def _reached(self, name: str = "") -> tuple[Any, str]:
        files, path = _file_system(self.uri, self.options)
        return files, f"{path}/{self.below}{name}".rstrip("/")

    def _told(self, error: Exception) -> str:
        """What Arrow says, in a line and without secrets: of a URI that it does not take, it quotes all."""
        text = str(error).replace(self.uri, str(self)).replace(_arrow_uri(self.uri), str(self))
        if self.options is None:
            return in_a_line(text)
        return f"{in_a_line(self.options.without_secrets(text))} (how it is reached is in {self.options.origin})"

    @contextlib.contextmanager
    def _errors(self, what: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            told = f"cannot {what} {self.folder(name) if name else self}: {self._told(error)}"
            # A traceback would show Arrow's message, with all that it quotes
            raise TagMatchError(told) from (error if self.options is None else None)


@functools.lru_cache(maxsize=64)  # credentials that expire come again and again
def _file_system(uri: str, options: StoreOptions | None) -> tuple[Any, str]:
    if options is not None:
        return options.file_system(), options.path.rstrip("/")
    files, path = pa.fs.FileSystem.from_uri(_arrow_uri(uri))
    return files, path.rstrip("/")


def _arrow_uri(uri: str) -> str:
    scheme, colon, rest = uri.partition(":")
    return f"{_SCHEMES.get(scheme, scheme)}{colon}{rest}"
