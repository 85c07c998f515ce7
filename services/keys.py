"""Secrets for services that are containers: a folder each, with what that service alone is to know.

A file in a service's folder is a variable of its environment. `nats` and `clickhouse` get what their own images read:
`nats.conf` and `users.xml`, with the users that there are and what each may do in this run.
"""

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import orjson

from bus import users
from bus.credentials import PASSWORD, USER
from bus.private import write_private
from gyre.errors import GyreError

WAREHOUSE = "GYRE_WAREHOUSE"
TOKEN = "GYRE_DASHBOARD_TOKEN"  # noqa: S105 - a name
WAREHOUSE_USERS = ("analytics", "dashboard", users.READER)
NODE_KEY = "GYRE_NODE_KEY"
"""By which the machines of a cell know each other (`gyre.trainers.nodes`)."""
_USERS = """<clickhouse>
  <!-- Written by `gyre keys`: do not edit. -->
  <users>
    <default remove="remove"/>
    <gyre>
      <password_sha256_hex>{}</password_sha256_hex>
      <networks><ip>::/0</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
    </gyre>
  </users>
</clickhouse>
"""
_SERVER = """# Written by `gyre keys`: do not edit.
server_name: {name}
port: 4222
http: 8222
max_pending: 256MB
write_deadline: 10s
jetstream {{
  store_dir: /data
  max_mem: 256MB
  max_file: 16TB  # more than any logs reserve: bus.max_bytes bounds each of them, the disk both
  sync_interval: always
}}
"""
_CLUSTER = """cluster {{
  name: gyre
  port: 6222
  authorization {{ user: route, password: {password} }}
  routes: [{routes}]
}}
"""
NAME = "NATS_NAME"
"""Variable that tells each server of a cluster its own name."""


class KeysError(GyreError):
    """Keys that would not fit the servers that there are: say which these are."""


def write_keys(folder: Path, run: str, renew: bool = False, servers: Sequence[str] = ()) -> None:
    """Write them; secrets that are there stay, unless all are to be renewed.

    The servers' own among each other stays even then: one that starts with another is refused by those that run, and
    they are replaced one by one.

    Args:
        folder: one folder a service is made in it.
        run: the only one in which the users may work.
        renew: draw all anew but that one.
        servers: host or host:port of each NATS server of a cluster, as they reach each other; none: one by itself.
    Raises:
        KeysError: the folder has the keys of a cluster, and no servers are named.
        OSError: the folder cannot be written.
    """
    routes = folder / "routes"
    if routes.exists() and not servers:
        rule = "name its servers again (--server HOST for each of them)"
        raise KeysError(f"{folder}: has the keys of a cluster; {rule}, or remove {routes} for one server by itself")
    keep = _renewed if renew else _kept
    for user in users.USERS:
        _write(folder / user / USER, user)
        keep(folder / user / PASSWORD)
    authorization = users.authorization(run, lambda user: _quoted((folder / user / PASSWORD).read_text()))
    cluster = _cluster(servers, _kept(routes / "password")) if servers else ""
    name = f"${NAME}" if servers else "gyre"
    _write(folder / "nats" / "nats.conf", _SERVER.format(name=name) + cluster + authorization)
    warehouse = keep(folder / "warehouse" / "password")
    for user in WAREHOUSE_USERS:
        _write(folder / user / WAREHOUSE, f"http://gyre:{warehouse}@clickhouse:8123/gyre")
    keep(folder / "dashboard" / TOKEN)
    keep(folder / "cell" / NODE_KEY)
    listed = _write(folder / "clickhouse" / "users.xml", _USERS.format(hashlib.sha256(warehouse.encode()).hexdigest()))
    listed.chmod(0o444)  # that image has a user of its own; no other service sees the folder


def _cluster(servers: Sequence[str], password: str) -> str:
    reached = (each if ":" in each else f"{each}:6222" for each in servers)
    routes = ", ".join(_quoted(f"nats-route://route:{password}@{each}") for each in reached)
    return _CLUSTER.format(password=_quoted(password), routes=routes)


def _kept(path: Path) -> str:
    return path.read_text() if path.exists() else _renewed(path)


def _renewed(path: Path) -> str:
    return _write(path, secrets.token_hex(24)).read_text()


def _write(path: Path, text: str) -> Path:
    """Replace a file by one that its owner alone may read, whole at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text)
    return path


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
