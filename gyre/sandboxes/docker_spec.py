"""What a Docker engine is told of a sandbox: pure, from a command to the body of `POST /containers/create`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.sandboxes.port import NO_CORE, Command, Limits, SandboxError
from gyre.sandboxes.shown import environment, mounted

LABEL = "gyre.sandbox"
"""Every container of a sandbox has it."""
_VEIL = "rw,noexec,nosuid,nodev,mode=755,size=1m"  # root's, in which what is deeper is mounted
_DOOR_BYTES, _DOOR_PROCESSES = 64 << 20, 16


@dataclass(frozen=True, slots=True)
class Body:
    """What all containers of one sandbox have in common."""

    limits: Limits
    user: str
    """uid:gid"""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """As `DockerSection.mounts`."""
    scratch_mb: int = 256
    visible: tuple[Path, ...] = ()
    """Shown to every command besides what it asks for itself."""
    hidden: Path | None = None
    """Never shown as a whole: the run's folder."""

    def of(self, command: Command, image: str, labels: Mapping[str, str], network: str = "none") -> dict[str, Any]:
        """The container of one command. Raises `SandboxError` for a folder that it would not see."""
        places = mounted(command, self.visible, self.hidden)
        shown = (path for path, whole in places.items() if whole)
        seen = [self.mount(command.box), *(self.mount(path, read_only=True) for path in shown)]
        seen += [self._place(command.box, name, path) for name, path in command.places]
        veils = {str(path): _VEIL for path, whole in places.items() if not whole}
        hardened = self._hardened(network)
        return {
            **self._process(command.arguments, environment(command), labels, image),
            "WorkingDir": str(command.folder),
            "HostConfig": {
                **hardened,
                "Tmpfs": {**hardened["Tmpfs"], **veils},
                "Memory": self.limits.memory_bytes,
                "MemorySwap": self.limits.memory_bytes,
                "PidsLimit": self.limits.processes,
                "NanoCpus": int((self.limits.cpus or 0) * 1e9),
                "Mounts": [each for each in seen if each],
                "Ulimits": [_ulimit(name, most) for name, most in self._most().items()],
            },
        }

    def _most(self) -> dict[str, int]:
        """What each process of it may have."""
        limits = self.limits
        return {"fsize": limits.file_bytes, "nofile": limits.open_files, "core": NO_CORE}

    def door(self, arguments: tuple[str, ...], folder: Path, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """The container whose network a command shares; `folder` holds the way out of it, and is this process's own."""
        return {
            **self._process(arguments, {}, labels, image),
            "User": f"{os.getuid()}:{os.getgid()}",
            "HostConfig": {
                **self._hardened("none"),
                "Memory": _DOOR_BYTES,
                "MemorySwap": _DOOR_BYTES,
                "PidsLimit": _DOOR_PROCESSES,
                "Mounts": [each for each in [self.mount(folder)] if each],
            },
        }

    def bare(self, program: str, labels: Mapping[str, str], image: str) -> dict[str, Any]:
        """A container to look at the image in."""
        return {**self._process((program,), {}, labels, image), "HostConfig": self._hardened("none")}

    def mount(self, path: Path, *, read_only: bool = False) -> dict[str, Any] | None:
        """How the engine finds a path of ours, to be mounted at the same place; None: images have it themselves."""
        inside = (each for each in sorted(self.mounts, key=len, reverse=True) if path.is_relative_to(each))
        prefix = next(inside, None)
        told = {"Target": str(path), "ReadOnly": read_only}
        if prefix is None:
            return {**told, "Type": "bind", "Source": str(path)}
        source, rest = self.mounts[prefix], path.relative_to(prefix)
        if not source:
            return None
        if source.startswith("/"):
            return {**told, "Type": "bind", "Source": str(source / rest)}
        part = {"Subpath": str(rest)} if rest.parts else {}
        return {**told, "Type": "volume", "Source": source, "VolumeOptions": {"NoCopy": True, **part}}

    def _place(self, box: Path, name: str, path: Path) -> dict[str, Any]:
        """A folder under another name. Raises `SandboxError` where only images know it."""
        found = self.mount(path, read_only=not path.is_relative_to(box))
        if found is None:
            raise SandboxError(f"{path}: is to be {name} as well, but images have it; see sandbox.docker.mounts")
        return {**found, "Target": name}

    def _process(
        self, arguments: tuple[str, ...], variables: Mapping[str, str], labels: Mapping[str, str], image: str
    ) -> dict[str, Any]:
        return {
            "Image": image,
            "Entrypoint": list(arguments[:1]),
            "Cmd": list(arguments[1:]),
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "User": self.user,
            "Labels": {LABEL: "1", **labels},
            "Healthcheck": {"Test": ["NONE"]},
        }

    def _hardened(self, network: str) -> dict[str, Any]:
        return {
            "NetworkMode": network,
            "Init": True,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={self.scratch_mb}m"},  # noqa: S108 - in the image
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
        }


def _ulimit(name: str, most: int) -> dict[str, Any]:
    return {"Name": name, "Soft": most, "Hard": most}
