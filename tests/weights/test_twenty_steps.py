"""Over 20 real updates of nano, what deltas publish is what whole files would, bit for bit; and what it costs."""

import logging
from pathlib import Path

import pytest

from gyre.weights.files import Carried, Shared
from schemas.refs import WeightsRef
from tests.weights.steps import same_file, updates
from tests.weights.test_transports import Reading

STEPS = 20
LR = 2e-4
"""examples/demo.toml's."""


class Cell:
    """One cell's way of one kind of weights, from the core's folder to its engine."""

    def __init__(self, folder: Path, own: Path) -> None:
        self.folder, self.engine = folder, Reading()
        self.core = Carried(Shared(folder), folder, own, delta=True, core=True)
        self.cell = Carried(Shared(folder), own / "unseen", own, delta=True, core=False)
        self.own = own
        self.before: WeightsRef | None = None

    async def published(self, weights: WeightsRef, version: int) -> tuple[int, float | None]:
        offered = await self.core.offer(weights, self.before)
        await self.cell.bring(self.engine, weights, version, resume=self.before is None)
        self.before = weights
        return offered.sent, offered.changed


async def test_deltas_publish_bit_for_bit_what_whole_files_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = {kind: Cell(tmp_path, tmp_path / f"own-{kind}") for kind in ("fp32", "bf16")}
    table = []
    with caplog.at_level(logging.WARNING, "gyre"):
        for version, files in enumerate(updates("nano", tmp_path, steps=STEPS, lr=LR)):
            for kind, weights in files.items():
                sent, changed = await cells[kind].published(weights, version)
                whole = tmp_path / weights.address
                (brought,) = cells[kind].own.glob("*.safetensors")
                assert same_file(brought, whole)
                assert cells[kind].engine.given[-1][1:] == (version, whole.read_bytes())
                table.append((version, kind, weights.size, sent, changed))
    assert caplog.text == ""  # no step fell back on the whole file
    assert len(table) == 2 * (STEPS + 1)
    for version, _, size, sent, changed in table:
        assert (sent == size) == (version == 0)
        assert (changed is None) == (version == 0)
    with capsys.disabled():
        print("\nversion kind   whole bytes  sent bytes  share changed")  # noqa: T201 - the bytes of each step
        for version, kind, size, sent, changed in table:
            print(f"{version:>7} {kind} {size:>13,} {sent:>11,}  {'' if changed is None else f'{changed:.4f}'}")  # noqa: T201
