"""docs/operations.md: the scripts for a run on this machine do what the page says, one after another."""

import asyncio
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
CONFIG = """
[run]
steps = 4
[model]
path = "modelled"
[modelled]
token_seconds = 0.02
training_seconds = 0.1
update_seconds = 0.1
[tasks]
train = "words:4:train"
heldout = "words:4:heldout"
[schedule]
groups = 1
executions = 2
phi = 1.0
mu = 1
tau_seconds = 0.05
rho_min = 0.5
[cells]
count = 1
concurrency = 4
[rollout]
max_tokens = 24
context_tokens = 512
[harness]
command = ["{python}", "-I", "-S", "{stub}", "--calls", "2", "--tokens", "16"]
[packing]
row_tokens = 512
micro_step_tokens = 512
[evaluation]
episodes = 0
"""


def documented(name: str) -> str:
    """The script of the page under this name."""
    found = re.findall(rf"^```sh local={name}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{name}: {len(found)} scripts on {PAGE}"
    return str(found[0])


async def begun(folder: Path, name: str) -> asyncio.subprocess.Process:
    """A script under way in a folder."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    output = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        "bash", "-euc", documented(name), cwd=folder, env=environment, stdout=output, stderr=asyncio.subprocess.STDOUT
    )


async def done(folder: Path, name: str, code: int = 0) -> str:
    """Run a script to its end; what it said."""
    return await ended(await begun(folder, name), code)


async def ended(process: asyncio.subprocess.Process, code: int = 0) -> str:
    said, _ = await process.communicate()
    assert process.returncode == code, said.decode()
    return said.decode()


async def said(process: asyncio.subprocess.Process, word: str) -> None:
    """Wait until a script says so."""
    assert process.stdout is not None
    async for line in process.stdout:
        if word in line.decode():
            return
    raise AssertionError(f"it ended without a word of {word}")


async def test_a_run_is_stopped_backed_up_lost_restored_and_finished(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    training = await begun(tmp_path, "start")
    await said(training, "step   1")
    await done(tmp_path, "stop")
    assert "gyre resume mine" in await ended(training, 130)
    await done(tmp_path, "rotate")
    await done(tmp_path, "backup")
    (tmp_path / "runs").rename(tmp_path / "lost")
    await done(tmp_path, "restore")
    assert "run mine: 4 steps" in await done(tmp_path, "resume")
    await done(tmp_path, "archive")
    assert (tmp_path / "mine.jsonl.zst").stat().st_size > 0
