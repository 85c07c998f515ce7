"""The files of the stack agree with each other and with the code, as far as it can be seen without starting it."""

import json
import re
from pathlib import Path

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
