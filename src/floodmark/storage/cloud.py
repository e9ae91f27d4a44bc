"""A store in a bucket of S3, Google Cloud or Azure, with conditional puts."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from floodmark.errors import BadStoreUrl, ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.conditional import CONDITIONAL_HINT, race_writers
from floodmark.storage.range_file import TAIL_BYTES, RangeFile
from floodmark.storage.scratch import TemporaryFolder
from floodmark.storage.store import BytesLike, ObjectInfo, check_key, check_prefix, is_segment

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from obstore import GetResult, ObjectMeta


CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
LARGE_BYTES = 64 * 1024 * 1024  # larger files are uploaded in parts
RENEW_AFTER = 24 * 3600.0  # seconds; the grace period of gc is several days, so a younger object is safe
_SWAP_ATTEMPTS = 8
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_NO_RETRIES = {"max_retries": 0}


class CloudStore:
    """Objects under a prefix of a bucket, such as ``s3://bucket/prefix``.

    Credentials and settings come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, …)
    or from `options`, as obstore names them (``endpoint=``, ``region=``, ``access_key_id=``, …).

    - A conditional put creates a new object, so one of two writers wins. A request that got an error and was sent
      again may find its own object. Then no writer gets True, which is harmless.
    - A file above `LARGE_BYTES` is uploaded in parts, and such an upload cannot be conditional. Two writers at the
      same moment may both get True. This is harmless because large objects are named by their content.
    - An existing object is renewed only if it is older than `RENEW_AFTER`, by a put of the same bytes.
    - A swap is sent only once. The bucket would refuse a second request because of the first one.
    - The first write of a process to a bucket checks that the bucket honours conditional puts.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url.rstrip("/")
        self._options = options
        self._store = _connect(url, options, _RETRIES)
        self._store_without_retries = _connect(url, options, _NO_RETRIES)
        self._bucket = (urlsplit(url).scheme, urlsplit(url).netloc, str(_endpoint(options)))
        self._staging: TemporaryFolder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._url, self._options, self._bucket in _CHECKED_BUCKETS)

    def __repr__(self) -> str:
        return f"CloudStore({self._url!r})"  # options may hold secrets

    @property
    def url(self) -> str:
        return self._url

    # Reading

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._explain_errors("read", key), self._raise_not_found(key):
            return obstore.get(self._store, key).bytes().to_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        with self._explain_errors("read", key), self._raise_not_found(key):
            try:
                if start < end:
                    return obstore.get_range(self._store, key, start=start, end=end).to_bytes()
            except BaseError as error:
                if not _is_range_error(error):
                    raise
            obstore.head(self._store, key)  # the range is empty, but a missing object is an error
            return b""

    def stat(self, key: str) -> ObjectInfo | None:
        check_key(key)
        meta = self._head(key)
        return _info(meta) if meta else None

    def open(self, key: str) -> pa.NativeFile:
        check_key(key)
        with self._explain_errors("open", key), self._raise_not_found(key):
            size, tail = self._tail(key)
        return pa.PythonFile(RangeFile(lambda start, end: self.get_range(key, start, end), size, tail), "r")

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list(check_prefix(prefix))

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        with self._explain_errors("list", folder):
            for page in obstore.list(self._store, prefix=folder or None):
                for meta in page:
                    if self._is_object(meta):
                        yield _info(meta)

    def _is_object(self, meta: ObjectMeta) -> bool:
        """Whether a listed name is an object of this store, not a hidden name or a folder marker of another tool."""
        if not all(is_segment(segment) for segment in meta["path"].split("/")):
            return False
        # Consoles create "folder/", which is listed as an empty "folder". Only a HEAD request shows the difference.
        return meta["size"] > 0 or self._head(meta["path"]) is not None

    # Writing

    def put_if_absent(self, key: str, data: BytesLike) -> bool:
        check_key(key)
        self._check_bucket()
        with self._explain_errors("write", key):
            return self._create(key, _content(data))

    def put_file(self, key: str, path: Path) -> bool:
        check_key(key)
        self._check_bucket()
        with self._explain_errors("write", key):
            created = self._upload(key, path) if path.stat().st_size > LARGE_BYTES else self._create(key, path)
        path.unlink()
        return created

    def put_derived(self, key: str, data: BytesLike) -> None:
        check_key(key)
        with self._explain_errors("write", key):
            obstore.put(self._store, key, _content(data))

    def put_derived_file(self, key: str, path: Path) -> None:
        check_key(key)
        with self._explain_errors("write", key):
            obstore.put(self._store, key, path)
        path.unlink()

    def compare_and_swap(self, key: str, expected: bytes | None, new: BytesLike) -> bool:
        check_key(key)
        self._check_bucket()
        new = bytes(new)
        for attempt in range(_SWAP_ATTEMPTS):
            current, version = self._get_with_version(key)
            if current != expected:
                return False
            if expected == new or self._swap(key, version, new):
                return True
            # Refused: the value has changed, which the next read shows, or S3 got two swaps at the same moment.
            _pause(attempt)
        raise self._refused("swap", key, "although it did not change")

    def turn(self, key: str) -> AbstractContextManager[None]:
        check_key(key)
        return nullcontext()

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explain_errors("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise

    def staging(self) -> Path:
        if self._staging is None:
            self._staging = TemporaryFolder()
        return self._staging.path

    # Steps

    def _head(self, key: str) -> ObjectMeta | None:
        with self._explain_errors("look at", key):
            try:
                return obstore.head(self._store, key)
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise
                return None

    def _tail(self, key: str) -> tuple[int, bytes]:
        """The size and the last bytes of an object, in one request."""
        try:
            result = obstore.get(self._store, key, options={"range": {"suffix": TAIL_BYTES}})
            return result.meta["size"], result.bytes().to_bytes()
        except BaseError as error:
            if not _is_range_error(error):
                raise
            return obstore.head(self._store, key)["size"], b""  # the object is empty

    def _check_bucket(self) -> None:
        """Refuse a bucket that does not honour conditional puts. Each process checks a bucket once."""
        if self._bucket in _CHECKED_BUCKETS:
            return
        with _checking:
            if self._bucket in _CHECKED_BUCKETS:
                return
            race = race_writers(_UncheckedStore(self._url, **self._options), f"runs/probe-{uuid.uuid4().hex}")
            if not race.is_fair:
                raise StorageError(
                    f"{self.url} does not honour conditional puts, so nothing was written: {race}.",
                    hint=CONDITIONAL_HINT,
                    url=self.url,
                )
            _CHECKED_BUCKETS.add(self._bucket)

    def _create(self, key: str, data: bytes | memoryview | Path) -> bool:
        for attempt in range(_SWAP_ATTEMPTS):
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                if self._renew(key):
                    return False
                _pause(attempt)  # the object was deleted meanwhile
            else:
                return True
        raise self._refused("create", key, "although it does not exist")

    def _upload(self, key: str, path: Path) -> bool:
        if self._renew(key):
            return False
        obstore.put(self._store, key, path, use_multipart=True)
        return True

    def _renew(self, key: str) -> bool:
        """Renew the time of an object if it is old; False if the object does not exist."""
        meta = self._head(key)
        if meta is None:
            return False
        if time.time() - meta["last_modified"].timestamp() < RENEW_AFTER:
            return True
        try:
            current = obstore.get(self._store, key)
            if meta["size"] > LARGE_BYTES:
                self._put_again(key, current)
            else:
                obstore.put(self._store, key, current.bytes(), mode=_version(current.meta))
        except (FileNotFoundError, PreconditionError):
            return False  # deleted meanwhile: the caller puts it again
        return True

    def _put_again(self, key: str, current: GetResult) -> None:
        """Put the bytes of a large object again, through a file on disk because they may not fit into memory."""
        with tempfile.NamedTemporaryFile(dir=self.staging()) as copy:
            for chunk in current.stream():
                copy.write(chunk)
            copy.flush()
            obstore.put(self._store, key, Path(copy.name), use_multipart=True)

    def _get_with_version(self, key: str) -> tuple[bytes | None, ObjectMeta | None]:
        with self._explain_errors("read", key):
            try:
                result = obstore.get(self._store, key)
                return result.bytes().to_bytes(), result.meta
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise
                return None, None

    def _swap(self, key: str, version: ObjectMeta | None, new: bytes) -> bool:
        """Put `new` if the object still has this version; False if the bucket refused."""
        try:
            obstore.put(self._store_without_retries, key, new, mode=_version(version) if version else "create")
        except (AlreadyExistsError, PreconditionError):
            return False
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise self._failure("swap", key, error) from error
        except (BaseError, OSError) as error:
            raise SwapUnknown(
                f"The swap of {key!r} in {self.url} may or may not have happened: {_first_line(error)}",
                hint="Check the network, then read the object to see its content.",
                key=key,
                url=self.url,
            ) from error
        return True

    # Errors

    @contextmanager
    def _explain_errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._failure(action, key, error) from error

    @contextmanager
    def _raise_not_found(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="Check the key: the object was never written, or it was purged or dropped.",
                key=key,
                url=self.url,
            ) from error

    def _failure(self, action: str, key: str, error: Exception) -> StorageError:
        if _bucket_is_missing(error):
            hint = "Create the bucket or correct the address: the bucket does not exist."
        elif isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            hint = "Check the credentials (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and their permissions."
        else:
            hint = "Check the network, the endpoint, the region and the credentials, then try again."
        message = f"Could not {action} {key!r} in {self.url}: {_first_line(error)}"
        return StorageError(message, hint=hint, key=key, url=self.url)

    def _refused(self, action: str, key: str, although: str) -> StorageError:
        return StorageError(
            f"Could not {action} {key!r} in {self.url}: refused {_SWAP_ATTEMPTS} times {although}.",
            hint="Nothing was changed. Try again, and check with `floodmark doctor` that the bucket honours "
            "conditional puts (If-Match, If-None-Match).",
            key=key,
            url=self.url,
        )


class _UncheckedStore(CloudStore):
    """The store that the check of a bucket uses."""

    def _check_bucket(self) -> None:
        return None


_CHECKED_BUCKETS: set[tuple[str, str, str]] = set()
"""Buckets that honour conditional puts: scheme, name and endpoint."""
_checking = threading.Lock()


def _connect(url: str, options: dict[str, Any], retries: dict[str, Any]) -> Any:
    settings = {"retry_config": retries, **options}
    if str(_endpoint(options)).startswith("http://"):
        # The user chose plain http, so allow it.
        settings["client_options"] = {"allow_http": True, **options.get("client_options", {})}
    if retries is _NO_RETRIES:
        settings["retry_config"] = retries
    try:
        return from_url(cast(Any, url), **settings)
    except (BaseError, ValueError) as error:
        raise BadStoreUrl(
            f"Could not open {url!r}: {_first_line(error)}",
            hint="Give an address like s3://bucket/prefix, and settings in the environment or as options.",
            url=url,
        ) from error


def _endpoint(options: dict[str, Any]) -> str | None:
    return options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")


def _reopen(url: str, options: dict[str, Any], is_checked: bool) -> CloudStore:
    store = CloudStore(url, **options)
    if is_checked:
        _CHECKED_BUCKETS.add(store._bucket)
    return store


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, 0.01 * 2**attempt))


def _content(data: BytesLike) -> bytes | memoryview:
    """The data in a form that obstore takes. It refuses Arrow buffers, and views of other items than bytes."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _version(meta: ObjectMeta) -> Any:
    # S3 and Azure compare the e_tag, Google compares the version (its generation).
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def _is_range_error(error: BaseError) -> bool:
    # A range that starts at or after the end of an object. obstore has no error class for this.
    return "416 Range Not Satisfiable" in str(error) or "NotPartial" in str(error)


def _bucket_is_missing(error: Exception) -> bool:
    return "NoSuchBucket" in str(error) or "The specified container does not exist" in str(error)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
