"""Pods, as the API's own schema has them, and the life of one at a stand-in for a cluster (`cluster.py`)."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.config_containers import KubernetesSection
from gyre.sandboxes import docker_spec, owners
from gyre.sandboxes.kubernetes import KubernetesSandbox
from gyre.sandboxes.kubernetes_spec import Body
from gyre.sandboxes.owners import Owner
from gyre.sandboxes.port import OUTPUT_BYTES, Command, CommandLost, Limits, SandboxError
from tests.pipes import told
from tests.sandboxes.cluster import Cluster, Pod, running_cluster, trouble

LIMITS = Limits(memory_bytes=96 << 20, disk_bytes=4 << 20, look_seconds=0.1, cpus=1.5)
RUNS = KubernetesSection(mounts={"/runs": "runs", "/opt/gyre": ""}, runtime_class="gvisor")
OWNER = {owners.OWNER: "1-abcd", owners.LOCK: "/runs/r/work/.owner-1-abcd", owners.BOX: "/runs/r/work/e"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox(cluster: Cluster, tmp_path: Path) -> AsyncIterator[KubernetesSandbox]:
    made = KubernetesSandbox(chosen(cluster, tmp_path), "agents:1", LIMITS)
    yield made
    await made.close()


def chosen(cluster: Cluster, folder: Path, **more: Any) -> KubernetesSection:
    mounts = {str(folder): "runs"}
    own = f"{os.getuid() or 65534}:{os.getgid() or 65534}"
    return KubernetesSection(url=cluster.url, token_file=str(folder / "token"), mounts=mounts, user=own, **more)


def command(box: Path, *arguments: str, seconds: float = 60.0, grace: float = 1.0, **more: Any) -> Command:
    (box / "ws").mkdir(parents=True, exist_ok=True)
    return Command(arguments, box / "ws", box, {"TOLD": "$(HOME) and $$"}, seconds, grace, **more)


def shell(box: Path, script: str, **more: Any) -> Command:
    return command(box, "/bin/sh", "-c", script, **more)


def pod_of(wanted: Command, hosts: Mapping[str, str] | None = None) -> Pod:
    return Body(RUNS, LIMITS).of(wanted, "agents:1", "gyre-1-abcd-0", OWNER, hosts or {})


def in_a_run(**more: Any) -> Command:
    box = Path("/runs/r/work/e")
    return Command(("claude", "-p"), box / "ws", box, {"A": "b"}, 13500.0, 2.0, **more)


def test_a_pod_is_one_that_the_api_takes_under_its_strictest_profile() -> None:
    seen = (Path("/opt/gyre/lib"), Path("/runs/r/tests/t"), Path("/runs/r/tests"))
    pod = pod_of(in_a_run(visible=seen, reach="http://proxy.gyre.svc:8000"), {"10.0.0.7": "proxy.gyre.svc"})
    assert trouble(pod) == ""
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert pod["metadata"]["labels"]["gyre.dev/reach"] == "proxy"
    assert spec["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["proxy.gyre.svc"]}]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "runs", "mountPath": "/runs/r/work/e", "readOnly": False, "subPath": "r/work/e"},
        {"name": "runs", "mountPath": "/runs/r/tests", "readOnly": True, "subPath": "r/tests"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    assert spec["containers"][0]["resources"]["limits"] == {
        "cpu": "1.5",
        "ephemeral-storage": "320Mi",
        "memory": str(96 << 20),
    }


def test_of_a_run_that_lies_in_something_visible_only_the_box_is_mounted() -> None:
    body = Body(RUNS, LIMITS, (Path("/runs"),), Path("/runs/r"))
    pod = body.of(in_a_run(), "agents:1", "gyre-1-abcd-0", OWNER, {})
    assert trouble(pod) == ""
    places = [(each["name"], each["mountPath"]) for each in pod["spec"]["containers"][0]["volumeMounts"]]
    assert ("veil", "/runs/r") in places
    assert ("runs", "/runs/r/work/e") in places


def test_a_run_is_covered_where_a_link_leads_to_it(tmp_path: Path) -> None:
    run, link = tmp_path / "data/runs/r", tmp_path / "d"
    run.mkdir(parents=True)
    link.symlink_to(tmp_path / "data")
    wanted = Command(("true",), run / "work/e", run / "work/e", {}, 1.0)
    pods = Body(RUNS.model_copy(update={"mounts": {str(tmp_path): "runs"}}), LIMITS, (link,), run)
    pod = pods.of(wanted, "agents:1", "gyre-1-abcd-0", OWNER, {})
    assert trouble(pod) == ""
    places = [(each["name"], each["mountPath"]) for each in pod["spec"]["containers"][0]["volumeMounts"]]
    assert ("veil", f"{link}/runs/r") in places
    container = docker_spec.Body(LIMITS, "1000:1000", visible=(link,), hidden=run).of(wanted, "agents:1", {})
    assert f"{link}/runs/r" in container["HostConfig"]["Tmpfs"]


def test_a_pod_that_reaches_nothing_says_so() -> None:
    assert pod_of(in_a_run())["metadata"]["labels"]["gyre.dev/reach"] == "nothing"


@given(
    st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=4),
    st.floats(0.1, 1e6),
)
def test_any_command_makes_a_pod_that_the_api_takes(words: list[str], env: dict[str, str], seconds: float) -> None:
    box = Path("/runs/r/work/e")
    assert trouble(pod_of(Command(tuple(words), box, box, env, seconds))) == ""


def test_a_folder_in_no_claim_is_refused() -> None:
    with pytest.raises(SandboxError, match=r"/home/me: lies in no claim; add its volume to sandbox"):
        pod_of(in_a_run(visible=(Path("/home/me"),)))


def test_outside_of_a_cluster_a_url_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SandboxError, match=r"sandbox\.kubernetes\.url: empty, and this process is in no cluster"):
        KubernetesSandbox(RUNS, "agents:1", LIMITS)


async def test_a_command_runs_and_its_words_arrive_as_they_are(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    ended = await sandbox.run(shell(tmp_path / "e", "pwd; echo $TOLD; echo $(echo sub) >here; exit 3"))
    lines = ended.output.decode().splitlines()
    assert (ended.ending, ended.exit_code, ended.reason) == ("exited", 3, "")
    assert lines == [str(tmp_path / "e/ws"), "$(HOME) and $$"]
    assert (tmp_path / "e/ws/here").read_text() == "sub\n"
    assert cluster.runs == {}


async def test_an_image_that_no_node_finds_is_named(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.unwilling.add("no/such:1")
    with pytest.raises(SandboxError, match="image no/such:1: ErrImagePull: no/such:1: not found"):
        await sandbox.run(command(tmp_path / "e", "true", image="no/such:1"))
    assert cluster.runs == {}


async def test_a_registry_that_is_away_is_asked_again_by_the_node(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.slow.add("agents:1")
    ended = await sandbox.run(shell(tmp_path / "e", "echo well"))
    assert (ended.exit_code, ended.last_line) == (0, "well")


async def test_a_server_that_does_not_know_us_is_quoted(tmp_path: Path, cluster: Cluster) -> None:
    own = chosen(cluster, tmp_path)
    (tmp_path / "token").write_text("somebody else's")
    sandbox = KubernetesSandbox(own, "agents:1", LIMITS)
    with pytest.raises(SandboxError, match="kubernetes: Unauthorized"):
        await sandbox.run(shell(tmp_path / "e", "true"))
    await sandbox.close()


QUOTA = 'pods "gyre-1" is forbidden: exceeded quota: sandboxes, requested: pods=1, used: pods=2000, limited: pods=2000'
AWAY = [
    (503, "ServiceUnavailable", "the API server is being replaced"),
    (429, "TooManyRequests", "too many requests, please try again later"),
    (403, "Forbidden", QUOTA),
    (409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "sandboxes": the object has been modified'),
]


@pytest.mark.parametrize("said", AWAY, ids=lambda said: str(said[0]))
async def test_a_pod_that_cannot_be_made_just_now_is_asked_for_again(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox, said: tuple[int, str, str]
) -> None:
    cluster.refusals = [said]
    ended = await sandbox.run(shell(tmp_path / "e", "echo well"))
    assert (ended.exit_code, ended.last_line, len(cluster.made)) == (0, "well", 1)


async def test_a_pod_that_was_made_and_not_confirmed_is_the_one_that_is_followed(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.hang_ups = 1
    ended = await sandbox.run(shell(tmp_path / "e", "echo well"))
    assert (ended.exit_code, ended.last_line, len(cluster.made)) == (0, "well", 1)
    assert cluster.runs == {}


async def test_a_proxy_that_moves_is_waited_for(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    known = socket.getaddrinfo

    def names(host: str, *more: Any, **other: Any) -> Any:
        if host != "proxy.gyre.svc":
            return known(host, *more, **other)
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known("10.0.0.7", *more, **other)

    monkeypatch.setattr(socket, "getaddrinfo", names)
    ended = await sandbox.run(shell(tmp_path / "e", "echo well", reach="http://proxy.gyre.svc:8000"))
    assert (ended.exit_code, ended.last_line) == (0, "well")
    (pod,) = cluster.made
    assert pod["spec"]["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["proxy.gyre.svc"]}]


async def test_a_refusal_that_no_wait_mends_and_one_that_lasts_are_reasons(tmp_path: Path, cluster: Cluster) -> None:
    sandbox = KubernetesSandbox(chosen(cluster, tmp_path, schedule_seconds=1), "agents:1", LIMITS)
    cluster.refusals = [(403, "Forbidden", "pods is forbidden: User cannot create resource")]
    with pytest.raises(SandboxError, match="User cannot create resource"):
        await sandbox.run(shell(tmp_path / "e", "true"))
    assert cluster.refusals == []  # it was asked once
    cluster.refusals = [AWAY[0]] * 9
    with pytest.raises(SandboxError, match="the API server is being replaced"):
        await sandbox.run(shell(tmp_path / "e", "true"))
    assert len(cluster.refusals) < 8  # and this one again
    await sandbox.close()


async def test_a_stop_is_not_kept_waiting_by_a_server_that_is_away(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    stop = asyncio.Event()
    stop.set()
    cluster.refusals = [AWAY[0]] * 9
    with pytest.raises(SandboxError, match="the API server is being replaced"):
        await sandbox.run(shell(tmp_path / "e", "true"), stop)
    assert len(cluster.refusals) == 8


async def test_a_watch_that_ends_or_forgets_misses_nothing(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.cut, cluster.forgotten = 2, 1 << 30
    ended = await sandbox.run(shell(tmp_path / "e", "echo well"))
    assert (ended.exit_code, ended.last_line) == (0, "well")


async def test_a_deadline_asks_first_and_then_kills(tmp_path: Path, sandbox: KubernetesSandbox) -> None:
    script = "trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.05; done"
    ended = await sandbox.run(shell(tmp_path / "a", script, seconds=0.5, grace=30.0))
    assert (ended.ending, ended.exit_code, ended.last_line) == ("timeout", 7, "cleaned")
    assert ended.reason == "ended at its deadline of 0.5 s"
    ended = await sandbox.run(shell(tmp_path / "b", "trap '' TERM; while :; do sleep 0.05; done", seconds=0.5))
    assert (ended.ending, ended.exit_code) == ("timeout", -signal.SIGKILL)


async def test_a_deadline_outlives_an_api_server_that_does_not_answer_for_a_while(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.deaf = 1
    ended = await sandbox.run(shell(tmp_path / "e", "echo half; exec sleep 300", seconds=0.5, grace=0.2))
    assert (ended.ending, ended.reason) == ("timeout", "ended at its deadline of 0.5 s")
    assert cluster.runs == {}


async def test_a_pod_that_goes_while_its_command_works_is_lost_and_not_unable_to_start(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    os.mkfifo(tmp_path / "up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path / "e", f"echo up >{tmp_path}/up; exec sleep 300")))
    await told(tmp_path / "up")
    await cluster.lose()
    with pytest.raises(CommandLost, match=r"its sandbox lost it: pod .*: was deleted"):
        await running


async def test_a_pod_that_makes_room_before_it_starts_is_not_lost(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.preempted.add("agents:1")
    with pytest.raises(SandboxError, match="ended without a word of its command: Preempting") as raised:
        await sandbox.run(shell(tmp_path / "e", "true"))
    assert not isinstance(raised.value, CommandLost)


async def test_a_box_that_cannot_be_given_away_is_a_reason_not_to_start(
    tmp_path: Path, sandbox: KubernetesSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def squashed(path: str, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "lchown", squashed)
    with pytest.raises(SandboxError, match=r"command '/bin/sh': cannot be started: .*Operation not permitted"):
        await sandbox.run(shell(tmp_path / "e", "true"))


async def test_a_stop_ends_a_command(tmp_path: Path, sandbox: KubernetesSandbox) -> None:
    stop = asyncio.Event()
    os.mkfifo(tmp_path / "up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path / "e", f"echo up >{tmp_path}/up; exec sleep 300"), stop))
    await told(tmp_path / "up")
    stop.set()
    ended = await running
    assert (ended.ending, ended.exit_code) == ("stopped", -signal.SIGTERM)


async def test_cancelling_the_call_deletes_the_pod(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    os.mkfifo(tmp_path / "up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path / "e", f"echo up >{tmp_path}/up; sleep 300")))
    await told(tmp_path / "up")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sandbox.end_leftovers(tmp_path / "e") == 0


async def test_what_a_node_says_of_memory_and_what_a_box_holds_are_told_apart(
    tmp_path: Path, cluster: Cluster, sandbox: KubernetesSandbox
) -> None:
    cluster.fate = {"reason": "OOMKilled", "exitCode": 137}
    ended = await sandbox.run(shell(tmp_path / "memory", "true"))
    assert (ended.ending, ended.exit_code) == ("memory", -signal.SIGKILL)
    assert ended.reason == "ended because it used more than 96 MB of memory"
    cluster.fate = {}
    fills = "for n in 1 2 3; do head -c 2000000 /dev/zero >$n; done; exec sleep 300"
    assert (await sandbox.run(shell(tmp_path / "disk", fills))).ending == "disk"


async def test_a_flood_keeps_its_last_64_kib(tmp_path: Path, sandbox: KubernetesSandbox) -> None:
    ended = await sandbox.run(shell(tmp_path / "e", "yes a flood of words 2>/dev/null | head -n 100000"))
    assert len(ended.output) == OUTPUT_BYTES or ended.output.count(b"\n") == 2000
    assert ended.last_line == "a flood of words"


async def test_pods_that_nobody_waits_for_are_removed(tmp_path: Path, cluster: Cluster) -> None:
    first, other = Owner(), Owner()
    labels = [each.labels(tmp_path / name, 60.0) for each, name in ((first, "left"), (other, "held"))]
    async with asyncio.TaskGroup() as group:
        sandboxes = [KubernetesSandbox(chosen(cluster, tmp_path), "agents:1", LIMITS) for _ in labels]
        for number, (sandbox, owner) in enumerate(zip(sandboxes, labels, strict=True)):
            wanted = shell(Path(owner[owners.BOX]), "sleep 300")
            pod = Body(chosen(cluster, tmp_path), LIMITS).of(wanted, "agents:1", f"pod-{number}", owner, {})
            group.create_task(sandbox._api.create(pod))
    first.close()  # as a process that ended: its lock is free
    assert await sandboxes[0].end_leftovers(tmp_path / "nobody's") == 0
    await sandboxes[0].run(shell(tmp_path / "e", "true"))
    assert [run.pod["metadata"]["name"] for run in cluster.runs.values() if not run.deleted] == ["pod-1"]
    assert await sandboxes[0].end_leftovers(tmp_path / "held") == 1
    other.close()
    for each in sandboxes:
        await each.close()


async def test_closing_leaves_nothing(tmp_path: Path, cluster: Cluster) -> None:
    sandbox = KubernetesSandbox(chosen(cluster, tmp_path), "agents:1", LIMITS)
    os.mkfifo(tmp_path / "up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path / "e", f"echo up >{tmp_path}/up; sleep 300")))
    await told(tmp_path / "up")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sandbox.close()
    assert all(run.deleted for run in cluster.runs.values())
    assert list(tmp_path.glob(".owner-*")) == []
