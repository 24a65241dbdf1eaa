"""How Arrow reaches a store where its URI alone does not say so."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs
import xxhash

from tagmatch.model.errors import InvalidValueError, TagMatchError
from tagmatch.model.parallel import reject_given_up
from tagmatch.model.storage.format import checksum_of


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """A file system of Arrow with credentials, which tasks on other machines make anew; its text has no secrets.

    Attributes
    ----------
    kind : {"S3FileSystem", "GcsFileSystem", "AzureFileSystem"}
        Which one of `pyarrow.fs`.
    path : str
        Of the folder that the URI names, as this file system has it; the first part is the bucket or container.
    place : tuple of (str, str or bool)
        Arguments of the file system that say where the store is.
    credentials : tuple of (str, str)
        Arguments that nobody may see.
    origin : str
        Where the arguments come from, for messages.
    """

    kind: Literal["S3FileSystem", "GcsFileSystem", "AzureFileSystem"]
    path: str
    place: tuple[tuple[str, str | bool], ...] = ()
    credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origin: str = ""

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


# As Hadoop calls it
_SCHEMES = {"s3a": "s3", "s3n": "s3"}

_HERE: Any = pa.fs.LocalFileSystem()
_BLOCK = 1 << 24

# Stores copy what is moved, which takes as long as they please
_MOVES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A folder of a store; the names of files are relative to it.

    Attributes
    ----------
    uri : str
        As Arrow understands it; the options of its query hold for all files.
    below : str
        Path of the folder below that of the URI, "" or "name/".
    options : StoreOptions, optional
        What Arrow is given beside the URI, which then has neither a password nor a query.
    """

    uri: str = field(repr=False)
    below: str = ""
    options: StoreOptions | None = None

    def __str__(self) -> str:
        scheme, _, rest = self.uri.partition(":/")
        place = rest.removeprefix("/").partition("?")[0]
        # Without a password, which may have any character; what Azure has before the @ alone is the container
        user, _, host = place.rpartition("@")
        path = f"{host if ':' in user else place}".rstrip("/") + f"/{self.below}"
        return f"{scheme}://{path.rstrip('/')}"

    @property
    def digest(self) -> str:
        """A name for what is copied from it, without passwords."""
        place = "" if self.options is None else self.options.place
        return xxhash.xxh3_64_hexdigest(f"{self.uri}\n{self.below}{place}".encode())

    def reach(self) -> None:
        """See that Arrow reaches the store.

        Raises
        ------
        InvalidValueError
            Arrow has nothing for URIs of this kind.
        TagMatchError
            Nobody answers there.
        """
        try:
            _file_system(self.uri, self.options)
        except (ImportError, pa.ArrowInvalid) as error:
            raise InvalidValueError(
                f"Arrow does not reach {self}: {self._told(error)}; give a URI that "
                "`pyarrow.fs.FileSystem.from_uri` takes, or a folder that all machines mount"
            ) from None
        except OSError as error:
            raise TagMatchError(f"cannot reach {self}: {self._told(error)}") from None

    def folder(self, name: str) -> StoreFolder:
        """Return a folder in this one."""
        return replace(self, below=f"{self.below}{name}/")

    def names(self) -> list[str]:
        """Names of what is in the folder; none if there is no such folder."""
        files, path = self._reached("")
        with self._errors("read"):
            found = files.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        return [info.base_name for info in found]

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Bytes of those of these files that are there, by their names."""
        wanted = list(names)
        files, _ = self._reached("")
        with self._errors("read"):
            found = files.get_file_info([self._reached(name)[1] for name in wanted])
        return {name: info.size for name, info in zip(wanted, found, strict=True) if info.type == pa.fs.FileType.File}

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

    def read_range(self, name: str, first: int, last: int) -> bytes:
        """The bytes of a file from `first` to `last`, fewer where it ends before; FileNotFoundError."""
        files, path = self._reached(name)
        with self._errors("read", name), files.open_input_file(path) as source:
            return bytes(source.read_at(last - first, first))

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
        """Copy a file to this machine, in blocks so that Ctrl-C need not wait for all of it; FileNotFoundError."""
        files, path = self._reached(name)
        with (
            self._errors("copy", name),
            files.open_input_stream(path) as source,
            file.open("wb") as sink,
        ):
            while block := source.read(_BLOCK):
                reject_given_up()
                sink.write(block)

    def move(self, names: Mapping[str, str], other: StoreFolder) -> None:
        """Move files to another folder of this store, some at a time: by their names here, their names there."""
        folders = {name.rpartition("/")[0] for name in names.values()}
        for folder in folders - {""}:
            other.folder(folder).create()
        with ThreadPoolExecutor(_MOVES_AT_ONCE) as pool:
            for done in [pool.submit(self._move, name, other, there) for name, there in names.items()]:
                done.result()

    def _move(self, name: str, other: StoreFolder, there: str) -> None:
        files, path = self._reached(name)
        with other._errors("write", there):
            files.move(path, other._reached(there)[1])

    def create(self) -> None:
        """See that there is a folder."""
        files, path = self._reached("")
        with self._errors("write"):
            files.create_dir(path, recursive=True)

    def remove(self) -> None:
        """Remove the folder with all that is in it, or the file that is in its place; nothing if there is none."""
        files, path = self._reached("")
        with self._errors("remove"), contextlib.suppress(FileNotFoundError):
            if self.kind() == pa.fs.FileType.File:
                files.delete_file(path)
            else:
                files.delete_dir(path)

    def try_to_remove(self) -> None:
        """Remove the folder, or leave it to the next that comes by."""
        with contextlib.suppress(TagMatchError):
            self.remove()

    def _reached(self, name: str) -> tuple[Any, str]:
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
            # A traceback would show what Arrow said, with whatever it quotes
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


def in_a_line(error: BaseException | str) -> str:
    """What an error says, or a text, without line breaks and not at great length."""
    return textwrap.shorten(str(error), 400)
