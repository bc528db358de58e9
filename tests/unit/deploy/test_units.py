"""The units of systemd: what they start exists, and systemd itself has nothing to say against them."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from tightloop.settings import parse_settings
from worker.build import Role

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "systemd"
SERVICES = sorted(FOLDER.glob("*.service"))
MOST_EXPOSED = {"tightloop-workspace": 40}
"""Tenths of systemd's own figure; bubblewrap needs namespaces and mounts."""


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_unit_starts_a_module_that_exists_as_a_user_without_privileges(path: Path) -> None:
    service = unit(path)["Service"]
    _, _, package, module, *rest = service["ExecStart"].split()
    assert package == "tightloop_server"
    place = ROOT / module.replace(".", "/")
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
    role = rest[rest.index("--role") + 1] if "--role" in rest else "%i"
    assert role == "%i" or Role(role)
    assert service["User"] == "tightloop"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert "MemoryMax" in service


def test_target_wants_units_that_exist() -> None:
    wanted = unit(FOLDER / "tightloop.target")["Unit"]["Wants"].split()
    for name in wanted:
        head, at, rest = name.partition("@")
        assert (FOLDER / (f"{head}@.service" if at else name)).is_file(), name
        assert not at or Role(rest.removesuffix(".service"))


def test_workspace_may_do_what_bubblewrap_does() -> None:
    """Mounts over /proc, a fixed host name or forbidden namespaces stop every check."""
    service = unit(FOLDER / "tightloop-workspace.service")["Service"]
    stopped_by = {"ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname"}
    assert not stopped_by & set(service)
    assert "RestrictNamespaces" not in service
    assert "AF_NETLINK" in service["RestrictAddressFamilies"]
    assert "@mount" in (FOLDER / "tightloop-workspace.service").read_text()


def test_example_of_the_settings_is_allowed() -> None:
    settings = parse_settings((FOLDER / "settings.yaml").read_text(), {})
    assert settings.temporal.encrypted


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_has_nothing_to_say_against_the_units(tmp_path: Path) -> None:
    for path in (*SERVICES, FOLDER / "tightloop.target"):
        # It looks for the program, which is not installed here.
        text = path.read_text().replace("/opt/tightloop/bin/python", "/bin/sh")
        (tmp_path / path.name).write_text(text)
    names = [path.name.replace("@.", "@workflows.") for path in SERVICES]
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{name}" for name in names), "./tightloop.target"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # An unknown key is only a warning, with exit code 0.
    ours = [line for line in done.stderr.splitlines() if "tightloop" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_units_expose_little(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED.get(path.stem, 20)}"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-300:]
