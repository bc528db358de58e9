"""Linux control groups, version 1 or 2. Their limits are enforced by the kernel on a whole process tree."""

import functools
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from activities.sandbox.port import Limit, is_alive, this_process
from tightloop.host.programs import SHELL

PREFIX = "tightloop-"
"""Name prefix for our groups. The groups are siblings because a common parent would be left behind."""
REMOVE_S = 2.0
"""Time in seconds to wait for a group to be removable. It stays busy for a moment after its last process has ended."""

PROBE_S = 5.0

# The kernel's default period; a quota is a share of it.
_PERIOD_US = 100_000
# rmdir fails with EBUSY right after the last process ended; in measurements, retrying for a second was enough.
_POLL_S = 0.02
_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")


@dataclass(frozen=True)
class Hierarchy:
    """A hierarchy in which this worker can create groups."""

    folders: dict[str, Path]
    """Parent folder of our groups, by controller. In version 2, all controllers have the same folder."""
    unified: bool
    """True if this is version 2."""


@dataclass(frozen=True)
class ResourceUsage:
    """A group's measured resource use."""

    oom_kills: int = 0
    refused_processes: int = 0
    """Number of times that the creation of a process or thread was denied."""
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    """Peak memory in bytes, including the page cache charged to the group."""


@functools.cache
def find_hierarchy() -> Hierarchy | None:
    """Find a hierarchy in which this process can create groups, or return None. Dead workers' groups are deleted."""
    for hierarchy in _hierarchies():
        group = ControlGroup(hierarchy, f"{PREFIX}{this_process()}-probe")
        group.limit()
        usable = group.limits and _can_be_entered(group)
        group.close()
        if usable:
            # Leftovers of dead workers.
            for parent in dict.fromkeys(hierarchy.folders.values()):
                for folder in parent.glob(f"{PREFIX}*-*-*"):
                    if not is_alive(folder.name.removeprefix(PREFIX).rpartition("-")[0]):
                        _kill(folder)
                        _remove_folder(folder)
            return hierarchy
    return None


class ControlGroup:
    """One group for one run, or one group per hierarchy in version 1."""

    def __init__(self, hierarchy: Hierarchy, name: str = "") -> None:
        name = name or f"{PREFIX}{this_process()}-{uuid.uuid4().hex[:12]}"
        self._hierarchy = hierarchy
        self._by_controller = {key: folder / name for key, folder in hierarchy.folders.items()}
        folders = []
        for folder in dict.fromkeys(self._by_controller.values()):
            with suppress(OSError):
                folder.mkdir(exist_ok=True)
                folders.append(folder)
        self.folders = tuple(folders)
        """The folders with the `cgroup.procs` files to which a process writes its pid."""
        self.limits: frozenset[Limit] = frozenset()

    def limit(self, *, memory_bytes: int = 0, processes: int = 0, cores: float = 0.0) -> None:
        """Set the limits, where 0 means no limit. A limit that cannot be set is missing from the attribute `limits`."""
        limits: set[Limit] = set()
        for limit, lines in _settings(memory_bytes, processes, cores, unified=self._hierarchy.unified).items():
            for number, (controller, file, value) in enumerate(lines):
                folder = self._by_controller.get(controller)
                if folder is not None and folder in self.folders:
                    with suppress(OSError):
                        (folder / file).write_text(value)
                        # Only the first must succeed: the others exist on some kernels only.
                        if number == 0:
                            limits.add(limit)
        self.limits = frozenset(limits)

    def read_usage(self) -> ResourceUsage:
        """Return the resources that the group has used so far."""

        def read(controller: str, file: str) -> list[str]:
            folder = self._by_controller.get(controller)
            return [] if folder is None else _lines(folder / file)

        if self._hierarchy.unified:
            kills, peak, per_second = "memory.events", "memory.peak", 1e6
            # Not the children's resource usage, which shows 2 ms, because the sandbox program reaps the command.
            used = _field(read("cpu", "cpu.stat"), "usage_usec")
        else:
            kills, peak, per_second = "memory.oom_control", "memory.max_usage_in_bytes", 1e9
            used = _number(read("cpuacct", "cpuacct.usage"))
        return ResourceUsage(
            oom_kills=_field(read("memory", kills), "oom_kill") or 0,
            refused_processes=_field(read("pids", "pids.events"), "max") or 0,
            cpu_s=None if used is None else used / per_second,
            peak_memory_bytes=_number(read("memory", peak)),
        )

    def close(self) -> bool:
        """Kill the remaining processes and delete the group. Return whether the group is gone."""
        deadline = time.monotonic() + REMOVE_S
        # Killed again in each round: a process may have forked since its group was listed.
        while left := [folder for folder in self.folders if not _remove_folder(folder)]:
            if time.monotonic() > deadline:
                return False
            for folder in left:
                _kill(folder)
            time.sleep(_POLL_S)
        return True


def _settings(
    memory_bytes: int, processes: int, cores: float, *, unified: bool
) -> dict[Limit, Sequence[tuple[str, str, str]]]:
    """Return the settings to write for each limit, as controller, file and value. The first one must succeed."""
    quota = int(cores * _PERIOD_US)
    legacy = str(memory_bytes or -1)
    return {
        # Without a swap limit a command could use its memory size again as swap.
        Limit.MEMORY: (
            ("memory", "memory.max", str(memory_bytes or "max")),
            ("memory", "memory.swap.max", "0"),
            # Without it the kernel kills one process, and the rest of the command hangs or reports a wrong result.
            ("memory", "memory.oom.group", "1"),
        )
        if unified
        else (("memory", "memory.limit_in_bytes", legacy), ("memory", "memory.memsw.limit_in_bytes", legacy)),
        Limit.PROCESSES: (("pids", "pids.max", str(processes or "max")),),
        Limit.CORES: (
            ("cpu", "cpu.max", f"{quota or 'max'} {_PERIOD_US}")
            if unified
            else ("cpu", "cpu.cfs_quota_us", str(quota or -1)),
        ),
    }


def _hierarchies() -> Iterator[Hierarchy]:
    """Yield hierarchies to try: the worker's own version 1 groups, then version 2 groups from the inside out."""
    # Keyed by controller; "" is version 2.
    mounts: dict[str, Path] = {}
    for line in _lines(Path("/proc/self/mounts")):
        _, mount, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            mounts.setdefault("", Path(mount))
        elif kind == "cgroup":
            mounts |= {name: Path(mount) for name in options.split(",") if name in _CONTROLLERS}
    legacy: dict[str, Path] = {}
    for line in _lines(Path("/proc/self/cgroup")):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            if unified := mounts.get(""):
                yield from _unified_hierarchies(unified, path)
            continue
        for name in names.split(","):
            if name in _CONTROLLERS and name in mounts:
                group = mounts[name] / path.lstrip("/")
                legacy[name] = group if group.is_dir() else mounts[name]
    if legacy:
        yield Hierarchy(legacy, unified=False)


def _unified_hierarchies(mount: Path, path: str) -> Iterator[Hierarchy]:
    group = mount / path.lstrip("/")
    if not group.is_dir():
        return
    # Upwards: a group with processes in it cannot enable controllers for its children (cgroup v2), but its parent may.
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            return
        controllers = set(" ".join(_lines(folder / "cgroup.subtree_control")).split())
        if {"memory", "pids"} <= controllers and os.access(folder, os.W_OK):
            yield Hierarchy(dict.fromkeys(_CONTROLLERS, folder), unified=True)


def _can_be_entered(group: ControlGroup) -> bool:
    """Return whether a child process can join the group.

    Version 2 requires rights on the groups in between, which file modes do not show.
    """
    join = 'for folder; do echo $$ > "$folder/cgroup.procs" || exit 1; done'
    argv = SHELL.command("-c", join, "sh", *group.folders)
    try:
        return subprocess.run(argv, capture_output=True, timeout=PROBE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _kill(folder: Path) -> None:
    for pid in _lines(folder / "cgroup.procs"):
        with suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)


def _remove_folder(folder: Path) -> bool:
    try:
        # The files of a group cannot be deleted; they disappear with its folder.
        folder.rmdir()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _field(lines: list[str], name: str) -> int | None:
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


def _number(lines: list[str]) -> int | None:
    return int(lines[0]) if lines and lines[0].isdigit() else None
