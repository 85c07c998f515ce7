"""`gyre query`: the warehouse is brought up to date and answers; all commands and queries of docs/analytics.md run."""

import asyncio
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest

from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.queries import QUERIES
from services.analytics.archive_columns import beside, make_columns
from services.views.query_plot import figure
from tests.services.conftest import Gyre, refusal
from tests.warehouse.told import archived, faulty, rows

PAGE = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SQL = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
COUNT = "SELECT count() AS n FROM events WHERE run = {run:String}"
STREAMS = Counter(line.split(b"\t")[1].decode() for line in rows("told", faulty()))
EV, CALL = STREAMS["EV"], STREAMS["CALL"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A told run with every fault in it, as an archive that was opened before."""

    async def made(folder: Path) -> Path:
        archive = await archived("told", faulty(), folder)
        await make_columns(archive)
        return archive

    return asyncio.run(made(tmp_path_factory.mktemp("told")))


@pytest.fixture
def log(told: Path, tmp_path: Path) -> Path:
    """The same, of a test's own."""
    shutil.copytree(beside(told), beside(tmp_path / told.name))
    return Path(shutil.copyfile(told, tmp_path / told.name))


def test_a_question_is_answered_after_the_log_was_taken_over_and_its_lag_is_said(gyre: Gyre, log: Path) -> None:
    ask = ("query", COUNT, log, "--warehouse", "all")
    result = gyre(*ask, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"n": EV + CALL}
    assert result.stderr.splitlines() == [
        f"EV: {EV} rows new, up to sequence {EV}, 0 behind",
        f"CALL: {CALL} rows new, up to sequence {CALL}, 0 behind",
    ]
    assert "EV: 0 rows new" in gyre(*ask).stderr


def test_formats_are_a_table_csv_json_and_parquet(gyre: Gyre, log: Path, tmp_path: Path) -> None:
    ask = ("query", "evaluation-score", log)
    assert "version" in gyre(*ask).stdout
    assert gyre(*ask, "--stale", "--format", "csv").stdout.splitlines()[1:] == [
        "0,1,2,2,15,1",
        "2,0.5,1,2,117,1",
    ]
    assert gyre(*ask, "--format", "csv").stdout.splitlines()[0] == '"version","mean","valid","episodes","at","seconds"'
    assert [json.loads(line)["mean"] for line in gyre(*ask, "--json").stdout.splitlines()] == [1, 0.5]
    assert gyre(*ask, "--format", "parquet", "--out", "e.parquet").exit_code == 0
    assert pyarrow.parquet.read_table(tmp_path / "e.parquet").to_pydict()["mean"] == [1.0, 0.5]


def test_names_and_values_are_shown_as_they_are_and_none_speaks_to_the_terminal(gyre: Gyre, log: Path) -> None:
    sql = "SELECT 'died in [/usr/bin/x] now' AS `a[0]`, 't.py::t[case] failed' AS b, 'bell\\x1b[2Jrung' AS c"
    shown = gyre("query", sql, log)
    assert shown.exit_code == 0, shown.output
    for words in ("a[0]", "died in [/usr/bin/x] now", "t.py::t[case] failed", "bell\\x1b[2Jrung"):
        assert words in shown.stdout


def test_every_question_is_listed_with_what_it_shows(gyre: Gyre) -> None:
    told = gyre("query", "--list").stdout
    assert all(f"{name} " in told and canned.about in told for name, canned in QUERIES.items())
    listed = [json.loads(line) for line in gyre("query", "--list", "--json").stdout.splitlines()]
    assert [each["name"] for each in listed] == list(QUERIES)


def test_the_sql_behind_a_name_can_be_had(gyre: Gyre) -> None:
    assert gyre("query", "train-score", "--sql").stdout.strip() == QUERIES["train-score"].sql


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("nothing", "RUN"), 2, "query nothing: no such name; --list has them, and SQL has spaces"),
        (("leaves", "RUN", "--set", "width=2"), 2, "--set width: leaves has no such parameter; it has none"),
        (("execution-durations", "RUN", "--set", "width=abc"), 2, "--set width: abc: it is a number"),
        (("execution-durations", "RUN", "--set", "width"), 2, "--set width: nothing: it is a number"),
        (("execution-durations", "RUN", "--set", "width=nan"), 2, "--set width: nan: it is a number"),
        (
            ("execution-durations", "RUN", "--set", "width=-1"),
            2,
            "--set width=-1: how wide a bin is; 0 for a twentieth of the largest",
        ),
        (("task-grid", "RUN", "--set", "first=1.5"), 2, "--set first: 1.5: it is a whole number"),
        (("SELECT {n:UInt8}", "RUN", "--set", "n=x"), 2, "--set n: x: it is a whole number"),
        (
            ("SELECT 1", "RUN", "--set", "n=1"),
            2,
            "--set n: the question has no place for it; write {n:String} where it belongs",
        ),
        (("leaves", "RUN", "--out", "."), 1, ".: is a folder; name a file in it"),
        (("leaves", "RUN", "--format", "xml"), 2, "--format xml: one of table, csv, json, parquet"),
        (("leaves",), 2, "query: give a run or an archive"),
        ((), 2, "query: give a name of --list, or SQL"),
        (("leaves", "elsewhere"), 1, "elsewhere: neither an archive nor a run in runs; `gyre runs` lists them"),
    ],
)
def test_what_cannot_be_asked_is_one_line(gyre: Gyre, arguments: tuple[str, ...], code: int, line: str) -> None:
    assert refusal(gyre("query", *arguments), code) == line


def test_asking_of_what_is_not_there_yet_is_refused_and_makes_nothing(gyre: Gyre, tmp_path: Path) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "run.json").touch()
    before = sorted(tmp_path.rglob("*"))
    assert refusal(gyre("query", COUNT, "TYPO", "--stale")).startswith("TYPO: neither an archive nor a run in runs")
    assert refusal(gyre("query", COUNT, "r", "--stale")).endswith("there is none yet; ask without --stale")
    assert refusal(gyre("query", COUNT, "r", "--stale", "--warehouse", "w")).startswith("warehouse w: there is none")
    assert sorted(tmp_path.rglob("*")) == before


def test_wrong_sql_is_one_line_after_the_lag(gyre: Gyre, log: Path) -> None:
    result = gyre("query", "SELECT nothing FROM events", log)
    assert result.exit_code == 1
    assert "Unknown expression identifier `nothing`" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


@pytest.mark.parametrize("more", [(), ("--plot", "p.png"), ("--format", "csv"), ("--out", "o")])
def test_sql_that_does_more_than_ask_is_one_line_and_does_nothing(
    gyre: Gyre, log: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for sql in (
        "SET max_threads = 1",
        "INSERT INTO FUNCTION file('made', 'CSV') SELECT 1",
        "SELECT 1 INTO OUTFILE 'made'",
    ):
        result = gyre("query", sql, log, *more)
        assert result.exit_code == 1, sql
        (*lag, line) = result.stderr.splitlines()
        assert len(lag) == 2
        assert re.match(r"(SET|INSERT|INTO OUTFILE): ", line)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_array_is_a_parameter_too(gyre: Gyre, log: Path) -> None:
    result = gyre("query", "SELECT length({ some : Array(UInt8) }) AS n", log, "--set", "some=[1,2,3]", "--json")
    assert json.loads(result.stdout) == {"n": 3}


def test_a_word_is_looked_for_in_names_whether_or_not_the_run_is_named(gyre: Gyre, log: Path) -> None:
    result = gyre("query", "SELECT countIf(type LIKE '%Execution%') > 0 AS some FROM facts", log, "--json")
    assert json.loads(result.stdout) == {"some": 1}


def test_a_warehouse_elsewhere_holds_many_runs(gyre: Gyre, log: Path, small_run: Path) -> None:
    for archive in (log, small_run):
        assert gyre("query", COUNT, archive, "--warehouse", "all").exit_code == 0
    result = gyre("query", "SELECT run FROM runs ORDER BY run", "told", "--stale", "--warehouse", "all", "--json")
    assert [json.loads(line)["run"] for line in result.stdout.splitlines()] == ["r", "told"]


def test_every_command_and_every_query_of_the_page_answers(gyre: Gyre, log: Path) -> None:
    for command in COMMANDS:
        words = re.findall(r'"[^"]*"|\S+', command)
        arguments = [str(log) if word == "RUN" else word.strip('"') for word in words[1:]]
        result = gyre(*arguments, *(() if "--list" in arguments else ("--warehouse", "all")))
        assert result.exit_code == 0, f"{command}: {result.output}"
    warehouse = Warehouse("all")
    for sql in SQL:
        assert warehouse.query(sql, {"run": "told"}, "CSV"), f"it has nothing to say of a run with every fault: {sql}"
    assert len(SQL) >= 12
    warehouse.close()


def test_the_page_names_every_question_and_every_view() -> None:
    from gyre.warehouse.views import VIEWS

    assert [name for name in QUERIES if f"`{name}`" not in PAGE] == []
    assert [name for name in VIEWS if f"| `{name}` |" not in PAGE] == []


@pytest.mark.parametrize("question", ["execution-durations", "train-score", "verifier-failures"])
def test_an_answer_may_be_a_picture(gyre: Gyre, log: Path, tmp_path: Path, question: str) -> None:
    """Bars as wide as their bins, lines over steps, bars beside names."""
    result = gyre("query", question, log, "--plot", "answer.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "answer.png").read_bytes().startswith(b"\x89PNG")


def test_bars_of_a_histogram_are_as_wide_as_its_bins() -> None:
    found = {"meta": [{"name": "low"}, {"name": "high"}, {"name": "n"}], "data": [[0, 2, 5], [2, 4, 1]]}
    (axes,) = figure(found, "told").axes
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches] == [(0, 2, 5), (2, 2, 1)]


def test_an_answer_without_numbers_is_not_drawn(gyre: Gyre, log: Path) -> None:
    result = gyre("query", "SELECT run, 'word' AS word FROM runs", log, "--plot", "answer.png")
    assert result.exit_code == 1
    assert "its answer has no row with a number" in result.stderr.splitlines()[-1]
