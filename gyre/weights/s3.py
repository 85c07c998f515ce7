"""S3, and what speaks its API: where an `s3://bucket/prefix` lies, and who asks, by AWS's usual variables.

MinIO, Ceph, Google Cloud Storage (with HMAC keys) and others are named by an endpoint. Keys come from the environment
alone: neither profiles nor an instance's or a pod's role are looked for. An object goes up in one request.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from gyre.trainers.checkpoint import file_digest
from gyre.weights.http_store import HttpStore
from gyre.weights.port import WeightsUnavailable
from gyre.weights.sigv4 import Signer

SCHEME = "s3://"
NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
MOST_PUT_BYTES = 5 << 30
"""Of one PUT at AWS; other stores say themselves what they take."""
_NO_BODY = hashlib.sha256().hexdigest()


def s3_store(url: str, environment: Mapping[str, str], clock: Callable[[], datetime]) -> HttpStore:
    """The store of an `s3://` URL. Raises WeightsUnavailable where a key is missing."""
    if missing := [each for each in NEEDED if not environment.get(each)]:
        raise WeightsUnavailable(f"{missing[0]}: is not set; an s3:// URL needs {' and '.join(NEEDED)}")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    key, secret = (environment[each] for each in NEEDED)
    signer = Signer(key, secret, region, environment.get("AWS_SESSION_TOKEN", ""))
    return HttpStore(_base(url, region, endpoint), Signed(signer, clock, None if endpoint else MOST_PUT_BYTES))


def _base(url: str, region: str, endpoint: str | None) -> str:
    """Where its objects lie. A bucket is part of the host at AWS, but for one whose dots no certificate covers."""
    bucket, _, prefix = url.removeprefix(SCHEME).strip("/").partition("/")
    where = endpoint.rstrip("/") if endpoint else f"https://s3.{region}.amazonaws.com"
    if endpoint or "." in bucket:
        return f"{where}/{bucket}/{prefix}".rstrip("/")
    return f"https://{bucket}.s3.{region}.amazonaws.com/{prefix}".rstrip("/")


class Signed:
    """An `Access` by signatures.

    Args:
        signer: whose.
        clock: now, with a time zone; S3 refuses what is a quarter of an hour off.
        most: bytes of a PUT; None: the store says it.
    """

    def __init__(self, signer: Signer, clock: Callable[[], datetime], most: int | None) -> None:
        self._signer, self._clock, self._most = signer, clock, most

    async def headers(self, method: str, url: str, body: Path | None) -> dict[str, str]:
        """See `Access`: the body's digest is signed too."""
        if body is not None and self._most is not None and (size := body.stat().st_size) > self._most:
            rule = f"S3 takes {self._most} in one PUT, and gyre sends no parts; set another weights.transport"
            raise WeightsUnavailable(f"PUT {url}: {size} bytes: {rule}")
        digest = _NO_BODY if body is None else await asyncio.to_thread(file_digest, body)
        parts = urlsplit(url)
        return self._signer.headers(method, parts.netloc, parts.path, digest, self._clock())
