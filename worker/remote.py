"""Composes the copies of checkpoints: the bucket of the settings, sealed as payloads are."""

from temporalio.client import Client

from activities.artifacts.local import open_local_store
from activities.remote.copies import Copies
from activities.remote.s3 import S3Bucket, probe
from activities.remote.sealed import SealedBucket
from activities.workspace.store.transfer import PackedTrees
from tightloop.client.sealing import SealingCodec
from tightloop.host.identity import host_identity
from tightloop.settings import Settings


def copies_of(settings: Settings, client: Client) -> Copies | None:
    """Return the copies in the bucket of the settings; None: they name none.

    Raises:
        SettingsError: the library for it is not installed.
    """
    if not settings.remote.bucket:
        return None
    bucket, codec = S3Bucket(settings.remote), client.data_converter.payload_codec
    sealed = SealedBucket(bucket, codec.keys) if isinstance(codec, SealingCodec) else bucket
    return Copies(sealed, host_identity(settings).queues(settings), PackedTrees(), open_local_store)


def need_bucket(settings: Settings) -> None:
    """Look whether the bucket of the settings can be used, if they name one.

    Raises:
        SettingsError: its server ignores conditional writes.
        ServiceUnavailableError: it does not answer, or refuses.
    """
    if settings.remote.bucket:
        bucket = S3Bucket(settings.remote)
        probe(bucket, str(bucket))
