"""The Kubernetes manifests: schemas, references, policies, and the settings that pods get."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tightloop.settings import parse_settings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
VERSION = "1.33"
"""The first in which pods may have user namespaces without a feature gate."""
Resource = dict[str, Any]
CUSTOM = {
    ("external-secrets.io/v1", "SecretStore"): {"provider"},
    ("external-secrets.io/v1", "ExternalSecret"): {"refreshInterval", "secretStoreRef", "target", "data"},
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "cooldownPeriod",
        "triggers",
    },
    ("keda.sh/v1alpha1", "TriggerAuthentication"): {"secretTargetRef"},
}
"""Custom resources, with the fields of `spec` that their documentation has and we use."""
KEDA = {"endpoint", "namespace", "taskQueue", "queueTypes", "targetQueueSize", "activationTargetQueueSize"}
"""https://keda.sh/docs/latest/scalers/temporal/"""


def resources() -> Iterator[tuple[str, Resource]]:
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for one in yaml.safe_load_all(path.read_text()):
                yield f"{path.relative_to(FOLDER)}:{one['kind']}/{one['metadata']['name']}", one


ALL = dict(resources())
WORKLOADS = {name: one for name, one in ALL.items() if one["kind"] in ("Deployment", "StatefulSet")}
NAMED = {(one["kind"], one["metadata"]["name"]) for one in ALL.values()}


def variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


@pytest.mark.parametrize("name", ALL)
def test_resource_follows_its_schema(name: str) -> None:
    one = ALL[name]
    fields = CUSTOM.get((one["apiVersion"], one["kind"]))
    if fields is not None:
        assert one["spec"].keys() == fields
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kubernetes_validate.validate(one, VERSION, strict=True)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(FOLDER)))
def test_every_file_of_a_folder_is_in_its_kustomization(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    names = [*content.get("resources", ()), *content.get("components", ())]
    names += [file for made in content.get("configMapGenerator", ()) for file in made["envs"]]
    for name in names:
        assert (path.parent / name).exists(), name
    present = {file.name for file in path.parent.iterdir() if file.is_file()} - {path.name}
    assert present <= set(names)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(FOLDER)))
def test_overlays_change_what_exists(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    images = {box["image"] for one in WORKLOADS.values() for box in one["spec"]["template"]["spec"]["containers"]}
    changed = {image["name"] for image in content.get("images", ())}
    assert not changed or changed == images
    assert {each["name"] for each in content.get("replicas", ())} <= {name for _, name in NAMED}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_runs_without_privileges_within_bounds(name: str) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert ("ServiceAccount", pod["serviceAccountName"]) in NAMED
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] >= 10_000
    for box in pod["containers"]:
        security = box["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= box.keys()
        for bound in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= box["resources"][bound].keys()


@pytest.mark.parametrize("name", WORKLOADS)
def test_mounts_of_a_workload_are_its_volumes_and_ports_have_names(name: str) -> None:
    spec = WORKLOADS[name]["spec"]
    pod = spec["template"]["spec"]
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert all(("PersistentVolumeClaim", claim) in NAMED for claim in claims)
    for box in pod["containers"]:
        assert {mount["name"] for mount in box["volumeMounts"]} == volumes
        ports = {port["name"] for port in box["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            way = box[probe].get("httpGet") or box[probe]["tcpSocket"]
            assert way["port"] in ports


def test_only_the_workspace_leaves_the_default_filter_and_within_a_user_namespace() -> None:
    special = {name for name, one in WORKLOADS.items() if "procMount" in str(one)}
    assert special == {"base/workspace.yaml:StatefulSet/tightloop-workspace"}
    [one] = [WORKLOADS[name] for name in special]
    assert one["spec"]["template"]["spec"]["hostUsers"] is False


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_has_a_disruption_budget_for_its_pods(name: str) -> None:
    labels = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
    budgets = [one for one in ALL.values() if one["kind"] == "PodDisruptionBudget"]
    assert [one for one in budgets if one["spec"]["selector"]["matchLabels"] == labels]


@pytest.mark.parametrize("overlay", ["development", "production"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_pods_get_settings_that_are_allowed(name: str, overlay: str) -> None:
    given = variables(FOLDER / "base" / "settings.env")
    more = FOLDER / "overlays" / overlay / "settings.env"
    given |= variables(more) if more.exists() else {}
    for box in WORKLOADS[name]["spec"]["template"]["spec"]["containers"]:
        for variable in box["env"]:
            example = {"database-url": "postgresql://db.example.com/tightloop", "temporal-api-key": ""}
            source = variable["valueFrom"].get("secretKeyRef", {"key": "tightloop-workspace-0"})
            given[variable["name"]] = example.get(source["key"], "tightloop-workspace-0")
    settings = parse_settings("", given)
    assert settings.privacy.keys_env in given


def test_secret_store_fills_every_key_that_pods_read() -> None:
    read = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for one in WORKLOADS.values()
        for box in one["spec"]["template"]["spec"]["containers"]
        for variable in box["env"]
        if "secretKeyRef" in variable["valueFrom"]
    }
    secret = ALL["components/external-secrets/secrets.yaml:ExternalSecret/tightloop"]["spec"]
    assert {one["secretKey"] for one in secret["data"]} == read
    assert ("SecretStore", secret["secretStoreRef"]["name"]) in NAMED
    assert secret["target"]["name"] == "tightloop"


def test_scaling_looks_at_the_queue_that_the_deployment_serves() -> None:
    scaled = ALL["components/keda/scaling.yaml:ScaledObject/tightloop-workflows"]["spec"]
    settings = parse_settings("", variables(FOLDER / "base" / "settings.env"))
    [trigger] = scaled["triggers"]
    assert trigger["type"] == "temporal"
    assert trigger["metadata"].keys() == KEDA
    assert trigger["metadata"]["endpoint"] == settings.temporal.address
    assert trigger["metadata"]["namespace"] == settings.temporal.namespace
    assert trigger["metadata"]["taskQueue"] == settings.temporal.task_queue
    # Running tasks are no backlog: without a worker nothing that runs would go on.
    assert scaled["minReplicaCount"] >= 1
    assert (scaled["scaleTargetRef"]["kind"], scaled["scaleTargetRef"]["name"]) in NAMED
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in NAMED


def test_state_home_is_a_folder_that_the_process_makes_itself() -> None:
    """The root of a volume belongs to root, and a state home of another user is refused."""
    home = variables(FOLDER / "base" / "settings.env")["TIGHTLOOP_HOME"]
    mounts = [
        mount["mountPath"]
        for one in WORKLOADS.values()
        for box in one["spec"]["template"]["spec"]["containers"]
        for mount in box["volumeMounts"]
        if mount["name"] == "state"
    ]
    assert len(mounts) == len(WORKLOADS)
    assert all(home.startswith(f"{mount}/") for mount in mounts)
