"""Which tasks a sandbox can run."""

from collections.abc import Iterable

from gyre.tasks.folder import Task
from gyre.tasks.task_file import TaskError

WITH_IMAGES = ("docker", "kubernetes")
"""Kinds of sandboxes that run a command in an image."""
SHARED = ("process",)
"""Kinds in which a command sees this machine's file system as it is."""


def refuse_unfit(tasks: Iterable[Task], kind: str, setting: str = "sandbox.kind") -> None:
    """Raises TaskError for the first task that a sandbox of this kind, chosen by this setting, cannot run."""
    for task in tasks:
        if task.needs_image and kind not in WITH_IMAGES:
            raise TaskError(
                f"task {task.name}: needs image {task.image}, which {setting} = {kind} has not; set it to docker, "
                "or gyre.needs_image = false in the task's task.toml if this machine's own programs will do"
            )
        if task.built and kind == "kubernetes":
            raise TaskError(
                f"task {task.name}: its image is built on one machine, and {setting} = kubernetes needs one that every "
                "node can fetch; push it to your registry and name it as environment.docker_image in its task.toml"
            )
        if task.fixed and kind in SHARED:
            raise TaskError(
                f"task {task.name}: its texts name {', '.join(task.fixed)}, which {setting} = {kind} has not; set "
                "it to bubblewrap or docker, or write $TESTS_DIR, $LOGS_DIR and names relative to the workspace"
            )
