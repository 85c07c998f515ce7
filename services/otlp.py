"""Spans to an OpenTelemetry collector over OTLP and HTTP; needs the extra `otel`."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from services.spans import Span


class Collector:
    """The other end of a trace exporter."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: http://host:4318; "" leaves it to the standard variables, `OTEL_EXPORTER_OTLP_...`."""
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
        self._resource = Resource.create({"service.name": "gyre"})

    def takes(self, spans: Sequence[Span]) -> bool:
        """Send these; whether they arrived."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Let go of it."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            _context(span.trace, span.id),
            _context(span.trace, span.parent) if span.parent else None,
            self._resource,
            span.attributes,
            kind=SpanKind.CLIENT if span.name == "call" else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
            start_time=min(span.start, span.end),
            end_time=span.end,
        )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
