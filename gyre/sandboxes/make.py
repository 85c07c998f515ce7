"""The sandbox that a configuration asks for."""

from pathlib import Path

from gyre.config_sandbox import SandboxSection
from gyre.process import take_descriptors
from gyre.sandboxes.bubblewrap import BubblewrapSandbox, check_bubblewrap
from gyre.sandboxes.groups import here
from gyre.sandboxes.port import Limits, Sandbox, SandboxError
from gyre.sandboxes.process import ProcessSandbox

_MB = 1 << 20


def make_sandbox(section: SandboxSection, hidden: Path | None = None) -> Sandbox:
    """One for a whole process, made before it starts children of its own.

    Args:
        section: what is asked for.
        hidden: the run's folder: of it, commands see their box and what is made visible to them, where not all is.

    Raises:
        SandboxError: it cannot work here; one line with the way out.
    """
    visible = tuple(map(Path, section.visible))
    take_descriptors()
    if section.kind == "process":
        return ProcessSandbox(limits_of(section))
    if section.kind == "bubblewrap":
        return BubblewrapSandbox(limits_of(section), visible, hidden)
    if section.kind == "docker":
        from gyre.sandboxes.docker import DockerSandbox

        return DockerSandbox(section.docker, section.image, limits_of(section), visible, hidden)
    from gyre.sandboxes.kubernetes import KubernetesSandbox

    return KubernetesSandbox(section.kubernetes, section.image, limits_of(section), visible, hidden)


def check_sandbox(section: SandboxSection) -> None:
    """Try what nothing may begin without. Raises SandboxError: one line with the way out."""
    if section.cpus and section.kind in ("process", "bubblewrap") and "cpu" not in here():
        raise SandboxError(f"cannot hold to sandbox.cpus = {section.cpus:g}: no control groups here; leave it out")
    if section.kind == "bubblewrap":
        check_bubblewrap()
    if section.kind == "docker":
        from gyre.sandboxes.docker_check import check_docker

        check_docker(section.docker, section.image)
    if section.kind == "kubernetes":
        from gyre.sandboxes.kubernetes_api import Api

        Api(section.kubernetes)


def limits_of(section: SandboxSection) -> Limits:
    """What one command may use."""
    return Limits(
        memory_bytes=section.memory_mb * _MB,
        file_bytes=section.file_mb * _MB,
        disk_bytes=section.disk_mb * _MB,
        files=section.files,
        output_bytes=section.output_mb * _MB,
        open_files=section.open_files,
        processes=section.processes,
        cpus=section.cpus,
    )
