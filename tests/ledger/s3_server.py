"""An S3 server on loopback for the ledger's tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


@contextmanager
def s3_bucket() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a new bucket and the options to reach it with."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    name = f"bucket-{time.time_ns()}"
    try:
        s3.create_bucket(Bucket=name)
        yield f"s3://{name}", {"endpoint": endpoint, **CREDENTIALS}
    finally:
        s3.close()
        server.stop()
