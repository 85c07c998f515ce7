"""Which tests a file has for certain, as its text says: what reports more of them than there are has made them up.

What counts is a number of tests whose names are not known beforehand, and the work sits in the process that names them.
"""

from __future__ import annotations

import ast
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # older Pythons than ours run this
    from collections.abc import Iterable, Iterator
UNSURE = (
    "del ",
    "setattr(",
    "delattr(",
    "globals()",
    "pytestmark",
    "__test__",
    "load_tests",
    "pytest_generate_tests",
    "SkipTest",
    "importorskip",
    "module_level",
)
"""Words by which a whole file may have other tests than it shows."""
PLAIN = ("pytest.mark.", "mark.", "patch", "mock.patch", "given", "settings")
"""How decorators begin behind which there is one test still."""
SHAPES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try)
"""Statements that leave the tests that stand in a file as they are, as do its constants and texts."""
CASES = ("TestCase", "IsolatedAsyncioTestCase")


def certain(text: str, runner: str) -> dict[str, int]:
    """{test, without its parameters: how many results it has}; what may be skipped or is inherited is not in it."""
    if any(word in text for word in UNSURE):
        return {}
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return {}
    if not all(map(_leaves_tests_alone, body)):
        return {}
    found: dict[str, int] = {}
    for node in body:
        if isinstance(node, ast.ClassDef) and _is_of_tests(node, runner) and not node.decorator_list:
            inside = dict(_results(text, node.body)) if not _may_skip(text, node) else {}
            found.update({f"{node.name}::{name}": results for name, results in inside.items()})
    if runner == "pytest":
        found.update(_results(text, body))
    return {name: results for name, results in found.items() if results}


def counted(passed: Iterable[str], sure: dict[str, int], count: int) -> int:
    """How many of these tests count: of each no more than there are, of others as many as are left of `count`."""
    several: dict[str, int] = {}
    for name in passed:
        base = name.partition("[")[0]
        several[base] = several.get(base, 0) + 1
    known = sum(min(number, sure.get(base, 0)) for base, number in several.items())
    others = sum(several.values()) - known
    return min(known + min(others, max(0, count - sum(sure.values()))), count)


def _leaves_tests_alone(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(each, ast.Name) and "test" not in each.id.lower() for each in targets)
    return isinstance(node, SHAPES) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_of_tests(node: ast.ClassDef, runner: str) -> bool:
    names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in node.bases]
    if any(name in CASES for name in names):
        return True
    makes = any(getattr(each, "name", "") in ("__init__", "__new__") for each in node.body)
    return runner == "pytest" and node.name.startswith("Test") and not node.bases and not makes


def _may_skip(text: str, node: ast.ClassDef) -> bool:
    """Whether what is in a class beside its tests speaks of skipping."""
    others = (each for each in node.body if not getattr(each, "name", "").startswith("test"))
    return any("skip" in (ast.get_source_segment(text, each) or "").lower() for each in others)


def _results(text: str, body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            said = [ast.get_source_segment(text, node) or "", *(_source(text, each) for each in node.decorator_list)]
            plain = all(each.startswith(PLAIN) for each in said[1:])
            surely = plain and not any(word in each for each in said for word in ("skip", "xfail", "marks"))
            yield node.name, prod(map(_variants, node.decorator_list)) if surely else 0


def _source(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ""


def _variants(decorator: ast.expr) -> int:
    """How many tests it makes of one; 0: not said."""
    if not isinstance(decorator, ast.Call) or getattr(decorator.func, "attr", "") != "parametrize":
        return 1
    values = decorator.args[1] if len(decorator.args) > 1 else None
    if not isinstance(values, (ast.List, ast.Tuple)) or any(isinstance(each, ast.Starred) for each in values.elts):
        return 0
    return len(values.elts)
