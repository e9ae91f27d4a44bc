"""A store in a bucket of S3 (or Google's or Azure's), on conditional puts."""

from __future__ import annotations

import os
import random
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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

from floodmark.storage.errors import BadStoreUrl, ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.range_file import TAIL_BYTES, RangeFile
from floodmark.storage.store import ObjectInfo, check_key, check_prefix, is_segment

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from obstore import GetResult, ObjectMeta

CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
LARGE_BYTES = 64 * 1024 * 1024  # above it a file goes up in parts
RENEW_AFTER = 24 * 3600.0  # seconds; an object found younger is young enough for gc's grace of days
_SWAP_ATTEMPTS = 8
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_NO_RETRIES = {"max_retries": 0}


class CloudStore:
    """Objects under a prefix of a bucket, such as ``s3://bucket/prefix``.

    Credentials and settings come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, …)
    or from `options`, as obstore names them (``endpoint=``, ``region=``, ``access_key_id=``, …).

    - A new object is a conditional put, so one of two writers wins. A request that was answered by an error
      and sent again can find its own object: then no one is told that they made it, which is harmless.
    - A file above `LARGE_BYTES` goes up in parts, which cannot be conditional: of two writers at the same
      moment both may be told that they made it. Large objects are named by their content.
    - An object that was found is made young again only when it is older than `RENEW_AFTER`: by putting its
      own bytes once more.
    - The swap is sent once and never again by itself: a second try would be refused because of the first.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url.rstrip("/")
        self._options = options
        self._store = _connect(url, options, _RETRIES)
        self._once = _connect(url, options, _NO_RETRIES)
        self._staging: tempfile.TemporaryDirectory[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._url, self._options)

    def __repr__(self) -> str:
        return f"CloudStore({self._url!r})"  # options may hold secrets

    @property
    def url(self) -> str:
        return self._url

    # reading

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._explained("read", key), self._found(key):
            return obstore.get(self._store, key).bytes().to_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        with self._explained("read", key), self._found(key):
            try:
                if start < end:
                    return obstore.get_range(self._store, key, start=start, end=end).to_bytes()
            except BaseError as error:
                if not _is_beyond_the_end(error):
                    raise
            obstore.head(self._store, key)  # nothing to read, but the object has to be there
            return b""

    def stat(self, key: str) -> ObjectInfo | None:
        check_key(key)
        meta = self._head(key)
        return _info(meta) if meta else None

    def open(self, key: str) -> pa.NativeFile:
        check_key(key)
        with self._explained("open", key), self._found(key):
            size, tail = self._tail(key)
        return pa.PythonFile(RangeFile(lambda start, end: self.get_range(key, start, end), size, tail), "r")

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list(check_prefix(prefix))

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        with self._explained("list", folder):
            for page in obstore.list(self._store, prefix=folder or None):
                for meta in page:
                    if self._is_object(meta):
                        yield _info(meta)

    def _is_object(self, meta: ObjectMeta) -> bool:
        """Whether a listed name is an object of this store, and not hidden or another tool's folder mark."""
        if not all(is_segment(segment) for segment in meta["path"].split("/")):
            return False
        # "folder/", which consoles make, is listed as an empty "folder"; only a look tells them apart.
        return meta["size"] > 0 or self._head(meta["path"]) is not None

    # writing

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._explained("write", key):
            return self._create(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        check_key(key)
        with self._explained("write", key):
            made = self._upload(key, path) if path.stat().st_size > LARGE_BYTES else self._create(key, path)
        path.unlink()
        return made

    def put_derived(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._explained("write", key):
            obstore.put(self._store, key, data)

    def put_derived_file(self, key: str, path: Path) -> None:
        check_key(key)
        with self._explained("write", key):
            obstore.put(self._store, key, path)
        path.unlink()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        check_key(key)
        for attempt in range(_SWAP_ATTEMPTS):
            there, version = self._versioned(key)
            if there != expected:
                return False
            if expected == new or self._swap(key, version, new):
                return True
            # Refused: the value has changed, which the next look shows, or S3 saw two swaps at one moment.
            time.sleep(random.uniform(0, 0.01 * 2**attempt))
        raise StorageError(
            f"Could not swap {key!r} in {self.url}: refused {_SWAP_ATTEMPTS} times without a change.",
            hint="Does this bucket support conditional puts (If-Match, If-None-Match)? The swap did not happen.",
            key=key,
            url=self.url,
        )

    def turn(self, key: str) -> AbstractContextManager[None]:
        check_key(key)
        return nullcontext()

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explained("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise

    def staging(self) -> Path:
        if self._staging is None:
            self._staging = tempfile.TemporaryDirectory(prefix="floodmark-")
            # Removed without the warning that a TemporaryDirectory gives when it is forgotten.
            weakref.finalize(self, self._staging.cleanup)
        return Path(self._staging.name)

    # the steps

    def _head(self, key: str) -> ObjectMeta | None:
        with self._explained("look at", key):
            try:
                return obstore.head(self._store, key)
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise
                return None

    def _tail(self, key: str) -> tuple[int, bytes]:
        """An object's size and last bytes, in one request."""
        try:
            result = obstore.get(self._store, key, options={"range": {"suffix": TAIL_BYTES}})
            return result.meta["size"], result.bytes().to_bytes()
        except BaseError as error:
            if not _is_beyond_the_end(error):
                raise
            return obstore.head(self._store, key)["size"], b""  # empty: it has no last bytes

    def _create(self, key: str, data: bytes | Path) -> bool:
        while True:
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                if self._renew(key):
                    return False
            else:
                return True

    def _upload(self, key: str, path: Path) -> bool:
        if self._renew(key):
            return False
        obstore.put(self._store, key, path, use_multipart=True)
        return True

    def _renew(self, key: str) -> bool:
        """Make an object young again if it is old; False if there is none."""
        meta = self._head(key)
        if meta is None:
            return False
        if time.time() - meta["last_modified"].timestamp() < RENEW_AFTER:
            return True
        try:
            there = obstore.get(self._store, key)
            if meta["size"] > LARGE_BYTES:
                self._put_again(key, there)
            else:
                obstore.put(self._store, key, there.bytes(), mode=_version(there.meta))
        except (FileNotFoundError, PreconditionError):
            return False  # deleted meanwhile: whoever puts it starts again
        return True

    def _put_again(self, key: str, there: GetResult) -> None:
        """Put a large object's own bytes once more, by way of the disk: it may not fit into memory."""
        with tempfile.NamedTemporaryFile(dir=self.staging()) as copy:
            for chunk in there.stream():
                copy.write(chunk)
            copy.flush()
            obstore.put(self._store, key, Path(copy.name), use_multipart=True)

    def _versioned(self, key: str) -> tuple[bytes | None, ObjectMeta | None]:
        with self._explained("read", key):
            try:
                found = obstore.get(self._store, key)
                return found.bytes().to_bytes(), found.meta
            except FileNotFoundError as error:
                if _bucket_is_missing(error):
                    raise
                return None, None

    def _swap(self, key: str, version: ObjectMeta | None, new: bytes) -> bool:
        """Put `new` if the object is still this version; False if that was refused."""
        try:
            obstore.put(self._once, key, new, mode=_version(version) if version else "create")
        except (AlreadyExistsError, PreconditionError):
            return False
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise self._failure("swap", key, error) from error
        except (BaseError, OSError) as error:
            raise SwapUnknown(
                f"Whether {key!r} in {self.url} was swapped is unknown: {_first_line(error)}",
                hint="Read it again before deciding; check the network.",
                key=key,
                url=self.url,
            ) from error
        return True

    # errors

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._failure(action, key, error) from error

    @contextmanager
    def _found(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="It was never written, or it has been purged or dropped.",
                key=key,
                url=self.url,
            ) from error

    def _failure(self, action: str, key: str, error: Exception) -> StorageError:
        if _bucket_is_missing(error):
            hint = "The bucket does not exist: create it, or correct the address."
        elif isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            hint = "Check the credentials (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and their rights."
        else:
            hint = "Check the network, the endpoint, the region and the credentials, then try again."
        message = f"Could not {action} {key!r} in {self.url}: {_first_line(error)}"
        return StorageError(message, hint=hint, key=key, url=self.url)


def _connect(url: str, options: dict[str, Any], retries: dict[str, Any]) -> Any:
    settings = {"retry_config": retries, **options}
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    if str(endpoint).startswith("http://"):
        # Whoever names a plain http endpoint means it.
        settings["client_options"] = {"allow_http": True, **options.get("client_options", {})}
    if retries is _NO_RETRIES:
        settings["retry_config"] = retries
    try:
        return from_url(cast(Any, url), **settings)
    except (BaseError, ValueError) as error:
        raise BadStoreUrl(
            f"Could not open {url!r}: {_first_line(error)}",
            hint="An address looks like s3://bucket/prefix; settings come from the environment or as options.",
            url=url,
        ) from error


def _reopen(url: str, options: dict[str, Any]) -> CloudStore:
    return CloudStore(url, **options)


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _version(meta: ObjectMeta) -> Any:
    # S3 and Azure go by the e_tag, Google by the version (its generation).
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def _is_beyond_the_end(error: BaseError) -> bool:
    # obstore has no error of its own for it: a range that starts at or after the end of an object.
    return "416 Range Not Satisfiable" in str(error) or "NotPartial" in str(error)


def _bucket_is_missing(error: Exception) -> bool:
    return "NoSuchBucket" in str(error) or "The specified container does not exist" in str(error)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
