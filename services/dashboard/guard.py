"""Who may look: everybody on this machine, and over a network whoever has the token.

A browser that was sent here by another site must not get in either: requests under a name that is not ours are refused
(a name that points at a loopback address is the classic way around a browser's rules), a token is compared in constant
time and becomes a cookie that no script can read and no other site can send.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web

from gyre.errors import GyreError

COOKIE = "gyre_dashboard"
LEAST = 16
"""Characters of a token."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HEALTH = "/health"
"""Says nothing of any run, and is open to whoever starts containers."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Unguarded(GyreError):
    """The dashboard would be open to a network."""


class Guard:
    """The rules, for an address and a token."""

    def __init__(self, host: str, token: str | None) -> None:
        """Raises `Unguarded` where an address that others can reach has no token, or the token could be guessed."""
        self._local = is_loopback(host)
        if not self._local and not token:
            raise Unguarded(f"--host {host}: others can reach it; give a token (--token, GYRE_DASHBOARD_TOKEN)")
        if token and len(token) < LEAST:
            raise Unguarded(
                f"--token: {len(token)} characters; give {LEAST} or more, `openssl rand -hex 16` makes some"
            )
        self._token = token or None
        self._pass = hmac.new((token or "").encode(), b"gyre dashboard", hashlib.sha256).hexdigest()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what may not be."""
        return self._refused(request) or await handler(request)

    async def sign(self, _: web.Request, response: web.StreamResponse) -> None:
        """Say the page's own rules with every answer."""
        response.headers.update(HEADERS)

    def _refused(self, request: web.Request) -> web.Response | None:
        if self._local and not is_loopback(_name(request.headers.get("Host", ""))):
            return web.Response(status=421, text="Host: this dashboard answers to localhost alone\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="read-only: GET and HEAD\n", headers={"Allow": "GET, HEAD"})
        if self._token is None or request.path == HEALTH or self._has_pass(request):
            return None
        if _same(request.query.get("token", ""), self._token):
            return self._welcome(request)
        return web.Response(status=401, text="token: open /?token=... once; the browser keeps it from then on\n")

    def _has_pass(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and self._token is not None and _same(given, self._token):
            return True
        return _same(request.cookies.get(COOKIE, ""), self._pass)

    def _welcome(self, request: web.Request) -> web.Response:
        """The token leaves the address bar, and history with it."""
        rest = {name: value for name, value in request.query.items() if name != "token"}
        answer = web.Response(status=303, headers={"Location": str(request.rel_url.with_query(rest))})
        answer.set_cookie(COOKIE, self._pass, httponly=True, samesite="Strict", secure=request.secure)
        return answer


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached under a name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """The name or address in a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _same(given: str, wanted: str) -> bool:
    """In constant time; what is given may hold bytes that are no UTF-8."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())
