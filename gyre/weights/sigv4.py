"""AWS's Signature Version 4 in a request's headers: what S3, and the stores that speak its API, know a sender by."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs, and where it counts."""

    key: str
    """Access key id."""
    secret: str = field(repr=False)
    region: str
    token: str = field(default="", repr=False)
    """Session token of temporary credentials."""
    service: str = "s3"

    def headers(self, method: str, host: str, path: str, digest: str, now: datetime) -> dict[str, str]:
        """What a request has to say, its host included.

        Args:
            method: PUT, GET, ...
            host: with the port, if it is not the scheme's.
            path: as it is sent, percent-encoded once, without a query.
            digest: SHA-256 of the body, hex; also of none.
            now: with a time zone.
        """
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        said = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        if self.token:
            said["x-amz-security-token"] = self.token
        return {**said, "Authorization": self.authorization(method, path, said, digest)}

    def authorization(self, method: str, path: str, headers: Mapping[str, str], digest: str) -> str:
        """The header's value.

        Args:
            method: PUT, GET, ...
            path: as it is sent.
            headers: all of those that are signed, by names in lower case; `host` and `x-amz-date` are among them.
            digest: SHA-256 of the body, hex.
        """
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
        request = f"{method}\n{path}\n\n{lines}\n{names}\n{digest}"
        stamp = headers["x-amz-date"]
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key = _mac(key, part)
        signature = _mac(
            key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        ).hex()
        return f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={signature}"


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
