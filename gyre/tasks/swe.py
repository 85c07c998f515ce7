"""SWE-bench's instances (and those of its kin: SWE-Gym, R2E, DeepSWE): a repository, an issue, tests kept back.

A folder holds `instance.json` and the repository at its base commit: `repo.bundle` or `repo.git` with its history,
`repo.tar.gz` (or another archive) or `repo/` without. The agent gets a repository of one commit, which has none of that
history. Files that the test patch touches are laid over the work when it is graded, as are the configurations of the
test runner: what the agent made of either doesn't count.
"""

import ast
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gyre.tasks.folder import refuse_links_out
from gyre.tasks.git import apply, check_out, forget, one_commit, touched
from gyre.tasks.graders.twins import each_test, named
from gyre.tasks.origin import image_of
from gyre.tasks.task_file import TaskError, TaskFile, read_task_file
from gyre.tasks.unpack import ENDINGS, unpack
from gyre.tasks.writing import GUARDED, Described, Expected, write_python_tests, write_script, write_task

_TESTBED = "/testbed"
_VERIFIER_SECONDS = 600.0
_DJANGO = re.compile(r"^(\w+) \(([\w.]+)\)$")
_SOLVE = '#!/bin/sh\nexec git apply --whitespace=nowarn "${0%/*}/solution.patch"\n'


def _names(value: Any) -> Any:
    """Lists are written as JSON text in the published tables."""
    return json.loads(value) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class Instance(BaseModel):
    """One line of such a data set; other keys are let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    problem_statement: Annotated[str, Field(min_length=1)]
    base_commit: str = ""
    patch: str = ""
    test_patch: Annotated[str, Field(min_length=1)]
    fail_to_pass: Names = Field(validation_alias="FAIL_TO_PASS", min_length=1)
    pass_to_pass: Names = Field(default=(), validation_alias="PASS_TO_PASS")
    docker_image: str = ""
    image_name: str = ""
    difficulty: str = "unknown"
    repo: str = ""


def recognises(path: Path) -> bool:
    """Whether a folder holds an instance."""
    return (path / "instance.json").is_file()


def read(path: Path) -> Described:
    """A folder with an instance. Raises TaskError."""
    try:
        text = (path / "instance.json").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}/instance.json: not readable as UTF-8 text: {error}") from error
    instance = parse(text, f"{path}/instance.json")
    return describe(instance, path, _repository(path))


def read_lines(file: Path) -> Iterator[Described]:
    """Each line of a .jsonl file, the repositories beside it in `repos/<owner>__<name>.bundle` or such.

    Raises TaskError.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):  # JSON may hold other ends of lines
        if line.strip():
            instance = parse(line, f"{file}:{number}")
            yield describe(instance, file.parent, _repository_of(file, instance))


def parse(text: str, where: str) -> Instance:
    """An instance. Raises TaskError naming `where`, the field and what is wrong with it."""
    try:
        return Instance.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{where}: {key}: {first['msg']}") from error
    except ValueError as error:
        raise TaskError(f"{where}: not readable as JSON: {error}") from error


def describe(instance: Instance, path: Path, repository: Path) -> Described:
    """What can be told without unpacking. Raises TaskError."""
    settings = read_task_file(path / "task.toml") if (path / "task.toml").is_file() else TaskFile()
    name = settings.metadata.name or instance.instance_id
    named = settings.environment.docker_image or instance.docker_image or instance.image_name
    origin = image_of(path / "environment/Dockerfile", settings, name, named)
    extra = {"instance": instance, "repository": repository}
    return Described(name, instance.problem_statement, settings, path, origin, extra)


def write(described: Described, target: Path) -> None:
    """As a folder of gyre's own layout. Raises TaskError."""
    instance: Instance = described.extra["instance"]
    settings = described.settings
    try:
        _write_all(described, instance, target)
    except TaskError as error:
        raise TaskError(f"task {described.name}: {error}") from error
    image = described.origin.image
    difficulty = settings.metadata.difficulty
    write_task(
        target,
        described,
        metadata_difficulty=instance.difficulty if difficulty == "unknown" else difficulty,
        **described.origin.fields(),
        environment_workdir=settings.environment.workdir or (_TESTBED if image else None),
        verifier_timeout_sec=(settings.verifier.timeout_sec or _VERIFIER_SECONDS) * (1 + settings.gyre.twins),
        gyre_kind="swe",
    )


def _write_all(described: Described, instance: Instance, target: Path) -> None:
    workspace = target / "environment"
    _unfold(described.extra["repository"], instance.base_commit, workspace)
    forget(workspace)
    refuse_links_out(workspace)
    tested, patches = target / "tested", target / "patches"
    patches.mkdir()
    for name, text in (("test", instance.test_patch), ("solution", instance.patch)):
        (patches / f"{name}.patch").write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    shutil.copytree(workspace, tested, symlinks=True)
    apply(patches / "test.patch", tested)
    solved = touched(patches / "solution.patch", workspace) if instance.patch else ()
    changed = touched(patches / "test.patch", workspace)
    kept = [path for path in _guarded(workspace) if path not in solved]
    _write_tests(described, instance, tested, (changed, kept), target)
    if instance.patch:
        write_script(target / "solution/solve.sh", _SOLVE)
        (patches / "solution.patch").rename(target / "solution/solution.patch")
    shutil.rmtree(tested)
    shutil.rmtree(patches)
    one_commit(workspace)


def _write_tests(
    described: Described,
    instance: Instance,
    tested: Path,
    files: tuple[tuple[str, ...], list[str]],
    target: Path,
) -> None:
    """What is laid over the work, and which tests count."""
    changed, kept = files
    must, keep = (
        tuple(_node(name, tested, changed) for name in names)
        for names in (instance.fail_to_pass, instance.pass_to_pass)
    )
    run = tuple(sorted({name.partition("::")[0] for name in (*must, *keep)}))
    if missing := next((name for name in run if not (tested / name).is_file()), ""):
        raise TaskError(f"FAIL_TO_PASS or PASS_TO_PASS names {missing!r}, which is no file of the tested repository")
    laid = sorted({*changed, *kept, *run})
    seconds = (described.settings.verifier.timeout_sec or _VERIFIER_SECONDS) * 0.8 / len(run)
    expected = Expected(
        files=run,
        runner=_runner(tested / name for name in run),
        must_pass=must,
        keep_passing=keep,
        scoring=described.settings.gyre.scoring,
        remove=tuple(laid),
        config=next((name for name in ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg") if name in kept), ""),
        seconds=seconds,
        twins=described.settings.gyre.twins,
        known=known_tests(target / "environment", tested, [name for name in laid if name.endswith(".py")]),
    )
    lay = write_python_tests(target, expected)
    for name in laid:
        if (tested / name).is_file():
            (lay / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tested / name, lay / name)


def known_tests(workspace: Path, tested: Path, names: list[str]) -> dict[str, list[str]]:
    """{file: functions of tests that stand in the agent's own files as they are}, wherever they stood there."""
    bases = [[workspace / name] if (workspace / name).is_file() else workspace.rglob(Path(name).name) for name in names]
    known = {said for files in bases for file in files for said in _said(file).values()}
    found = {name: _said(tested / name) for name in names}
    return {name: sorted(each for each, said in tests.items() if said in known) for name, tests in found.items()}


def _said(file: Path) -> dict[str, tuple[str, str]]:
    """{function of tests: (its own name, all that it does)}."""
    if not file.is_file():
        return {}
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        named(function, owners): (function.name, "\n".join(map(ast.dump, function.body)))
        for function, owners in each_test(module.body)
    }


def _node(name: str, tested: Path, changed: Iterable[str]) -> str:
    """A test's name as pytest writes it.

    unittest's and Django's `test_a (package.module.Class)` are turned into it, and a bare `test_a` that one of the
    changed files has.
    """
    found = _DJANGO.match(name)
    if not found:
        return _bare(name, tested, changed) if name.isidentifier() else name
    method, dotted = found.groups()
    parts = dotted.removesuffix(f".{method}").split(".")
    for cut in range(len(parts), 0, -1):
        file = "/".join(parts[:cut]) + ".py"
        if (tested / file).is_file():
            return "::".join([file, *parts[cut:], method])
    raise TaskError(f"test {name!r}: no file of the tested repository is module {dotted}")


def _bare(name: str, tested: Path, changed: Iterable[str]) -> str:
    for file in changed:
        if file.endswith(".py") and (tested / file).is_file():
            for path in _functions(ast.parse((tested / file).read_text(encoding="utf-8", errors="replace"))):
                if path[-1] == name:
                    return "::".join([file, *path])
    raise TaskError(f"test {name!r}: no file that the test patch touches has it")


def _functions(node: ast.AST) -> Iterator[tuple[str, ...]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (inner.name,)
        elif isinstance(inner, ast.ClassDef):
            yield from ((inner.name, *path) for path in _functions(inner))


def _runner(files: Iterator[Path]) -> str:
    """What the tests are written for; unittest, which comes with Python, where nothing asks for more."""
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return "unittest" if all("unittest" in text and "pytest" not in text for text in texts) else "pytest"


def _guarded(workspace: Path) -> list[str]:
    """The test runner's own files; pyproject.toml is one of them only where it says something to it."""
    found = [path for path in workspace.rglob("*") if path.name in GUARDED and path.is_file()]
    project = workspace / "pyproject.toml"
    if project.is_file() and "[tool.pytest" in project.read_text(encoding="utf-8", errors="replace"):
        found.append(project)
    return sorted(str(path.relative_to(workspace)) for path in found)


def _unfold(repository: Path, commit: str, workspace: Path) -> None:
    if repository.suffix in (".bundle", ".git"):
        check_out(repository, commit, workspace)
    elif repository.is_dir():
        refuse_links_out(repository)
        shutil.copytree(repository, workspace, symlinks=True)
    else:
        unpack(repository, workspace)
        inner = list(workspace.iterdir())
        if len(inner) == 1 and inner[0].is_dir() and inner[0].name != ".git":  # as most archives of repositories are
            inner[0].rename(workspace.with_name("inner"))
            workspace.rmdir()
            workspace.with_name("inner").rename(workspace)


def _repository(path: Path) -> Path:
    return _first(path, "repo", f"{path}")


def _repository_of(file: Path, instance: Instance) -> Path:
    name = instance.repo.replace("/", "__") or instance.instance_id
    if not re.fullmatch(r"[\w.-]+", name):
        raise TaskError(f"{file}: repo = {instance.repo!r}: not a name of a repository, owner/name")
    folder = file.parent / "repos"
    named = [each for each in (instance.instance_id, name) if _forms(folder, each)]
    return _first(folder, (named or [name])[0], f"{file}: instance {instance.instance_id}")


def _first(folder: Path, stem: str, where: str) -> Path:
    found = _forms(folder, stem)
    if not found:
        raise TaskError(
            f"{where}: its repository is missing; put {folder.name}/{stem}.bundle, {stem}.tar.gz or {stem}/ there "
            "(of an image: `docker run --rm IMAGE tar -C /testbed --exclude=.git -cz . > repo.tar.gz`)"
        )
    return found[0]


def _forms(folder: Path, stem: str) -> list[Path]:
    named = [folder / f"{stem}{ending}" for ending in (".bundle", ".git", *ENDINGS, "")]
    return [path for path in named if path.exists()]
