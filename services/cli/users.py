"""The command about the users of a run's server: who may do what, their passwords, a configuration for a server."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bus import credentials, users
from bus.private import write_private
from gyre.errors import GyreError
from services.cli.errors import Errors, fail
from services.cli.options import Runs
from services.place import Note, run_folder

_CONF = "users.conf"


def users_command(
    run: Annotated[str | None, typer.Argument(help="Name of a run; with --out it need not exist yet.")] = None,
    any_run: Annotated[bool, typer.Option("--any-run", help="Of a server that holds several runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write users.conf and a file of variables a user here.")] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Give every user a new password.")] = False,
    runs: Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what each user of a run's server may do, renew passwords, or write the users of a server of your own.

    Without --out: what each user may publish and hear. With --out DIR: DIR/users.conf for the server's configuration
    (`include users.conf`) and DIR/env/USER.env with GYRE_NATS_USER and GYRE_NATS_PASSWORD for each service; passwords
    that are there stay, unless --rotate. --rotate without --out renews those of a run with a server of its own, which
    is stopped; what supervises the run starts it again, and services find the new ones by themselves.

    Example: gyre users --any-run --out deploy/nats
    """
    if (run is None) == (not any_run):
        fail("users: name a run, or say --any-run", 2)
    scope = run or users.ANY
    with Errors():
        if out is not None:
            typer.echo(_write(out, scope, rotate))
        elif rotate:
            typer.echo(_rotate(run_folder(scope, runs)))
        else:
            if run is not None:
                run_folder(run, runs)
            _show(scope, as_json)


def _write(out: Path, scope: str, rotate: bool) -> str:
    if rotate:
        credentials.forget(out)
    (out / "env").mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(out / _CONF, credentials.ensure(out, scope))
    for user in users.USERS:
        secret = credentials.password(out, user)
        text = f"{credentials.USER}={user}\n{credentials.PASSWORD}={secret}\n"
        write_private(out / "env" / f"{user}.env", text)
    return f"{out / _CONF}: {len(users.USERS)} users"


def _rotate(folder: Path) -> str:
    note = Note.read(folder)
    server = note.server(folder)
    if server is None:
        raise GyreError(f"run {note.run}: its server is not its own; write its users anew with --out DIR --rotate")
    credentials.forget(folder)
    credentials.ensure(folder, note.run)
    server.stop()
    return f"{folder / credentials.FOLDER}: {len(users.USERS)} users have new passwords"


def _show(scope: str, as_json: bool) -> None:
    granted = {user: users.permissions(user, scope) for user in users.USERS}
    if as_json:
        table = {
            user: {"publish": each.publish, "deny": each.deny, "subscribe": each.subscribe}
            for user, each in granted.items()
        }
        typer.echo(json.dumps(table))
        return
    for user, each in granted.items():
        typer.echo(user)
        for word, names in (("publishes", each.publish), ("never", each.deny), ("hears", each.subscribe)):
            for name in names:
                typer.echo(f"  {word:10} {name}")
