"""Whoever asks reads what the warehouse holds, and nothing beside it: no file, no other host, nothing written."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import QueryRefused
from gyre.warehouse.opening import Answering
from services.analytics.archive_columns import columns_of
from tests.warehouse.stand_in import free_port, stand_in
from tests.warehouse.told import archived, healthy, rows

REACH = "reaches beyond the warehouse"
BEYOND = [
    ("SELECT * FROM file('{file}', 'LineAsString')", REACH),
    ("SELECT file('{file}')", REACH),
    ("SELECT `fil\\x65`('{file}')", REACH),
    ("SELECT * FROM facts WHERE type IN (SELECT * FROM \"file\"/* ( */('{file}', 'LineAsString'))", REACH),
    ("DESCRIBE file('{file}', 'LineAsString')", REACH),
    ("SELECT * FROM url('http://127.0.0.1:1/x', 'CSV', 'a Int8')", REACH),
    ("SELECT * FROM sqlite('{file}', 't')", REACH),
    ("SELECT * FROM python('sys')", REACH),
    ("SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1", REACH),
    (
        "SELECT 1 SETTINGS additional_result_filter = 'file(\\'{file}\\') != \\'\\''",
        "SETTINGS additional_result_filter: ",
    ),
    (
        "SELECT 1 SETTINGS max_threads = 1, `additional_table_filters` = {'a': 'b(1)'}",
        "SETTINGS additional_table_filters",
    ),
    (
        "SELECT * FROM (SELECT 1 SETTINGS a = -1, output_format_schema = '{made}') WHERE 1",
        "SETTINGS output_format_schema",
    ),
    ("SELECT 1 INTO OUTFILE '{made}'", "INTO OUTFILE: whoever asks only reads; give --out FILE"),
    ("SELECT 1 INTO -- '\n /* ' */ OUTFILE '{made}'", "INTO OUTFILE"),
    ("EXPLAIN SELECT 1 INTO OUTFILE '{made}'", "INTO OUTFILE"),
    ("INSERT INTO FUNCTION file('{made}', 'CSV') SELECT 1", "INSERT: ask with SELECT, "),
    ("WITH y AS (SELECT 1) INSERT INTO FUNCTION file('{made}', 'CSV') SELECT * FROM y", "INSERT: ask with"),
    ("SELECT 1; INSERT INTO FUNCTION file('{made}', 'CSV') SELECT 1", "Multi-statements are not allowed"),
    ("SELECT 1 PARALLEL WITH CREATE TEMPORARY TABLE t (a Int8)", "PARALLEL WITH"),
    ("CREATE TEMPORARY TABLE t (a Int8)", "CREATE: ask with"),
    ("DROP TABLE facts", "DROP: ask with"),
    ("KILL QUERY WHERE 1", "KILL: ask with"),
    ("SET max_threads = 1", "SET: ask with"),
    ("SELECT 1 SETTINGS readonly = 0", "Cannot modify 'readonly' setting"),
    ("", "Empty query"),
    ("-- SELECT 1", "Empty query"),
]
HONEST = [
    ("SELECT 1; -- a comment; with all signs '\"`", "1\n"),
    ("/* first */ (SELECT 2)", "2\n"),
    ("FROM numbers(3) SELECT max(number) SETTINGS max_threads = 1", "2\n"),
    ("SELECT 'SETTINGS a = ' SETTINGS session_timezone = 'Europe/Berlin', max_threads = 1", '"SETTINGS a = "\n'),
    ("SELECT x FROM (SELECT 1 AS x SETTINGS join_use_nulls = 1) WHERE 'b' = 'b'", "1\n"),
    ("WITH 3 AS x SELECT x + 5 % 2", "4\n"),
    ("SELECT 'told' LIKE '%d%', {run:String} LIKE '%c%'", "1,0\n"),
    ("SELECT 'told' LIKE '%d%'", "1\n"),
    ("SELECT 'INTO OUTFILE', 'it''s file(\\'x\\')', '\\\\'", '"INTO OUTFILE","it\'s file(\'x\')","\\"\n'),
    ("SELECT file, `INTO OUTFILE`, `url(` FROM (SELECT 1 AS file, 2 AS `INTO OUTFILE`, 3 AS `url(`)", "1,2,3\n"),
    ("SELECT format('{} {}', 'a', 'b'), replaceOne('file(', '(', ')')", '"a b","file)"\n'),
    ("SELECT count() FROM executions WHERE run = { run : String }", "8\n"),
    ("EXISTS TABLE facts", "1\n"),
    ("SELECT 'tab\t, line\n'", '"tab\t, line\n"\n'),
]


@pytest.fixture(params=["folder", "server", "columns"])
async def asked(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Answering]:
    if request.param == "columns":
        async with columns_of(await archived("told", healthy(), tmp_path)) as (_, found):
            yield found
        return
    for warehouse in _filled(request.param, tmp_path):
        yield warehouse


def _filled(kind: str, folder: Path) -> Iterator[Warehouse]:
    if kind == "folder":
        warehouse = Warehouse(str(folder / "warehouse"))
        warehouse.insert(rows("told", healthy()))
        yield warehouse
        warehouse.close()
        return
    port = free_port()
    with stand_in(folder / "server", port):
        warehouse = Warehouse(f"http://127.0.0.1:{port}")
        warehouse.insert(rows("told", healthy()))
        yield warehouse
        warehouse.close()


def test_what_reaches_further_is_refused_in_one_line_and_what_only_looks_so_is_answered(
    asked: Answering, tmp_path: Path
) -> None:
    """One test, since an engine takes long to start."""
    secret, made = tmp_path / "secret", tmp_path / "made"
    secret.write_text("nobody's business\n")
    for sql, said in BEYOND:
        with pytest.raises(QueryRefused) as refused:
            asked.query(sql.replace("{file}", str(secret)).replace("{made}", str(made)), {"run": "told"}, "CSV")
        assert said in str(refused.value), sql
        assert "\n" not in str(refused.value)
        assert not made.exists(), sql
    for sql, answer in HONEST:
        assert asked.query(sql, {"run": "told"}, "CSV").decode() == answer, sql
    assert len(asked.query("DESCRIBE facts", {}).splitlines()) > 50
    assert asked.query("SHOW TABLES LIKE 'steps'", {"run": "told"}, "CSV") == b'"steps"\n'
    assert b"ReadFrom" in asked.query("EXPLAIN SELECT count() FROM stored", {})
    with pytest.raises(QueryRefused, match="not a name"):
        asked.query("SELECT 1", {}, f"CSV; INSERT INTO FUNCTION file('{made}', 'CSV') SELECT 1")
    assert json.loads(asked.query("SELECT count() AS n FROM executions", {})) == {"n": 8}
