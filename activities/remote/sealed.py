"""A bucket whose objects are encrypted, each bound to its name."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from activities.remote.port import Bucket, Stored
from tightloop.client.sealing import NONCE_BYTES, Keys
from tightloop.errors import ArtifactCorruptError

_HEAD = b"tightloop object 1\0"


@dataclass(frozen=True)
class SealedBucket:
    """Encrypts with authentication (AES-256-GCM, NIST SP 800-38D), with the keys that seal payloads of Temporal."""

    bucket: Bucket
    keys: Keys

    def read(self, name: str) -> Stored | None:
        """Return an object as it was before it was sealed.

        Raises:
            ArtifactCorruptError: it was changed, or was written under another name.
            SettingsError: its key is not here.
        """
        found = self.bucket.read(name)
        return None if found is None else Stored(self._open(name, found.content), found.version)

    def write(self, name: str, content: bytes) -> None:
        """Seal an object and write it."""
        self.bucket.write(name, self._seal(name, content))

    def swap(self, name: str, content: bytes, version: str) -> str:
        """Seal an object, and write it if its version is still this one."""
        return self.bucket.swap(name, self._seal(name, content), version)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder; they are not sealed."""
        return self.bucket.names(folder)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        self.bucket.remove(names)

    def _seal(self, name: str, content: bytes) -> bytes:
        key, nonce = self.keys.current.encode(), os.urandom(NONCE_BYTES)
        head = _HEAD + bytes([len(key)]) + key
        sealed: bytes = self.keys.cipher(key.decode()).encrypt(nonce, content, head + name.encode())
        return head + nonce + sealed

    def _open(self, name: str, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        rest = sealed.removeprefix(_HEAD)
        end = 1 + rest[0] if rest != sealed and rest else 0
        nonce, data = rest[end : end + NONCE_BYTES], rest[end + NONCE_BYTES :]
        try:
            if not end:
                raise ValueError
            key = rest[1:end].decode("utf-8", "replace")
            return bytes(self.keys.cipher(key).decrypt(nonce, data, sealed[: len(_HEAD) + end] + name.encode()))
        except (InvalidTag, ValueError):
            raise ArtifactCorruptError(
                f"the object {name} of the remote store is not authentic: it was changed, or sealed with another key "
                "that has the same id. Compare the key files: tightloop keys list"
            ) from None
