"""What the dashboard keeps of a log: as of any moment the same as a log that ended there, however it was filled."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.log import Stored
from schemas.calls import ModelCallRecorded
from schemas.envelope import Commit, Producer
from services.analytics.archive_columns import beside
from services.dashboard import filling
from services.dashboard.kept import FILE, keep_rows, rows_of
from services.dashboard.listing import COLUMNS, BadQuestion, Question, executions
from services.dashboard.rows import TABLES, changes, row
from services.dashboard.watch import Watch
from tests.dashboard.conftest import Told
from tests.dashboard.tale import BEGIN, HOSTILE, RUN, Line, of_claim, tale
from tests.dashboard.tale import training as events

OPEN: list[Watch] = []
MOMENTS = (0.7, 2.45, 6.0, 9.3, 13.05, 21.0, 33.3)


@pytest.fixture(autouse=True)
def watches() -> Iterator[None]:
    """Every watch that a test makes is closed."""
    yield
    while OPEN:
        OPEN.pop().store.close()


def new(target: str = RUN) -> Watch:
    OPEN.append(Watch(target, Path()))
    return OPEN[-1]


def kept(lines: list[Line]) -> Watch:
    """A watch that has heard these lines of EV."""
    watch = new()
    claims: dict[int, int] = {}
    for sequence, line in enumerate((each for each in lines if not isinstance(each.event, ModelCallRecorded)), 1):
        if isinstance(line.event, events.MicroStepClaimed):
            claims[line.event.micro_step] = sequence
        commit = Commit(
            run=RUN,
            producer=Producer(service=line.service, instance="i"),
            commit=f"c{sequence}",
            causation=0,
            as_of=0,
            correlation=RUN,
            time=round((BEGIN + line.at) * 1e9),
            events=(of_claim(line.event, claims),),
        )
        watch._take(Stored(sequence, "s", commit))
    return watch


async def shown(watch: Watch, at: float | None = None) -> dict[str, Any]:
    """All sections but what names the log as a whole, and sums that hold only for now."""
    watch.store.keep()
    found = {name: json.loads(body) for name, body in (await watch.sections(at)).items()}
    found["head"] = found["head"]["ends"]
    for lane in found["cells"]["lanes"]:
        lane["used"] = None
    return found


@pytest.mark.parametrize("moment", MOMENTS)
async def test_as_of_a_moment_is_what_the_log_said_until_then(moment: float) -> None:
    whole, begun = kept(tale()), kept([line for line in tale() if line.at <= moment])
    assert await shown(whole, begun.seconds) == await shown(begun, begun.seconds)


async def test_rewards_that_differ_by_rounding_alone_are_no_spread() -> None:
    """Of the tale's groups five have equal rewards, two of them all zero but for rounding."""
    groups = (await shown(kept(tale())))["groups"]
    counts = [sum(row[2 + place] for row in groups["rows"]) for place in range(len(groups["kinds"]))]
    assert dict(zip(groups["kinds"], counts, strict=True))["all zero"] == 2


async def test_saying_everything_twice_changes_nothing() -> None:
    once, twice = kept(tale()), kept(tale())
    for line in tale():
        if not isinstance(line.event, events.MicroStepClaimed | events.MicroStepReissued):
            twice.store.apply(changes(1, line.at + 50, line.event))
    assert await shown(twice) == await shown(once)


@pytest.mark.asyncio(loop_scope="session")
async def test_an_archives_columns_give_the_same_rows_as_its_log(told: Told) -> None:
    pytest.importorskip("chdb")
    asked, again, read = new(str(told.archive)), new(str(told.archive)), kept(tale())
    asked._fill(*await rows_of(told.archive))
    again._fill(*await rows_of(told.archive))  # as they were kept
    for moment in (*MOMENTS, 40.0):
        assert await shown(asked, moment) == await shown(again, moment) == await shown(read, moment), moment
    for name in re.findall(r"CREATE TABLE (\w+)", TABLES):
        columns = [each[0] for each in read.store.ask(f"SELECT name FROM pragma_table_info('{name}')", {})]
        everything = f"SELECT {', '.join(columns)} FROM {name} ORDER BY 1, 2"
        found, expected = asked.store.ask(everything, {}), read.store.ask(everything, {})
        assert found == [pytest.approx(row) for row in expected], name
        assert expected or name == "ends"
    assert filling.is_large(str(told.archive)) is False


@pytest.mark.asyncio(loop_scope="session")
async def test_rows_that_are_kept_are_taken_where_they_are_this_archives(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("chdb")
    await keep_rows(told.archive)
    file = beside(told.archive) / FILE
    whole, asked = file.read_bytes(), list[Path]()

    async def filled(archive: Path) -> filling.Filled:
        asked.append(archive)
        return await ask(archive)

    ask = filling.filled
    monkeypatch.setattr(filling, "filled", filled)
    await keep_rows(told.archive)
    assert asked == []
    for damage in (whole[:2000], b"", whole.replace(b'"shape":"', b'"shape":"0')):
        file.write_bytes(damage)
        await keep_rows(told.archive)
        assert asked.pop() == told.archive
        assert file.read_bytes() != damage


@pytest.mark.asyncio(loop_scope="session")
async def test_who_asks_while_a_large_archive_is_filled_in_is_answered(told: Told) -> None:
    pytest.importorskip("chdb")
    watch = new(str(told.archive))
    ask = watch.store.ask
    watch._fill(*await rows_of(told.archive))
    count = "SELECT COUNT(*) FROM executions"
    assert ask(count, {}) == watch.store.ask(count, {}) != [(0,)]


async def test_what_is_sent_does_not_grow_with_the_run() -> None:
    watch = new()
    for number in range(3_000):
        times = {
            "dispatched_at": number,
            "launched_at": number + 1,
            "terminated_at": number + 2,
            "graded_at": number + 3,
        }
        told = {"group_id": f"g{number // 8}", "task": f"task-{number}", "version": number // 20, "reward": 0.5}
        done = {"version": number, "updated_at": number + 2, "loss": 1.0, "gradient_norm": 1.0}
        watch.store.apply([row("executions", {"execution": f"x{number}"}, {**told, **times, "reason": "completed"})])
        watch.store.apply([row("steps", {"step": number + 1}, done)])
    watch._zero, watch._last = 1, 3_100 * 10**9
    watch.store.keep()
    sizes = {name: len(body) for name, body in (await watch.sections()).items()}
    assert sum(sizes.values()) < 64_000, sizes


def listed(at: float = 40.0, **asked: Any) -> dict[str, Any]:
    watch = kept(tale())
    watch.store.keep()
    return executions(watch.store.ask, at, Question(**asked))


def column(found: dict[str, Any], name: str) -> list[Any]:
    return [row[found["columns"].index(name)] for row in found["rows"]]


def test_pages_follow_one_another_and_hold_every_execution_once() -> None:
    pages = [listed(page=page, size=20) for page in range(3)]
    names = [name for page in pages for name in column(page, "execution")]
    assert (len(names), len(set(names)), {page["total"] for page in pages}) == (48, 48, {48})
    assert [len(page["rows"]) for page in pages] == [20, 20, 8]


def test_a_filter_and_an_order_are_taken_together() -> None:
    found = listed(status="timeout", text="task-1", sort="seconds", descending=False, size=100)
    assert set(column(found, "status")) == {"timeout"}
    assert set(column(found, "task")) == {"task-1"}
    assert column(found, "seconds") == sorted(column(found, "seconds"))


def test_what_is_not_known_comes_last_in_either_order() -> None:
    for descending in (True, False):
        rewards = column(listed(sort="reward", descending=descending, size=100), "reward")
        assert rewards[-1] is None
        assert None not in rewards[:-1]


def test_an_execution_is_listed_as_it_was_at_the_moment() -> None:
    assert column(listed(2.0, text="x0-"), "status") == ["queued"] * 4
    assert column(listed(2.65, text="x0-"), "status") == ["running"] * 2 + ["queued"] * 2
    assert column(listed(5.15, text="x0-"), "status") == ["completed"] + ["running"] * 3
    assert column(listed(5.15, text="x0-"), "reward") == [None] * 4
    assert column(listed(text="x0-0"), "detail") == [HOSTILE]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"sort": "rowid; DROP TABLE executions"}, "sort"),
        ({"status": "gone"}, "status"),
        ({"size": 0}, "size"),
        ({"size": 101}, "size"),
        ({"page": -1}, "page"),
    ],
)
def test_a_question_that_cannot_be_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(BadQuestion, match=f"^{named} = "):
        Question(**asked)


def test_text_that_is_looked_for_is_no_sql() -> None:
    assert listed(text="' OR 1=1 --")["total"] == 0
    assert all(listed(sort=name, size=1)["total"] == 48 for name in COLUMNS)
