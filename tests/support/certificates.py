"""Certificates for tests: an authority, and what it signs for this machine."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes


class Authority:
    """What signs certificates, itself by its own."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._cert = self._signed(self._name, self._key, is_authority=True)
        self.cert = self._cert.public_bytes(serialization.Encoding.PEM)

    def certificate(self, name: str) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._signed(_name(name), key, is_authority=False)
        pem = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        return Certificate(cert.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))

    def _signed(
        self: Self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        there = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(there), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
