"""HTTP/1.1 requests over one kept-alive connection: enough for a model server, at a third of http.client's cost."""

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Duplex(Protocol):
        """What is used of a plain or TLS socket."""

        def sendall(self, data: bytes, /) -> None:
            """Send all of it."""

        def recv(self, size: int, /) -> bytes:
            """At most `size` bytes, none once the other side has closed."""

        def close(self) -> None:
            """Hang up."""


PIECE = 65536  # bytes received at once, and the longest header line
MOST_HEADERS = 200
CONTINUE, OK = 100, 200  # the statuses between them only announce the real one


class WireError(OSError):
    """The server said something that is not HTTP, or hung up in the middle."""


class Connection:
    """POSTs to one server. Reconnects by itself when the previous exchange left the connection unusable."""

    def __init__(self, base_url: str, key: str, timeout: float) -> None:
        """`base_url` as in OPENAI_BASE_URL; `timeout`: longest silence in seconds. Raises ValueError for a bad URL."""
        scheme, _, rest = base_url.partition("://")
        authority, slash, path = rest.partition("/")
        if scheme not in ("http", "https") or not authority or "@" in authority:
            raise ValueError(f"OPENAI_BASE_URL: {base_url!r} is not of the form http://host:port/path")
        host, colon, port = authority.rpartition(":")
        if not colon or authority.endswith("]"):
            host, port = authority, "443" if scheme == "https" else "80"
        if not (key.isascii() and key.isprintable()):
            raise ValueError("OPENAI_API_KEY: holds characters that cannot be sent in a header")
        if not port.isdigit():
            raise ValueError(f"OPENAI_BASE_URL: {port!r} is not a port number")
        self._address = (host.strip("[]"), int(port))
        self._tls = scheme == "https"
        self._path = (slash + path).rstrip("/")
        self._head = (
            f"Host: {authority}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nUser-Agent: gyre-reference/1\r\n"
        )
        self._timeout = timeout
        self._socket: Duplex | None = None
        self._buffer = b""

    def post(self, path: str, body: bytes) -> "tuple[int, Iterator[bytes]]":
        """Status and the body's pieces as they arrive. Raises OSError (WireError included) whenever it goes wrong."""
        reused = self._socket is not None
        request = f"POST {self._path}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        try:
            return self._exchange(request)
        except OSError as error:
            self.close()
            if not reused or isinstance(error, TimeoutError):
                raise
        return self._exchange(request)  # the server had closed an idle connection: not a failure yet

    def close(self) -> None:
        """Hang up; the next request connects anew."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._buffer = b""

    def _exchange(self, request: bytes) -> "tuple[int, Iterator[bytes]]":
        stream = self._connected()
        stream.sendall(request)
        status, headers = self._read_head()
        while CONTINUE <= status < OK:
            status, headers = self._read_head()
        return status, self._body(headers)

    def _connected(self) -> "Duplex":
        if self._socket is None:
            plain = socket.create_connection(self._address, timeout=self._timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._wrapped(plain) if self._tls else plain
        return self._socket

    def _wrapped(self, plain: socket.socket) -> "Duplex":
        import ssl

        return ssl.create_default_context().wrap_socket(plain, server_hostname=self._address[0])

    def _read_head(self) -> tuple[int, dict[str, str]]:
        lines = []
        while line := self._line():
            lines.append(line)
            if len(lines) > MOST_HEADERS:
                raise WireError(f"the server sent more than {MOST_HEADERS} header lines")
        version, _, rest = lines[0].partition(" ") if lines else ("", "", "")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not status.isdigit():
            raise WireError("the server does not speak HTTP/1.1")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status), headers

    def _body(self, headers: dict[str, str]) -> "Iterator[bytes]":
        if "chunked" in headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
        elif "content-length" in headers:
            yield from self._exactly(_size(headers["content-length"], 10))
        else:
            yield from self._until_closed()
        if headers.get("connection", "").lower() == "close":
            self.close()

    def _chunks(self) -> "Iterator[bytes]":
        while size := _size(self._line().partition(";")[0], 16):
            yield from self._exactly(size)
            self._line()
        while self._line():
            pass

    def _exactly(self, size: int) -> "Iterator[bytes]":
        while size:
            if not self._buffer:
                self._fill()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    def _until_closed(self) -> "Iterator[bytes]":
        yield self._buffer
        while piece := self._socket.recv(PIECE) if self._socket else b"":
            yield piece
        self.close()

    def _line(self) -> str:
        while b"\n" not in self._buffer:
            if len(self._buffer) > PIECE:
                raise WireError("the server sent an endless header line")
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r").decode("latin-1")

    def _fill(self) -> None:
        piece = self._socket.recv(PIECE) if self._socket else b""
        if not piece:
            raise WireError("the server hung up in the middle of an answer")
        self._buffer += piece


def _size(text: str, base: int) -> int:
    try:
        size = int(text.strip(), base)
    except ValueError:
        size = -1
    if size < 0:
        raise WireError(f"the server sent {text!r} as a length")
    return size
