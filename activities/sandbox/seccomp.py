"""A seccomp filter: blocks system calls that no build, test or formatter needs and no namespace contains.

The kernel's keyrings are not part of any namespace, so a command could read the keys of the worker's session;
the others are parts of the kernel through which programs broke out before. Sockets are made of the families that a
namespace covers: AF_VSOCK reaches the hypervisor and other virtual machines from any network namespace. Assembled by
hand: seccomp(2), `linux/filter.h`.
"""

import functools
import platform
import struct
import sys
from errno import EAFNOSUPPORT, ENOSYS, EPERM

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_FROM = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""In `struct seccomp_data`; of an argument, the lower half on the machines below, which is all that the kernel reads of
the family."""
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK, by which getifaddrs(3) and name look-ups see the own interfaces. Their
numbers: Python knows only those of the system that it was built on."""
_OTHER_NUMBERING = 0x40000000
"""From here on x86-64 takes the numbers of its x32 variant, which a list of numbers would miss."""


# The machine's AUDIT_ARCH number, the numbers of socket and socketpair, and those of the calls: keyrings, bpf,
# perf_event_open, userfaultfd, io_uring, kernel modules, kexec, open_by_handle_at, mounts and namespaces, swap, reboot,
# quotactl, acct, syslog.
_MACHINES: dict[str, tuple[int, tuple[int, int], tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (41, 53),
        (248, 249, 250, 321, 298, 323, 425, 426, 427, 175, 176, 313, 246, 320, 304, 165, 166, 155, 428, 429, 430, 431,
         432, 272, 308, 167, 168, 169, 179, 163, 103),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199),
        (217, 218, 219, 280, 241, 282, 425, 426, 427, 105, 106, 273, 104, 294, 265, 40, 39, 41, 428, 429, 430, 431,
         432, 97, 268, 224, 225, 142, 60, 89, 116),
    ),
}  # fmt: skip

_NESTING: dict[str, frozenset[int]] = {
    "x86_64": frozenset({165, 166, 155, 272}),
    "aarch64": frozenset({40, 39, 41, 97}),
}
"""mount, umount2, pivot_root, unshare."""


@functools.cache
def filter_content(*, nested: bool = False) -> bytes | None:
    """Return the filter as bubblewrap reads it from a file; None on a machine whose numbers are not known."""
    return filter_of(platform.machine(), nested=nested) if sys.platform == "linux" else None


def filter_of(machine: str, *, nested: bool = False) -> bytes | None:
    """Return the filter for a machine by its name as `uname -m` prints it; None where its numbers are not known.

    With `nested` it allows what a second bubblewrap does inside: mounts and namespaces.
    """
    if machine not in _MACHINES:
        return None
    architecture, sockets, calls = _MACHINES[machine]
    calls = tuple(call for call in calls if not nested or call not in _NESTING[machine])
    families = len(SOCKET_FAMILIES)
    lines = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        (_JUMP_FROM, 0, 1, _OTHER_NUMBERING),
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        # To the last line, past the list itself, the families and the line that allows.
        *((_JUMP_EQUAL, len(calls) - index + families + 5, 0, number) for index, number in enumerate(calls)),
        (_JUMP_EQUAL, 2, 0, sockets[0]),
        (_JUMP_EQUAL, 1, 0, sockets[1]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        *((_JUMP_EQUAL, families - index, 0, number) for index, number in enumerate(SOCKET_FAMILIES)),
        (_RETURN, 0, 0, _ERROR | EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
