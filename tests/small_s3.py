"""A small S3 server on loopback: objects in a dictionary, conditional puts, and faults that a test decides.

It is quicker than moto, its content can be copied, and it can answer as a broken server or a broken network does.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from floodmark.storage.cloud import CloudStore

BUCKET = "bucket"
CREDENTIALS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
QUICK_RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2},
}

REFUSED = "refused"
"""The request is not done, and the answer is an error."""
LOST = "lost"
"""The request is done, but the answer is an error."""
CUT = "cut"
"""The request is done, but its answer ends in the middle."""

Fault = Callable[[int, str, str], str | None]
"""From the number of a request since the last `reset`, its method and its key: what is wrong with it."""


@dataclass(frozen=True)
class StoredObject:
    data: bytes
    modified: float

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data + str(self.modified).encode()).hexdigest()}"'


@dataclass
class SmallS3:
    """The content and the behaviour of the server."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    fault: Fault | None = None
    honours_conditions: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self, fault: Fault | None = None) -> None:
        """Count requests from 0 on, with this fault."""
        with self.lock:
            self.requests, self.fault = [], fault

    def store(self, prefix: str = "lake", kind: type[CloudStore] = CloudStore, retries: Any = None) -> CloudStore:
        """A store in this server. Its requests are not sent again, unless `retries` says how."""
        config = {"max_retries": 0} if retries is None else retries
        return kind(f"s3://{BUCKET}/{prefix}", endpoint=self.address, retry_config=config, **CREDENTIALS)

    def copied(self, source: str, target: str) -> None:
        """Copy all objects below one prefix to another."""
        with self.lock:
            for key, stored in list(self.objects.items()):
                if key.startswith(f"{source}/"):
                    self.objects[target + key.removeprefix(source)] = stored

    def removed(self, prefix: str) -> None:
        with self.lock:
            for key in [key for key in self.objects if key.startswith(f"{prefix}/")]:
                del self.objects[key]

    def is_refused(self, match: str | None, none_match: str | None, current: StoredObject | None) -> bool:
        """Whether the condition of a put is not met."""
        if not self.honours_conditions:
            return False
        return (none_match == "*" and current is not None) or (
            match is not None and (current is None or current.tag != match)
        )

    def aged(self, prefix: str, seconds: float) -> None:
        """Make all objects below a prefix older."""
        with self.lock:
            for key, stored in list(self.objects.items()):
                if key.startswith(f"{prefix}/"):
                    self.objects[key] = StoredObject(stored.data, stored.modified - seconds)


@contextmanager
def small_s3(**behaviour: Any) -> Iterator[SmallS3]:
    """A server that ends with the block."""
    state = SmallS3(**behaviour)

    class Handler(_Handler):
        s3 = state

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


_moments = itertools.count()


class _Handler(BaseHTTPRequestHandler):
    s3: SmallS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet per answer

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.s3.lock:
            self.s3.requests.append((self.command, key))
            fault = self.s3.fault(len(self.s3.requests) - 1, self.command, key) if self.s3.fault else None
            if fault == REFUSED:
                return self._answer(500)
            status, headers, content = self._done(key, parse_qs(parts.query), body)
        if fault == LOST:
            return self._answer(500)
        return self._answer(status, content, headers, is_cut=fault == CUT)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815 (the names that http.server calls)

    def _done(self, key: str, query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, str], bytes]:
        current = self.s3.objects.get(key)
        if self.command == "PUT":
            return self._put(key, current, body)
        if self.command == "DELETE":
            self.s3.objects.pop(key, None)
            return 204, {}, b""
        if self.command == "POST":  # a deletion of several objects
            keys = [unescape(found) for found in re.findall("<Key>(.*?)</Key>", body.decode())]
            for one in keys:
                self.s3.objects.pop(one, None)
            done = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in keys)
            return 200, {}, f"<DeleteResult>{done}</DeleteResult>".encode()
        if not key:
            return 200, {}, self._listed(query)
        if current is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"ETag": current.tag, "Last-Modified": formatdate(current.modified, usegmt=True)}
        if asked := self.headers.get("Range"):
            return self._range(current.data, asked, headers)
        return 200, headers, current.data

    def _put(self, key: str, current: StoredObject | None, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.s3.is_refused(self.headers.get("If-Match"), self.headers.get("If-None-Match"), current):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        # Equal content that is put again has another tag, as a version has.
        stored = self.s3.objects[key] = StoredObject(body, time.time() + next(_moments) * 1e-6)
        return 200, {"ETag": stored.tag}, b""

    def _range(self, data: bytes, asked: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = (max(0, len(data) - int(last)), len(data)) if not first else (int(first), len(data))
        if first and last:
            end = min(end, int(last) + 1)
        if start >= len(data):
            return 416, {}, b"<Error><Code>InvalidRange</Code></Error>"
        return 206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        [prefix] = query.get("prefix", [""])
        found = sorted((key, stored) for key, stored in self.s3.objects.items() if key.startswith(prefix))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
            f"<LastModified>{datetime.fromtimestamp(stored.modified, UTC):%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
            f"<ETag>{escape(stored.tag)}</ETag></Contents>"
            for key, stored in found
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

    def _answer(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None, *, is_cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        self.wfile.flush()
        self.close_connection = is_cut
