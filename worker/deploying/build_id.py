"""The build of the workers of this installation."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from tightloop.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
"""Where the packages of the server part lie."""
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


def build_id_of(settings: WorkerSettings) -> str:
    """Return the build of this installation."""
    return settings.build_id or f"{_version()}-{_code_digest(ROOT)}"


def _version() -> str:
    try:
        return version("tightloop")
    except PackageNotFoundError:
        return "unknown"


@cache
def _code_digest(root: Path) -> str:
    """Return a digest of the code below a folder; all hosts with the same code have the same."""
    digest = hashlib.sha256()
    for path in sorted(found for package in PACKAGES for found in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
