"""What only a person can mend ends a run with a clear word; it is not tried for ever."""

import asyncio
from pathlib import Path

import pytest

from gyre.config import Config
from gyre.errors import GyreError
from services.exits import EXIT_FAILED, EXIT_FULL, EXIT_HOPELESS, RunFull, code_of
from services.proxy.service import ProxyFailed
from services.supervisor import Child, Supervisor
from tests.proxy.rig import Rig


async def test_a_port_that_another_program_holds_is_told_with_the_way_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (rig.folder / "proxy.url").write_text(f"http://127.0.0.1:{port}")
    monkeypatch.setattr("services.proxy.service._BIND_SECONDS", 0.1)
    with pytest.raises(ProxyFailed) as refusal:
        async with rig.proxy():
            pass
    server.close()
    await server.wait_closed()
    assert str(port) in str(refusal.value)
    assert f"delete {rig.folder / 'proxy.url'} and resume" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ProxyFailed("port"), EXIT_HOPELESS), (RunFull("disk"), EXIT_FULL), (GyreError("other"), EXIT_FAILED)],
)
def test_the_exit_code_tells_whether_starting_again_may_help(error: Exception, code: int) -> None:
    assert code_of(error) == code


class _Ending(Supervisor):
    """Its processes end at once, with this code."""

    code = EXIT_HOPELESS

    async def _start(self, child: Child) -> asyncio.subprocess.Process:
        child.restarts += 1
        self._log(child).write_text("now proxy ERROR proxy: port 7 cannot be used: it is taken\n")
        child.process = await asyncio.create_subprocess_exec("/bin/sh", "-c", f"exit {self.code}")
        return child.process


async def test_a_process_that_only_a_person_can_help_ends_the_run_at_its_first_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.supervisor.services_of", lambda _: (("proxy", None),))
    supervisor = _Ending(tmp_path, Config.of({}), None)
    async with asyncio.timeout(30):
        await supervisor.run(lambda: False)
    assert supervisor.fatal == "proxy: port 7 cannot be used: it is taken"
    assert not supervisor.full
    assert supervisor.children[0].restarts == 1


def test_a_run_folder_that_cannot_be_looked_at_ends_the_run_with_its_name(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "gone", Config.of({}), None)
    supervisor._check_disk()
    assert supervisor.fatal == f"its folder {tmp_path / 'gone'} cannot be looked at: No such file or directory"
