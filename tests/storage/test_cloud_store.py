"""The cloud store keeps every promise of a store, against an S3 server on loopback."""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import boto3
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from floodmark.errors import BadStoreUrl, ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage import cloud
from floodmark.storage.cloud import CloudStore
from limits import set_limit
from loopback_s3 import running_s3
from storage.store_suite import StoreSuite

CREDENTIALS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint():
    with running_s3() as address:
        yield address


@pytest.fixture
def bucket(endpoint, request):
    """A new bucket of the server, as boto3 sees it."""
    s3 = boto3.resource(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    bucket = s3.create_bucket(Bucket=f"bucket-{time.time_ns()}")
    cloud._CHECKED_BUCKETS.add(("s3", bucket.name, endpoint))  # the check is tested in test_conditional_puts
    yield bucket
    bucket.objects.delete()
    bucket.delete()
    s3.meta.client.close()


@pytest.fixture
def store(bucket, endpoint):
    return CloudStore(f"s3://{bucket.name}/some/lake", endpoint=endpoint, **CREDENTIALS)


class TestCloudStore(StoreSuite):
    racers = 3
    rounds = 4

    @pytest.fixture
    def store(self, bucket, endpoint):
        return CloudStore(f"s3://{bucket.name}/some/lake", endpoint=endpoint, **CREDENTIALS)


def failing_put(monkeypatch, error, times=10**9):
    """Let the next puts fail without being sent."""
    real, left = obstore.put, [times]

    def put(*args, **options):
        if left[0] > 0:
            left[0] -= 1
            raise error
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", put)


def test_objects_lie_under_the_prefix(store, bucket):
    store.put_if_absent("blocks/a", b"a")
    assert [found.key for found in bucket.objects.all()] == ["some/lake/blocks/a"]


def test_objects_of_others_are_not_listed(store, bucket):
    store.put_if_absent("blocks/a", b"a")
    for key in ("some/lakes/b", "some/lake/.hidden/c", "other", "some/lake/blocks/", "some/lake/folder/"):
        bucket.put_object(Key=key, Body=b"")
    assert [info.key for info in store.list("")] == ["blocks/a"]


def test_more_objects_than_fit_a_page_are_listed(store, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    keys = [f"blocks/{number}" for number in range(8)]
    for key in keys:
        store.put_if_absent(key, b"x")
    assert [info.key for info in store.list("blocks")] == keys


def test_large_file_goes_up_in_parts(store, bucket, monkeypatch):
    set_limit(monkeypatch, "cloud.large_bytes", 1000)
    data = bytes(range(256)) * 25_000
    for made in (True, False):
        path = store.staging() / "large"
        path.write_bytes(data)
        assert store.put_file("data/large", path) is made
        assert not path.exists()
    assert store.get("data/large") == data
    assert bucket.Object("some/lake/data/large").e_tag.endswith('-2"')


@pytest.mark.parametrize("large", [10, 10_000_000])
def test_old_object_that_is_found_is_young_again(store, bucket, monkeypatch, large):
    set_limit(monkeypatch, "cloud.large_bytes", large)
    store.put_if_absent("blocks/a", b"a" * 100)
    before = store.stat("blocks/a").modified
    store.put_if_absent("blocks/a", b"a" * 100)
    assert store.stat("blocks/a").modified == before

    set_limit(monkeypatch, "cloud.renew_after", -3600.0)
    while time.time() < before + 1:  # S3 keeps whole seconds
        time.sleep(0.05)
    assert not store.put_if_absent("blocks/a", b"something else")
    assert store.stat("blocks/a").modified > before
    assert store.get("blocks/a") == b"a" * 100


def test_object_deleted_while_it_is_renewed_is_put_again(store, monkeypatch):
    store.put_if_absent("blocks/a", b"a")
    real = obstore.head

    def head(inner, key):
        obstore.delete(inner, key)
        monkeypatch.setattr(obstore, "head", real)
        return {"path": key, "size": 1, "last_modified": datetime.now(UTC) - timedelta(days=30)}

    monkeypatch.setattr(obstore, "head", head)
    assert store.put_if_absent("blocks/a", b"b")
    assert store.get("blocks/a") == b"b"


def test_parquet_footer_costs_one_request(store, monkeypatch):
    data = bytes(range(256)) * 10_000
    store.put_if_absent("data/a", data)
    requests = []
    for name in ("get", "get_range", "head"):
        real = getattr(obstore, name)
        monkeypatch.setattr(
            obstore,
            name,
            lambda *args, real=real, name=name, **options: requests.append(name) or real(*args, **options),
        )
    with store.open("data/a") as file:
        file.seek(-8, 2)
        assert file.read(8) == data[-8:]
        file.seek(-40_000, 2)
        assert file.read(1000) == data[-40_000:-39_000]
    assert requests == ["get"]


def test_swap_with_a_lost_answer_is_unknown(store, monkeypatch):
    store.compare_and_swap("refs/head", None, b"a")
    failing_put(monkeypatch, GenericError("connection reset"))
    with pytest.raises(SwapUnknown, match="connection reset") as caught:
        store.compare_and_swap("refs/head", b"a", b"b")
    assert caught.value.key == "refs/head"


def test_swap_is_sent_once_only():
    # A server may do what it is asked and answer with an error all the same. A second try of such a swap
    # would be refused because of the first, and the winner be told that it lost.
    requests = []

    class Broken(BaseHTTPRequestHandler):
        def answer(self):
            requests.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(404 if self.command == "GET" else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = answer  # noqa: N815 (the names that http.server calls)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        Thread(target=server.serve_forever).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        cloud._CHECKED_BUCKETS.add(("s3", "bucket", endpoint))
        store = CloudStore("s3://bucket/x", endpoint=endpoint, **CREDENTIALS)
        with pytest.raises(SwapUnknown):
            store.compare_and_swap("refs/head", None, b"a")
        server.shutdown()
    assert requests == ["GET", "PUT"]


def test_swap_that_was_not_allowed_did_not_happen(store, monkeypatch):
    failing_put(monkeypatch, PermissionDeniedError("no"))
    with pytest.raises(StorageError, match="credentials") as caught:
        store.compare_and_swap("refs/head", None, b"a")
    assert not isinstance(caught.value, SwapUnknown)


def test_swap_refused_for_a_passing_conflict_is_tried_again(store, monkeypatch):
    store.compare_and_swap("refs/head", None, b"a")
    failing_put(monkeypatch, AlreadyExistsError("409 ConditionalRequestConflict"), times=2)
    assert store.compare_and_swap("refs/head", b"a", b"b")
    assert store.get("refs/head") == b"b"


def test_swap_that_is_always_refused_ends_with_an_error(store, monkeypatch):
    set_limit(monkeypatch, "cloud.swap_attempts", 2)
    failing_put(monkeypatch, AlreadyExistsError("409 ConditionalRequestConflict"))
    with pytest.raises(StorageError, match="refused 2 times"):
        store.compare_and_swap("refs/head", None, b"b")


def test_missing_bucket_is_not_a_missing_object(endpoint):
    store = CloudStore("s3://no-such-bucket/lake", endpoint=endpoint, **CREDENTIALS)
    for call in (
        lambda: store.get("a"),
        lambda: store.put_if_absent("a", b"a"),
        lambda: store.compare_and_swap("a", None, b"a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StorageError, match="bucket does not exist") as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFound)


def test_server_that_is_not_there_is_an_error_with_a_hint():
    store = CloudStore(
        "s3://bucket/lake", endpoint="http://127.0.0.1:9", retry_config={"max_retries": 0}, **CREDENTIALS
    )
    with pytest.raises(StorageError, match="Check the network"):
        store.get("a")
    with pytest.raises(StorageError, match="Check the network"):
        store.put_if_absent("a", b"a")


def test_settings_come_from_the_environment(bucket, endpoint, monkeypatch):
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        monkeypatch.setenv(name, value)
    store = CloudStore(f"s3://{bucket.name}")
    assert store.put_if_absent("a", b"a")
    assert bucket.Object("a").get()["Body"].read() == b"a"


def test_secrets_are_not_shown():
    store = CloudStore("s3://bucket/lake", endpoint="http://127.0.0.1:9", **CREDENTIALS)
    assert "secret" not in repr(store) + store.url


def test_unknown_option_is_refused_by_name():
    with pytest.raises(BadStoreUrl, match="reigon"):
        CloudStore("s3://bucket/lake", reigon="us-east-1")


@pytest.mark.slow
def test_staging_folder_goes_with_the_store():
    store = CloudStore("s3://bucket/lake", endpoint="http://127.0.0.1:9", **CREDENTIALS)
    folder = store.staging()
    assert folder == store.staging()
    del store
    gc.collect()
    assert not folder.exists()
