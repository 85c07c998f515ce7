import os
import subprocess
import sys
import tempfile
import unittest

from gridwalk.grid import Grid
from gridwalk.walk import reachable, shortest


class WalkTest(unittest.TestCase):
    def test_around_a_wall(self):
        grid = Grid.parse("S#E\n.#.\n...")
        self.assertEqual(shortest(grid), [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (1, 2), (0, 2)])

    def test_the_smallest_of_several(self):
        self.assertEqual(shortest(Grid.parse("S.\n.E")), [(0, 0), (0, 1), (1, 1)])

    def test_no_way(self):
        self.assertEqual(shortest(Grid.parse("S#E")), [])

    def test_reachable(self):
        grid = Grid.parse("....\n.##.\n....")
        self.assertEqual([reachable(grid, (0, 0), steps) for steps in (0, 1, 2, 9)], [1, 3, 5, 10])

    def test_the_command(self):
        import gridwalk

        above = os.path.dirname(os.path.dirname(gridwalk.__file__))
        for text, code, said in (("S.E\n", 0, "2"), ("S#E\n", 1, "no way")):
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write(text)
                file.flush()
                words = [sys.executable, "-m", "gridwalk", file.name]
                done = subprocess.run(words, cwd=above, capture_output=True, text=True, timeout=20)
                self.assertEqual((done.returncode, done.stdout.strip()), (code, said))
