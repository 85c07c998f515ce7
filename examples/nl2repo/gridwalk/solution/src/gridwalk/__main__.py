import sys

from gridwalk.grid import Grid
from gridwalk.walk import shortest

with open(sys.argv[1]) as file:
    found = shortest(Grid.parse(file.read()))
print(len(found) - 1 if found else "no way")
sys.exit(0 if found else 1)
