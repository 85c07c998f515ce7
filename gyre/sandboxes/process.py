"""A command as a process of this machine: its own session, limits, private folders, and nothing left when it ends.

It shares the user, the network and the file system with its sandbox: for agents that are trusted. Starting one costs
few milliseconds: it goes by vfork (no code runs between fork and exec), limits are inherited, and where util-linux has
`setpriv`, that little program sees to it that a command dies with this process and gains no privileges; one of root's
keeps none that reach beyond files and processes.
"""

import asyncio
import shutil
import signal
from pathlib import Path

from gyre.sandboxes.local import Launch, Local, signal_group
from gyre.sandboxes.orphans import kill_leftovers
from gyre.sandboxes.port import Command, Ended, Limits

# What a command needs none of: to mount, to trace, to load, to set clocks and networks, to make devices.
_NEEDLESS = (
    "audit_control",
    "audit_read",
    "audit_write",
    "block_suspend",
    "lease",
    "mac_admin",
    "mac_override",
    "wake_alarm",
    "sys_admin",
    "sys_boot",
    "sys_module",
    "sys_nice",
    "sys_pacct",
    "sys_ptrace",
    "sys_rawio",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "linux_immutable",
    "mknod",
    "net_admin",
    "net_raw",
    "syslog",
)
_NEWER = (38, 39, 40)  # perfmon, bpf, checkpoint_restore: not every setpriv knows their names, nor every kernel them
_LAST = Path("/proc/sys/kernel/cap_last_cap")
_SETPCAP = 8


class ProcessSandbox:
    """Implements `Sandbox`; one for a whole process, made before it starts children of its own."""

    def __init__(self, limits: Limits | None = None) -> None:
        """Adopt orphans from now on."""
        self._local = Local(limits or Limits())
        self._wrapper = _wrapper()

    def address(self, url: str) -> str:
        """The same: it shares the network."""
        return url

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """See `Sandbox`."""
        launch = Launch((*self._wrapper, *command.arguments), lambda leader: signal_group(leader, signal.SIGTERM))
        return await self._local.run(command, launch, stop)

    async def end_leftovers(self, box: Path) -> int:
        """See `Sandbox`."""
        return await asyncio.to_thread(kill_leftovers, box)

    async def close(self) -> None:
        """Nothing is left where no call of `run` is: each ends with all that its command started."""


def _may_drop() -> bool:
    """Whether this process may take capabilities from what it starts (CAP_SETPCAP)."""
    status = Path("/proc/self/status").read_text()
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _SETPCAP & 1)


def _wrapper() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    if not setpriv:
        return ()
    last = int(_LAST.read_text())
    without = ",".join((*(f"-{name}" for name in _NEEDLESS), *(f"-cap_{each}" for each in _NEWER if each <= last)))
    fewer = ("--bounding-set", without, "--inh-caps", "-all") if _may_drop() else ()
    return (setpriv, "--pdeathsig", "KILL", "--no-new-privs", *fewer, "--")
