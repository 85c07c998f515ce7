"""Small tasks in other people's layouts, written by the tests that need them."""

import json
from pathlib import Path
from typing import Any

SOURCE = "def half(number):\n    return number // 3\n"
FIXED = "def half(number):\n    return number // 2\n"
OLD_TEST = (
    "import unittest\n\nimport halves\n\n\nclass HalfTest(unittest.TestCase):\n"
    "    def test_nothing(self):\n        self.assertEqual(halves.half(0), 0)\n"
)
NEW_TEST = OLD_TEST + (
    "\n    def test_four(self):\n        self.assertEqual(halves.half(4), 2)\n"
    "\n    def test_ten(self):\n        self.assertEqual(halves.half(10), 5)\n"
)


def patch(name: str, before: str, after: str) -> str:
    """A patch that replaces a whole file."""
    old, new = before.splitlines(), after.splitlines()
    body = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    return "\n".join(
        [
            f"diff --git a/{name} b/{name}",
            f"--- a/{name}",
            f"+++ b/{name}",
            f"@@ -1,{len(old)} +1,{len(new)} @@",
            *body,
            "",
        ]
    )


def instance(**changes: Any) -> dict[str, Any]:
    """An instance in SWE-bench's words; lists are JSON text there."""
    node = "test_halves.py::HalfTest::"
    return {
        "instance_id": "some__halves-7",
        "repo": "some/halves",
        "base_commit": "",
        "problem_statement": "half(4) should be 2",
        "patch": patch("halves.py", SOURCE, FIXED),
        "test_patch": patch("test_halves.py", OLD_TEST, NEW_TEST),
        "FAIL_TO_PASS": json.dumps([f"{node}test_four", f"{node}test_ten"]),
        "PASS_TO_PASS": json.dumps([f"{node}test_nothing"]),
        **changes,
    }


def swe_folder(path: Path, files: dict[str, str] | None = None, toml: str = "", **changes: Any) -> Path:
    """A task folder with the repository as plain files."""
    write(path / "repo", {"halves.py": SOURCE, "test_halves.py": OLD_TEST, **(files or {})})
    (path / "instance.json").write_text(json.dumps(instance(**changes)))
    if toml:
        (path / "task.toml").write_text(toml)
    return path


def nl2repo_folder(path: Path, tests: dict[str, str], count: int) -> Path:
    """A package to be built; the tests lie below hidden/."""
    write(path / "hidden", tests)
    tops = sorted({name.partition("/")[0] for name in tests})
    write(
        path,
        {
            "start.md": "Build it.\n",
            "test_files.json": json.dumps(tops),
            "test_case_count.txt": f"{count}\n",
            "test_commands.json": '["python3 -m unittest discover"]',
        },
    )
    return path


def harbor_folder(path: Path, toml: str = "", dockerfile: str = "FROM a:1\nWORKDIR /app\nCOPY in.txt .\n") -> Path:
    """A task as Harbor's own documents have it."""
    write(
        path,
        {
            "task.toml": 'schema_version = "1.1"\n' + toml,
            "instruction.md": "# harbor-canary GUID 1\n\nCopy in.txt to out.txt.\n",
            "environment/Dockerfile": dockerfile,
            "environment/in.txt": "x\n",
            "tests/test.sh": '#!/bin/sh\nmkdir -p "$LOGS_DIR/verifier"\ncmp in.txt out.txt && echo 1 >"$REWARD_FILE"\n',
            "solution/solve.sh": "#!/bin/sh\ncp in.txt out.txt\n",
        },
    )
    return path


def write(folder: Path, files: dict[str, str]) -> None:
    """Text files by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
