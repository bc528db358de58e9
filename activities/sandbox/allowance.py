"""Turns the sandbox settings into the spec of a command."""

from collections.abc import Iterable
from pathlib import Path

from activities.sandbox.port import MEBIBYTE, SandboxSpec
from tightloop.errors import SettingsError
from tightloop.settings import SandboxSettings


def allowed(
    settings: SandboxSettings,
    argv: tuple[str, ...],
    root: Path,
    *,
    wall_limit_s: float,
    grace_s: float,
    output_bytes: int = MEBIBYTE,
) -> SandboxSpec:
    """Return the spec of a command within the bounds of the settings.

    Raises:
        SettingsError: the settings name a path that does not exist.
    """
    return SandboxSpec(
        argv=argv,
        root=root,
        readable=places(settings.read, "sandbox.read"),
        writable=places(settings.write, "sandbox.write"),
        network=settings.network,
        cores=settings.cores,
        memory_bytes=settings.memory_mb * MEBIBYTE,
        processes=settings.processes,
        growth_bytes=settings.disk_mb * MEBIBYTE,
        wall_limit_s=wall_limit_s,
        grace_s=grace_s,
        output_bytes=output_bytes,
    )


def check_places(settings: SandboxSettings) -> None:
    """Look for the paths that the settings name.

    Raises:
        SettingsError: one is not absolute or does not exist.
    """
    places(settings.read, "sandbox.read")
    places(settings.write, "sandbox.write")


def places(paths: Iterable[str], what: str) -> tuple[Path, ...]:
    """Return the files and folders of a setting; `~` is the worker's home.

    Raises:
        SettingsError: one is not absolute or does not exist.
    """
    found = tuple(Path(path).expanduser() for path in paths)
    for place in found:
        if not place.is_absolute() or not place.exists():
            raise SettingsError(
                f"{what} names {str(place)!r}, which is not absolute or does not exist. "
                f"Create it, or correct {what} in the settings and restart the worker"
            )
    return found
