"""A certificate authority of a test, and the certificates that it signs: PEM files in a folder."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=2)


class Certificate(NamedTuple):
    """A certificate with its key, as files."""

    certificate: Path
    key: Path
    both: Path  # key and chain in one file, as Kafka's PEM stores need them


class CertificateAuthority:
    """Signs certificates for 127.0.0.1 and localhost, which servers and clients may have."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        key_usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **usage
        )
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: str | None = None) -> Certificate:
        """Return a new certificate of principal `name`; `password` encrypts its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key.public_key())
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        certificate_pem = signed.public_bytes(serialization.Encoding.PEM)
        made = Certificate(*(self._folder / f"{name}.{part}.pem" for part in ("certificate", "key", "both")))
        made.certificate.write_bytes(certificate_pem)
        made.key.write_bytes(key_pem)
        made.both.write_bytes(key_pem + certificate_pem + self.file.read_bytes())
        return made

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(self._name, name, key, x509.random_serial_number(), now - _LIFE, now + _LIFE)
