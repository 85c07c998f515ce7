"""How much a run's two logs may still take."""

from dataclasses import dataclass

from bus import streams
from bus.link import Link

_RESERVE = 16


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes of one stream, bytes."""

    stream: str
    used: int
    limit: int
    """The stream refuses what would bring it beyond this."""

    @property
    def is_short(self) -> bool:
        """Whether the last sixteenth is being used up: time to stop in order, before anything is refused."""
        return self.limit - self.used < self.limit // _RESERVE


async def rooms(link: Link, run: str) -> tuple[Room, Room]:
    """Of EV and of CALL. Raises `NoStream`, `Unavailable`."""
    return await _room(link, streams.ev_stream(run)), await _room(link, streams.call_stream(run))


async def _room(link: Link, stream: str) -> Room:
    answer = await link.stream(stream)
    return Room(stream, int(answer["state"]["bytes"]), int(answer["config"]["max_bytes"]))
