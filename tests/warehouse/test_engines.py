"""One contract over both engines: chDB in a folder, and a server's HTTP interface (a stand-in, see stand_in.py)."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.blobs import Blobs
from bus.codec import decode
from gyre.warehouse import tables, views
from gyre.warehouse.clickhouse import QueryRefused, Warehouse, WarehouseAway
from gyre.warehouse.rows import lines
from schemas.envelope import COMMIT
from schemas.runs import TimerFired
from tests.warehouse.stand_in import free_port, stand_in
from tests.warehouse.told import committed, healthy, messages, rows, started


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
        with pytest.raises(QueryRefused, match="ask with SELECT"):
            engine.query(sql, {}, "CSV")
    assert engine.position("kept", "CALL") == 16


def test_sql_that_is_wrong_is_refused_in_one_line(engine: Warehouse) -> None:
    with pytest.raises(QueryRefused, match="Unknown expression identifier `nothing`") as refused:
        engine.query("SELECT nothing FROM events", {}, "CSV")
    assert "\n" not in str(refused.value)


def test_an_event_that_says_something_twice_does_not_hide_the_others(engine: Warehouse) -> None:
    twice = started().model_copy(update={"config": {"a.b": 1, "a": {"b": 2}}})
    engine.insert(lines("twins", "EV", 1, "ev.twins.control.run", COMMIT.dump_json(committed("twins", 1, twice))))
    engine.insert(lines("twins", "EV", 2, "ev.twins.control.run", COMMIT.dump_json(committed("twins", 2, started()))))
    sql = "SELECT count() AS n, max(body.config.a.b::UInt8) AS b, max(body.config.run.seed::UInt8) AS seed FROM events "
    assert one(engine, f"{sql} WHERE run = 'twins'") == {"n": 2, "b": 1, "seed": 0}


def test_numbers_that_no_row_holds_neither_stop_the_warehouse_nor_are_taken_for_others(engine: Warehouse) -> None:
    good = orjson.loads(COMMIT.dump_json(committed("odd", 0, TimerFired(timer="t"))))
    odd: list[dict[str, Any]] = [
        {**good, "events": [{**good["events"][0], "v": True}]},
        {**good, "events": [{**good["events"][0], "v": 1.0}]},
        {**good, "causation": "٣٤"},
        {**good, "causation": (1 << 64) - 1},
        {**good, "as_of": 10**30},
        {**good, "time": 1 << 63},
        {**good, "time": 10**400},
        {**good, "time": -1},
    ]
    for sequence, commit in enumerate(odd, 1):
        data = json.dumps(commit).encode()
        engine.insert(lines("odd", "EV", sequence, "ev.odd.control.run", data))
        assert engine.position("odd", "EV") == sequence, data
        stored = decode(sequence, "ev.odd.control.run", data, Blobs(Path("nowhere"), durable=False))
        assert engine.commit_at("odd", "EV", sequence) == (stored.commit.commit if stored.commit else "")
    wrong = "countIf(ns < 0) AS before, countIf(causation > 0) AS caused"
    assert one(engine, f"SELECT count() AS n, {wrong} FROM facts WHERE run = 'odd'") == {
        "n": len(odd), "before": 0, "caused": 0,
    }  # fmt: skip


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


def test_versions_of_the_program_that_take_turns_each_find_their_own_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = (tables.SHAPE, "another")
    layouts = (views.LAYOUT, "another-layout")
    said = {shapes[0]: (views.CREATE, views.HAS_LAYOUT)}
    said[shapes[1]] = (
        tuple(sql.replace(shapes[0], shapes[1]).replace(*layouts) for sql in views.CREATE),
        views.HAS_LAYOUT.replace(*layouts),
    )
    written = list(messages("turns", healthy()))
    there = dict.fromkeys(shapes, 0)
    for shape in (*shapes, *shapes, *shapes):
        monkeypatch.setattr(tables, "SHAPE", shape)
        monkeypatch.setattr(views, "CREATE", said[shape][0])
        monkeypatch.setattr(views, "HAS_LAYOUT", said[shape][1])
        with closing(Warehouse(str(tmp_path))) as warehouse:
            assert warehouse.position("turns", "EV") == there[shape]
            warehouse.insert(written[there[shape]])
            there[shape] += 1
            assert one(warehouse, "SELECT count() AS n FROM facts") == {"n": there[shape]}
    assert set(there.values()) == {3}


def test_rows_that_were_put_aside_twice_have_a_name_each() -> None:
    kept = {"stored": "a", "stored_a": "a", "stored_before": "", "stored_x": "x"}
    assert tables.renames(kept) == [("stored", "stored_a_2")]
    assert tables.renames({**kept, "stored": ""}) == [("stored", "stored_before_2")]
    assert tables.renames({"stored": "a", "stored_b": tables.SHAPE}) == [("stored", "stored_a"), ("stored_b", "stored")]
    assert tables.renames({"stored_b": tables.SHAPE}) == [("stored_b", "stored")]
    assert tables.renames({**kept, "stored": tables.SHAPE}) == []
    assert tables.renames({}) == []
