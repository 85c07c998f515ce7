"""What can go wrong on the bus, split by what the caller should do.

BusError
├── Conflict            reload and decide again
├── Unavailable         wait: the server is away or does not answer
└── Refused             stop: sending it again changes nothing
    ├── StreamFull      the stream's size limit is reached
    ├── NoStream        the run was never provisioned, or is gone
    ├── Denied          this user may not do that, or is unknown
    ├── LogDamaged      a stored sequence is missing for good
    └── ServerFailed    the embedded server cannot be started
        └── DiskFull    the disk of its store has no room
"""


class BusError(Exception):
    """Any failure of the bus; messages are one line."""


class Conflict(BusError):
    """Somebody else wrote under the filter first: reload, decide again."""

    def __init__(self, filter: str, expected: int, found: int) -> None:  # noqa: A002 (the word of the Expect model)
        """Keep what was expected beside what was found (last sequence under the filter; 0: nothing)."""
        super().__init__(f"filter {filter}: expected last sequence {expected}, found {found}; reload and decide again")
        self.filter, self.expected, self.found = filter, expected, found


class Unavailable(BusError):
    """The server did not answer within our patience: it is unknown whether a commit was stored."""


class Refused(BusError):
    """The server understood and said no; sending it again changes nothing."""


class StreamFull(Refused):
    """The stream has reached its size limit: nothing was stored."""


class NoStream(Refused):
    """No such stream: the run was never provisioned on this server, or was deleted."""


class Denied(Refused):
    """The server does not let this user do that, or does not know the user."""


class LogDamaged(Refused):
    """A sequence that was stored cannot be read any more; nothing after it may be trusted to be in order."""


class ServerFailed(Refused):
    """The embedded server cannot serve this store."""


class DiskFull(ServerFailed):
    """The disk that the store lies on has too little room; with more of it the server starts."""
