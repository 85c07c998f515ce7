"""Twins of tests: what passes as it stands fails in them, wherever the assertion is and whatever it looks like."""

import ast
import json
import textwrap
import tokenize
import unittest
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.tasks.graders.certain import certain
from gyre.tasks.graders.twins import Twin

PASSING = [
    "assert value == 7",
    "assert 7 == value",
    "assert value == wanted, 'said'",
    "assert value",
    "assert value > 3 and value < 9",
    "assert value != 8",
    "assert value in (1, 7)",
    "assert [value, {'a': value}] == [7, {'a': 7}]",
    "assert -value == -7",
    "assert 'é' + name == 'école'  # after a letter of two bytes",
    "assert b'x' == raw",
    "assert True == yes",
    "assert value * 1e300 == 7e300",
    "assert (\n    value\n    == 7\n)",
    "for each in (1, 2):\n    assert each\nassert value == 7",
    "if value == 7:\n    return\nassert value == 8",
    "match value:\n    case 7:\n        return\n    case _:\n        raise ValueError",
    "for each in (1, 2):\n    return",
    "try:\n    return\nfinally:\n    pass",
    "with self.assertRaises(KeyError):\n    raise KeyError",
    "'''says'''\nassert value is not None",
    "self.assertEqual(value, 7)",
    "self.assertEqual(value, wanted, 'said')",
    "self.assertEqual(first=value, second=7)",
    "self.assertTrue(value == 7)",
    "self.assertFalse(value == 8)",
    "self.assertIn(value, [7])",
    "self.assertNotEqual(value, 8)",
    "self.assertGreater(value, 6)",
    "self.assertLessEqual(value, 7)",
    "self.assertAlmostEqual(value / 7, 1.0, places=3)",
    "self.assertCountEqual([value, 1], [1, 7])",
    "self.assertDictEqual({'a': value}, {'a': wanted})",
    "self.assertIsInstance(value, int)",
    "self.assertIsNone(None)",
    "self.assertRegex(name, 'c.l')",
    "with self.assertRaises(ReferenceError) as said:\n    raise ReferenceError\nassert value",
    "self.assertRaises((KeyError, ValueError), {}.__getitem__, 1)",
    "self.assertRaisesRegex(KeyError, 'o', {}.__getitem__, 'o')",
    "for each in ():\n    assert each",
    "'''says'''; pass",
    "value += 1; name += '''\n  x'''  # said",
    "list(map(abs,\n    [value])); name += '1';",
    "@str\ndef inner(): return 1",
    "@str\ndef inner(): pass\nassert value",
    "pass",
]


def ends_well(text: str) -> bool:
    """Whether the one test of a class passes."""
    known: dict[str, Any] = {"unittest": unittest}
    exec(compile(text, "test_it.py", "exec"), known)
    return unittest.TestLoader().loadTestsFromTestCase(known["It"]).run(unittest.TestResult()).wasSuccessful()


def whole(body: str, head: str = "") -> str:
    given = "value, wanted, name, raw, yes = 7, 7, 'cole', b'x', True\n"
    lines = textwrap.indent(given.replace("\n", "\n"), "        ") + textwrap.indent(body, "        ")
    return f"class It(unittest.TestCase):\n{head}    def test_it(self):\n{lines}\n"


@pytest.mark.parametrize("body", PASSING)
def test_a_twin_fails_where_its_test_passes(body: str) -> None:
    twin = Twin(whole(body))
    assert ends_well(whole(body))
    assert not ends_well(twin.text({"It.test_it"})), twin.text({"It.test_it"})
    assert twin.text(set()) == whole(body)
    assert (twin.turned, twin.exempt) == ({"It.test_it"}, set())


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SINGLE = st.integers() | st.text() | st.booleans() | st.none() | st.binary() | FLOATS


@given(st.recursive(SINGLE, st.lists, max_leaves=5))
def test_any_literal_that_is_asked_for_is_another_one_in_the_twin(value: object) -> None:
    text = (
        f"class It(unittest.TestCase):\n    def test_it(self):\n        x = {value!r}\n        assert x == {value!r}\n"
    )
    assert ends_well(text)
    assert not ends_well(Twin(text).text({"It.test_it"}))


def test_what_is_no_test_is_left_as_it_is() -> None:
    text = "def helper():\n    assert 1 == 1\n\ndef test_a():\n    assert helper() is None\n"
    assert Twin(text).text({"test_a"}) == text.replace("helper() is None", "not (helper() is None)")
    assert Twin(text, methods_only=True).text({"test_a"}) == text


def test_a_test_that_is_expected_to_fail_has_none() -> None:
    text = whole("assert value == 8", "    @unittest.expectedFailure\n")
    twin = Twin(text)
    assert (twin.text({"It.test_it"}), twin.turned, twin.exempt) == (text, set(), {"It.test_it"})


def test_a_file_that_is_not_python_of_today_is_left_as_it_is() -> None:
    twin = Twin("print 'old'\n")
    assert (twin.text({"It.test_it"}), twin.makes_more) == ("print 'old'\n", True)


OTHERS = "{'a': 1, **rest}", "[1, *_]", "str()", "_"
NO_NAMES = (
    "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\n",
    "def helper(value):\n    match value:\n"
    + "".join(f"        case {each}:\n            return 2\n" for each in OTHERS),
)


@pytest.mark.parametrize("head", NO_NAMES)
def test_what_has_a_name_that_is_none_is_no_test(head: str) -> None:
    text = head + "def test_a():\n    assert 1 == 1\n"
    twin = Twin(text)
    assert (twin.turned, twin.makes_more) == ({"test_a"}, False)
    assert certain(twin.module, twin.source, "pytest") == {"test_a": 1}


def real_files_of_tests() -> list[Path]:
    """Those of the standard library, as far as they are there, every twelfth: in all the shapes that people write."""
    top = Path(json.__file__).parents[1]
    return sorted([*top.glob("test/test_*.py"), *top.glob("*/test*/test_*.py"), *Path(__file__).parent.glob("*.py")])[
        ::12
    ]


def test_twins_of_real_files_of_tests_are_python() -> None:
    read = 0
    for path in real_files_of_tests():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what such files try
            try:
                with tokenize.open(path) as file:
                    text = file.read()
                ast.parse(text)
            except (SyntaxError, UnicodeDecodeError):
                continue
            twin = Twin(text)
            certain(twin.module, twin.source, "pytest")
            for some in (twin.turned, set(sorted(twin.turned)[::2])):
                compile(twin.text(some), str(path), "exec", dont_inherit=True)
        read += 1
    assert read
