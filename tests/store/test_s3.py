"""Sets in a bucket of an S3 server: moto's, behind the proxy."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load
from reading import files_of
from store.servers import Proxy, running

import gpuload
from gpuload import RemoteError
from gpuload.disk.fetch import fetch
from gpuload.store.objects import Objects
from gpuload.store.url import URL

pytest.importorskip("moto", reason="moto is not installed (extra dev)")
boto3 = pytest.importorskip("boto3")

_NO_SECRET = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")


@pytest.fixture(scope="module")
def bucket(packed: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy before a server with the bucket `sets`, and the environment that may read it. Wrong secrets are
    refused: the first requests, which make the user, are not checked."""
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4", "MOTO_PORT": "0"}
    code = (
        "import sys; from moto.server import ThreadedMotoServer; s = ThreadedMotoServer(port=0, verbose=False);"
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
        s3 = boto3.client("s3", **secrets, **about)
        s3.create_bucket(Bucket="sets")
        for path in packed.iterdir():
            s3.upload_file(str(path), "sets", f"photos/train/{path.name}")
        with running(Proxy(url)) as proxy:
            yield (
                proxy,
                {
                    "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
                    "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
                    "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": proxy.url,
                },
            )
    finally:
        server.stdin.close()
        server.wait(30)
        server.stdout.close()


@pytest.fixture
def reader(bucket: tuple[Proxy, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The proxy; the environment holds the credentials."""
    proxy, environment = bucket
    proxy.reset()
    for name in _NO_SECRET:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return proxy


URL_ = "s3://sets/photos/train"


def test_an_epoch_from_a_bucket(reader: Proxy, packed: Path, tmp_path: Path) -> None:
    reader.fault = lambda path, number: "503" if number == 1 else None
    with load(packed) as local, load(URL_, cache=tmp_path) as loader:  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])
        held = [
            repr(loader),
            str(loader.state_dict()),
            repr(loader.dataset),
            pickle.dumps(loader.dataset).decode("latin"),
        ]
    asked = {path: count for path, count in reader.asked.items() if path.endswith(".tar")}
    assert len(asked) == 10 and set(asked.values()) == {2}
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert not any(secret in text or os.environ["AWS_ACCESS_KEY_ID"] in text for text in held)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not any(secret.encode() in path.read_bytes() for path in files)


def test_a_wrong_secret_is_refused(reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    begun = time.monotonic()
    with pytest.raises(
        RemoteError, match=rf"^{URL_}/manifest.json: access was denied \(403\). Set the credentials"
    ) as error:
        gpuload.Dataset(URL_, tmp_path)
    assert "wrong-secret" not in str(error.value) and os.environ["AWS_ACCESS_KEY_ID"] not in str(error.value)
    assert time.monotonic() - begun < 20


def test_credentials_of_a_profile(reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    names = ("aws_access_key_id", "aws_secret_access_key")
    file.write_text("\n".join(["[reader]", *(f"{name} = {os.environ[name.upper()]}" for name in names)]) + "\n")
    for name in names:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "reader")
    assert len(gpuload.Dataset(URL_, tmp_path)) == 97


def test_a_bucket_that_is_not_there(reader: Proxy, tmp_path: Path) -> None:
    with pytest.raises(gpuload.FormatError, match="^s3://no/set: no manifest.json there, so this is not a packed set"):
        gpuload.Dataset("s3://no/set", tmp_path)


def test_credentials_that_expire_and_come_back(reader: Proxy, packed: Path, tmp_path: Path) -> None:
    """A loop fails and names them; the next one goes on."""
    with load(packed) as local, load(URL_, cache=tmp_path) as loader:  # type: ignore[arg-type]
        reader.fault = lambda path, number: "403" if path.endswith("7.tar") else None
        with pytest.raises(RemoteError, match=r"shard-000007.tar: access was denied \(403\)"):
            drain([loader])
        reader.reset()
        loader.set_epoch(0)
        assert drain([loader]) == drain([local])


def test_connections_are_not_pickled() -> None:
    assert pickle.loads(pickle.dumps(Objects(URL("s3://sets/x")))).url == URL("s3://sets/x")


def test_a_copy_of_a_bucket(reader: Proxy, packed: Path, tmp_path: Path) -> None:
    """Of an object without bytes (rejected.jsonl), there is no range."""
    fetch(URL_, tmp_path)
    assert files_of(tmp_path) == {name: data for name, data in files_of(packed).items() if name != "tuning.json"}
