"""The S3 server under test: SeaweedFS in a process of its own, inspected by another client."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.config
import botocore.session

from codeq_cluster.settings import S3Settings
from codeq_cluster.testing.ports import free_ports

ACCESS_KEY_ID = "key-of-the-tests"
SECRET_ACCESS_KEY = "secret-of-the-tests"
BUCKET = "artifacts"
_END_S = 10.0
_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"),
)


def bucket_at(endpoint: str, *, prefix: str, bucket: str = BUCKET) -> S3Settings:
    """Return a node's settings for the bucket of a server."""
    return S3Settings(
        bucket=bucket,
        endpoint=endpoint,
        prefix=prefix,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        allow_http=True,
    )


class S3Server:
    """A running server with one bucket."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.endpoint = f"http://127.0.0.1:{port}"
        # A server is slow in its first seconds, so its first calls are retried for a while.
        retries = {"mode": "standard", "total_max_attempts": 20}
        self._client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            config=botocore.config.Config(retries=retries),
        )

    def open(self) -> None:
        """Make the bucket, and wait until it accepts an object."""
        self._client.create_bucket(Bucket=BUCKET)
        self._client.put_object(Bucket=BUCKET, Key="first", Body=b"")
        self._client.delete_object(Bucket=BUCKET, Key="first")

    def keys(self, prefix: str) -> list[str]:
        """Return the keys below a prefix."""
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")
        return [entry["Key"] for entry in found.get("Contents", [])]

    def unfinished(self, prefix: str) -> list[str]:
        """Return the unfinished multipart uploads below a prefix."""
        found = self._client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{prefix}/")
        return [entry["Key"] for entry in found.get("Uploads", [])]

    def content_type(self, key: str) -> str:
        """Return an object's content type."""
        return str(self._client.head_object(Bucket=BUCKET, Key=key)["ContentType"])

    def kill(self) -> None:
        """End the server as a crash would."""
        self.process.kill()
        self.process.wait(_END_S)

    def close(self) -> None:
        """End the server, if it still runs, and the client; drop the data."""
        self._client.close()
        self.kill()


@contextmanager
def running(directory: Path) -> Iterator[S3Server]:
    """Run a server on free ports, its data below the directory."""
    directory.mkdir()
    config = directory / "s3.json"
    credentials = [{"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}]
    identity = {"name": "tests", "credentials": credentials, "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}))
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    process = subprocess.Popen(
        [
            Path(sysconfig.get_path("scripts"), "weed"),
            *("-logtostderr=true", "server", f"-dir={directory}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"),
            *("-master.volumeSizeLimitMB=64", "-volume.max=20"),
            f"-filer.localSocket={directory / 'filer.sock'}",
            f"-s3.localSocket={directory / 's3.sock'}",
            "-master.telemetry=false",  # Otherwise the server would send telemetry to its makers.
            *(f"-{name}={port}" for name, port in ports.items()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    last = deque[str](maxlen=50)
    serving = threading.Event()
    reader = threading.Thread(target=_read, args=(process, last, serving))
    reader.start()
    server = None
    try:
        serving.wait()
        assert process.poll() is None, "".join(last)
        server = S3Server(process, ports["s3.port"])
        server.open()
        yield server
    finally:
        if server is None:
            process.kill()
            process.wait(_END_S)
        else:
            server.close()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
        # The server's paths for these files are fixed, and a killed server leaves them behind.
        for name, port in ports.items():
            Path(f"/tmp/seaweedfs-{name.partition('.')[0]}-grpc-{port}.sock").unlink(
                missing_ok=True
            )


def _read(process: subprocess.Popen[str], last: deque[str], serving: threading.Event) -> None:
    """Keep the log's last lines, and signal when the server serves or has ended."""
    assert process.stderr is not None
    for line in process.stderr:
        last.append(line)
        if "Start Seaweed S3 API Server" in line:
            serving.set()
    serving.set()
