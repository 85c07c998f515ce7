import json
import subprocess
import sys
from pathlib import Path

WANTED = {"a.txt": "one\ntwo\n", "notes/to do.txt": "three\n", "new/deep er/b.txt": "x\n\ny\n"}

extra = Path("src/new/deep er")
extra.mkdir(parents=True, exist_ok=True)
(extra / "b.txt").write_text("x\t \n \ny\n")
points = 0
for _ in range(2):
    subprocess.run(["sh", "build.sh"], capture_output=True, timeout=10)
    dist = Path("dist")
    found = {str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file()} if dist.is_dir() else set()
    points += found == {*WANTED, "MANIFEST"}
    right = [name for name, text in WANTED.items() if (dist / name).is_file() and (dist / name).read_text() == text]
    points += len(right) == len(WANTED)
    manifest = dist / "MANIFEST"
    points += manifest.is_file() and manifest.read_text().splitlines() == sorted(WANTED)
if not Path("src/a.txt").is_file() or Path("src/a.txt").read_text() != "one  \ntwo\n":
    points = 0
Path(sys.argv[1]).write_text(json.dumps({"reward": points / 6, "points": points}))
