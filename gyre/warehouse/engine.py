"""Connections of clickhouse-connect, to a server or to chDB inside this process, and what goes wrong with them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from gyre.errors import GyreError

ASKING = {"format_csv_null_representation": "", "readonly": 2}
"""Settings of whoever only asks; what they leave open, `question` refuses. Chdb's are of a connection and `readonly`
cannot be taken back, so that whoever asks has a connection of its own."""
_EXTRAS = {"clickhouse_connect": "analytics", "chdb": "chdb"}


class WarehouseError(GyreError):
    """The warehouse cannot do what was asked; one line."""


class WarehouseAway(WarehouseError):
    """It does not answer, or another process holds its folder: wait."""


class QueryRefused(WarehouseError):
    """The SQL is not what the engine takes: mend it."""


def available(*, embedded: bool) -> str:
    """Which extra of the distribution is missing for a server, or for an embedded engine; "" for none."""
    needed = ("clickhouse_connect", "chdb") if embedded else ("clickhouse_connect",)
    return next((_EXTRAS[package] for package in needed if find_spec(package) is None), "")


def check(name: str, *, embedded: bool) -> None:
    """Raises `WarehouseError` where a package is missing."""
    if extra := available(embedded=embedded):
        raise WarehouseError(f"warehouse {name}: a package is missing: pip install -e '.[{extra}]' in gyre's folder")


def embedded(path: Path | None, database: str | None, settings: Mapping[str, Any]) -> Any:
    """A client of chDB with its data in a folder, or in memory; a process can have one place open at a time."""
    import clickhouse_connect

    place = str(path) if path is not None else ":memory:"
    return clickhouse_connect.get_client(interface="chdb", path=place, database=database, settings=dict(settings))


def server(url: SplitResult, database: str | None, settings: Mapping[str, Any]) -> Any:
    """A client of a ClickHouse server."""
    import clickhouse_connect

    return clickhouse_connect.get_client(
        interface=url.scheme,
        host=url.hostname,
        port=url.port or 8123,
        username=unquote(url.username or "default"),
        password=unquote(url.password or ""),
        database=database,
        settings=dict(settings),
        autogenerate_session_id=False,
        connect_timeout=10,
        send_receive_timeout=60,
    )


@contextmanager
def answered(name: str) -> Iterator[None]:
    """Errors of the driver as ours: the engine's refusal, or no engine."""
    from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, OperationalError

    try:
        yield
    except OperationalError as error:
        raise WarehouseAway(f"warehouse {name}: {_line(error)}") from error
    except DatabaseError as error:
        raise QueryRefused(f"warehouse {name}: {_line(error)}") from error
    except ClickHouseError as error:
        raise WarehouseError(f"warehouse {name}: {_line(error)}") from error


def _line(error: Exception) -> str:
    """What an engine says, in one line without its stack and version."""
    text = " ".join(str(error).split())
    return text.partition(" (version ")[0].partition(" In scope ")[0].rstrip(":.")[:500]
