"""Word tasks on disk, graded by shell builtins alone: a demo grades some two thousand workspaces.

A target file earns 100 points when it is as wanted, 50 when it changed and holds a line that comes near, 30 when it
only changed. The reward is the targets' mean less 10 for each stray file and each changed source, in hundredths and
never below 0.
"""

import itertools
from pathlib import Path

from .words import Split, WordTask, text_of, word_tasks

SETTINGS = """\
version = "1.0"

[metadata]
name = "{name}"
difficulty = "easy"
tags = ["words", "{family}"]

[environment]
setup_timeout_sec = 10.0

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 10.0
"""

GRADER = """\
#!/bin/sh
# Grades the workspace (the current directory) and writes the reward to $REWARD_FILE. Builtins only.
points=0 targets=0 fines=0

lines_of() { # sets $lines to "|first|second|...|"; a missing or empty file gives "|"
    lines="|" left=20
    [ -f "$1" ] || return 0
    while IFS= read -r line || [ -n "$line" ]; do
        lines="$lines$line|" left=$((left - 1))
        [ "$left" -gt 0 ] || break
    done <"$1"
}

target() { # file, lines before, lines wanted, lines that come near
    targets=$((targets + 1)) earned=30
    lines_of "$1"
    for near in $4; do
        case $lines in *"|$near|"*) earned=50 ;; esac
    done
    [ "$lines" != "$2" ] || earned=0
    [ "$lines" != "$3" ] || earned=100
    points=$((points + earned))
}

source_file() { # file, lines it must still have
    lines_of "$1"
    [ "$lines" = "$2" ] || fines=$((fines + 10))
}

stray_files() { # names that may be there
    for name in * .*; do
        [ -e "$name" ] || [ -L "$name" ] || continue
        case " . .. $1 " in *" $name "*) ;; *) fines=$((fines + 10)) ;; esac
    done
}

"""

VERDICT = """\
score=$((points / targets - fines))
[ "$score" -ge 0 ] || score=0
printf '%d.%02d\\n' $((score / 100)) $((score % 100)) >"$REWARD_FILE"
"""


def write_word_tasks(folder: Path, seed: int, count: int, split: Split) -> tuple[Path, ...]:
    """Write `count` task folders into `folder` and return them in order; the same arguments write the same bytes.

    No instruction of the "heldout" split occurs in the "train" split, whatever the seeds.
    Raises FileExistsError if one of the folders is already there, and ValueError for an unknown split or count < 1.
    """
    if count < 1:
        raise ValueError(f"count: {count} is not at least 1")
    tasks = itertools.islice(word_tasks(seed, split), count)
    width = max(4, len(str(count - 1)))
    return tuple(_write_folder(folder, f"{split}-{index:0{width}}", task) for index, task in enumerate(tasks))


def grader(task: WordTask) -> str:
    """The text of the task's `tests/test.sh`."""
    targets = [
        f"target '{target.path}' '{_bars(target.before)}' '{_bars(target.wanted)}' '{' '.join(target.near)}'"
        for target in task.targets
    ]
    changed = {target.path for target in task.targets}
    sources = [f"source_file '{name}' '{_bars(lines)}'" for name, lines in task.files.items() if name not in changed]
    known = " ".join(sorted(changed | set(task.files)))
    return GRADER + "\n".join((*targets, *sources, f"stray_files '{known}'")) + "\n" + VERDICT


def _bars(lines: tuple[str, ...]) -> str:
    return "|" + "".join(f"{line}|" for line in lines)


def _solution(task: WordTask) -> str:
    commands = [
        f"printf '%s\\n' '{call.content}' {'>>' if call.tool == 'append' else '>'} '{call.path}'"
        for call in task.calls
        if call.tool != "read"
    ]
    return "\n".join(("#!/bin/sh", *commands)) + "\n"


def _write_folder(folder: Path, name: str, task: WordTask) -> Path:
    path = folder / name
    for part in ("environment", "tests", "solution"):
        (path / part).mkdir(parents=True, exist_ok=part != "environment")
    (path / "task.toml").write_text(SETTINGS.format(name=name, family=task.family), encoding="utf-8")
    (path / "instruction.md").write_text(task.instruction + "\n", encoding="utf-8")
    for file, lines in task.files.items():
        (path / "environment" / file).write_text(text_of(lines), encoding="utf-8")
    for script, text in (("tests/test.sh", grader(task)), ("solution/solve.sh", _solution(task))):
        (path / script).write_text(text, encoding="utf-8")
        (path / script).chmod(0o755)
    return path
