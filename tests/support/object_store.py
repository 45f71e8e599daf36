"""An S3 store on a socket of this machine, as moto simulates it; clients find it by AWS's own variables."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
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


@contextlib.contextmanager
def s3_over_tls(key: Path, certificate: Path) -> Iterator[str]:
    """Yields ``host:port`` of a store behind TLS, with the objects of this process's other stores."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, ssl_context=(str(certificate), str(key)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
