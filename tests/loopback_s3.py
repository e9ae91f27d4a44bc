"""An S3 server on loopback that, like the real one and unlike plain moto, handles each request as a whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.moto_server import threaded_moto_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication


class _OneAtATime(DomainDispatcherApplication):
    """moto reads and closes an object's buffer from several threads at once, and then answers 500."""

    _turn = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        with self._turn:
            return [b"".join(super().__call__(environ, start_response))]


@contextmanager
def running_s3() -> Iterator[str]:
    """The address of a server that ends with the block."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with patch.object(threaded_moto_server, "DomainDispatcherApplication", _OneAtATime):
        server = threaded_moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
