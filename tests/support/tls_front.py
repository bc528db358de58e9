"""TLS in front of a real Temporal server, with authorities and certificates made for a test; the wire is recorded."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs certificates; `ca` is the file to trust."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._certificate(self._name, self._key, ca=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for a host or a client, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(self._certificate(subject, key, ca=False))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        now = datetime.now(UTC)
        common = str(subject.rfc4514_string()).removeprefix("CN=")
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(common)]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Front:
    """Where to connect, and what came over the wire, before TLS was taken off and after."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.wire = bytearray()
        self.clear = bytearray()


@asynccontextmanager
async def tls_front(
    upstream: str, certificate: tuple[Path, Path], *, clients_of: Path | None = None
) -> AsyncIterator[Front]:
    """Serve TLS with a certificate, before a plain server at `host:port`.

    Args:
        upstream: the server.
        certificate: its file, and that of its key.
        clients_of: the authority whose certificates clients must have.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2"])
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)
    front = Front("")

    async def unwrapped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _join(reader, writer, upstream, front.clear)

    async def recorded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _join(reader, writer, f"127.0.0.1:{inner.sockets[0].getsockname()[1]}", front.wire)

    inner = await asyncio.start_server(unwrapped, "127.0.0.1", 0, ssl=context)
    outer = await asyncio.start_server(recorded, "127.0.0.1", 0)
    front.address = f"127.0.0.1:{outer.sockets[0].getsockname()[1]}"
    async with inner, outer:
        yield front


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str, record: bytearray) -> None:
    host, _, port = to.rpartition(":")
    onward, away = await asyncio.open_connection(host, int(port))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray | None) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if kept is not None:
                    kept += data
                target.write(data)
                await target.drain()
        with suppress(OSError):
            target.close()

    await asyncio.gather(copy(reader, away, record), copy(onward, writer, None))
