import unittest

import tinyconf


class DumpsTest(unittest.TestCase):
    def both_ways(self, conf):
        self.assertEqual(tinyconf.loads(tinyconf.dumps(conf)), conf)

    def test_values_come_back(self):
        self.both_ways({"": {"a": 1}, "b": {"c": True, "d": "text", "e": -3}, "f": {}})

    def test_text_that_looks_like_something_else_comes_back(self):
        self.both_ways({"a": {"n": "12", "t": "true", "q": '"', "s": "  x ", "e": "", "h": "# no", "l": "a\nb\\n"}})

    def test_the_nameless_section_comes_first(self):
        self.assertEqual(list(tinyconf.loads(tinyconf.dumps({"b": {"x": 1}, "": {"y": 2}}))), ["", "b"])
