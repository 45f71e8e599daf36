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
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
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
        server.stop()
