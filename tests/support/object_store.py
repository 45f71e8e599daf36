"""An S3 store on a socket of this machine, as moto simulates it; clients find it by AWS's own variables."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from unittest import mock


@contextlib.contextmanager
def s3(bucket: str) -> Iterator[Mapping[str, str]]:
    """Yields the environment in which ``s3://<bucket>`` is there; it is set in this process, too."""
    import s3fs

    with s3_at(0) as url:
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        try:
            with mock.patch.dict(os.environ, environment):
                s3fs.S3FileSystem.clear_instance_cache()
                s3fs.S3FileSystem().mkdir(bucket)
                yield environment
        finally:
            s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def s3_at(port: int) -> Iterator[str]:
    """Yields the address of a store at a port; all stores of this process have the same objects."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()
