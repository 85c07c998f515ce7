"""The sandbox that a configuration asks for."""

from gyre.config_sandbox import SandboxSection
from gyre.sandboxes.port import Limits, Sandbox, SandboxError
from gyre.sandboxes.process import ProcessSandbox

_MB = 1 << 20


def make_sandbox(section: SandboxSection) -> Sandbox:
    """One for a whole process, made before it starts children of its own. Raises SandboxError where it cannot work."""
    if section.kind == "process":
        return ProcessSandbox(limits_of(section))
    raise SandboxError(f"sandbox.kind = {section.kind}: is not there yet; use process")


def limits_of(section: SandboxSection) -> Limits:
    """What one command may use."""
    return Limits(
        memory_bytes=section.memory_mb * _MB,
        file_bytes=section.file_mb * _MB,
        disk_bytes=section.disk_mb * _MB,
        files=section.files,
        open_files=section.open_files,
        processes=section.processes,
        cpus=section.cpus,
    )
