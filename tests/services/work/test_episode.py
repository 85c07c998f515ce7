"""One episode whose sandbox fails beneath it: what its harness did until then counts."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gyre.config_containers import KubernetesSection
from gyre.proxy.tokens import execution_token
from gyre.sandboxes.kubernetes import KubernetesSandbox
from gyre.sandboxes.port import Limits, Sandbox
from gyre.sandboxes.process import ProcessSandbox
from gyre.tasks.folder import load_tasks
from services import runner
from services.episode import Episodes, keep
from services.workspace import restore
from tests.pipes import told
from tests.sandboxes.cluster import Cluster, running_cluster
from tests.services.work.conftest import SECRET
from tests.services.work.test_runner import ended

TOKEN = "a-token"


def episodes(run: Any, sandbox: Sandbox) -> Episodes:
    return Episodes(
        run.folder, run.config, {each.name: each for each in load_tasks(run.folder / "tasks/train")}, sandbox
    )


def pods(cluster: Cluster, folder: Path) -> KubernetesSandbox:
    mounts, user = {str(folder): "runs", "/bin": "", "/usr/bin": ""}, f"{os.getuid() or 65534}:{os.getgid() or 65534}"
    chosen = KubernetesSection(url=cluster.url, token_file=str(folder / "token"), mounts=mounts, user=user)
    return KubernetesSandbox(chosen, "agents:1", Limits())


async def test_what_a_harness_did_before_its_pod_was_gone_is_kept(run: Any) -> None:
    run.task("job")
    os.mkfifo(run.folder / "up")
    run.harness(f"echo half >half.txt; echo up >{run.folder}/up; exec sleep 300")
    async with running_cluster(run.folder) as cluster:
        sandbox = pods(cluster, run.folder)
        working = asyncio.create_task(episodes(run, sandbox).run("x0-0", "job", TOKEN))
        await told(run.folder / "up")
        await cluster.lose()
        outcome = await working
        await sandbox.close()
    assert (outcome.reason, outcome.stage, outcome.exit_code) == ("failed", "agent", None)
    assert "was deleted" in outcome.detail
    assert outcome.setup_seconds is not None
    state, _ = await keep(run.bus.blobs, outcome, None)
    assert state is not None
    restore(run.bus.blobs.get(state), run.folder / "restored")
    assert (run.folder / "restored/half.txt").read_text() == "half\n"


async def test_a_harness_that_never_ran_has_left_nothing_to_assess(run: Any) -> None:
    run.task("job")
    run.harness("exit 0")
    async with running_cluster(run.folder) as cluster:
        cluster.unwilling.add("agents:1")
        sandbox = pods(cluster, run.folder)
        outcome = await episodes(run, sandbox).run("x0-0", "job", TOKEN)
        await sandbox.close()
    assert (outcome.reason, outcome.stage, outcome.workspace) == ("failed", "setup", None)
    assert "ErrImagePull" in outcome.detail


async def test_an_execution_that_finds_no_descriptor_left_ends_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, left = os.pipe, [OSError(errno.EMFILE, "Too many open files")]

    def pipe() -> tuple[int, int]:
        if left:
            raise left.pop()
        return make()

    run.task("job")
    run.harness("exit 0")
    async with run.serving(runner.serve, "runner"):
        monkeypatch.setattr(os, "pipe", pipe)
        for name in ("x0-0", "x0-1"):
            await run.dispatch(name, "job")
            await run.grant(name)
            event = await ended(run, name)
            assert (name, event.stage) == (name, "setup" if name == "x0-0" else "agent")
    assert event.reason == "completed"


async def test_a_key_that_no_descriptor_is_left_for_is_waited_for(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, left = Path.read_bytes, [OSError(errno.ENFILE, "Too many open files in system")]

    def busy(path: Path) -> bytes:
        if left and path.name == "proxy.key":
            raise left.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", busy)
    token = await episodes(run, ProcessSandbox()).token("x0-0")
    assert token == execution_token(SECRET, "x0-0")
