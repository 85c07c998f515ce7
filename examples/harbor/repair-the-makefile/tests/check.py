import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

WANTED = {"a.txt": "one\ntwo\n", "notes/to do.txt": "three\n", "new/deep er/b.txt": "x\n\ny\n"}


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


extra = Path("src/new/deep er")
extra.mkdir(parents=True, exist_ok=True)
(extra / "b.txt").write_text("x\t \n \ny\n")
points = 0
for _ in range(2):
    with suppress(subprocess.TimeoutExpired):  # a build that hangs has built what is there by then
        nothing = subprocess.DEVNULL
        subprocess.run(["sh", "build.sh"], stdin=nothing, stdout=nothing, stderr=nothing, timeout=10)
    dist = Path("dist")
    found = {str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file()} if dist.is_dir() else set()
    points += found == {*WANTED, "MANIFEST"}
    right = [name for name, text in WANTED.items() if (dist / name).is_file() and text_of(dist / name) == text]
    points += len(right) == len(WANTED)
    manifest = dist / "MANIFEST"
    points += manifest.is_file() and text_of(manifest).splitlines() == sorted(WANTED)
if not Path("src/a.txt").is_file() or text_of(Path("src/a.txt")) != "one  \ntwo\n":
    points = 0
Path(sys.argv[1]).write_text(json.dumps({"reward": points / 6, "points": points}))
