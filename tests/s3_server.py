"""An S3 server of moto's in a process of its own, with a user whose secrets are checked."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest


class S3(NamedTuple):
    """url: of the server. environment: what lets gpuload use it. client: boto3's. contents: what was read, by ETag, which
    is the MD5 of what was written at once."""

    url: str
    environment: dict[str, str]
    client: Any
    contents: dict[str, bytes]

    def use(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        """From now on the environment holds the credentials, and the server is at this URL, such as a proxy's."""
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {**self.environment, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)

    def files(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """All objects below a prefix, by the rest of their names."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        objects = [one for page in pages for one in page.get("Contents", ())]
        for one in objects:
            if one["ETag"] not in self.contents:
                self.contents[one["ETag"]] = self.client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read()
        return {one["Key"].removeprefix(prefix): self.contents[one["ETag"]] for one in objects}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=name, Body=data)

    def delete(self, bucket: str, name: str) -> None:
        self.client.delete_object(Bucket=bucket, Key=name)


@contextmanager
def s3_server(*buckets: str) -> Iterator[S3]:
    """The first requests, which make the user, are not checked."""
    import boto3

    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4", "MOTO_PORT": "0"}
    code = (
        "import sys; from werkzeug.serving import WSGIRequestHandler as handler; handler.disable_nagle_algorithm = True;"
        "from moto.server import ThreadedMotoServer; s = ThreadedMotoServer(port=0, verbose=False);"
        "s.start(); print(s._server.server_port, flush=True); sys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert server.stdout is not None and server.stdin is not None
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        about: dict[str, Any] = {"endpoint_url": url, "region_name": "us-east-1"}
        iam = boto3.client("iam", aws_access_key_id="none", aws_secret_access_key="none", **about)
        iam.create_user(UserName="reader")
        policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
        arn = iam.create_policy(PolicyName="all", PolicyDocument=policy)["Policy"]["Arn"]
        iam.attach_user_policy(UserName="reader", PolicyArn=arn)
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        secrets = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
        client = boto3.client("s3", **secrets, **about)
        for bucket in buckets:
            client.create_bucket(Bucket=bucket)
        found = {name.upper(): value for name, value in secrets.items()}
        yield S3(url, {**found, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}, client, {})
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()
