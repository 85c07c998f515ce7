"""What a consumer's worker asks: is this the end of its logs?"""

import asyncio
from typing import Any


class Ending:
    """Where each log ends, once that is known; nothing is known of a log that goes on."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.until: dict[str, int] = {}
        """Log -> the last sequence that there is for us, once nothing more can come."""
        self.news = asyncio.Event()
        """Set when there is a reason to look whether this is the end."""

    async def news_or(self, coming: "asyncio.Future[Any]") -> bool:
        """Wait until this has come (True), or until there are news about the end (False)."""
        self.news.clear()
        told = asyncio.ensure_future(self.news.wait())
        try:
            await asyncio.wait({coming, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        return coming.done()
