"""Walks over grids."""


def _distances(grid, origin):
    found, edge = {origin: 0}, [origin]
    for cell in edge:
        for each in grid.neighbours(cell):
            if each not in found:
                found[each] = found[cell] + 1
                edge.append(each)
    return found


def shortest(grid, start=None, end=None):
    start, end = start or grid.start, end or grid.end
    left = _distances(grid, end)
    if start not in left:
        return []
    walk = [start]
    while walk[-1] != end:
        walk.append(min(each for each in grid.neighbours(walk[-1]) if left.get(each) == left[walk[-1]] - 1))
    return walk


def reachable(grid, start, steps):
    return sum(distance <= steps for distance in _distances(grid, start).values())
