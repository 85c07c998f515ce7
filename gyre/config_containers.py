"""The tables [sandbox.docker] and [sandbox.kubernetes]: sandboxes that are containers."""

from typing import Annotated, Literal

from pydantic import Field

from gyre.config_section import Count, Section

Mounts = dict[Annotated[str, Field(pattern=r"^/[^/]")], str]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class DockerSection(Section):
    """Sandboxes that are containers of a Docker engine."""

    socket: str = Field(default="/var/run/docker.sock", pattern="^/")
    """Where the engine listens. Who may write to it may do anything on the engine's machine: agents never see it."""
    pull: Literal["never", "missing"] = "never"
    """"never": an image has to be there; "missing": the engine fetches one that is not."""
    user: str = Field(default="", pattern=r"^(\d+:\d+)?$")
    """User and group that agents run as, such as 1000:1000; empty: this process's own, and 65534:65534 where that is
    root. Only root can choose another one than its own."""
    mounts: Mounts = Field(default_factory=dict)
    """Where folders of this process lie for the engine, if it is a container itself: folder -> name of a volume, or
    an absolute path on the engine's machine, or nothing: images have that folder themselves. Empty: paths are the
    same for both."""
    door_image: str = ""
    """Image with python3 that holds an execution's connection to the proxy; empty: `sandbox.image`."""
    scratch_mb: Count = 256
    """Room of /tmp, which counts as memory, MB."""


class KubernetesSection(Section):
    """Sandboxes that are pods."""

    url: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Of the API server; empty: that of the cluster which this process runs in."""
    token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
    """The bearer token, read again for each call: the cluster renews it."""
    ca_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """Certificate authority of the API server; not read for http."""
    namespace: Name = "gyre-sandboxes"
    """Namespace of the pods; nothing else should live in it."""
    pull: Literal["Never", "IfNotPresent", "Always"] = "IfNotPresent"
    """When a node fetches an image."""
    user: str = Field(default="10001:10001", pattern=r"^[1-9]\d*:[1-9]\d*$")
    """User and group that agents run as: this process's own, since both write in an execution's folder."""
    mounts: Mounts = Field(default_factory=dict)
    """Where folders of this process lie: folder -> name of a claim of a volume that many nodes can write, or nothing:
    images have that folder themselves. The run folder has to be in one."""
    runtime_class: str = ""
    """Such as "gvisor" or "kata", for a kernel of its own; empty: the cluster's default."""
    cpu_request: str = Field(default="500m", pattern=r"^\d+(\.\d+)?m?$")
    """Processors that are set aside for one execution; it may use `sandbox.cpus`."""
    memory_request: str = Field(default="512Mi", pattern=r"^\d+(Ki|Mi|Gi)$")
    """Memory that is set aside for one execution; it may use `sandbox.memory_mb`."""
    schedule_seconds: Count = 600
    """How long a pod may wait for a node and for its image."""
    scratch_mb: Count = 256
    """Room of /tmp, MB."""
