"""An archive's columns: asked as its run's warehouse is, taken only where they fit the archive, made anew where not."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.warehouse import columns
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.columns import MANIFEST, Columns, fits
from gyre.warehouse.engine import QueryRefused, WarehouseError
from gyre.warehouse.opening import Answering, opened
from gyre.warehouse.queries import QUERIES
from gyre.warehouse.views import VIEWS
from services.analytics.archive_columns import beside, columns_of, make_columns
from services.asking import asking
from tests.warehouse.told import archived, faulty, healthy, rows


def asked(warehouse: Answering, sql: str, **parameters: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in warehouse.query(sql, {"run": "told", **parameters}).splitlines()]


async def test_every_view_and_question_says_of_the_columns_what_it_says_of_the_warehouse(tmp_path: Path) -> None:
    archive = await archived("told", faulty(), tmp_path)
    sqls = {name: f"SELECT * FROM {name} ORDER BY ALL" for name in ("facts", *VIEWS)}
    sqls["events"] = "SELECT sum(body.seconds::Float64) AS seconds, max(time) AS last, count() AS n FROM events"
    warehouse = Warehouse(str(tmp_path / "warehouse"))
    warehouse.insert(rows("told", faulty()))
    expected = {name: asked(warehouse, sql) for name, sql in sqls.items()}
    answers = {name: asked(warehouse, each.sql, **each.parameters) for name, each in QUERIES.items()}
    warehouse.close()
    async with columns_of(archive) as (found, made):
        assert found.run == "told"
        told = {name: asked(made, sql) for name, sql in sqls.items()}
        for run in (expected, told):
            for name in ("facts", "malformed"):
                run.pop(name, None)  # reasons and commits of what nobody can read
        assert told == expected
        answers.pop("malformed")
        assert {name: asked(made, QUERIES[name].sql, **QUERIES[name].parameters) for name in answers} == answers
        with pytest.raises(QueryRefused):
            made.query("DROP TABLE executions", {})


async def test_columns_are_made_once_and_of_a_runs_own_warehouse_if_it_has_one(tmp_path: Path) -> None:
    archive = await archived("told", healthy(), tmp_path)
    own = Warehouse(str(tmp_path / "run" / "warehouse"))
    own.insert(rows("told", healthy())[:20])
    own.close()
    folder = await make_columns(archive, tmp_path / "run")
    assert folder == beside(archive)
    own = Warehouse(str(tmp_path / "run" / "warehouse"))
    assert own.position("told", "CALL") == 16, "it was brought to the archive's end"
    own.close()
    before = (folder / MANIFEST).stat().st_mtime_ns
    async with asking(str(archive), tmp_path) as found:
        assert await found.rows("SELECT count() AS n FROM executions WHERE run = {run:String}") == [{"n": 8}]
        assert [(part.stream, part.behind) for part in found.parts] == [("EV", 0), ("CALL", 0)]
    assert (folder / MANIFEST).stat().st_mtime_ns == before
    await archived("told", faulty(), tmp_path)  # another archive in its place
    async with asking(str(archive), tmp_path) as found:
        assert await found.rows("SELECT count() AS n FROM evaluations WHERE valid = 1") == [{"n": 1}]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def test_an_archive_on_a_disk_that_only_can_be_read_is_asked_all_the_same(disk: Path) -> None:
    archive = await archived("told", healthy(), disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    async with columns_of(archive) as (_, made):
        assert asked(made, "SELECT count() AS n FROM steps") == [{"n": 2}]
    assert not beside(archive).exists()


async def test_columns_that_are_not_as_they_were_written_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await archived("told", healthy(), tmp_path)
    folder = await make_columns(archive)
    with opened(str(folder)) as found:
        assert asked(found, "SELECT count() AS n FROM steps") == [{"n": 2}]
    digest = json.loads((folder / MANIFEST).read_text())["archive"]
    assert fits(folder, digest)
    assert not fits(folder, "0" * 64)
    steps = folder / "steps.parquet"
    body = steps.read_bytes()
    steps.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert not fits(folder, digest)
    steps.unlink()
    assert not fits(folder, digest)
    with pytest.raises(WarehouseError, match=r"steps\.parquet is missing"):
        Columns(folder)
    steps.write_bytes(body)
    monkeypatch.setattr(columns.views, "LAYOUT", "other")
    assert not fits(folder, digest)
    (folder / MANIFEST).write_text('{"archive": ["no"]}')
    assert not fits(folder, digest)
