"""Readers look for an event where the table of entities has it: that is where it is said."""

from collections import defaultdict
from pathlib import Path

import pytest

from bus import subjects
from schemas.speakers import ENTITIES
from services.reading import heard
from services.source import open_source
from tests.services.recorded import RUNS


@pytest.mark.parametrize("archive", sorted(RUNS.glob("*.jsonl.zst")), ids=lambda path: str(path.name))
async def test_what_was_said_stands_where_the_table_has_it(archive: Path, tmp_path: Path) -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    async with open_source(str(archive), tmp_path) as source:
        async for stored in heard(source.ev, ()):
            place = subjects.parse(stored.subject).entity[0]
            for event in stored.commit.events if stored.commit else ():
                found[event.type].add(place)
    assert len(found) > 10
    assert {kind: places - ENTITIES[kind] for kind, places in found.items() if not places <= ENTITIES[kind]} == {}
