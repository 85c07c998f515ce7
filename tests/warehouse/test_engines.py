"""One contract over both engines: chDB in a folder, and a server's HTTP interface (a stand-in, see stand_in.py)."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.warehouse import tables
from gyre.warehouse.clickhouse import QueryRefused, Warehouse, WarehouseAway
from gyre.warehouse.rows import lines
from schemas.envelope import COMMIT
from schemas.runs import TimerFired
from tests.warehouse.stand_in import free_port, stand_in
from tests.warehouse.told import committed, healthy, messages, rows


@pytest.fixture(scope="module", params=["folder", "server"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    folder = tmp_path_factory.mktemp("warehouse")
    if request.param == "folder":
        warehouse = Warehouse(str(folder))
        yield warehouse
        warehouse.close()
        return
    port = free_port()
    with stand_in(folder, port):
        warehouse = Warehouse(f"http://127.0.0.1:{port}/elsewhere")
        yield warehouse
        warehouse.close()


def one(warehouse: Warehouse, sql: str, **parameters: Any) -> Any:
    return json.loads(warehouse.query(sql, parameters, "JSONEachRow"))


def test_rows_written_twice_are_there_once(engine: Warehouse) -> None:
    written = rows("twice", healthy())
    for part in (written, written, written[-3:]):
        engine.insert(part)
    found = one(
        engine, "SELECT count() AS n, uniqExact(stream, sequence, index) AS keys FROM events WHERE run = 'twice'"
    )
    assert found == {"n": len(written), "keys": len(written)}


def test_its_position_is_where_its_rows_end(engine: Warehouse) -> None:
    assert (engine.position("placed", "EV"), engine.position("placed", "CALL")) == (0, 0)
    engine.insert(rows("placed", healthy()))
    calls = sum(1 for line in rows("placed", healthy()) if line.startswith(b"placed\tCALL\t"))
    assert engine.position("placed", "CALL") == calls == 16
    assert engine.position("placed", "EV") == len(rows("placed", healthy())) - calls


def test_a_batch_of_which_a_part_arrived_is_written_again_from_its_first_missing_message(engine: Warehouse) -> None:
    told = list(messages("torn", healthy()))
    for place in (0, 1, 2, 4, 5):
        engine.insert(told[place])
    assert engine.position("torn", "EV") == 3


def test_a_row_leads_back_to_its_commit(engine: Warehouse) -> None:
    engine.insert(rows("back", healthy()))
    assert engine.commit_at("back", "EV", 3) == "c2000"
    assert engine.commit_at("back", "EV", 10_000) == ""


def test_whoever_asks_cannot_write(engine: Warehouse) -> None:
    engine.insert(rows("kept", healthy()))
    for sql in ("DROP TABLE stored", "INSERT INTO stored (run) VALUES ('x')", "TRUNCATE TABLE stored"):
        with pytest.raises(QueryRefused, match="readonly"):
            engine.query(sql, {}, "CSV")
    assert engine.position("kept", "CALL") == 16


def test_sql_that_is_wrong_is_refused_in_one_line(engine: Warehouse) -> None:
    with pytest.raises(QueryRefused, match="Unknown expression identifier `nothing`") as refused:
        engine.query("SELECT nothing FROM events", {}, "CSV")
    assert "\n" not in str(refused.value)


def test_a_parameter_is_a_value_and_never_sql(engine: Warehouse) -> None:
    said = "x' OR 1 = 1 --"
    assert one(engine, "SELECT {run:String} AS run, {n:UInt8} AS n", run=said, n="3") == {"run": said, "n": 3}


def test_a_server_that_is_not_there_is_away() -> None:
    warehouse = Warehouse(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(WarehouseAway, match=r"warehouse 127\.0\.0\.1:"):
        warehouse.position("r", "EV")


def test_a_folder_is_waited_for_while_another_uses_it(tmp_path: Path) -> None:
    one, other = Warehouse(str(tmp_path)), Warehouse(str(tmp_path), patience_seconds=0.2)
    one.insert(rows("shared", healthy()))
    with pytest.raises(WarehouseAway, match=r"another process has used it for 0\.2 s"):
        other.position("shared", "CALL")
    patient = Warehouse(str(tmp_path))
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(patient.position("shared", "CALL")))
    waiting.start()
    one.release()
    waiting.join(20)
    patient.close()
    assert found == [16]
    assert one.position("shared", "CALL") == 16
    one.close()


def test_a_folder_that_is_let_go_after_every_batch_does_not_fall_into_ever_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PARTS_MOST", 3)
    warehouse = Warehouse(str(tmp_path))
    for sequence in range(1, 11):
        data = COMMIT.dump_json(committed("parts", sequence, TimerFired(timer="t")))
        warehouse.insert(lines("parts", "EV", sequence, "ev", data))
        warehouse.release()
    assert int(warehouse.query(tables.PARTS, {}, "CSV")) <= 4
    assert warehouse.position("parts", "EV") == 10
    warehouse.close()
