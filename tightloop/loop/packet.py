"""How a packet is bounded, and its id made from what it holds."""

import hashlib
from collections.abc import Iterable, Mapping

from tightloop.loop.model import CheckState, Packet
from tightloop.value import clip, counted, shorten
from tightloop.value.scrub import scrub

HISTORY_LIMIT = 30
STRUCTURE_LIMIT = 60
FAILURES_LIMIT = 20
LINE_CHARACTERS = 200
FAILURE_CHARACTERS = 1_500


def packet_id_of(packet: Packet) -> str:
    """Return the id of a packet: the same content has the same id, whenever it was found."""
    content = packet.evolve(packet_id="", at=None, checks=tuple(one.evolve(duration_s=0.0) for one in packet.checks))
    return f"pkt_{hashlib.sha256(content.model_dump_json().encode()).hexdigest()[:16]}"


def sealed_packet(packet: Packet) -> Packet:
    """Return a packet within its bounds, without secrets, with its id."""
    bounded = packet.evolve(
        structure=_lines(packet.structure, STRUCTURE_LIMIT),
        history=_lines(packet.history, HISTORY_LIMIT),
        failures=tuple(clip(scrub(line), FAILURE_CHARACTERS) for line in packet.failures[:FAILURES_LIMIT]),
        checks=tuple(_bounded(check) for check in packet.checks),
    )
    return bounded.evolve(packet_id=packet_id_of(bounded))


def _lines(lines: Iterable[str], limit: int) -> tuple[str, ...]:
    return tuple(shorten(scrub(line), LINE_CHARACTERS) for line in tuple(lines)[:limit])


def _bounded(check: CheckState) -> CheckState:
    return check.evolve(summary=shorten(scrub(check.summary), LINE_CHARACTERS))


def structure_of(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the folders at the top and the files beside them with their sizes in bytes, the largest first."""
    folders: dict[str, tuple[int, int]] = {}
    for path, size in sizes.items():
        top, _, rest = path.partition("/")
        name = f"{top}/" if rest else top
        count, total = folders.get(name, (0, 0))
        folders[name] = (count + 1, total + size)
    ordered = sorted(folders.items(), key=lambda one: (-one[1][1], one[0]))
    return tuple(
        f"{name} {size} bytes" + (f" in {counted(count, 'file')}" if name.endswith("/") else "")
        for name, (count, size) in ordered[:STRUCTURE_LIMIT]
    )
