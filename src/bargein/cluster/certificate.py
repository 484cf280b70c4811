"""Makes certificates without an authority. The other side knows the fingerprint beforehand.

A node makes one at its start: the key stays in the process, and the database names the fingerprint.
The address of shared chats keeps one in a file, and its user sees the fingerprint. Neither has to
be renewed.
"""

import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from bargein.errors import UserError

VALID_DAYS = 3650
BEGIN = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    context: ssl.SSLContext
    fingerprint: bytes


def make_certificate() -> OwnCertificate:
    """Raises `UserError` if the library for it is not installed."""
    made = certificate_of(make_pem("bargein node"))
    made.context.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


def make_pem(
    name: str,
    addresses: Sequence[str] = (),
    *,
    valid_days: int = VALID_DAYS,
    extra: str = "postgres",
) -> str:
    """Returns a new key with its certificate for these IP addresses. `extra` is the extra that the
    error names if the library is missing."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError as error:
        raise UserError(
            f"TLS needs a certificate, and what makes one is not installed; run  "
            f"pip install 'bargein[{extra}]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clocks of two machines may differ.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=valid_days))
    )
    if addresses:
        names = [x509.IPAddress(ip_address(each)) for each in addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (private + public).decode()


def certificate_of(pem: str) -> OwnCertificate:
    """Reads what `make_pem` made. Raises `ssl.SSLError` if it is something else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _as_file(pem) as path:
        context.load_cert_chain(path)
    return OwnCertificate(context, fingerprint_of(pem))


def fingerprint_of(pem: str) -> bytes:
    """The SHA-256 of the certificate in what `make_pem` made."""
    public = pem[pem.index(BEGIN) :]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(public)).digest()


@contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """The library reads certificates from files only. Commands of an agent see the files in /tmp,
    so this one is in memory, where the system has such files."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="bargein-", suffix=".pem") as file:
            file.write(pem.encode())
            file.flush()
            yield file.name
        return
    with open(os.memfd_create("certificate"), "wb") as file:
        file.write(pem.encode())
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
