"""The build of the workers of this installation."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from tightloop.client.execution import version_name
from tightloop.settings import WorkerSettings

PACKAGES = ("workflows", "activities", "tightloop", "worker")


def deployment_config(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Return to which version of which deployment the workers belong; None: they have no versions."""
    if not settings.deployment:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, build_id_of(settings)),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def version_of(settings: WorkerSettings) -> str:
    """Return the version of the workers as Temporal names it; empty: they have none."""
    return version_name(settings.deployment, build_id_of(settings)) if settings.deployment else ""


def build_id_of(settings: WorkerSettings) -> str:
    """Return the build of this installation."""
    return settings.build_id or f"{_version()}-{_code_digest()}"


def _version() -> str:
    try:
        return version("tightloop")
    except PackageNotFoundError:
        return "unknown"


@cache
def _code_digest() -> str:
    """Return a digest of the installed code; all hosts with the same code have the same."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        found = find_spec(package)
        assert found is not None
        assert found.origin is not None
        folder = Path(found.origin).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
