"""Debian's packages without installing them: downloaded and unpacked, or a small system of its own."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LIMIT_S = 1_800.0


def mirror() -> str:
    """Return the address from which this machine takes Debian's packages."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    found = _run(targets).split()
    assert found, "this machine knows no mirror of Debian: apt-get update"
    return found[0]


def download(folder: Path, names: Sequence[str], *, release: str = "") -> list[Path]:
    """Fetch packages into a folder, as this machine's Debian has them or another release."""
    options: list[str] = []
    folder.mkdir()
    if release:
        source, lists, cache = folder / "sources.list", folder / "lists", folder / "cache"
        source.write_text(f"deb [signed-by={KEYS}] {mirror()} {release} main\n")
        for place in (lists, cache):
            place.mkdir()
        values = {"Etc::SourceList": source, "Etc::SourceParts": "/dev/null", "State::Lists": lists, "Cache": cache}
        options = [f"-oDir::{name}={value}" for name, value in values.items()]
        _run(["apt-get", *options, "update"])
    _run(["apt-get", *options, "download", *names], cwd=folder)
    return list(folder.glob("*.deb"))


def unpack(packages: Sequence[Path], root: Path) -> None:
    """Unpack packages into one folder."""
    for package in packages:
        _run(["dpkg", "-x", str(package), str(root)])


def small_system(folder: Path, release: str, packages: Sequence[str]) -> Path:
    """Make the files of a small Debian that trusts whom this machine trusts; return where they are."""
    root, tools = folder / "system", folder / "tools"
    unpack(download(folder / "packages", ("debootstrap",)), tools)
    place = tools / "usr/share/debootstrap"
    command = [str(tools / "usr/sbin/debootstrap"), "--variant=minbase", f"--include={','.join(packages)}"]
    _run([*command, release, str(root), mirror()], environment={"DEBOOTSTRAP_DIR": str(place)})
    shutil.rmtree(root / "var/cache/apt/archives")
    if CERTIFICATES.exists():
        shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
    return root


def _run(command: Sequence[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-1000:]}"
    return done.stdout
