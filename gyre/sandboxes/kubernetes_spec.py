"""What a cluster is told of a sandbox: pure, from a command to a Pod."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gyre.config_containers import KubernetesSection
from gyre.sandboxes import owners
from gyre.sandboxes.port import Command, Limits, SandboxError
from gyre.sandboxes.shown import environment, mounted

CONTAINER = "command"
COMPONENT = "app.kubernetes.io/component"
SANDBOX = "sandbox"
OWNER = "gyre.dev/owner"
"""Label: the process that made it."""
REACH = "gyre.dev/reach"
"""Label by which network policies know what a pod may call: "proxy" or "nothing"."""
_VEIL, _EMPTY = "veil", {"emptyDir": {"sizeLimit": "1Mi"}}
_SPARE_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Body:
    """What all pods of one sandbox have in common."""

    chosen: KubernetesSection
    limits: Limits
    visible: tuple[Path, ...] = ()
    """Shown to every command besides what it asks for itself."""
    hidden: Path | None = None
    """Never shown as a whole: the run's folder."""

    def of(
        self, command: Command, image: str, name: str, owner: Mapping[str, str], hosts: Mapping[str, str]
    ) -> dict[str, Any]:
        """The pod of one command.

        Args:
            command: what runs in it.
            image: in which image.
            name: of the pod.
            owner: what `gyre.sandboxes.owners` says of it.
            hosts: address -> host name that it shall know without asking.
        Raises:
            SandboxError: a folder of the command lies in no claim, or would not be seen.
        """
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {
                    COMPONENT: SANDBOX,
                    OWNER: owner[owners.OWNER],
                    REACH: "proxy" if command.reach else "nothing",
                },
                "annotations": dict(owner),
            },
            "spec": self._spec(command, image, hosts),
        }

    def _spec(self, command: Command, image: str, hosts: Mapping[str, str]) -> dict[str, Any]:
        places, chosen = self._places(command), self.chosen
        user, group = (int(each) for each in chosen.user.split(":"))
        wait = command.deadline_seconds + command.grace_seconds + chosen.schedule_seconds
        return {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(wait + _SPARE_SECONDS),
            "terminationGracePeriodSeconds": math.ceil(command.grace_seconds),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": SANDBOX,
            "hostAliases": [{"ip": ip, "hostnames": [host]} for ip, host in hosts.items()],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": user,
                "runAsGroup": group,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"runtimeClassName": chosen.runtime_class} if chosen.runtime_class else {}),
            "containers": [self._container(command, image, places)],
            "volumes": [
                *map(_volume, sorted({each["name"] for each in places})),
                {"name": "tmp", "emptyDir": {"sizeLimit": f"{chosen.scratch_mb}Mi"}},
            ],
        }

    def _container(self, command: Command, image: str, places: list[dict[str, Any]]) -> dict[str, Any]:
        chosen, limits = self.chosen, self.limits
        most = {"memory": str(limits.memory_bytes), "ephemeral-storage": f"{chosen.scratch_mb + 64}Mi"}
        return {
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": chosen.pull,
            "command": [_literal(each) for each in command.arguments],
            "workingDir": str(command.folder),
            "env": [{"name": key, "value": _literal(value)} for key, value in environment(command).items()],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "privileged": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {
                "requests": {"cpu": chosen.cpu_request, "memory": chosen.memory_request},
                "limits": {**most, **({"cpu": f"{limits.cpus:g}"} if limits.cpus else {})},
            },
            "volumeMounts": [*places, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - in the pod
        }

    def _places(self, command: Command) -> list[dict[str, Any]]:
        places = mounted(command, self.visible, self.hidden)
        shown = (self._mount(path) for path, whole in places.items() if whole)
        found = [self._mount(command.box, read_only=False), *shown]
        named = (
            (name, self._mount(path, read_only=not path.is_relative_to(command.box))) for name, path in command.places
        )
        return [
            *({"name": _VEIL, "mountPath": str(path)} for path, whole in places.items() if not whole),
            *(each for each in found if each),
            *({**each, "mountPath": name} for name, each in named if each),
        ]

    def _mount(self, path: Path, *, read_only: bool = True) -> dict[str, Any] | None:
        """How a path of ours is mounted at the same place; None: images have it themselves."""
        mounts = self.chosen.mounts
        inside = (each for each in sorted(mounts, key=len, reverse=True) if path.is_relative_to(each))
        prefix = next(inside, None)
        if prefix is None:
            raise SandboxError(f"{path}: lies in no claim; add its volume to sandbox.kubernetes.mounts")
        if not mounts[prefix]:
            return None
        rest = path.relative_to(prefix)
        part = {"subPath": str(rest)} if rest.parts else {}
        return {"name": mounts[prefix], "mountPath": str(path), "readOnly": read_only, **part}


def host_of(reach: str) -> str:
    """The host of "http://host:port"; empty where there is none."""
    return urlsplit(reach).hostname or ""


def _volume(name: str) -> dict[str, Any]:
    return {"name": name, **(_EMPTY if name == _VEIL else {"persistentVolumeClaim": {"claimName": name}})}


def _literal(value: str) -> str:
    """As it is: the cluster replaces $(NAME) in commands and in values of variables."""
    return value.replace("$", "$$")
