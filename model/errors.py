"""Every error that tagmatch raises on purpose; each message names the problem, its place, and the remedy."""

from __future__ import annotations


class TagMatchError(Exception):
    """Base of all errors of tagmatch."""


class InvalidTypeError(TagMatchError, TypeError):
    """An argument has the wrong type: a bare string as tags, a float as key, ..."""


class InvalidValueError(TagMatchError, ValueError):
    """An argument has the right type but a value that cannot be used: a negative key, lengths that differ, ..."""


class NullError(InvalidTypeError, InvalidValueError):
    """A null (`None`) stands where a tag, a set or a key must be."""


class FilterError(TagMatchError, ValueError):
    """A `where` expression has a mistake; the message names its column and the expected words."""


class ClosedError(TagMatchError):
    """The object was closed; open the index again to go on."""

    def __init__(self, message: str = "this TagMatch is closed; open the index again") -> None:
        super().__init__(message)


class Overloaded(TagMatchError):  # noqa: N818 - a state, which callers wait out
    """As many queries are being answered as `PipelineOptions` allows; try again later, or use `submit`, which waits."""


class DeadlineMissed(TagMatchError):  # noqa: N818 - what happened to a message (see `Overloaded`)
    """A message of a channel is not answered, as it was late, or could not be in time any more."""


class SessionError(TagMatchError):
    """A session of a subscriber cannot be had: its name is another's, there are too many, or it has ended."""


class SlowSubscriberError(SessionError):
    """A subscriber took its notifications too slowly: its outbox was full, and it is cut; connect again to go on."""


class DeviceError(TagMatchError):
    """The device that was asked for cannot be used on this machine."""


class DeviceMemoryError(DeviceError):
    """A device is out of memory."""


class DeviceWarning(RuntimeWarning):
    """Matching goes on, but on other devices than were asked for."""


class StagedChangesWarning(UserWarning):
    """Staged changes are lost, as nothing has consolidated them."""


class InputFileError(TagMatchError):
    """A file of sets or queries cannot be read: missing, cut short, a column missing or of the wrong type."""


class NotStoredError(TagMatchError, LookupError):
    """A set or key that should be removed, with `missing="error"`, is neither stored nor staged."""


class IndexNotFoundError(TagMatchError):
    """There is no index at the path."""


class IndexExistsError(TagMatchError):
    """Something already exists at the path and must not be overwritten."""


class IndexChangedError(TagMatchError):
    """Another program has saved changes to the index in the meantime; `reload` takes them over."""


class IndexLockedError(TagMatchError):
    """Another program, or this one, has the index open for writing; only one at a time may."""


class IndexVersionError(TagMatchError):
    """The index was written by a newer version of tagmatch."""


class IndexCorruptError(TagMatchError):
    """A file of the index is missing, cut short, or does not have the checksum it was written with."""


class InvariantError(TagMatchError):
    """A snapshot breaks one of its invariants; the message names the table, the row and the invariant."""


class ResultTooLargeError(TagMatchError):
    """One answer holds more keys than an Arrow list array can address; ask with fewer queries at a time."""


class SparkUnavailableError(TagMatchError):
    """There is no PySpark, or no Java that it can run on."""


class ConfigError(TagMatchError, ValueError):
    """A configuration file cannot be used; the message names the file and the line."""


class AccessError(TagMatchError):
    """A service does not know the token, or its role has not the right to do this."""


class UnavailableError(TagMatchError):
    """A service does not answer, ends, or went away while it had this call; ask again."""


# They are shown as what users import
for _kind in [kind for kind in globals().values() if isinstance(kind, type)]:
    _kind.__module__ = "tagmatch"
