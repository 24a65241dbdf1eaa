"""Certificates and keys, as PEM: checked before gRPC is given them, as its errors name no file and no fault."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from tagmatch.model.errors import InvalidValueError


def check_certificates(pem: bytes, name: str) -> None:
    """See that a text holds certificates.

    Raises
    ------
    InvalidValueError
        It does not; the message begins with `name`.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with contextlib.suppress(ssl.SSLError, ValueError), _file(pem) as path:
        context.load_verify_locations(path)
    if not context.cert_store_stats()["x509"]:
        raise InvalidValueError(f"{name} holds no certificate as PEM, -----BEGIN CERTIFICATE-----")


def check_pair(cert: bytes, key: bytes, cert_name: str, key_name: str) -> None:
    """See that a text holds certificates, and another the key of the first one.

    Raises
    ------
    InvalidValueError
        They do not; the message begins with the name of the one that is wrong.
    """
    import ssl

    def passphrase() -> bytes:
        raise InvalidValueError(f"{key_name} has a passphrase; give it without, in a file that only this user can read")

    check_certificates(cert, cert_name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with _file(cert) as cert_path, _file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH" or error.reason == "KEY_TYPE_MISMATCH":
            raise InvalidValueError(
                f"{key_name} does not belong to the certificate in {cert_name}; give the key that it was made with"
            ) from None
        if b"PRIVATE KEY-----" not in key:
            raise InvalidValueError(f"{key_name} holds no key as PEM, -----BEGIN PRIVATE KEY-----") from None
        raise InvalidValueError(f"{key_name} cannot be used with {cert_name}: {error.reason or error}") from None


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A path for functions that take only files; in memory on Linux, as keys are secret."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
