"""A collector of traces in this process."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What arrived: spans by name; `refusals` more requests are answered with 403."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.refusals = 0
        self.refused = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.refusals -= 1
                self.send_response(403 if collector.refusals >= 0 else 200)
                self.end_headers()
                if collector.refusals >= 0:
                    collector.refused.set()
                else:
                    collector.take(body, self.headers.get("Content-Encoding", ""))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, body: bytes, encoding: str) -> None:
        assert encoding == ""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.02,))
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()
