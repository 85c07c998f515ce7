"""Signatures as AWS publishes them, and a store that checks every one."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gyre.config import Config
from gyre.errors import ConfigError
from gyre.weights import s3
from gyre.weights.http_store import HttpStore
from gyre.weights.port import WeightsUnavailable
from gyre.weights.s3 import s3_store
from gyre.weights.sigv4 import Signer
from services.weights import check_transport
from tests.weights.s3_server import Bucket, Refused, check

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
S3 = Signer(KEY, SECRET, "us-east-1")
SUITE = Signer("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", service="service")
EMPTY = b""
GREETING = b"Welcome to Amazon S3."
BUCKET = "examplebucket.s3.amazonaws.com"
MAY = {"x-amz-date": "20130524T000000Z", "host": BUCKET}
AUGUST = {"x-amz-date": "20150830T123600Z", "host": "example.amazonaws.com"}

PUBLISHED = {
    "S3's example of GET": (
        S3,
        ("GET", "/test.txt", {**MAY, "range": "bytes=0-9", "x-amz-content-sha256": hashlib.sha256(EMPTY).hexdigest()}),
        EMPTY,
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    "S3's example of PUT": (
        S3,
        (
            "PUT",
            "/test%24file.text",
            {
                **MAY,
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-content-sha256": hashlib.sha256(GREETING).hexdigest(),
            },
        ),
        GREETING,
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    "get-vanilla": (
        SUITE,
        ("GET", "/", AUGUST),
        EMPTY,
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    "post-vanilla": (
        SUITE,
        ("POST", "/", AUGUST),
        EMPTY,
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
}
"""Of AWS's "Authenticating Requests: Using the Authorization Header", and of its Signature Version 4 test suite."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_signatures_are_those_that_aws_publishes(name: str) -> None:
    signer, (method, path, headers), body, signature = PUBLISHED[name]
    said = signer.authorization(method, path, headers, hashlib.sha256(body).hexdigest())
    assert said.endswith(f", Signature={signature}")
    now = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    whole = {**headers, "authorization": said}
    check(signer.secret, method, path, whole, body, now, required={"host"})  # so the store below knows them too
    for wrong in ((method, path + "x", body), ("DELETE", path, body), (method, path, body + b"x")):
        with pytest.raises(Refused):
            check(signer.secret, *wrong[:2], whole, wrong[2], now, required={"host"})


def test_secrets_are_never_told() -> None:
    assert SECRET not in repr(Signer(KEY, SECRET, "us-east-1", "session"))
    assert "session" not in repr(Signer(KEY, SECRET, "us-east-1", "session"))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(SECRET, token="session")


@pytest.fixture
async def environment(bucket: Bucket) -> AsyncIterator[dict[str, str]]:
    server = TestServer(bucket.app())
    await server.start_server()
    yield {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "session",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": str(server.make_url("/")),
    }
    await server.close()


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def store(environment: dict[str, str]) -> AsyncIterator[HttpStore]:
    made = s3_store("s3://bucket/runs/one", environment, now)
    yield made
    await made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"weights" * 1000)
    return tmp_path / "file"


def every(store: HttpStore, file: Path) -> dict[str, Callable[[], Awaitable[None]]]:
    return {
        "PUT": lambda: store.put("name", file),
        "GET": lambda: store.fetch("name", file.with_name("into")),
        "DELETE": lambda: store.remove("name"),
    }


async def test_what_was_put_is_fetched_until_it_is_removed(store: HttpStore, file: Path, bucket: Bucket) -> None:
    for method, asked in every(store, file).items():
        await asked()
        assert list(bucket.bodies) == ([] if method == "DELETE" else ["runs/one/name"])
    assert file.with_name("into").read_bytes() == file.read_bytes()
    await store.remove("name")
    with pytest.raises(WeightsUnavailable, match="answered 404 NoSuchKey: No such key"):
        await store.fetch("name", file.with_name("into"))


async def test_a_store_that_is_busy_or_hangs_up_is_asked_again(store: HttpStore, file: Path, bucket: Bucket) -> None:
    for asked in every(store, file).values():
        bucket.busy, bucket.hung_up = 1, 1
        await asked()
        assert (bucket.busy, bucket.hung_up) == (0, 0)
    bucket.busy = 100
    with pytest.raises(WeightsUnavailable, match="answered 503 SlowDown: Please reduce"):
        await store.put("name", file)
    assert bucket.busy == 96
    assert bucket.bodies == {}


@pytest.mark.parametrize("change", [{"AWS_SECRET_ACCESS_KEY": "another"}, {"AWS_SESSION_TOKEN": ""}], ids=str)
async def test_who_is_not_known_is_told_so_in_a_line(
    environment: dict[str, str], change: dict[str, str], file: Path
) -> None:
    stranger = s3_store("s3://bucket", {**environment, **change}, now)
    for method, asked in every(stranger, file).items():
        with pytest.raises(WeightsUnavailable, match=f"^{method} http.*answered 403 (Signature|InvalidToken)[^\n]*$"):
            await asked()
    await stranger.close()


async def test_a_bucket_that_lies_elsewhere_is_no_success(environment: dict[str, str], file: Path) -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        return web.Response(
            status=301, text="<Error><Code>PermanentRedirect</Code><Message>Elsewhere.</Message></Error>"
        )

    app = web.Application()
    app.router.add_route("*", "/{name:.*}", elsewhere)
    async with TestServer(app) as server:
        store = s3_store("s3://bucket", {**environment, "AWS_ENDPOINT_URL": str(server.make_url("/"))}, now)
        for asked in every(store, file).values():
            with pytest.raises(WeightsUnavailable, match="answered 301 PermanentRedirect: Elsewhere"):
                await asked()
        await store.close()


@pytest.mark.parametrize("minutes", [-20, 20])
async def test_a_clock_that_is_off_is_named(
    environment: dict[str, str], bucket: Bucket, file: Path, minutes: int
) -> None:
    late = s3_store("s3://bucket", environment, lambda: now() + timedelta(minutes=minutes))
    said = r"answered 403 RequestTimeTooSkewed: the store's clock says \w+, .* GMT; set this machine's right$"
    with pytest.raises(WeightsUnavailable, match=said):
        await late.put("name", file)
    await late.close()


async def test_what_no_single_put_takes_is_refused_before_it_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "file_digest", None)  # nobody looks into it
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    aws = s3_store("s3://bucket", keys, now)
    with file.open("r+b") as opened:
        opened.truncate(s3.MOST_PUT_BYTES + 1)  # sparse
    with pytest.raises(WeightsUnavailable, match="5368709121 bytes: S3 takes 5368709120 in one PUT"):
        await aws.put("name", file)
    await aws.close()


@pytest.mark.parametrize(
    ("url", "more", "where"),
    [
        ("s3://bucket/runs/", {}, "https://bucket.s3.us-east-1.amazonaws.com/runs"),
        ("s3://bucket", {"AWS_DEFAULT_REGION": "eu-west-1"}, "https://bucket.s3.eu-west-1.amazonaws.com"),
        ("s3://with.dots/runs", {}, "https://s3.us-east-1.amazonaws.com/with.dots/runs"),
        ("s3://bucket/runs", {"AWS_ENDPOINT_URL": "http://minio:9000/"}, "http://minio:9000/bucket/runs"),
        ("s3://b", {"AWS_ENDPOINT_URL_S3": "http://a", "AWS_ENDPOINT_URL": "http://b"}, "http://a/b"),
    ],
)
async def test_a_bucket_lies_where_its_endpoint_and_region_say(url: str, more: dict[str, str], where: str) -> None:
    made = s3_store(url, {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, **more}, now)
    assert made._url == where


def test_keys_that_are_missing_are_named_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.load(None, ["weights.transport=store", "weights.url=s3://bucket/runs"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"weights.url = s3://bucket/runs: AWS_SECRET_ACCESS_KEY: is not set"):
        check_transport(config)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    check_transport(config)
