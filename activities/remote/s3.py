"""S3 buckets and their encryption."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from activities.remote.activity import Bucket, StoredObject
from tightloop.client.sealing import Keys, decrypt_file, encrypt_file
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import RemoteSettings
from tightloop.value import shorten

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store


PROBE = "probe"
RETRIES = 3
"""Number of retries per request. After that, Temporal retries the activity."""
RETRY_TIMEOUT = timedelta(seconds=10)
"""Time after which no retry starts. Together with `remote.timeout_s`, it is less than the one minute allowed for a
hand-off, so that people see the reason.
"""


class S3Bucket:
    """Reads and writes objects in one folder of a bucket. Thread-safe."""

    def __init__(self, settings: RemoteSettings) -> None:
        """Configure the bucket without connecting to it.

        Raises:
            SettingsError: the required library is not installed.
        """
        self._where = f"{settings.endpoint or 'AWS'}, bucket {settings.bucket}"
        self._store = _open(settings)

    def __str__(self) -> str:
        return self._where

    def read(self, name: str) -> StoredObject | None:
        try:
            with self._convert_errors():
                result = self._store.get(name)
                return StoredObject(bytes(result.bytes()), result.meta["e_tag"] or "")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with self._convert_errors():
            self._store.put(name, content)

    def swap(self, name: str, content: bytes, version: str) -> str:
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        try:
            with self._convert_errors():
                written = self._store.put(name, content, mode={"e_tag": version} if version else "create")
        except (AlreadyExistsError, PreconditionError, NotFoundError, FileNotFoundError):
            # The library repeats a request whose response was lost: then the stored object is our own write.
            now = self.read(name)
            return now.version if now is not None and now.content == content else ""
        return written["e_tag"] or ""

    def names(self, folder: str) -> tuple[str, ...]:
        with self._convert_errors():
            return tuple(entry["path"] for chunk in self._store.list(f"{folder}/") for entry in chunk)

    def remove(self, names: Sequence[str]) -> None:
        if names:
            with self._convert_errors():
                self._store.delete(names)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

        try:
            yield
        except (AlreadyExistsError, NotFoundError, PreconditionError):
            raise
        except BaseError as error:
            # The rest is a debug dump of many lines.
            why = shorten(str(error).partition("\n\nDebug source")[0], 300)
            raise ServiceUnavailableError(
                f"the remote store ({self._where}) cannot be used: {why}. Check the server and the remote "
                "section of the settings"
            ) from None


def _open(settings: RemoteSettings) -> "S3Store":
    try:
        from obstore.store import S3Store
    except ImportError:
        raise SettingsError(
            f"remote.bucket is {settings.bucket!r}, but the obstore package is not installed. Install it on every "
            "host with workspaces: pip install obstore"
        ) from None
    config: S3Config = {"region": settings.region}
    if settings.endpoint:
        # Servers other than AWS seldom have a DNS name for each bucket.
        config |= {"endpoint": settings.endpoint, "virtual_hosted_style_request": False}
    if settings.access_key:
        secret = settings.secret_key.get_secret_value()
        config |= {"access_key_id": settings.access_key, "secret_access_key": secret}
    return S3Store(
        settings.bucket,
        prefix=settings.prefix,
        config=config,
        client_options={
            "timeout": timedelta(seconds=settings.timeout_s),
            "allow_http": settings.endpoint.startswith("http://"),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": RETRY_TIMEOUT},
    )


def probe(bucket: Bucket, where: str) -> None:
    """Check that a server supports conditional writes.

    Conditional writes prevent two hosts from writing the same episode. Some servers ignore the condition
    and report success (for example, rclone 1.75 and s3rver 3.7).

    Raises:
        SettingsError: the server ignores conditional writes.
        ServiceUnavailableError: the server does not respond.
    """
    # First without a condition, so that the object exists whatever earlier probes have left.
    bucket.write(PROBE, b"0")
    again = bucket.swap(PROBE, b"1", "")
    if again or bucket.swap(PROBE, b"2", '"00000000000000000000000000000000"'):
        ignored = "If-None-Match" if again else "If-Match"
        raise SettingsError(
            f"the remote store ({where}) ignores conditional writes ({ignored}), so two hosts could continue "
            "the same episode. Use AWS S3 or a server that supports conditional writes, or leave "
            "remote.bucket empty"
        )


_HEAD = b"tightloop object 1\0"


@dataclass(frozen=True)
class EncryptedBucket:
    """Encrypts objects with AES-256-GCM (NIST SP 800-38D).

    Uses the same keys as Temporal payloads.
    """

    bucket: Bucket
    keys: Keys

    def read(self, name: str) -> StoredObject | None:
        """Read and decrypt an object, and verify that it is authentic.

        Raises:
            ArtifactCorruptError: the object was modified or was written under another name.
            SettingsError: the object's key is not available.
        """
        stored = self.bucket.read(name)
        if stored is None:
            return None
        what = f"the object {name} in the remote store"
        return StoredObject(decrypt_file(self.keys, _HEAD, name, stored.content, what=what), stored.version)

    def write(self, name: str, content: bytes) -> None:
        self.bucket.write(name, encrypt_file(self.keys, _HEAD, name, content))

    def swap(self, name: str, content: bytes, version: str) -> str:
        return self.bucket.swap(name, encrypt_file(self.keys, _HEAD, name, content), version)

    def names(self, folder: str) -> tuple[str, ...]:
        return self.bucket.names(folder)

    def remove(self, names: Sequence[str]) -> None:
        self.bucket.remove(names)
