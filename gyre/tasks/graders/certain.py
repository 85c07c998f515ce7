"""Which tests a file has for certain, as its text says: what reports more of them than there are has made them up.

What counts is a number of tests whose names are not known beforehand, and the work sits in the process that names them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # older Pythons than ours run this
    from collections.abc import Callable, Iterable, Iterator

    Source = Callable[[ast.expr | ast.stmt], str]
UNSURE = ("pytestmark", "__test__", "importorskip", "allow_module_level")
"""Names by which a whole file may have other tests than it shows, as have all that speak of skipping."""
PLAIN = ("pytest.mark.parametrize", "pytest.mark.asyncio", "pytest.mark.usefixtures", "patch", "mock.patch", "given")
"""How decorators begin behind which there is one test still, or as many as they list."""
SHAPES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try)
"""Statements that leave the tests that stand in a file as they are, as do its constants and texts."""
CASES = ("TestCase", "IsolatedAsyncioTestCase")


def certain(module: ast.Module, source: Source, runner: str) -> dict[str, int]:
    """{test, without its parameters: how many results it has}; what may be skipped or is inherited is not in it.

    `source` gives the text of a node of the module.
    """
    made = {node.name for node in module.body if hasattr(node, "name")}
    if not all(_leaves_alone(node, made) for node in module.body) or any(map(_is_unsure, _outside_tests(module))):
        return {}
    found: dict[str, int] = {}
    for node in _once(module.body):
        if isinstance(node, ast.ClassDef) and _is_of_tests(node, runner) and not node.decorator_list:
            inside = dict(_results(source, node.body))
            found.update({f"{node.name}::{name}": results for name, results in inside.items()})
    if runner == "pytest":
        found.update(_results(source, module.body))
    return {name: results for name, results in found.items() if results}


def counted(passed: Iterable[str], sure: dict[str, int], count: int) -> int:
    """How many of these tests count: of each no more than there are, of others as many as are left of `count`.

    Where there are more than `count`, some do not pass even for the task's author, and nothing is known of others.
    """
    several: dict[str, int] = {}
    for name in passed:
        base = name.partition("[")[0]
        several[base] = several.get(base, 0) + 1
    known = sum(min(number, sure.get(base, 0)) for base, number in several.items())
    others = sum(several.values()) - known
    left = count - sum(sure.values())
    return min(known + (min(others, left) if left >= 0 else others), count)


def _leaves_alone(node: ast.stmt, made: set[str]) -> bool:
    """Whether a statement of a module leaves the functions and classes that are made there as they are."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(each, ast.Name) and each.id not in made for each in targets)
    return isinstance(node, SHAPES) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_of_tests(node: ast.ClassDef, runner: str) -> bool:
    names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in node.bases]
    if any(name in CASES for name in names):
        return True
    makes = any(getattr(each, "name", "") in ("__init__", "__new__") for each in node.body)
    return runner == "pytest" and node.name.startswith("Test") and not node.bases and not makes


def _once(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements whose name no other has: of two alike, one is never run."""
    names = [getattr(node, "name", "") for node in body]
    return (node for node in body if names.count(getattr(node, "name", "")) == 1 or not hasattr(node, "name"))


def _outside_tests(node: ast.AST) -> Iterator[ast.AST]:
    """All but tests, and what decorates classes, which are seen to one by one."""
    for child in ast.iter_child_nodes(node):
        decorates = isinstance(node, ast.ClassDef) and child in node.decorator_list
        name = getattr(child, "name", None)  # may be no text, as of `except ImportError:`
        if not decorates and not (isinstance(name, str) and name.startswith("test")):
            yield child
            yield from _outside_tests(child)


def _is_unsure(node: ast.AST) -> bool:
    said = [getattr(node, key, None) for key in ("id", "attr", "name", "arg")]
    names = [each for each in said if isinstance(each, str)]
    return isinstance(node, ast.Delete) or any(name in UNSURE or "skip" in name.lower() for name in names)


def _results(source: Source, body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    for node in _once(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            decorators = [source(each) for each in node.decorator_list]
            said = [source(node), *decorators]
            plain = all(each.startswith(PLAIN) for each in decorators)
            surely = plain and not any(word in each for each in said for word in ("skip", "xfail", "marks"))
            yield node.name, _variants(node.decorator_list) if surely else 0


def _variants(decorators: list[ast.expr]) -> int:
    """How many tests they make of one; 0: not said."""
    number = 1
    for each in decorators:
        if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "parametrize":
            values = each.args[1] if len(each.args) > 1 else None
            if not isinstance(values, (ast.List, ast.Tuple)) or any(
                isinstance(one, ast.Starred) for one in values.elts
            ):
                return 0
            number *= len(values.elts)
    return number
