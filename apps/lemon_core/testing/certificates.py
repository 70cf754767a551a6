"""Certificates for tests of TLS: an authority, and what it signs, made in a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    cert: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """The paths of both as files in `folder`."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_bytes(self.cert)
        key.write_bytes(self.key)
        return str(cert), str(key)


class Authority:
    """Signs certificates for servers on loopback and for clients."""

    def __init__(self, name: str = "Test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self._name, self._name, self._key).add_extension(basic, critical=True)
        self.cert = _pem(builder.sign(self._key, hashes.SHA256()))

    def server(self) -> Pair:
        """For a server that is reached as 127.0.0.1 or localhost."""
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        )
        return self._signed("localhost", names)

    def client(self, name: str, *, alternative: str | None = None) -> Pair:
        """For a client called `name` (empty: without a common name)."""
        names = None
        if alternative is not None:
            names = x509.SubjectAlternativeName([x509.DNSName(alternative)])
        return self._signed(name, names)

    def _signed(self, name: str, names: x509.SubjectAlternativeName | None) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key)
        if names is not None:
            builder = builder.add_extension(names, critical=not name)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(_pem(builder.sign(self._key, hashes.SHA256())), private)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFE)
        .not_valid_after(now + _LIFE)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
