"""compose.yaml for real: from its images to a run's end, everything killed on the way, kept as docs/operations.md says.

    make test-compose [COMPOSE_ARGS='--steps 8 --keep']

Needs a Docker engine, root (processes in containers are killed from outside) and Chromium. Where no registry can be
reached, the images that compose.yaml begins with are made here: then ClickHouse is a stand-in (look_alikes.sh).
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.compose.stack import ROOT, Failed, Stack
from tests.dashboard.browser import browser

PAGE = ROOT / "docs" / "operations.md"
HERE = Path(__file__).parent
BACK_SECONDS = 300.0
RUN_SECONDS = 1800.0
WRITABLE = {"clickhouse"}
"""Services whose file system is not read-only."""
SECRETS = "GYRE_NATS_PASSWORD"
GONE = "docker compose --profile tools down --volumes --timeout 5"


def documented(name: str) -> str:
    """The script of the page under this name."""
    found = re.findall(rf"^```sh compose={name}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{name}: {len(found)} scripts on {PAGE}"
    return str(found[0])


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what is done and how long it took."""
    print(f"{what:52}", end="", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print("  failed", flush=True)
        raise
    print(f"{time.monotonic() - began:8.1f} s", flush=True)


def images(stack: Stack) -> None:
    """What compose.yaml begins with, and the image of gyre."""
    config = stack.shell("docker compose config --images")
    names = {word: next(line for line in config.split() if word in line) for word in ("nats", "clickhouse")}
    base = stack.shell("docker compose config | sed -n 's/^ *BASE: *//p'").split()[0]
    with timed("images to begin with"):
        stack.shell(f"{HERE}/look_alikes.sh {base} {names['nats']} {names['clickhouse']}", 1200)
    with timed("docker compose build"):
        stack.shell(documented("build"), 1800)
    size = stack.shell("docker image inspect -f '{{.Size}}' ${GYRE_IMAGE:-gyre:local}").strip()
    print(f"image of gyre: {int(size) / 1e6:.0f} MB")


def hardened(stack: Stack) -> None:
    """Nobody is root, nothing may be gained, secrets are where they belong, and agents reach no engine."""
    for service, told in stack.inspected():
        host, user = told["HostConfig"], told["Config"]["User"]
        wrong = [
            *(["runs as root"] if user in ("", "0", "root") else []),
            *(["can be written to"] if not host["ReadonlyRootfs"] and service not in WRITABLE else []),
            *(["has capabilities"] if host["CapDrop"] != ["ALL"] else []),
            *(["may gain privileges"] if "no-new-privileges:true" not in (host["SecurityOpt"] or []) else []),
        ]
        if wrong:
            raise Failed(f"{service}: {', '.join(wrong)}")
    stack.shell("! docker compose exec -T scheduler sh -c 'command -v gcc cc c++ ld'")
    known = {name: stack.shell(f"docker compose exec -T {name} cat /keys/{SECRETS}") for name in ("cell", "runner")}
    if len(set(known.values())) != len(known):
        raise Failed("two services have one password")
    stack.shell("! docker compose exec -T runner ls /volumes/keys/cell")
    reach = "import socket; socket.create_connection(('cell', 9100), 3)"
    stack.shell(f'! docker compose exec -T runner python -c "{reach}"')
    stack.shell('docker compose exec -T proxy python -c "' + reach + '"')


def killed(stack: Stack) -> None:
    """The main process of each container in turn."""
    for container in sorted(stack.containers(), key=lambda each: each.service == "launcher"):  # nobody mends after it
        seconds = stack.kill(container, BACK_SECONDS)
        print(f"  kill -9 {container.name:42}{seconds:8.1f} s", flush=True)
    stack.until("all containers are healthy again", stack.all_healthy, BACK_SECONDS)


def moved(stack: Stack, least: int) -> Callable[[], bool]:
    """Whether more executions than these have ended."""
    return lambda: int(stack.progress()["terminated"]) > least


def resumed(stack: Stack) -> None:
    """Down and up in the middle of the run: it goes on from its log."""
    before = stack.progress()
    stack.shell(documented("stop"))
    stack.shell(documented("start"))
    after = stack.progress()
    if len(after["steps"]) < len(before["steps"]) or after["dispatched"] < before["dispatched"]:
        raise Failed(f"after down and up the run is behind: {after['dispatched']} of {before['dispatched']} dispatched")
    if not after["finished"]:
        stack.until("the run goes on", moved(stack, after["terminated"]), BACK_SECONDS)


def ended(stack: Stack, steps: int) -> None:
    """The run's books: all dispatched was launched and ended, each micro-step counted once, each decision the same."""
    stack.until("the run reaches its end", stack.finished, RUN_SECONDS)
    found = stack.progress()
    counts = {found["dispatched"], found["launched"], found["terminated"]}
    done = [step for step in found["steps"] if step["seconds"]]
    if len(counts) != 1 or len(done) != steps or any(step["enqueued"] != step["committed"] for step in done):
        raise Failed(f"the run's books: {counts} executions, {len(done)} of {steps} steps")
    stack.shell("docker compose run --rm -T gyre replay demo --verify")
    print(f"run finished: {steps} steps, {counts.pop()} executions", flush=True)


def asked(stack: Stack) -> None:
    """The warehouse's server has every execution once; asked by its URL, without reading the log."""
    found = stack.gyre("query", '"SELECT count() AS n, uniqExact(execution) AS u FROM executions"', "demo", "--stale")
    dispatched = stack.progress()["dispatched"]
    if {int(found["n"]), int(found["u"])} != {dispatched}:
        raise Failed(f"gyre query: {found}, {dispatched} executions were dispatched")


async def shown(stack: Stack) -> None:
    """The page in Chromium, with the token that the container has."""
    token = stack.shell("docker compose exec -T dashboard cat /keys/GYRE_DASHBOARD_TOKEN")
    port = stack.environment["GYRE_DASHBOARD"]
    async with browser() as chrome, chrome.page() as page:
        await page.open(f"http://{port}/?token={token}")
        await page.until("document.querySelector('#run').value === 'demo'")
        await page.until("/step/i.test(document.querySelector('#facts').innerText)")
        await page.until("document.querySelectorAll('#cells svg, #cells canvas').length > 0")
        if page.troubles:
            raise Failed(f"the dashboard's page: {page.troubles}")


def scaled(stack: Stack) -> None:
    """One cell more than the run has stands by, and takes the place of one that is killed."""
    stack.shell(documented("scale"))
    waiting = "docker compose logs --no-log-prefix cell 2>&1 | grep -c 'standing by' || true"
    stack.until("a cell stands by", lambda: int(stack.shell(waiting)) > 0, BACK_SECONDS)


def upkept(stack: Stack) -> None:
    """The page's other scripts."""
    for name in ("look", "query", "scale_back", "upgrade", "backup", "restore", "rotate"):
        before = stack.progress()
        with timed(f"docs/operations.md: {name}"):
            stack.shell(documented(name), 900)
            stack.until("all containers are healthy", stack.all_healthy, BACK_SECONDS)
        if stack.progress()["dispatched"] < before["dispatched"]:
            raise Failed(f"{name}: the run lost something")


def tried(stack: Stack, steps: int) -> None:
    """All of it, in order."""
    stack.shell(GONE)
    images(stack)
    with timed("docker compose up --wait"):
        stack.shell(documented("start"), 600)
    with timed("who may do what"):
        hardened(stack)
    with timed("first executions ended"):
        stack.until("executions end", moved(stack, 0), RUN_SECONDS)
    with timed("dashboard in Chromium, live"):
        asyncio.run(shown(stack))
    with timed("down and up: the run goes on"):
        resumed(stack)
    with timed("one cell more stands by"):
        scaled(stack)
    killed(stack)
    with timed("to the run's end"):
        ended(stack, steps)
    with timed("gyre query on the server's URL"):
        stack.until("the sink is through", partial(_through, stack), BACK_SECONDS)
        asked(stack)
    with timed("dashboard in Chromium, at the end"):
        asyncio.run(shown(stack))
    upkept(stack)


def _through(stack: Stack) -> bool:
    found = stack.gyre("query", "\"SELECT count() AS n FROM events WHERE type = 'RunFinished'\"", "demo", "--stale")
    return int(found["n"]) == 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if all of it stood."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="of the demo run (20)")
    parser.add_argument("--port", type=int, default=18080, help="of the dashboard on this machine (18080)")
    parser.add_argument("--keep", action="store_true", help="leave the stack up, and its volumes")
    options = parser.parse_args(arguments)
    stack = Stack(
        {
            "COMPOSE_PROJECT_NAME": "gyre-tried",
            "GYRE_STEPS": str(options.steps),
            "GYRE_DASHBOARD": f"127.0.0.1:{options.port}",
        }
    )
    began = time.monotonic()
    try:
        tried(stack, options.steps)
    except Failed as error:
        print(error, stack.shell("docker compose ps --all; docker compose logs --tail 5"), sep="\n", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            stack.shell(GONE)
            (ROOT / "gyre-backup.tar.gz").unlink(missing_ok=True)  # the page's own name for it
    print(f"all of it: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
