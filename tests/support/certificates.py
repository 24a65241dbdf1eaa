"""Certificates for tests: an authority, and what it signs for this machine."""

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


class Certificate(NamedTuple):
    cert: bytes
    key: bytes


class Authority:
    def __init__(self, name: str) -> None:
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name(name)
        self.cert = self._signed(self._name, self._key, is_authority=True)

    def certificate(self, name: str) -> Certificate:
        key, plain = ec.generate_private_key(ec.SECP256R1()), serialization.NoEncryption()
        cert = self._signed(_name(name), key, is_authority=False)
        return Certificate(cert, key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain))

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        there = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        number = x509.random_serial_number()
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), number, now - day, now + day)
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(there), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
