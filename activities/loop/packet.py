"""Stored packets and a repository's recent commits."""

from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.port import replace_file
from activities.workspace.git_command import user_git
from activities.workspace.user_repository import UserRepository
from tightloop.errors import TightloopError
from tightloop.host import private_folder, state_folder
from tightloop.loop.model import HISTORY_LIMIT, PACKET_ID, Packet, packet_id_of


def last_commits(root: Path) -> tuple[str, ...]:
    """Return the latest commits of a repository, newest first. If git fails, return none."""
    try:
        with user_git(UserRepository(root)) as git:
            result = git.attempt("log", f"--max-count={HISTORY_LIMIT}", "--no-decorate", "--format=%h %s")
    except (TightloopError, OSError):
        return ()
    return tuple(result.out.decode("utf-8", "replace").splitlines()) if result.code == 0 else ()


KEPT = 100
"""Number of packets kept per project. The oldest one is deleted when there are more."""


class Packets:
    """Store for the packets of a project, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, packet: Packet) -> None:
        """Store a packet under its id. Idempotent."""
        private_folder(self._folder)
        # Not durable: a packet that is lost in a crash is simply made again.
        replace_file(self._folder / f"{packet.packet_id}.json", packet.model_dump_json().encode())
        files = sorted(self._folder.glob("pkt_*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)

    def find(self, packet_id: str) -> Packet | None:
        """Return a packet, or None if there is no packet with this id or its file was modified."""
        if not PACKET_ID.fullmatch(packet_id):
            return None
        try:
            packet = Packet.model_validate_json((self._folder / f"{packet_id}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return packet if packet_id_of(packet) == packet_id else None


def open_packets(workspace: Path) -> Packets:
    """Open the store for the packets of a workspace's project."""
    return Packets(state_folder(workspace) / "packets")
