"""Spark sessions: starting one if needed; their settings for arguments of tagmatch, and for credentials of stores.

Settings `spark.tagmatch.…` are arguments that calls leave out. Settings `fs.…`, which are Hadoop's, become what Arrow's
file systems take: Arrow reads indexes, and knows nothing of these settings. What it finds by itself as Hadoop does,
such as the role of a machine, is left to it; what it has nothing for is an error that says how to go about it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import SplitResult, unquote, urlsplit
from weakref import WeakSet

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from tagmatch.model.errors import InputFileError, InvalidValueError, SparkUnavailableError
from tagmatch.model.options import Layout
from tagmatch.model.storage.byte_store import in_a_line
from tagmatch.model.storage.folders import StoreOptions
from tagmatch.model.storage.repository import Repository, location_of

OLDEST_JAVA = 17

_log = logging.getLogger(__name__)


def spark_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session, or start one.

    Parameters
    ----------
    name : str
        Of the application, for Spark's own pages.
    master : str, optional
        `local[2]`, `spark://…`, or `sc://…` for Spark Connect; default: what Spark is configured to.
    settings : mapping of str to str, optional
        Of a session that is started; a running one and one of a server keep their own.

    Raises
    ------
    SparkUnavailableError
        There is no Java that is new enough, and no server was named that has one.
    """
    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    if SparkSession.getActiveSession() is None:
        check_java()
        for setting, value in (settings or {}).items():
            builder = builder.config(setting, value)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the python3 of the PATH
    return builder.getOrCreate()


def read_table(spark: SparkSession, path: str, format: str) -> DataFrame:  # noqa: A002
    """Read a table in any format that Spark knows."""
    try:
        return spark.read.format(format).load(path)
    except AnalysisException as error:
        raise InputFileError(f"{path}: Spark cannot read it: {str(error).strip().splitlines()[0]}") from None


def check_java() -> None:
    """Check that the machine has a Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(java)
    advice = f"install Java {OLDEST_JAVA} or newer (on Debian: openjdk-{OLDEST_JAVA}-jre-headless)"
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise SparkUnavailableError(f"Spark needs Java: {where}; {advice}")
    found_version = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', found_version)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise SparkUnavailableError(
            f"Spark needs Java {OLDEST_JAVA}, but {found} is {found_version.strip() or 'silent'}; {advice}"
        )


# Sessions whose workers have been found to have all that tasks import
_sound: WeakSet[SparkSession] = WeakSet()


def check_workers(spark: SparkSession | None) -> None:
    """See, once in a session, that the Python of its workers has tagmatch and Arrow: SparkUnavailableError.

    A function without Arrow asks, as one with Arrow fails before it begins. Nothing is asked in local mode, if workers
    run the very Python of the driver.
    """
    if spark is None or spark in _sound:  # sessions of Connect are of another class
        return
    context = getattr(spark, "_sc", None)  # Connect has none
    is_own = context is not None and context.master.startswith("local") and context.pythonExec == sys.executable

    def lacking(_: int) -> str:
        import sys
        from importlib.util import find_spec

        names = [name for name in ("tagmatch", "pyarrow", "pandas") if find_spec(name) is None]
        return f"{sys.executable} lacks {', '.join(names)}" if names else ""

    found = ""
    try:
        if not is_own:
            asked = functions.udf(lacking, "string", useArrow=False)("id")
            found = str(spark.range(1).select(asked).collect()[0][0])
    except PySparkException as error:
        missing = re.search(r"No module named '(\w+)", str(error))
        if missing is None:
            raise
        found = f"their Python lacks {missing[1]}"
    if found:
        raise SparkUnavailableError(
            f"Spark's workers cannot run tagmatch: {found}; set PYSPARK_PYTHON, or spark.pyspark.python (on Connect "
            "spark.sql.execution.pyspark.python), to the Python that has tagmatch, on each machine"
        )
    _sound.add(spark)


# -- settings of tagmatch ----------------------------------------------------------------------------------------------

Strategy = Literal["auto", "ship", "shuffle"]
#: Where workers match
WorkerDevice = Literal["cpu", "cuda"]

#: What makes the value of each option of a text, or raises a ValueError
Parsers: TypeAlias = Mapping[str, Callable[[str], Any]]


def whole(text: str) -> int:
    """An integer from 1 on; ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError("it must be an integer from 1 on")
    return number


def truth(text: str) -> bool:
    """`true` or `false`; ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def one_of(kind: Any) -> Callable[[str], Any]:
    """One of the values of a type; ValueError."""
    allowed = get_args(kind)

    def chosen(text: str) -> Any:
        if text not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return text

    return chosen


def parsed(given: Mapping[str, str], known: Parsers, what: str) -> dict[str, Any]:
    """The values of options by name, in any case of letters."""
    names = {name.lower(): name for name in known}
    found = {}
    for given_name, text in given.items():
        name = names.get(given_name.lower())
        if name is None:
            raise InvalidValueError(f"there is no {what} {given_name!r}; there are {', '.join(known)}")
        try:
            found[name] = known[name](text)
        except ValueError as error:
            raise InvalidValueError(f"{what} {name!r} is {text!r}: {error}") from None
    return found


_SETTINGS: Parsers = {
    "spark.tagmatch.layout": one_of(Layout),
    "spark.tagmatch.maxPartitionSize": whole,
    "spark.tagmatch.setsPerTask": whole,
    "spark.tagmatch.skipInvalid": truth,
    "spark.tagmatch.strategy": one_of(Strategy),
    "spark.tagmatch.shipLimit": int,
    "spark.tagmatch.device": one_of(WorkerDevice),
}


# Without settings; those of layouts are `LAYOUT_DEFAULTS`
_DEFAULTS = {
    "setspertask": 1 << 20, "skipinvalid": False, "strategy": "auto", "shiplimit": 8 << 30, "device": "cpu"
}  # fmt: skip


def with_settings(spark: SparkSession, **arguments: Any) -> list[Any]:
    """These arguments, with a session's settings in place of those that are `None`, classic or Connect."""
    given = {name: text for name, text in spark.conf.getAll.items() if name.startswith("spark.tagmatch.")}
    found = dict(_DEFAULTS)
    for name, value in parsed(given, _SETTINGS, "setting").items():
        found[name.rpartition(".")[2].lower()] = value
    return [found.get(name.replace("_", "")) if value is None else value for name, value in arguments.items()]


_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": 1 << 20, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # Spark counts in MiB by itself

#: Addresses that a worker takes besides an index: libraries, kernels, and memory kept after tasks have freed it
WORKER_NBYTES = 4 << 30

# Of a container, for each worker, in MiB; and what a worker of `tagmatch.spark.daemon` keeps besides
_OVERHEAD_MB, _KEPT_MB = 1 << 10, 2 << 10

# By itself Spark gives a container this part of the JVM's memory more, by its master, and at least this number of MiB
_OVERHEADS, _LEAST_OVERHEAD_MB = {"yarn": 0.1, "k8s": 0.4}, 384

_told: set[str] = set()  # a job that is called for each micro-batch would repeat itself


def warn_of_memory(spark: SparkSession | None, nbytes: int) -> None:
    """Warn, once, of settings that leave workers too little memory, or too few addresses, as mapped files take some.

    `nbytes` is what each maps or makes.
    """
    if spark is None:
        return
    given = spark.conf.getAll
    cores = given.get("spark.executor.cores", "1")
    workers = int(cores) if cores.isdigit() else 1
    limit = _mebibytes(given, "spark.executor.pyspark.memory")
    needed = -(-(nbytes + WORKER_NBYTES) * workers >> 20)
    if limit and limit < needed:
        _tell(
            f"spark.executor.pyspark.memory is {limit} MiB for {workers} workers of an executor, which bounds their "
            f"addresses, and each takes {nbytes >> 20} MiB for sets and mapped files, besides libraries: leave it out, "
            f"or set {needed}m"
        )
    part = _OVERHEADS.get(given.get("spark.master", "").partition(":")[0])
    if limit or part is None:  # it is added to the overhead; without containers that has no effect
        return
    memory = _mebibytes(given, "spark.executor.memory") or 1024
    overhead = _mebibytes(given, "spark.executor.memoryOverhead")
    own = overhead or max(
        _LEAST_OVERHEAD_MB, int(memory * float(given.get("spark.executor.memoryOverheadFactor", part)))
    )
    is_kept = given.get("spark.python.daemon.module") == "tagmatch.spark.daemon"
    if own < (needed := workers * (_OVERHEAD_MB + is_kept * _KEPT_MB)):
        _tell(
            f"spark.executor.memoryOverhead is {own} MiB{'' if overhead else ' by itself'} for {workers} workers of an "
            f"executor, which are not part of the JVM: set {needed}m, or the container may be killed"
        )


def _mebibytes(given: Mapping[str, str], name: str) -> int:
    """A size among settings; 0 without one, and for one that Spark itself would refuse."""
    found = _SIZE.fullmatch(given.get(name, ""))
    return 0 if found is None else int(found[1]) * _UNITS[found[2].lower()] >> 20


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        _log.warning(text)


# -- stores ------------------------------------------------------------------------------------------------------------

# What is looked at, among a thousand others; Java and Python read this alike
_S3 = (
    r"fs\.s3a\.(bucket\..+\.)?(access\.key|secret\.key|session\.token|aws\.credentials\.provider|endpoint"
    r"|endpoint\.region|connection\.ssl\.enabled|path\.style\.access|security\.credential\.provider\.path)"
)
_GCS = (
    r"(fs\.gs|google\.cloud)\.auth\.(type|null\.enable|access\.token\.provider(\.impl)?"
    r"|service\.account\.((json\.)?keyfile|private\.key))|fs\.gs\.storage\.root\.url"
)
_AZURE = (
    r"fs\.azure\.(account\.(key|keyprovider|auth\.type|oauth\.provider\.type|oauth2\.client\.(id|secret|endpoint))"
    r"|sas\.(fixed\.token|token\.provider\.type))(\..+)?"
)
_NAMES = rf"^({_S3}|{_GCS}|{_AZURE})$"

# Classes that find credentials, by what Arrow does instead; Hadoop asks them one after the other
_TEMPORARY, _SIMPLE = _S3_KEYS = ("TemporaryAWSCredentialsProvider", "SimpleAWSCredentialsProvider")
_S3_ANONYMOUS = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
_S3_BY_ARROW = (
    "EnvironmentVariableCredentialsProvider", "IAMInstanceCredentialsProvider", "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider", "EC2ContainerCredentialsProviderWrapper", "ProfileCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider", "WebIdentityTokenCredentialsProvider", "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)  # fmt: skip
_GCS_BY_HADOOP = (
    "access.token.provider", "access.token.provider.impl", "service.account.json.keyfile", "service.account.keyfile",
    "service.account.private.key",
)  # fmt: skip
_AZURE_BY_ARROW = ("MsiTokenProvider", "WorkloadIdentityTokenProvider")

_AWS_REGION = re.compile(r"[.-](?P<region>[a-z]{2}(-[a-z]+)+-\d+)\.")
_TENANT = re.compile(r"https://login\.microsoftonline\.com/(?P<tenant>[^/]+)/.*")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a session says of stores; its text has no secrets."""

    # Hadoop's settings by name, without `spark.hadoop.` before it
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, spark: SparkSession | None) -> StoreSettings:
        """The settings of a session, or no settings.

        Of a classic one, what Spark's own readers have, from `core-site.xml` as well. Of Connect, which tells no more,
        the session's own and those with which its server was started, but none whose name looks like a secret's.
        """
        if spark is None:
            return cls()
        if (session := getattr(spark, "_jsparkSession", None)) is not None:
            configuration = session.sessionState().newHadoopConf()
            found = {**configuration.getValByRegex(_NAMES), **_kept_apart(spark, configuration)}
        else:
            given = spark.conf.getAll
            found = {
                name.removeprefix(prefix): given[name]
                for prefix in ("spark.hadoop.", "")  # the session's own come last
                for name in given
                if name.startswith(prefix) and re.match(_NAMES, name.removeprefix(prefix))
            }
        return cls({name: text.strip() for name, text in found.items() if text.strip()})

    def location(self, given: object, name: str, number: int | None = None) -> Repository:
        """`location_of`, for all processes, with the settings for the store of a URI."""
        options = self.options(given) if isinstance(given, str) else None
        return location_of(given, name, number, options).absolute()

    def options(self, uri: str) -> StoreOptions | None:
        """How Arrow reaches a store; `None` without settings, or if the URI has them itself; errors as `location`."""
        try:
            parts = urlsplit(uri, allow_fragments=False)
        except ValueError:
            return None  # Arrow raises a better error
        user = parts.netloc.rpartition("@")[0]
        says_itself = parts.query or ":" in user or (user and not parts.scheme.startswith("abfs"))
        if parts.scheme not in _STORES or not parts.netloc or says_itself:
            return None
        kind, translate = _STORES[parts.scheme]
        store = _Store(self.values, parts)
        place, credentials = translate(store)
        if not place and not credentials:
            return None
        # Of `abfss`, the container stands where others have a user
        path = unquote(f"{user or parts.netloc}{parts.path}")
        origin = f"Spark's settings {', '.join(dict.fromkeys(store.used))}"
        return StoreOptions(kind, path, tuple(place.items()), tuple(credentials.items()), origin)


#: For the snapshot that is current when a task begins
NEWEST: Final = "newest"
#: The number of a snapshot, or `NEWEST`; `None`: the one that is current when the call is made
SnapshotChoice: TypeAlias = int | Literal["newest"] | None


def location_in(spark: SparkSession | None, given: object, name: str, snapshot: SnapshotChoice = None) -> Repository:
    """Where an index is, for all processes, with a session's settings for the store of a URI; errors as `location`."""
    settings = StoreSettings.of(spark) if isinstance(given, str) and "://" in given else StoreSettings()
    return located(settings, given, name, snapshot)


def located(settings: StoreSettings, given: object, name: str, snapshot: SnapshotChoice) -> Repository:
    """The same, with these settings."""
    if isinstance(snapshot, str) and snapshot != NEWEST:
        raise InvalidValueError(f"snapshot must be the number of a snapshot or {NEWEST!r}, not {snapshot!r}")
    return settings.location(given, name, None if snapshot == NEWEST else snapshot)


def _kept_apart(spark: SparkSession, configuration: Any) -> dict[str, str]:
    """The settings that are in their own files, which `hadoop.security.credential.provider.path` names."""
    from py4j.protocol import Py4JJavaError  # which clients of Connect may be without

    jvm: Any = spark._jvm
    try:
        providers = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(configuration)
        names = {alias for provider in providers for alias in provider.getAliases() if re.match(_NAMES, alias)}
        return {name: "".join(configuration.getPassword(name)) for name in names}
    except Py4JJavaError as error:
        raise InvalidValueError(
            "what Spark's setting hadoop.security.credential.provider.path names cannot be read: "
            f"{in_a_line(str(error.java_exception))}; set the keys themselves, or another path"
        ) from None


#: Arguments of Arrow's file system: the store's place, and credentials; nothing if Arrow finds all by itself
_Found: TypeAlias = tuple[dict[str, Any], dict[str, str]]


class _Store:
    """The store of a URI, and the settings for it."""

    def __init__(self, values: Mapping[str, str], parts: SplitResult) -> None:
        self._values, self.parts = values, parts
        self.used = list[str]()

    def get(self, *names: str) -> str | None:
        """The first of these settings that is set."""
        name = next((name for name in names if name in self._values), None)
        if name is None:
            return None
        self.used.append(name)
        return self._values[name]

    def rejected(self, what: str, advice: str, option: str) -> InvalidValueError:
        """The error that Arrow has nothing for settings. They may be secrets, so their values are not told."""
        uri = f"{self.parts.scheme}://{self.parts.netloc}{self.parts.path}"
        return InvalidValueError(
            f"Arrow, which reads {uri}, has nothing for Spark's setting {what}; {advice}, and write the URI with an "
            f"option, as in {uri}?{option}: then Spark's settings are left alone, and Arrow looks for credentials "
            "itself on each machine"
        )


# -- S3 --------------------------------------------------------------------------------------------------------------


def _s3(store: _Store) -> _Found:
    def get(name: str) -> str | None:
        return store.get(f"fs.s3a.bucket.{store.parts.netloc}.{name}", f"fs.s3a.{name}")

    place, credentials = dict[str, Any](), _s3_credentials(store, get)
    if credentials is None:
        place["anonymous"] = True
    scheme, _, host = (get("endpoint") or "").rstrip("/").rpartition("://")
    if host == "s3.amazonaws.com":
        host = ""
    region = get("endpoint.region")
    if region in (None, "sdk") and host.endswith(("amazonaws.com", "amazonaws.com.cn")):
        found = _AWS_REGION.search(host)
        region = None if found is None else found["region"]
    if region not in (None, "sdk"):
        place["region"] = region
    if host:
        place["endpoint_override"] = host
        is_number = re.fullmatch(r"[\d.]+(:\d+)?|\[.*\](:\d+)?", host) is not None
        if get("path.style.access") != "true" and not is_number:
            place["force_virtual_addressing"] = True
    if scheme == "http" or (not scheme and get("connection.ssl.enabled") == "false"):
        place["scheme"] = "http"
    return place, credentials or {}


def _s3_credentials(store: _Store, get: Callable[[str], str | None]) -> dict[str, str] | None:
    """Keys; empty if Arrow finds them by itself, and `None` for access without keys."""
    names = ("access.key", "secret.key", "session.token")
    found = {name.replace(".", "_"): value for name in names if (value := get(name)) is not None}
    given = get("aws.credentials.provider")
    providers = [name.strip().rpartition(".")[2] for name in given.split(",")] if given else list(_S3_KEYS)
    if _SIMPLE in providers and ("access_key" in found) != ("secret_key" in found):
        there, missing = sorted(("access", "secret"), key=lambda name: f"{name}_key" not in found)
        raise InvalidValueError(f"Spark has the setting fs.s3a.{there}.key, but no fs.s3a.{missing}.key; set both")
    for provider in providers:
        if provider == _TEMPORARY and len(found) == 3:
            return found
        if provider == _SIMPLE and "access_key" in found:
            return {name: found[name] for name in ("access_key", "secret_key")}
        if provider not in (*_S3_KEYS, *_S3_BY_ARROW, *_S3_ANONYMOUS):
            raise store.rejected(
                f"fs.s3a.aws.credentials.provider, with its class {provider}",
                "set fs.s3a.access.key and fs.s3a.secret.key for classes that use them; or set AWS_… variables, "
                "~/.aws/config or the instance's role",
                "region=eu-central-1",
            )
    if "access_key" not in found and get("security.credential.provider.path"):
        raise store.rejected(
            "fs.s3a.security.credential.provider.path, which should hold the keys",
            "name that place by hadoop.security.credential.provider.path, or set AWS_… variables",
            "region=eu-central-1",
        )
    is_anonymous = not {*_S3_ANONYMOUS}.isdisjoint(providers) and {*_S3_BY_ARROW}.isdisjoint(providers)
    return None if is_anonymous else {}


# -- Google Cloud Storage --------------------------------------------------------------------------------------------


def _gcs(store: _Store) -> _Found:
    def get(name: str) -> str | None:
        return store.get(f"fs.gs.auth.{name}", f"google.cloud.auth.{name}")

    kind, place = get("type"), dict[str, Any]()
    advice = "have GOOGLE_APPLICATION_CREDENTIALS name a key file on each machine, or use the machine's account"
    for name in _GCS_BY_HADOOP:
        if get(name):
            raise store.rejected(f"fs.gs.auth.{name}", advice, "scheme=https")
    if kind == "UNAUTHENTICATED" or get("null.enable") == "true":
        place["anonymous"] = True
    elif kind not in (None, "COMPUTE_ENGINE", "APPLICATION_DEFAULT"):
        raise store.rejected(f"fs.gs.auth.type, which is {kind}", advice, "scheme=https")
    scheme, _, host = (store.get("fs.gs.storage.root.url") or "").rstrip("/").rpartition("://")
    if host and host != "storage.googleapis.com":
        place |= {"endpoint_override": host, "scheme": scheme or "https"}
    return place, {}


# -- Azure -----------------------------------------------------------------------------------------------------------


def _azure(store: _Store) -> _Found:
    container, _, host = store.parts.netloc.rpartition("@")
    account, _, domain = host.partition(".")
    if not container or not domain.startswith("dfs."):
        return {}, {}  # a form of Arrow's own
    credentials = _azure_credentials(store, lambda name: store.get(f"fs.azure.{name}.{host}", f"fs.azure.{name}"))
    place: dict[str, Any] = {"account_name": account} if credentials else {}
    if credentials and domain != "dfs.core.windows.net":
        place |= {"dfs_storage_authority": f".{domain}", "blob_storage_authority": f".blob{domain[3:]}"}
    return place, credentials


def _azure_credentials(store: _Store, get: Callable[[str], str | None]) -> dict[str, str]:
    """Credentials for Arrow; nothing if it finds them by itself."""
    kind = get("account.auth.type") or "SharedKey"
    advice = "set fs.azure.account.key, or AZURE_… variables, or use the machine's identity"

    def rejected(what: str) -> InvalidValueError:
        return store.rejected(what, advice, "enable_tls=true")

    if kind == "SharedKey":
        provider = (get("account.keyprovider") or "SimpleKeyProvider").rpartition(".")[2]
        if provider != "SimpleKeyProvider":
            raise rejected(f"fs.azure.account.keyprovider, with its class {provider}")
        if key := get("account.key"):
            return {"account_key": key}
        return {}
    if kind == "SAS" and (token := get("sas.fixed.token")):
        return {"sas_token": token.removeprefix("?")}
    if kind != "OAuth":
        raise rejected(f"fs.azure.account.auth.type, which is {kind}")
    provider = (get("account.oauth.provider.type") or "").rpartition(".")[2]
    if provider in _AZURE_BY_ARROW:
        return {}
    tenant = _TENANT.fullmatch(get("account.oauth2.client.endpoint") or "")
    client, secret = get("account.oauth2.client.id"), get("account.oauth2.client.secret")
    if provider != "ClientCredsTokenProvider" or tenant is None or not client or not secret:
        raise rejected(f"fs.azure.account.oauth.provider.type, with {provider or 'no class'} and its client")
    return {"tenant_id": tenant["tenant"], "client_id": client, "client_secret": secret}


_STORES: Mapping[str, tuple[Any, Callable[[_Store], _Found]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("S3FileSystem", _s3)),
    **dict.fromkeys(("gs", "gcs"), ("GcsFileSystem", _gcs)),
    **dict.fromkeys(("abfs", "abfss"), ("AzureFileSystem", _azure)),
}
