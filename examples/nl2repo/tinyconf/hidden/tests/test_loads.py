import unittest

import tinyconf


class LoadsTest(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(tinyconf.loads("\n  # only this\n"), {})

    def test_keys_before_any_section(self):
        self.assertEqual(tinyconf.loads("a = b c\n"), {"": {"a": "b c"}})

    def test_sections_and_values(self):
        text = '[one]\n x=1\ny = -20\n[ two-2 ]\nyes = true\nno=false\nname = "a \\"b\\" \\\\ \\n"\n'
        wanted = {"one": {"x": 1, "y": -20}, "two-2": {"yes": True, "no": False, "name": 'a "b" \\ \n'}}
        self.assertEqual(tinyconf.loads(text), wanted)

    def test_a_bool_is_no_number(self):
        self.assertIs(tinyconf.loads("a = true")[""]["a"], True)

    def test_an_empty_section_is_there(self):
        self.assertEqual(tinyconf.loads("[a]\n[b]\n"), {"a": {}, "b": {}})

    def test_a_value_may_hold_an_equals_sign(self):
        self.assertEqual(tinyconf.loads("a = b = c"), {"": {"a": "b = c"}})
