"""What a decider asks the log for; that it is enough is tested on a whole run (tests/e2e)."""

import pytest

from bus import subjects
from services.minds import filters, minds
from services.source import Source

SERVICES = ("scheduler", "admission", "packer")


@pytest.mark.parametrize("service", SERVICES)
async def test_no_two_filters_of_a_mind_overlap(service: str, source: Source) -> None:
    mind = minds(await source.started(), source.ev, source.blobs)[service]
    found = filters("r", mind)
    assert len(set(found)) == len(found)
    lowest = {one: one.replace(">", "x") for one in found}
    assert not [one for one in found for other in found if one != other and subjects.matches(other, lowest[one])]
