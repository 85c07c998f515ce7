import unittest

from gridwalk.grid import Grid


class GridTest(unittest.TestCase):
    def test_size_and_ends(self):
        grid = Grid.parse("S.#\n..E\n")
        self.assertEqual((grid.width, grid.height, grid.start, grid.end), (3, 2, (0, 0), (1, 2)))

    def test_ends_may_be_missing(self):
        grid = Grid.parse("..")
        self.assertIsNone(grid.start)
        self.assertIsNone(grid.end)

    def test_what_is_free(self):
        grid = Grid.parse("S#\n.E")
        self.assertEqual([grid.free(cell) for cell in ((0, 0), (0, 1), (1, 1), (2, 0), (0, -1))], [1, 0, 1, 0, 0])

    def test_neighbours_in_order(self):
        grid = Grid.parse("...\n...\n.#.")
        self.assertEqual(grid.neighbours((1, 1)), [(0, 1), (1, 0), (1, 2)])

    def test_bad_texts_are_refused(self):
        for text in ("..\n.", "S.S", "x", "E\nE"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                Grid.parse(text)
