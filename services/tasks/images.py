"""Whether the images of a run's tasks are there, asked before it begins."""

from collections.abc import Iterable

from gyre.config import Config
from gyre.sandboxes.docker_check import missing_images
from gyre.tasks.folder import Task, TaskError


def refuse_missing(config: Config, tasks: Iterable[Task], source: str) -> None:
    """Raises TaskError for the first task of `source` whose image a Docker engine has not and would not fetch.

    SandboxError where no engine answers.
    """
    graded = config.evaluator.sandbox == "docker" and not config.evaluator.image
    if config.sandbox.kind != "docker" and not graded:
        return
    first: dict[str, Task] = {}
    for task in tasks:
        if task.image and (task.built or config.sandbox.docker.pull == "never"):
            first.setdefault(task.image, task)
    missing = missing_images(config.sandbox.docker, first)
    if missing:
        more = f" (and {len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise TaskError(lacking(first[missing[0]], source) + more)


def lacking(task: Task, source: str) -> str:
    """One line about a task whose image is not there, with the way out."""
    if task.built:
        return f"task {task.name}: its image {task.image} is not built; `gyre tasks build {source}`"
    return (
        f"task {task.name}: image {task.image} is not on this machine; `docker pull {task.image}`, or set "
        'sandbox.docker.pull = "missing"'
    )
