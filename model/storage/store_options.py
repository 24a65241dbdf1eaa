"""How Arrow reaches a store where its URI alone does not say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow.fs


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
