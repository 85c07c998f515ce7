"""What each container is to know, and what it may not."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from bus import users
from bus.server import binary
from services.keys import KeysError, write_keys

SERVERS = [f"nats-{number}.nats" for number in range(3)]


def secrets_in(folder: Path) -> dict[str, str]:
    """Every password and token by its file."""
    names = ("GYRE_NATS_PASSWORD", "GYRE_DASHBOARD_TOKEN", "password")
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.name in names}


def test_each_service_has_a_secret_of_its_own_in_a_folder_of_its_own(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo")
    made = secrets_in(tmp_path)
    assert len(set(made.values())) == len(made) == len(users.USERS) + 2
    assert (tmp_path / "cell" / "GYRE_NATS_USER").read_text() == "cell"
    for name, secret in made.items():
        held = {path.parent.name for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_text()}
        others = {"analytics", "dashboard", "reader"} if name.startswith("warehouse") else set()
        known = {"nats"} if name.endswith("GYRE_NATS_PASSWORD") else others  # the server knows its users
        assert held == {name.partition("/")[0]} | known


def test_secrets_stay_until_they_are_renewed(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo")
    made = secrets_in(tmp_path)
    write_keys(tmp_path, "other")
    assert secrets_in(tmp_path) == made
    write_keys(tmp_path, "other", renew=True)
    assert not set(secrets_in(tmp_path).values()) & set(made.values())


def test_servers_keep_the_password_by_which_they_know_each_other(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo", servers=SERVERS)
    made = secrets_in(tmp_path)
    write_keys(tmp_path, "demo", renew=True, servers=SERVERS)
    assert {name for name, secret in secrets_in(tmp_path).items() if secret == made[name]} == {"routes/password"}


def test_a_cluster_is_not_forgotten_by_a_command_that_does_not_name_it(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo", servers=SERVERS)
    written = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "routes/password").unlink()  # as it is drawn anew
    for renew in (False, True):
        with pytest.raises(KeysError, match="has the keys of a cluster; name its servers again"):
            write_keys(tmp_path, "other", renew)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}.items() < written.items()
    shutil.rmtree(tmp_path / "routes")
    write_keys(tmp_path, "other")
    assert "cluster {" not in (tmp_path / "nats/nats.conf").read_text()


def test_the_server_takes_its_configuration_and_only_the_warehouse_may_be_read_by_others(tmp_path: Path) -> None:
    write_keys(tmp_path, "demo")
    command = [binary(), "-t", "-c", tmp_path / "nats" / "nats.conf"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    readable = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_mode & stat.S_IROTH]
    assert [str(path.relative_to(tmp_path)) for path in readable] == ["clickhouse/users.xml"]
    assert re.search(r"<password_sha256_hex>[0-9a-f]{64}<", readable[0].read_text())
