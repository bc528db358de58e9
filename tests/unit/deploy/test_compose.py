"""The compose file for one host: every reference leads somewhere, and every setting in it is one of ours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tightloop.settings import parse_settings

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = dict(
    line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")
)
OURS = ("setup", "workflows", "workspace", "gateway", "codec")
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?][^}]*)?\}")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def filled(text: str) -> str:
    """Put the values of the example in, with something for those that a person has to choose."""
    return VARIABLE.sub(lambda found: EXAMPLE[found[1]] or "chosen", text)


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_and_uses_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("depends_on", ())) <= SERVICES.keys()
    assert set(service["networks"]) <= COMPOSE["networks"].keys()
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        if not source.startswith("./"):
            assert source in COMPOSE["volumes"], f"{name} uses the volume {source}"
        else:
            assert (ROOT / source).exists(), f"{name} mounts {source}"


def test_every_volume_and_network_is_used() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert COMPOSE["volumes"].keys() <= used
    assert COMPOSE["networks"].keys() == {name for service in SERVICES.values() for name in service["networks"]}


@pytest.mark.parametrize("name", OURS)
def test_settings_of_a_service_are_settings_with_allowed_values(name: str) -> None:
    given = {key: filled(value) for key, value in SERVICES[name]["environment"].items()}
    settings = parse_settings("", given)
    assert settings.temporal.address == "temporal:7233"
    assert "temporal" in SERVICES
    assert settings.privacy.keys_file == "/keys/keys.json"


@pytest.mark.parametrize("name", OURS)
def test_services_of_ours_run_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", OURS)
def test_image_of_a_service_is_a_stage_of_the_dockerfile(name: str) -> None:
    service = SERVICES[name]
    assert f" AS {service['build']['target']}\n" in DOCKERFILE
    assert service["image"] == f"tightloop/{service['build']['target']}:local"


def test_stages_that_run_have_a_user_without_privileges() -> None:
    users = re.findall(r"^(?:FROM \S+ AS (\w+)|USER (\S+))$", DOCKERFILE, re.MULTILINE)
    last: dict[str, str] = {}
    stage = ""
    for name, user in users:
        stage = name or stage
        last[stage] = user or last.get("runtime", "")
    for stage in ("worker", "workspace", "gateway", "codec"):
        assert last[stage] == "10001:10001", f"{stage} would run as {last[stage] or 'root'}"


def test_example_has_every_variable_and_no_other() -> None:
    used = {found[1] for found in VARIABLE.finditer((ROOT / "docker-compose.yml").read_text())}
    assert used == EXAMPLE.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_this_host_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_filter_of_the_workspace_lets_bubblewrap_work_and_refuses_the_kernel() -> None:
    profile = json.loads((ROOT / "deploy" / "compose" / "workspace-seccomp.json").read_text())
    [refused] = profile["syscalls"]
    assert refused["action"] == "SCMP_ACT_ERRNO"
    assert {"init_module", "kexec_load", "bpf", "keyctl", "open_by_handle_at", "perf_event_open"} <= set(
        refused["names"]
    )
    assert not {"clone", "unshare", "mount", "umount2", "pivot_root", "sethostname"} & set(refused["names"])
