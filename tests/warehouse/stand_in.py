"""A stand-in for a ClickHouse server, where none can be had: its HTTP interface in front of the embedded engine.

Not a ClickHouse server: no users, no replication, no concurrency beyond what chDB has. As much of the interface as one
client uses. As a program: `python stand_in.py FOLDER PORT [HOST]`; it says "ready" once it listens.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TRANSPORT = {
    "query", "database", "query_id", "compress", "decompress", "wait_end_of_query", "client_protocol_version",
    "default_format", "buffer_size", "http_headers_progress_interval_ms", "send_progress_in_http_headers", "session_id",
    "enable_http_compression", "cancel_http_readonly_queries_on_client_close",
}  # fmt: skip
FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*$")


@contextmanager
def stand_in(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A stand-in that listens; it is gone afterwards, at once."""
    command = [sys.executable, str(Path(__file__).absolute()), str(folder), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Handler(BaseHTTPRequestHandler):
    """One request: a query in the URL or the body, or an INSERT in the URL and its rows in the body."""

    protocol_version = "HTTP/1.1"
    path_of_data = ""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            self._answer(b"".join(self._chunks()))
        else:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, body: bytes) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if urlsplit(self.path).path == "/ping":
            self._reply(200, b"Ok.\n")
            return
        try:
            self._reply(200, self._run(asked, body))
        except Exception as error:  # noqa: BLE001 - a server answers with whatever went wrong
            text = str(error)
            code = re.search(r"Code: (\d+)", text)
            self._reply(500, text.encode(), **{"X-ClickHouse-Exception-Code": code.group(1) if code else "0"})

    def _run(self, asked: dict[str, str], body: bytes) -> bytes:
        import chdb

        handle = chdb.connect(self.path_of_data)
        try:
            if asked.get("database"):
                handle.query(f"USE `{asked['database']}`")
            for name, value in asked.items():
                if name not in TRANSPORT and not name.startswith("param_"):
                    handle.query(f"SET {name} = '{value}'")
            if "query" in asked and body:
                return self._insert(handle, asked["query"], body)
            parameters = {name.removeprefix("param_"): value for name, value in asked.items() if "param_" in name}
            sql = asked.get("query") or body.decode()
            return bytes(handle.query(sql, "TabSeparated", params=parameters).bytes() or b"")
        finally:
            handle.close()

    @staticmethod
    def _insert(handle: Any, sql: str, body: bytes) -> bytes:
        number, path = tempfile.mkstemp()
        try:
            os.write(number, body)
            handle.query(FORMAT.sub(lambda found: f"FROM INFILE '{path}' FORMAT {found[1]}", sql))
        finally:
            os.close(number)
            Path(path).unlink()
        return b""

    def _reply(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        told = {"X-ClickHouse-Summary": json.dumps({}), "X-ClickHouse-Timezone": "UTC", **headers}
        for name, value in {**told, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    import chdb

    Handler.path_of_data = sys.argv[1]
    engine = chdb.connect(sys.argv[1])
    host = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
    server = ThreadingHTTPServer((host, int(sys.argv[2])), Handler)
    server.daemon_threads = True
    print("ready", flush=True)
    server.serve_forever()
    engine.close()


if __name__ == "__main__":
    main()
