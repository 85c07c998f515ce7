"""Makes the twin of a file of tests: every test in it must fail wherever the true one passes.

A result that does not hang on what the tests ask for proves nothing, however it came about: functions that check were
replaced, a value that equals everything, a runner that was talked into it. So the twin's tests ask for something else:
the literal that a test compares with is another one, a condition is negated, another exception is expected. The work
cannot tell the two apart unless it knows the right answers. It is the last assertion that is turned, so that a twin
leaves behind what its test leaves. Where none is reached for certain, the twin fails at its end, or, where that is not
reached for certain either, at its first line.
"""

from __future__ import annotations

import ast
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # older Pythons than ours run this
    from collections.abc import Collection, Container, Iterator

    Edit = tuple[int, int, str]
    Function = ast.FunctionDef | ast.AsyncFunctionDef
EXEMPT = ("xfail", "expectedFailure")
"""Tests that are expected to fail do so in both."""
EQUAL = {
    "assertCountEqual", "assertDictEqual", "assertEqual", "assertEquals", "assertListEqual", "assertMultiLineEqual",
    "assertSequenceEqual", "assertSetEqual", "assertTupleEqual",
}  # fmt: skip
_PAIRS = (
    ("assertTrue", "assertFalse"),
    ("assertIn", "assertNotIn"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertRegex", "assertNotRegex"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
)
OPPOSITE = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}
OPPOSITE["assertNotEqual"] = "assertEqual"
RAISES = ("assertRaises", "assertRaisesMessage", "assertRaisesRegex", "raises")
ENDS = ("base", "exit", "interrupt", "skip", "cancel", "outcome")
"""In names of exceptions that tell a runner something where nobody expects them: that a test was skipped, or to end."""
MAKERS = ("setattr", "delattr", "exec", "eval", "globals", "locals", "vars")
"""Functions by which a file may make tests that do not stand in it."""
UNLIKELY = ("BufferError", "FloatingPointError", "ReferenceError")
"""Exceptions that hardly any code raises."""
MADE = (ast.Attribute, ast.BoolOp, ast.Call, ast.IfExp, ast.Lambda, ast.Name, ast.Subscript)
"""What gives a name to a test that stands nowhere as a function of that name."""
LISTING = ("parameterized", "expand", "data", "file_data")
"""In names of decorators that make several tests of one and add to its name."""
BARE = ("object", "TestCase", "IsolatedAsyncioTestCase")
"""Classes that have no tests."""
LEAVES = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)
"""Behind a statement with one of these nothing is reached for certain."""


class Twin:
    """Of one file."""

    def __init__(self, text: str, methods_only: bool = False, known: Collection[str] = ()) -> None:
        """What stands in it.

        Args:
            text: of the file.
            methods_only: its functions are no tests, but its classes may be what tests inherit.
            known: functions that get no twins: who knows how they read could tell those.
        """
        self.turned: set[str] = set()
        """Names of the functions that were turned, each behind those of its classes: `OneTest.test_a`."""
        self.exempt: set[str] = set()
        """Names of those that were left as they are."""
        self.made: set[str] = set()
        """Names (without their classes') of tests, and of classes, that its code makes: none of them has a twin."""
        self.listed: set[str] = set()
        """Names (without their classes') of functions that a decorator makes several tests of, by longer names."""
        self.leaves_alike = True
        """Whether each twin does all that its test does but for failing, as far as its text says."""
        self.makes_more = False
        """Whether it makes tests that stand nowhere as functions, which can have no twins."""
        self.decorated: set[str] = set()
        """Its classes of which a decorator may make others."""
        self.names: set[str] = set()
        """Functions, modules and others that it speaks of: what its tests call may be tests themselves."""
        self._body = text.encode()
        self._starts = [0]
        for line in self._body.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[Edit, str]] = []
        self.module = ast.Module([], [])
        """What it says; nothing, where that cannot be read."""
        try:
            self.module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.makes_more = True
            return
        self._edits = sorted(self._found(methods_only, known), reverse=True)
        self.made = {*_named_at(self.module), *_in_functions(self.module)}
        self.listed = {
            node.name
            for node in ast.walk(self.module)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(map(_lists, node.decorator_list))
        }
        self.decorated = {
            node.name for node in ast.walk(self.module) if isinstance(node, ast.ClassDef) and node.decorator_list
        }
        self.makes_more = any(map(_makes_tests, _outside_tests(self.module)))
        self.names = {name for node in ast.walk(self.module) for name in _spoken(node)}

    def inherits(self, function: str) -> str:
        """The function, of another class of this file, that one is which its class has not; empty: not for certain."""
        owner, _, last = function.rpartition(".")
        classes = [node for node in self.module.body if isinstance(node, ast.ClassDef)]
        known = {node.name: node for node in classes if [each.name for each in classes].count(node.name) == 1}
        found, queue, seen = set(), [owner], set()
        while queue:
            name = queue.pop()
            if name not in known or last in self.made:
                return ""
            seen.add(name)
            if f"{name}.{last}" in self.turned | self.exempt:
                found.add(f"{name}.{last}")
            bases = [self.source(each) for each in known[name].bases]
            queue += [
                each for each in bases if each not in seen and (each in known or each.rpartition(".")[2] not in BARE)
            ]
        return found.pop() if len(found) == 1 else ""

    def text(self, turned: Container[str]) -> str:
        """The file with the twins of these functions in their places."""
        body = self._body
        for (start, end, new), name in self._edits:
            if name in turned:
                body = body[:start] + new.encode() + body[end:]
        return body.decode()

    def _found(self, methods_only: bool, known: Collection[str]) -> Iterator[tuple[Edit, str]]:
        source = self._body.decode()
        all_exempt = "pytestmark" in source and any(word in source for word in EXEMPT)
        for function, owners in each_test(self.module.body):
            decorators = [self.source(each) for node in (function, *owners) for each in node.decorator_list]
            if (methods_only and not owners) or any(map(_is_fixture, function.decorator_list)):
                continue
            texts, name = [self.source(function), *decorators], named(function, owners)
            if all_exempt or name in known or any(word in text for text in texts for word in EXEMPT):
                self.exempt.add(name)
            else:
                self.turned.add(name)
                yield self._edit(function), name

    def _edit(self, function: Function) -> Edit:
        last, found = function.body[-1], None
        for statement in function.body:
            here = self._assertion(statement)
            found, ends_it = here or found, here is not None and statement is last
            if any(isinstance(node, LEAVES) for node in ast.walk(statement)):
                self.leaves_alike = self.leaves_alike and ends_it
                return found or self._failing_at_once(function)
        self.leaves_alike = self.leaves_alike and (found is None or ends_it)
        return found or self._failing_at_its_end(function)

    def _failing_at_its_end(self, function: Function) -> Edit:
        indent, end = self._before(function.body[0]), self._span(function.body[-1])[1]
        if indent.strip():  # all of it is on the line of its `def`
            return self._failing_at_once(function)
        return end, end, f"\n{indent}raise AssertionError"

    def _failing_at_once(self, function: Function) -> Edit:
        first = function.body[0]
        lines = [first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))]
        start = self._starts[min(lines) - 1] + first.col_offset
        if hasattr(first, "body") or hasattr(first, "cases"):
            return start, start, "raise AssertionError\n" + self._before(first)
        return start, start, "raise AssertionError; "

    def _before(self, statement: ast.stmt) -> str:
        """What stands before it on its line."""
        line = self._starts[statement.lineno - 1]
        return self._body[line : line + statement.col_offset].decode()

    def _assertion(self, statement: ast.stmt) -> Edit | None:
        if isinstance(statement, ast.Assert):
            test = statement.test
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
                return self._unequal(test.left, test.comparators[0])
            start, end = self._span(test)
            return start, end, f"not ({self.source(test)})"
        if isinstance(statement, ast.With) and len(statement.items) == 1:
            return self._raising(statement.items[0].context_expr)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None
        name, (_, end) = call.func.attr, self._span(call.func)
        if name in RAISES:
            return self._raising(call)
        if name in OPPOSITE and isinstance(call.func.value, ast.Name):
            return end - len(name), end, OPPOSITE[name]
        if name not in EQUAL or len(call.args) < 2 or any(isinstance(each, ast.Starred) for each in call.args):  # noqa: PLR2004
            return None
        return self._unequal(call.args[0], call.args[1])

    def _raising(self, call: ast.expr) -> Edit | None:
        """What expects an exception expects another one."""
        if not isinstance(call, ast.Call) or not call.args or isinstance(call.args[0], ast.Starred):
            return None
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        expected = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else [call.args[0]]
        said = [self.source(each) for each in expected]
        others = [each for each in UNLIKELY if each not in said]
        harmless = all(map(_is_an_ordinary_exception, said)) and bool(said)
        return (*self._span(call.args[0]), secrets.choice(others)) if name in RAISES and others and harmless else None

    def _unequal(self, left: ast.expr, right: ast.expr) -> Edit:
        """Whatever equals what was asked for does not equal what is asked for then."""
        found = self._altered(right) or self._altered(left)
        if found is not None:
            return found
        start, end = self._span(right)
        return start, end, f"({secrets.randbelow(1000)}, {self.source(right)})"

    def _altered(self, node: ast.expr) -> Edit | None:
        """Another literal of the same kind."""
        if isinstance(node, ast.Constant):
            other = _other(node.value)
            return None if other is None else (*self._span(node), repr(other))
        parts: list[ast.expr] = []
        if isinstance(node, (ast.List, ast.Tuple)):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            parts = [node.operand]
        found = (self._altered(each) for each in reversed(parts))
        return next((each for each in found if each is not None), None)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        """What stands there."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return self._body[start : self._starts[node.end_lineno - 1] + node.end_col_offset].decode()


def _is_an_ordinary_exception(said: str) -> bool:
    """Whether it is named, and nothing that a runner would take for more than a failure when the twin lets it out."""
    *parts, last = said.split(".")
    known = all(part.isidentifier() for part in (*parts, last)) and last[0].isupper()
    return known and not any(word in said.lower() for word in ENDS)


def _is_fixture(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", "")) in ("fixture", "yield_fixture")


def _is_a_test(node: ast.AST) -> bool:
    """By its name: other nodes have one that is none, as `except ImportError:`, or is a node itself."""
    name = getattr(node, "name", None)
    return isinstance(name, str) and name.startswith("test")


def _outside_tests(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not _is_a_test(child):
            yield child
            yield from _outside_tests(child)


def _makes_tests(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in MAKERS or (node.func.id == "type" and len(node.args) > 1)
    return getattr(node, "name", "") in ("load_tests", "pytest_generate_tests")


def _lists(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return any(getattr(node, "attr", getattr(node, "id", "")) in LISTING for node in ast.walk(called))


def _named_at(node: ast.AST) -> Iterator[str]:
    """Names of tests, and of classes of tests, that a module and its classes give to what may be one.

    What a function gives such a name is no test: a `setUp` keeps `self.test_data`.
    """
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _given(child)
            yield from _named_at(child)


def _given(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        for each in node.targets:
            yield from _of_tests(each, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield from _of_tests(node.target, node.value)
    elif isinstance(node, ast.For):
        yield from _of_tests(node.target, None)


def _of_tests(target: ast.expr, value: ast.expr | None) -> Iterator[str]:
    """Those of the names in a target that may be of tests: not where it is plain data. None: it is not said."""
    several, values = getattr(target, "elts", []), getattr(value, "elts", [])
    if several and len(several) == len(values):
        for one, its in zip(several, values):  # noqa: B905 - older Pythons than ours have no `strict`
            yield from _of_tests(one, its)
    elif several:
        for one in several:
            yield from _of_tests(one, None)
    elif value is None or isinstance(value, MADE):
        name = getattr(target, "id", getattr(target, "attr", ""))
        more = getattr(value, "attr", getattr(value, "id", "")) + "_"  # by such a name its twin is found
        if name.startswith(("test", "Test")) and not name.startswith(more):
            yield name


def _in_functions(module: ast.Module) -> Iterator[str]:
    """Tests of classes that a function makes: it returns the class, and that gets another name."""
    for node in _outside_tests(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            classes = (each for each in ast.walk(node) if isinstance(each, ast.ClassDef))
            yield from (function.name for each in classes for function, _ in each_test(each.body))


def _spoken(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (getattr(node, "module", None) or "").split(".")
        yield from (part for each in node.names for part in each.name.split("."))
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        base = node.value.func if isinstance(node.value, ast.Call) else None
        if getattr(base, "id", "") != "super":  # a test that goes on with the one it stands for is that test
            yield node.attr


def _other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 + secrets.randbelow(9)
    if isinstance(value, float):
        more = value + 1.0 + secrets.randbelow(9)
        return more if more != value else value / 2
    if isinstance(value, str):
        return value + secrets.choice("aeiou")
    if isinstance(value, bytes):
        return value + secrets.choice("aeiou").encode()
    return None


def each_test(
    body: list[ast.stmt], owners: tuple[ast.ClassDef, ...] = ()
) -> Iterator[tuple[Function, tuple[ast.ClassDef, ...]]]:
    """Each test that stands there, in whatever branch, and the classes that it stands in."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("test"):
                yield node, owners
        elif isinstance(node, ast.ClassDef):
            yield from each_test(node.body, (*owners, node))
        else:
            yield from each_test(_inner(node), owners)


def _inner(node: ast.AST) -> list[ast.stmt]:
    """Statements in the branches, handlers and cases of one."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif not isinstance(child, ast.expr):
            found += _inner(child)
    return found


def named(function: Function, owners: tuple[ast.ClassDef, ...]) -> str:
    """A function's name behind those of its classes."""
    return ".".join(each.name for each in (*owners, function))
