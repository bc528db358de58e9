"""A seccomp filter: blocks system calls that no build, test or formatter needs and no namespace contains.

The kernel's keyrings are not part of any namespace, so a command could read the keys of the worker's session;
the others are parts of the kernel through which programs broke out before. Assembled by hand: seccomp(2),
`linux/filter.h`.
"""

import functools
import platform
import struct
import sys
from errno import ENOSYS, EPERM

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_FROM = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_OTHER_NUMBERING = 0x40000000
"""From here on x86-64 takes the numbers of its x32 variant, which a list of numbers would miss."""


# The machine's AUDIT_ARCH number, and the numbers of the calls: keyrings, bpf, perf_event_open, userfaultfd, io_uring,
# kernel modules, kexec, open_by_handle_at, mounts and namespaces, swap, reboot, quotactl, acct, syslog.
_MACHINES: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (248, 249, 250, 321, 298, 323, 425, 426, 427, 175, 176, 313, 246, 320, 304, 165, 166, 155, 428, 429, 430, 431,
         432, 272, 308, 167, 168, 169, 179, 163, 103),
    ),
    "aarch64": (
        0xC00000B7,
        (217, 218, 219, 280, 241, 282, 425, 426, 427, 105, 106, 273, 104, 294, 265, 40, 39, 41, 428, 429, 430, 431,
         432, 97, 268, 224, 225, 142, 60, 89, 116),
    ),
}  # fmt: skip


@functools.cache
def filter_content() -> bytes | None:
    """Return the filter as bubblewrap reads it from a file; None on a machine whose numbers are not known."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.platform != "linux":
        return None
    architecture, calls = machine
    lines = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        (_JUMP_FROM, 0, 1, _OTHER_NUMBERING),
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        *((_JUMP_EQUAL, len(calls) - index, 0, number) for index, number in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
