"""Grids of free cells and walls."""


class Grid:
    """Rows of cells."""

    def __init__(self, rows):
        self._rows = rows
        self.height, self.width = len(rows), len(rows[0]) if rows else 0
        self.start, self.end = self._only("S"), self._only("E")

    @classmethod
    def parse(cls, text):
        rows = text.strip("\n").split("\n")
        if len({len(row) for row in rows}) != 1 or set("".join(rows)) - set(".#SE"):
            raise ValueError("a grid is lines of one length made of . # S E")
        return cls(rows)

    def _only(self, letter):
        cells = [(y, x) for y, row in enumerate(self._rows) for x, found in enumerate(row) if found == letter]
        if len(cells) > 1:
            raise ValueError(f"more than one {letter}")
        return cells[0] if cells else None

    def free(self, cell):
        row, column = cell
        return 0 <= row < self.height and 0 <= column < self.width and self._rows[row][column] != "#"

    def neighbours(self, cell):
        row, column = cell
        around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
        return [each for each in around if self.free(each)]
