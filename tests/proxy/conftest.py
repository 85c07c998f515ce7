from pathlib import Path

import pytest

from bus.streams import Limits
from gyre.proxy.template import Template
from tests.proxy.rig import RUN, SECRET, Rig
from tests.proxy.templates import nano


@pytest.fixture(scope="session")
def template() -> Template:
    return nano()


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    return made
