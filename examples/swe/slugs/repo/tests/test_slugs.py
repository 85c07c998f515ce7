import unittest

from slugs import slug, unique


class SlugTest(unittest.TestCase):
    def test_words_are_joined(self):
        self.assertEqual(slug("Two Words"), "two-words")

    def test_a_taken_slug_gets_a_number(self):
        self.assertEqual(unique("Two Words", {"two-words"}), "two-words-2")
