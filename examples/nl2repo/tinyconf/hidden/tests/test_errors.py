import unittest

import tinyconf


class ErrorsTest(unittest.TestCase):
    def line_of(self, text):
        with self.assertRaises(ValueError) as caught:
            tinyconf.loads(text)
        self.assertIsInstance(caught.exception, tinyconf.ConfError)
        self.assertTrue(str(caught.exception).startswith(f"line {caught.exception.line}: "))
        return caught.exception.line

    def test_a_key_twice(self):
        self.assertEqual(self.line_of("[a]\nk = 1\n\nk = 2\n"), 4)

    def test_a_section_twice(self):
        self.assertEqual(self.line_of("[a]\n[b]\n[a]\n"), 3)

    def test_a_line_that_is_nothing(self):
        self.assertEqual(self.line_of("a = 1\nwhat\n"), 2)
