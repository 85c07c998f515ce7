"""The files of the stack agree with each other and with the code, as far as it can be seen without starting it."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from bus import users
from gyre.config import Config
from services.supervisor import services_of

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "compose.yaml").read_text()
SERVED = re.findall(r"command: \[serve, (\w+), --edge", COMPOSE)


def test_every_service_of_a_run_has_a_container() -> None:
    needed = {service for service, _ in services_of(Config())}
    assert sorted(SERVED) == sorted({*needed, "analytics"})


def test_each_container_sees_its_own_secrets() -> None:
    services = COMPOSE.partition("\nservices:\n")[2].partition("\nconfigs:\n")[0]
    _, *parts = re.split(r"^  (\w+):\n", services, flags=re.MULTILINE)
    mounted = {name: re.findall(r"subpath: (\w+)", body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    seen = {name: found for name, found in mounted.items() if found}
    others = {"nats": "nats", "clickhouse": "clickhouse", "launcher": users.PROVISIONER, "gyre": users.READER}
    assert seen == {name: [others.get(name, name)] for name in (*others, *SERVED, "dashboard")}
    assert {name for names in seen.values() for name in names} - {"nats", "clickhouse"} <= set(users.USERS)


def test_what_may_be_set_is_in_the_example_with_its_default() -> None:
    used = dict(re.findall(r"\$\{(GYRE_\w+):-([^}]*)\}", COMPOSE))
    shown = dict(re.findall(r"^#(GYRE_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert shown == used


def test_prometheus_asks_every_service_that_has_an_edge() -> None:
    names = re.findall(r"^          - (\w+)$", (ROOT / "deploy/compose/prometheus.yml").read_text(), re.MULTILINE)
    assert sorted(names) == sorted([*SERVED, "launcher"])


def test_grafana_draws_what_is_counted() -> None:
    board = json.loads((ROOT / "deploy/compose/grafana/dashboards/gyre.json").read_text())
    asked = [each["expr"] for panel in board["panels"] for each in panel["targets"]]
    drawn = {name for expression in asked for name in re.findall(r"gyre_\w+", expression)}
    told = set(re.findall(r"`(gyre_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert {name.removesuffix("_bucket") for name in drawn} <= told
    assert all(panel["datasource"]["uid"] == "prometheus" for panel in board["panels"])


def compose(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", "compose", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def has_compose() -> bool:
    return bool(shutil.which("docker")) and compose("version").returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_cells_with_gpus_are_cells_that_share_no_gpu() -> None:
    config = Config.load(ROOT / "examples/gpu.toml")
    told = compose("--profile", "gpu", "config", "--format", "json")
    assert told.returncode == 0, told.stderr
    services = json.loads(told.stdout)["services"]
    cells = [each for name, each in services.items() if name.startswith("gpu-cell")]
    assert len(cells) == config.cells.count
    held = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in cells]
    assert len({number for each in held for number in each}) == sum(map(len, held))
    servers = [each.partition("=")[2] for each in config.engine.arguments if each.startswith("--tp-size=")]
    ranks = config.trainer.tensor * config.trainer.pipeline
    assert {len(each) for each in held} == {ranks} == {int(each) for each in servers}
    for each in cells:
        for key in ("command", "networks", "volumes", "read_only", "cap_drop", "security_opt", "healthcheck"):
            assert each[key] == services["cell"][key], key


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
@pytest.mark.parametrize("profile", ["", "tools", "observability", "gpu"])
def test_compose_reads_every_part(profile: str) -> None:
    told = compose(*(["--profile", profile] if profile else []), "config", "--quiet")
    assert told.returncode == 0, told.stderr


def test_the_image_with_gpus_has_what_its_configuration_names() -> None:
    recipe = (ROOT / "Dockerfile.gpu").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert Config.load(ROOT / "examples/gpu.toml").engine.python == "/opt/sglang/bin/python"
    assert all(f"/opt/sglang/bin/pip install ${{PIP_ARGS}} {each}" in recipe for each in extras["sglang"])
    assert "[torch,analytics,megatron]" in recipe
    assert "USER gyre" in recipe


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_only_who_runs_executions_in_containers_holds_the_engines_socket() -> None:
    files = ("--file", "compose.yaml", "--file", "deploy/compose/docker-sandboxes.yaml")
    environment = {**os.environ, "GYRE_DOCKER_GROUP": "999"}
    command = ["docker", "compose", *files, "config", "--format", "json"]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    holders = {
        name
        for name, each in found["services"].items()
        if any(volume["target"] == "/var/run/docker.sock" for volume in each.get("volumes", []))
    }
    assert holders == {"runner", "examiner", "evaluator"}
    config = Config.load(ROOT / "examples/docker.toml")
    assert config.sandbox.docker.socket == "/var/run/docker.sock"
    assert config.sandbox.docker.mounts["/runs"] == found["volumes"]["runs"]["name"]
    assert config.sandbox.image == found["services"]["runner"]["image"]
    assert config.cells.count == found["services"]["cell"]["scale"]


def test_an_upgrade_lets_the_server_know_what_the_new_version_may_do() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    (script,) = re.findall(r"^```sh compose=upgrade\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    words = [line.removeprefix("docker compose ").split()[0] for line in script.splitlines()]
    assert words == ["build", "run", "restart", "up"]
    assert script.splitlines()[1:3] == ["docker compose run --rm -T keys", "docker compose restart nats"]


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_another_run_or_version_starts_the_server_again() -> None:
    found = []
    for more in ({}, {"GYRE_RUN": "second"}, {"GYRE_IMAGE": "gyre:2"}):
        command = ["docker", "compose", "config", "--hash", "nats"]
        environment = {**os.environ, **more}
        told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        found.append(told.stdout)
    assert len(set(found)) == 3
