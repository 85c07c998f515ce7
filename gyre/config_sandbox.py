"""The table [sandbox]: where harnesses and tests run, and what they may use."""

from typing import Annotated, Literal

from pydantic import Field

from gyre.config_containers import DockerSection, KubernetesSection
from gyre.config_section import Count, Positive, Section

Megabytes = Annotated[int, Field(ge=1, le=1 << 42)]
"""As many as a kernel can count in bytes."""


class SandboxSection(Section):
    """Where an execution and its grading run."""

    kind: Literal["process", "bubblewrap", "docker", "kubernetes"] = "process"
    """"process": limits, but the file system and the network are shared (trusted agents); "bubblewrap": namespaces,
    in which only what is needed is visible and only the proxy can be reached; "docker": containers; "kubernetes": pods.
    docs/sandboxes.md says what each holds."""
    memory_mb: Megabytes = 4096
    """Most memory of one execution, MB."""
    disk_mb: Megabytes = 1024
    """Most that the files in its folder may hold, MB."""
    file_mb: Megabytes = 256
    """Most that one file may hold, MB."""
    output_mb: Megabytes = 1024
    """Most that it may write to stdout and stderr, MB; an execution that writes more is ended. The last 64 KB are kept
    whatever this says."""
    files: Count = 200_000
    """Most files and folders in its folder."""
    open_files: Count = 4096
    """Most open files of one process."""
    processes: Count = 1024
    """Most processes and threads of one execution."""
    cpus: Positive | None = None
    """Processors that one execution may keep busy; unset: as many as there are."""
    visible: tuple[Annotated[str, Field(pattern=r"^/[^/]")], ...] = ()
    """Further folders and files of this machine that every execution may read where not all are visible, absolute:
    a harness that is installed in a home folder, say."""
    image: str = ""
    """Image of every execution whose task names none of its own; only where executions are containers."""
    docker: DockerSection = DockerSection()
    """What only containers of a Docker engine have."""
    kubernetes: KubernetesSection = KubernetesSection()
    """What only pods have."""
