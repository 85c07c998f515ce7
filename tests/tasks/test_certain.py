"""Which tests a file has for certain, and what counts of those that were reported."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.tasks.graders import certain
from gyre.tasks.graders.certain import counted
from gyre.tasks.graders.twins import Twin

FILE = """
    import unittest
    import pytest

    test_folder = pytest.__file__

    class OneTest(unittest.TestCase):
        def setUp(self): self.model = 1  # a small model of growth
        def test_a(self): pass
        @unittest.skipIf(True, "old")
        def test_b(self): pass
        def test_c(self): self.skipTest("no")
        @mock.patch("x.y")
        def test_d(self, it): pass
        @own
        def test_e(self): pass
        def test_twice(self): pass
        def test_twice(self): pass

    @unittest.skipUnless(False, "other")
    class TwoTest(unittest.TestCase):
        def test_a(self): pass

    class MoreTest(OneTest):
        def test_x(self): pass

    class Again(unittest.TestCase):
        def test_a(self): pass

    class Again(unittest.TestCase):
        def test_b(self): pass

    class TestPlain:
        def test_a(self): pass

    class TestNone:
        def __init__(self): pass
        def test_a(self): pass

    def test_alone(monkeypatch): monkeypatch.setattr("x.y", 1)

    @pytest.mark.parametrize("a", [1, 2, 3])
    @pytest.mark.parametrize(("b", "c"), ((1, 2), (3, 4)), ids=["x", "y"])
    def test_six(a, b, c): pass

    @pytest.mark.parametrize("a", [*MORE, 2])
    def test_some(a): pass

    @pytest.mark.parametrize("a", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_marked(a): pass

    @pytest.mark.xfail
    def test_expected(): pass

    @pytest.mark.slow
    def test_slow(): pass
    """
SKIPS = (
    "@pytest.fixture\ndef it():\n    pytest.skip('none')",
    "class A(unittest.TestCase):\n    def setUp(self): self.skipTest('all')",
    "class A:\n    del test_b",
)
CHANGED = [
    f"def test_a(): pass\n{line}\n"
    for line in ("Other.test_b = test_a", "test_a = own(test_a)", "del test_a", "run(test_a)", *SKIPS)
]


def of(text: str, runner: str) -> dict[str, int]:
    twin = Twin(text)
    return certain.certain(twin.module, twin.source, runner)


def test_what_its_text_says() -> None:
    text = textwrap.dedent(FILE)
    assert of(text, "unittest") == {"OneTest::test_a": 1, "OneTest::test_d": 1}
    assert of(text, "pytest") == {
        **of(text, "unittest"), "TestPlain::test_a": 1, "test_alone": 1, "test_six": 6,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["def test_a(: pass", "pytestmark = x\ndef test_a(): pass", "", *CHANGED])
def test_a_file_that_may_have_others_has_none_for_certain(text: str) -> None:
    assert of(text, "pytest") == {}


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ([], 0),
        (["f::a", "f::six[1]", "f::six[2]"], 3),
        (["f::a", "f::a[1]", "f::a[2]", "f::a[3]", "f::a[4]"], 4),  # the file may have three that were not seen
        (["f::six[1]", "f::six[2]", "f::six[3]", "f::six[4]"], 4),
        (["f::other[1]", "f::other[2]", "f::more", "f::G::a"], 3),
        (["f::a", "f::six[1]", "f::six[2]", "f::x", "f::y", "f::z", "f::v"], 6),
        (["f::a", *(f"f::six[{number}]" for number in range(9))], 6),
    ],
)
def test_no_test_counts_more_often_than_there_may_be(passed: list[str], expected: int) -> None:
    assert counted(passed, {"f::a": 1, "f::six": 2}, 6) == expected


@given(
    st.dictionaries(st.text("abc", min_size=1), st.integers(1, 3)),
    st.sets(st.text("xyz", min_size=1)),
)
def test_all_that_there_are_count_where_all_pass(sure: dict[str, int], others: set[str]) -> None:
    passed = [f"{name}[{number}]" for name, results in sure.items() for number in range(results)]
    assert counted([*passed, *others], sure, len(passed) + len(others)) == len(passed) + len(others)


def test_where_more_stand_there_than_count_others_are_not_held_against_them() -> None:
    assert counted(["f::a", "f::a[1]", "f::other"], {"f::a": 1, "f::b": 1, "f::c": 1}, 2) == 2
