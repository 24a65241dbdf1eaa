"""Spark's settings for stores, as the file systems of Arrow that they make."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow.fs as fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import InvalidValueError
from tagmatch.model.storage.repository import location_of
from tagmatch.spark.session import StoreSettings

KEYS = {"access.key": "AK", "secret.key": "SK"}
PROVIDERS = "org.apache.hadoop.fs.s3a."
EVERYWHERE = (
    f"{PROVIDERS}TemporaryAWSCredentialsProvider,{PROVIDERS}SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
)


def s3(**settings: str) -> dict[str, str]:
    return {f"fs.s3a.{name}": text for name, text in settings.items()}


def options_of(settings: dict[str, str], uri: str) -> Any:
    return StoreSettings(settings).options(uri)


def pairs(text: str) -> dict[str, Any]:
    return {name: value == "true" or value for name, _, value in (pair.partition("=") for pair in text.split())}


_SIMPLE = f"{PROVIDERS}SimpleAWSCredentialsProvider"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("endpoint.region=eu-west-1", "region=eu-west-1"),
        ("endpoint.region=sdk endpoint=s3.eu-west-1.amazonaws.com", "region=eu-west-1"),
        ("endpoint=http://minio:9000/ path.style.access=true", "endpoint_override=minio:9000 scheme=http"),
        ("endpoint=x connection.ssl.enabled=false", "endpoint_override=x scheme=http force_virtual_addressing=true"),
        (f"session.token=ST aws.credentials.provider={EVERYWHERE} endpoint.region=x", "session_token=ST region=x"),
        # A class that does not look at tokens
        (f"session.token=ST aws.credentials.provider={_SIMPLE} endpoint.region=x", "region=x"),
        ("access.key=other bucket.b.access.key=AK bucket.b.c.secret.key=x bucket.b.endpoint.region=x", "region=x"),
    ],
)
def test_keys_for_s3(settings: str, expected: str) -> None:
    given, right = s3(**KEYS | pairs(settings)), pairs(expected)
    given = {name: "true" if text is True else text for name, text in given.items()}
    found = options_of(given, "s3a://b/folder/an index")
    made = found.file_system()
    right = {"access_key": "AK", "secret_key": "SK", **right}
    if "amazonaws" in (endpoint := pairs(settings).get("endpoint", "")):
        right |= {"endpoint_override": endpoint, "force_virtual_addressing": True}
    assert made == fs.S3FileSystem(**right) != fs.S3FileSystem(**right | {"secret_key": "other"})
    assert dict(found.place + found.credentials) == right  # equal file systems may have other addresses
    assert found.path == "b/folder/an index"
    assert options_of(given, "s3://b/an%20index").path == "b/an index"
    for there, missing in (("access", "secret"), ("secret", "access")):
        with pytest.raises(InvalidValueError, match=rf"fs.s3a.{there}.key, but no fs.s3a.{missing}.key") as told:
            options_of(s3(**{f"{there}.key": "1234"}), "s3a://b/x")
        assert "1234" not in str(told.value)


def test_s3_without_keys() -> None:
    region = {"endpoint.region": "x"}
    anonymous = {"aws.credentials.provider": f"{PROVIDERS}AnonymousAWSCredentialsProvider"}
    made = options_of(s3(**region, **anonymous, **KEYS), "s3a://b/x").file_system()
    assert made == fs.S3FileSystem(anonymous=True, region="x")
    # What Arrow finds by itself, it is left to find
    by_itself = {"aws.credentials.provider": f"{PROVIDERS}auth.IAMInstanceCredentialsProvider"}
    found = options_of(s3(**region, **by_itself, **KEYS), "s3a://b/x")
    assert (found.credentials, dict(found.place)) == ((), {"region": "x"})
    assert options_of(s3(**by_itself), "s3a://b/x") is None
    both = ", ".join([*by_itself.values(), *anonymous.values()])
    assert options_of(s3(**{"aws.credentials.provider": both}), "s3a://b/x") is None
    everywhere = s3(**{"aws.credentials.provider": EVERYWHERE, "endpoint": "s3.amazonaws.com"})
    assert options_of(everywhere, "s3a://b/x") is None


def test_google_cloud_storage() -> None:
    anonymous = {"fs.gs.auth.type": "UNAUTHENTICATED"}
    assert options_of(anonymous, "gs://b/x").file_system() == fs.GcsFileSystem(anonymous=True)
    emulator = anonymous | {"fs.gs.storage.root.url": "http://127.0.0.1:9000/"}
    made = options_of(emulator, "gs://b/x").file_system()
    assert made == fs.GcsFileSystem(anonymous=True, endpoint_override="127.0.0.1:9000", scheme="http")
    by_itself = {"fs.gs.auth.type": "COMPUTE_ENGINE", "fs.gs.storage.root.url": "https://storage.googleapis.com/"}
    assert options_of(by_itself, "gs://b/x") is None


AZURE = "abfss://box@someone.dfs.core.windows.net/folder/index"
OAUTH = {
    "fs.azure.account.auth.type.someone.dfs.core.windows.net": "OAuth",
    "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "fs.azure.account.oauth2.client.id": "CI",
    "fs.azure.account.oauth2.client.secret.someone.dfs.core.windows.net": "CS",
    "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/TE/oauth2/token",
}


OF_SOMEONE, OF_OTHER = ".someone.dfs.core.windows.net", ".other.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({f"fs.azure.account.key{OF_SOMEONE}": "a2V5"}, {"account_key": "a2V5"}),
        ({"fs.azure.account.key": "a2V5", f"fs.azure.account.key{OF_OTHER}": "b"}, {"account_key": "a2V5"}),
        ({"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": "?sv=1&sig=x"}, {"sas_token": "sv=1&sig=x"}),
        (OAUTH, {"tenant_id": "TE", "client_id": "CI", "client_secret": "CS"}),
    ],
)
def test_azure(settings: dict[str, str], expected: dict[str, str]) -> None:
    assert options_of(settings, AZURE).path == "box/folder/index"
    domain = ".core.chinacloudapi.cn"
    places = {"dfs_storage_authority": f".dfs{domain}", "blob_storage_authority": f".blob{domain}"}
    for name, others in ((".core.windows.net", {}), (domain, places)):
        given = {setting.replace(".core.windows.net", name): text for setting, text in settings.items()}
        found = options_of(given, AZURE.replace(".core.windows.net", name))
        assert found.file_system() == fs.AzureFileSystem("someone", **expected, **others)


def test_azure_without_keys() -> None:
    assert options_of({}, AZURE) is None
    assert options_of({"fs.azure.account.key": "a2V5"}, "abfss://someone.blob.core.windows.net/box/index") is None
    managed = OAUTH | {"fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.MsiTokenProvider"}
    assert options_of(managed, AZURE) is None


@pytest.mark.parametrize(
    ("settings", "uri", "told"),
    [
        (s3(**{"aws.credentials.provider": "com.mine.Provider"}, **KEYS), "s3a://b/x", "its class Provider; .*AWS_….*"),
        (s3(**{"aws.credentials.provider": "a.auth.AssumedRoleCredentialProvider"}), "s3a://b/x", "AssumedRole.*role"),
        (s3(**{"security.credential.provider.path": "jceks://x"}), "s3a://b/x", "fs.s3a.security.credential.*AWS_…"),
        ({"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}, "gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        ({"google.cloud.auth.service.account.json.keyfile": "/k"}, "gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        ({"fs.gs.auth.access.token.provider": "com.mine.Tokens"}, "gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        ({"fs.azure.account.auth.type": "Custom"}, AZURE, "auth.type, which is Custom; .*AZURE_…"),
        ({"fs.azure.account.auth.type": "SAS"}, AZURE, "auth.type, which is SAS"),
        ({"fs.azure.account.keyprovider": "a.ShellDecryptionKeyProvider"}, AZURE, "its class ShellDecryptionKeyProv"),
        (OAUTH | {"fs.azure.account.oauth2.client.endpoint": "https://elsewhere/TE/x"}, AZURE, "ClientCredsTokenProv"),
    ],
)
def test_what_arrow_has_nothing_for(settings: dict[str, str], uri: str, told: str) -> None:
    with pytest.raises(InvalidValueError, match=told) as error:
        StoreSettings(settings).location(uri, "index")
    assert not any(secret in str(error.value) for secret in ("AK", "SK", "CS", "/k"))
    # What it advises gets by
    advised = str(error.value).partition("as in ")[2].partition(": then")[0]
    assert advised.startswith(f"{uri}?")
    assert options_of(settings, advised) is None
    fs.FileSystem.from_uri(advised.replace("s3a:", "s3:"))


@pytest.mark.parametrize(
    "uri", ["s3a://me:1@b/x", "s3a://b/x?region=x", "hdfs://h/x", "/folder/x", "s3a:/b", "gs://me:1234@[", "file:///x"]
)
def test_uris_that_settings_are_not_for(uri: str) -> None:
    settings = s3(**KEYS) | {"fs.gs.auth.type": "UNAUTHENTICATED"}
    assert options_of(settings, uri) is None


@given(st.text("0123456789abcdef", min_size=8), st.text("0123456789abcdef", min_size=8))
def test_secrets_are_not_told(key: str, secret: str) -> None:
    settings = s3(**{"access.key": f"K{key}", "secret.key": f"S{secret}", "endpoint": "127.0.0.1:1"})
    location = StoreSettings(settings).location("s3a://b/x", "index")
    shown = f"{location} {location!r} {StoreSettings(settings)!r} {location.address} {location.numbered(3)!r}"
    assert f"K{key}" not in shown
    assert f"S{secret}" not in shown
    assert pickle.loads(pickle.dumps(location)) == location != location_of("s3a://b/x?region=x", "index")
    assert location_of(location, "index") == location
