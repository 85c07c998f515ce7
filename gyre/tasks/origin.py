"""Where a task's image and its first workspace come from: an image that is named, or a Dockerfile.

A Dockerfile that only copies files is done without an engine. Any other one has to be built (`gyre tasks build`); the
image's name follows from what it is built of, so that whoever has the files knows the name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.tasks.context import Context, read_context
from gyre.tasks.dockerfile import Plain, copy_files, hindrance, read_dockerfile
from gyre.tasks.task_file import TaskError, TaskFile


@dataclass(frozen=True, slots=True)
class Origin:
    """What a task begins with."""

    image: str = ""
    """Its image; empty: any will do."""
    workdir: str = ""
    """Where its Dockerfile has the work; empty: it says nothing of it."""
    plain: Plain | None = None
    """A Dockerfile whose files are the workspace."""
    context: Context | None = None
    """What `plain` copies from, or what the image is built of."""

    @property
    def built(self) -> bool:
        """Whether `gyre tasks build` makes the image."""
        return self.context is not None and self.plain is None

    def fields(self) -> dict[str, Any]:
        """What `write_task` is told of it."""
        return {"environment_docker_image": self.image or None, "gyre_built": self.built}

    def lay(self, workspace: Path) -> None:
        """Copy what the Dockerfile copies, where that is the workspace."""
        if self.plain is not None and self.context is not None:
            copy_files(self.plain, self.context, workspace)


def origin_of(file: Path, settings: TaskFile, name: str, hidden: tuple[str, ...] = ()) -> Origin:
    """Of the task `name` with this Dockerfile, which may be missing; `hidden` never gets into an image.

    Raises TaskError.
    """
    named = settings.environment.docker_image or ""
    if not file.is_file():
        return Origin(named)
    plain = read_dockerfile(file)
    workdir = settings.environment.workdir or plain.workdir
    if "$" in workdir:
        raise TaskError(f"{file}: WORKDIR {workdir}: variables are not looked up; write environment.workdir = its path")
    if plain.needs and named:
        return Origin(named, workdir)
    context = read_context(file.parent, hidden, settings.gyre.build_args)
    if not hindrance(plain, context) and not (plain.variables and settings.gyre.needs_image and not named):
        return Origin(named or plain.base, workdir, plain, context)
    return Origin(named, workdir) if named else Origin(context.image(name), workdir, context=context)


def image_of(file: Path, settings: TaskFile, name: str, named: str = "") -> Origin:
    """Of a task whose workspace does not come from an image: that named, else that of a Dockerfile, if there is one.

    Raises TaskError.
    """
    if named or not file.is_file():
        return Origin(named)
    plain = read_dockerfile(file)
    if not (plain.needs or plain.copies or plain.variables):
        return Origin(plain.base)
    context = read_context(file.parent, arguments=settings.gyre.build_args)
    return Origin(context.image(name), context=context)
