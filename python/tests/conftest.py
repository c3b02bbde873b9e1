"""What several files of tests need: an object store on loopback, and settings."""

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

# Ray's report of its use is for somebody else.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def bucket():
    """The URL of a bucket in moto, another S3; the environment says where that is, to later processes too."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    started = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/images", method="PUT")).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "moto does not start"
        os.environ.update(
            AWS_ENDPOINT=endpoint,
            AWS_ALLOW_HTTP="true",
            AWS_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="this-is-secret-and-seen-nowhere",
        )
        yield "s3://images"
        server.kill()
