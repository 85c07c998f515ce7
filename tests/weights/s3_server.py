"""A bucket that knows its senders as S3 does: every signature is computed again from what came over the wire."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from aiohttp import web

SKEW = timedelta(minutes=15)
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, ?"
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


class Refused(Exception):
    """(code, message) of an error."""


def check(
    secret: str, method: str, path: str, headers: Mapping[str, str], body: bytes, now: datetime, *, required: set[str]
) -> None:
    """What AWS's documents ask of a request without a query. Headers' names are in lower case."""
    said = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if said is None:
        raise Refused("AccessDenied", "Access Denied")
    date = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(date - now) > SKEW:
        raise Refused(
            "RequestTimeTooSkewed", "The difference between the request time and the current time is too large."
        )
    names = said["names"].split(";")
    if names != sorted(names) or not required <= set(names):
        raise Refused("AccessDenied", "There were headers present in the request which were not signed")
    digest = hashlib.sha256(body).hexdigest()
    if headers.get("x-amz-content-sha256", digest) != digest:
        raise Refused("XAmzContentSHA256Mismatch", "The provided header does not match what was computed.")
    canonical = [method, path, "", *(f"{name}:{headers[name].strip()}" for name in names), "", said["names"], digest]
    scope = [said["day"], said["region"], said["service"], "aws4_request"]
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], "/".join(scope), hashed])
    key = b"AWS4" + secret.encode()
    for part in (*scope, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    if key.hex() != said["signature"] or headers["x-amz-date"][:8] != said["day"]:
        raise Refused("SignatureDoesNotMatch", "The request signature we calculated does not match.")


@dataclass
class Bucket:
    """Objects below `/bucket/`, for one sender."""

    secret: str
    token: str = ""
    clock_off: timedelta = timedelta()
    busy: int = 0
    """How often it says SlowDown yet."""
    hung_up: int = 0
    """How often it hangs up yet."""
    bodies: dict[str, bytes] = field(default_factory=dict)

    def app(self) -> web.Application:
        made = web.Application(client_max_size=1 << 20)
        made.add_routes([web.route("*", "/bucket/{name:.+}", self.answer)])
        return made

    async def answer(self, request: web.Request) -> web.Response:
        if self.hung_up:
            self.hung_up -= 1
            assert request.transport is not None
            request.transport.abort()
        try:
            await self.admit(request)
        except Refused as refused:
            code, message = refused.args
            text = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code>\n<Message>{message}</Message></Error>"
            return web.Response(status=503 if code == "SlowDown" else 403, text=text, content_type="application/xml")
        name = request.match_info["name"]
        if request.method == "PUT":
            assert request.content_length is not None
            self.bodies[name] = await request.read()
        elif request.method == "DELETE":
            self.bodies.pop(name, None)
            return web.Response(status=204)
        elif name not in self.bodies:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code><Message>No such key.</Message></Error>")
        return web.Response(body=self.bodies[name])

    async def admit(self, request: web.Request) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        needed = {"host", "x-amz-date", "x-amz-content-sha256"} | ({"x-amz-security-token"} if self.token else set())
        if headers.get("x-amz-security-token", "") != self.token:
            raise Refused("InvalidToken", "The provided token is malformed or otherwise invalid.")
        now = datetime.now(UTC) + self.clock_off
        check(self.secret, request.method, request.raw_path, headers, await request.read(), now, required=needed)
        if self.busy:
            self.busy -= 1
            raise Refused("SlowDown", "Please reduce your request rate.")
