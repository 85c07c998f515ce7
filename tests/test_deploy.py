"""deploy/kubernetes as a cluster would read it: rendered by kustomize where there is one, held to the API's schemas.

No cluster is asked: nothing here says that it runs.
"""

import base64
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gyre.config import Config
from gyre.sandboxes.kubernetes_spec import COMPONENT, OWNER, REACH, SANDBOX
from services.experts import SERVER_ARGUMENT
from services.keys import NAME, write_keys

yaml = pytest.importorskip("yaml", reason="manifests are YAML")
from tests.kubernetes_schema import trouble  # noqa: E402 - skipped as a whole without the schemas

ROOT = Path(__file__).parents[1]
HERE = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.name for path in (HERE / "overlays").iterdir())
SERVERS = [f"nats-{number}.nats" for number in range(3)]
WORKLOADS = ("Deployment", "StatefulSet")
Thing = dict[str, Any]


def kustomize() -> list[str]:
    """The program that renders; empty where there is none."""
    for words in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(words[0]):
            return words
    return []


rendering = pytest.mark.skipif(not kustomize(), reason="neither kustomize nor kubectl is installed")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Thing]]:
    """Overlay -> its objects, with passwords as `gyre keys` makes them."""
    folder = tmp_path_factory.mktemp("deploy") / "kubernetes"
    shutil.copytree(HERE, folder)
    write_keys(folder / "keys", "demo", servers=SERVERS)
    found = {}
    for name in OVERLAYS:
        done = subprocess.run([*kustomize(), folder / "overlays" / name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = [each for each in yaml.safe_load_all(done.stdout) if each]
    return found


@cache
def documents(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def of(things: list[Thing], *kinds: str) -> list[Thing]:
    return [each for each in things if each["kind"] in kinds]


def named(things: list[Thing], kind: str, namespace: str = "gyre") -> set[str]:
    return {each["metadata"]["name"] for each in of(things, kind) if each["metadata"].get("namespace") == namespace}


def pods(things: list[Thing]) -> Iterator[tuple[str, Thing, Thing]]:
    """Name of a workload, labels of its pods, their spec."""
    for each in of(things, *WORKLOADS):
        template = each["spec"]["template"]
        yield each["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def containers(spec: Thing) -> list[Thing]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def gpus_of(workload: Thing) -> int:
    """Of one of its pods."""
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"]
    return int(resources["limits"]["nvidia.com/gpu"])


def matches(selector: Thing, labels: dict[str, str]) -> bool:
    """As the API has it, for the operators that are used here."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all({"Exists": each["key"] in labels}[each["operator"]] for each in selector.get("matchExpressions", []))


def kustomizations() -> list[Path]:
    return sorted(HERE.rglob("kustomization.yaml"))


def referenced(path: Path) -> Iterator[str]:
    """Files and folders that a kustomization names."""
    (told,) = documents(path)
    yield from (*told.get("resources", []), *told.get("components", []))
    yield from (each["path"] for each in told.get("patches", []) if "path" in each)
    for generator in told.get("configMapGenerator", []):
        yield from (each.rpartition("=")[2] for each in generator.get("files", []))


@pytest.mark.parametrize("path", kustomizations(), ids=lambda path: str(path.parent.relative_to(HERE)))
def test_what_a_kustomization_names_is_there(path: Path) -> None:
    for each in referenced(path):
        found = path.parent / each
        assert (found / "kustomization.yaml").is_file() if found.is_dir() else found.is_file(), each


def test_every_manifest_is_named_by_one() -> None:
    used = {(path.parent / each).resolve() for path in kustomizations() for each in referenced(path)}
    files = {
        path for path in HERE.rglob("*.*") if path.is_file() and path.name not in ("kustomization.yaml", ".gitignore")
    }
    assert {path for path in files if path.resolve() not in used} == set()


def test_every_password_has_a_secret_and_every_secret_is_made(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo", servers=SERVERS)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    (told,) = documents(HERE / "keys/kustomization.yaml")
    named_ = {each for secret in told["secretGenerator"] for each in secret["files"]}
    assert named_ <= made


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_one_that_the_api_takes(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in rendered[overlay]]
    assert len(set(things)) == len(things)
    troubles = dict(zip(things, map(trouble, rendered[overlay]), strict=True))
    assert {name: why for name, why in troubles.items() if why} == {}


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_a_pod_refers_to_is_there(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    secrets, configs, claims = (named(things, kind) for kind in ("Secret", "ConfigMap", "PersistentVolumeClaim"))
    accounts = named(things, "ServiceAccount")
    for each in of(things, *WORKLOADS):
        spec = each["spec"]["template"]["spec"]
        own = {claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec["volumes"]}
        for volume in spec["volumes"]:
            assert volume.get("secret", {}).get("secretName") in {None, *secrets}
            assert volume.get("configMap", {}).get("name") in {None, *configs}
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}
        for container in containers(spec):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes | own
            assert {source["configMapRef"]["name"] for source in container.get("envFrom", [])} <= configs
            known = {variable["name"] for variable in container.get("env", [])} | {"GYRE_RUN"}
            assert set(re.findall(r"\$\((\w+)\)", " ".join(container.get("args", [])))) <= known
        assert spec.get("serviceAccountName") in {None, *accounts}
    assert secrets >= {spec["volumes"][0].get("secret", {}).get("secretName") for _, _, spec in pods(things)} - {None}


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods_that_are_meant(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    labels = {name: found for name, found, _ in pods(things)}
    for each in of(things, *WORKLOADS):
        name = each["metadata"]["name"]
        assert [other for other, found in labels.items() if matches(each["spec"]["selector"], found)] == [name]
    ports = {name: {port["name"]: port["containerPort"] for one in containers(spec) for port in one.get("ports", [])}
             for name, _, spec in pods(things)}  # fmt: skip
    for each in of(things, "Service"):
        behind = [name for name, found in labels.items() if each["spec"]["selector"].items() <= found.items()]
        assert behind, each["metadata"]["name"]
        for port in each["spec"]["ports"]:
            assert all(port["port"] in ports[name].values() for name in behind)
    for each in of(things, "PodDisruptionBudget"):
        assert any(matches(each["spec"]["selector"], found) for found in labels.values())
    for each in of(things, "StatefulSet"):
        assert each["spec"]["serviceName"] in named(things, "Service")
    for _, _, spec in pods(things):
        for container in spec["containers"]:
            own = {port["name"] for port in container["ports"]}
            probes = [container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
            assert {each["httpGet"]["port"] for each in probes if "httpGet" in each} <= own
            assert all(("httpGet" in each) != ("exec" in each) for each in probes)


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_hardened_and_their_images_pinned(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    for name, _, spec in pods(rendered[overlay]):
        around = spec["securityContext"]
        assert around["runAsNonRoot"] is True
        assert around["runAsUser"] > 0
        assert around["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "automountServiceAccountToken" in spec or spec.get("serviceAccountName") is None
        for container in containers(spec):
            own = container["securityContext"]
            assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
            assert own.get("readOnlyRootFilesystem") or name == "clickhouse"
            assert re.search(r":[\w.-]*\d[\w.-]*$|@sha256:[0-9a-f]{64}$", container["image"]), container["image"]
            assert not container["image"].endswith(":latest")
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_cluster_has_the_services_that_compose_has(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    wanted = {name: each.get("command") for name, each in compose.items() if "profiles" not in each}
    found = {labels["app.kubernetes.io/name"]: spec["containers"][0] for _, labels, spec in pods(rendered[overlay])}
    assert found.keys() == wanted.keys() - {"keys"}
    for name in wanted.keys() - {"keys", "nats", "clickhouse", "launcher", "dashboard", "cell"}:
        assert found[name]["args"][:3] == wanted[name][:3]
    for name in ("nats", "clickhouse"):
        assert found[name]["image"] in str(compose[name]["image"])


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_configuration_is_one_that_a_run_takes_on_this_cluster(
    overlay: str, rendered: dict[str, list[Thing]], tmp_path: Path
) -> None:
    things = rendered[overlay]
    (text,) = [each["data"]["run.toml"] for each in of(things, "ConfigMap") if "run.toml" in each["data"]]
    (tmp_path / "run.toml").write_text(text)
    config = Config.load(tmp_path / "run.toml")
    servers = next(each for each in of(things, "StatefulSet") if each["metadata"]["name"] == "nats")
    assert config.bus.replicas == servers["spec"]["replicas"] == len(SERVERS)
    assert servers["spec"]["template"]["spec"]["containers"][0]["env"][0]["name"] == NAME
    assert config.bus.url == "nats://nats:4222"
    cells = [each for each in of(things, "StatefulSet") if each["metadata"]["name"].startswith("cell")]
    nodes = sum(each["spec"]["replicas"] for each in cells)
    count = nodes if len(cells) == 1 else len(cells)
    assert config.cells.count + config.cells.standalone == count
    gpus = sum(each["spec"]["replicas"] * gpus_of(each) for each in cells) // count
    trainer = config.trainer
    assert trainer.tensor * trainer.pipeline * trainer.data * trainer.context == gpus
    assert f"--tp-size={gpus}" in config.engine.arguments
    sandboxes = config.sandbox.kubernetes
    assert config.sandbox.kind == "kubernetes"
    assert sandboxes.mounts["/runs"] in named(things, "PersistentVolumeClaim", sandboxes.namespace)
    user = {spec["securityContext"]["runAsUser"] for name, _, spec in pods(things) if name == "runner"}
    assert {int(sandboxes.user.partition(":")[0])} == user


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_reach_the_proxy_and_nothing_else(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    space = "gyre-sandboxes"
    policies = [each["spec"] for each in of(things, "NetworkPolicy") if each["metadata"]["namespace"] == space]
    agent = {COMPONENT: SANDBOX, OWNER: "1-ab", REACH: "proxy"}
    ways = [each for each in policies if matches(each["podSelector"], agent)]
    assert all("Egress" in each["policyTypes"] for each in ways)
    assert any("Ingress" in each["policyTypes"] and "ingress" not in each for each in ways)
    (out,) = [rule for each in ways for rule in each.get("egress", [])]
    reached = {name for name, labels, _ in pods(things) for to in out["to"] if matches(to["podSelector"], labels)}
    assert reached == {"proxy"}
    (proxy,) = [spec["containers"][0] for name, _, spec in pods(things) if name == "proxy"]
    port = next(each["value"] for each in proxy["env"] if each["name"] == "GYRE_PROXY_PORT")
    assert [each["port"] for each in out["ports"]] == [int(port)]
    nobody = {**agent, REACH: "nothing"}
    assert not [rule for each in policies if matches(each["podSelector"], nobody) for rule in each.get("egress", [])]


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_who_runs_executions_may_make_their_pods(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    (role,) = of(things, "Role")
    assert role["metadata"]["namespace"] == "gyre-sandboxes"
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"pods", "pods/log"}
    who = {name for name, _, spec in pods(things) if spec.get("serviceAccountName") == "sandboxes"}
    assert who == {"runner", "examiner", "evaluator"}
    assert all(spec["automountServiceAccountToken"] == (name in who) for name, _, spec in pods(things))


def bytes_of(size: str) -> int:
    """Of a claim or a server's configuration, whose TB is 2 ** 40."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", size).groups()  # type: ignore[union-attr]
    return int(number) << {"Gi": 30, "Ti": 40, "TB": 40}[unit]


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_both_logs_fit_what_a_server_may_keep_and_its_claim(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    (text,) = [each["data"]["run.toml"] for each in of(things, "ConfigMap") if "run.toml" in each["data"]]
    logs = 2 * Config.of(tomllib.loads(text)).bus.max_bytes
    servers = next(each for each in of(things, "StatefulSet") if each["metadata"]["name"] == "nats")
    (claim,) = servers["spec"]["volumeClaimTemplates"]
    (secret,) = [each for each in of(things, "Secret") if each["metadata"]["name"].startswith("keys-nats")]
    most = re.search(r"max_file: (\w+)", base64.b64decode(secret["data"]["nats.conf"]).decode())
    assert most
    claimed = bytes_of(claim["spec"]["resources"]["requests"]["storage"])
    assert logs * 6 // 5 <= claimed <= bytes_of(most[1])


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_are_told_an_address_that_outlives_the_proxys_pod(
    overlay: str, rendered: dict[str, list[Thing]]
) -> None:
    (service,) = [each["spec"] for each in of(rendered[overlay], "Service") if each["metadata"]["name"] == "proxy"]
    assert "clusterIP" not in service  # the cluster gives it one, which stays
    assert service["publishNotReadyAddresses"] is True


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_server_is_started_once_it_has_what_the_others_have(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    (spec,) = [spec for name, _, spec in pods(rendered[overlay]) if name == "nats"]
    probe = spec["containers"][0]["startupProbe"]
    assert probe["httpGet"]["path"] == "/healthz"  # of all its streams, not of the process alone
    assert probe["failureThreshold"] * probe.get("periodSeconds", 10) >= 3600


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_service_is_moved_before_somebody_says_so(overlay: str, rendered: dict[str, list[Thing]]) -> None:
    things = rendered[overlay]
    budgets = [each["spec"] for each in of(things, "PodDisruptionBudget")]
    for each in of(things, "Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert [one["maxUnavailable"] for one in budgets if matches(one["selector"], labels)] == [0]


@rendering
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_launcher_has_the_time_that_writing_a_large_model_takes(
    overlay: str, rendered: dict[str, list[Thing]]
) -> None:
    (spec,) = [spec for name, _, spec in pods(rendered[overlay]) if name == "launcher"]
    probe = spec["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 4 * 3600


def told_by(folder: Path, node: int, *words: str) -> tuple[list[str], dict[str, str]]:
    """What cell.sh of the paper's cells runs on a node, and in which environment: a `gyre` that tells stands in."""
    for name in ("gyre", "healthy"):
        (folder / name).write_text('#!/bin/sh\necho "$0" "$@"; env\n')
        (folder / name).chmod(0o755)
    env = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "GYRE_CELL": "3",
        "GYRE_NODE": str(node),
        "GYRE_RUN": "demo",
        "GYRE_MODEL": "/runs/models/policy",
        "GYRE_ENGINE": "--tp-size=32",
    }
    script = ["sh", str(HERE / "overlays/paper/cell.sh"), *words]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    ran = [line.removeprefix(f"{folder}/") for line in lines if line.startswith(f"{folder}/")]
    return ran, dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def test_the_first_node_of_a_cell_is_the_cell_and_the_others_hold_their_part(tmp_path: Path) -> None:
    ran, env = told_by(tmp_path, 0)
    assert sorted(ran) == ["gyre node --port 7400", "gyre serve cell --edge --folder /runs/demo --cell 3"]
    assert env["GYRE_CELL_NODES"] == ",".join(f"cell-3-{node}.cell-3:7400" for node in range(4))
    (others,) = told_by(tmp_path, 2)[0]
    assert others.startswith(
        "gyre node --port 7400 -- /opt/sglang/bin/python -m sglang.launch_server --model-path /runs"
    )
    assert others.endswith("--tp-size=32 --nnodes=4 --node-rank=2 --dist-init-addr=cell-3-0.cell-3:7500")
    assert told_by(tmp_path, 0, "well")[0] == ["healthy /health"]


@rendering
def test_all_nodes_of_a_cell_start_the_same_engine(rendered: dict[str, list[Thing]]) -> None:
    told = {key: value for each in of(rendered["paper"], "ConfigMap") for key, value in each["data"].items()}
    config = Config.of(tomllib.loads(told["run.toml"]))
    first = [each for each in config.engine.arguments if not re.match("--(nnodes|node-rank|dist-init-addr)=", each)]
    others = told["GYRE_ENGINE"].split()
    assert [*first, SERVER_ARGUMENT] == others  # the cell adds this one for a mixture of experts
    assert not config.engine.shared_cache  # and more for that
    assert config.model.path == told["GYRE_MODEL"]
    assert "--dist-init-addr=cell-{cell}-0.cell-{cell}:7500" in config.engine.arguments
