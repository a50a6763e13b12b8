"""Sets in a bucket of an S3 server: moto's, behind the proxy."""

import os
import pickle
from pathlib import Path

import pytest
from loaders import drain, load
from store.servers import Proxy

import gpuload
from gpuload import FormatError, RemoteError

URL_ = "s3://sets/photos/train"


def test_what_is_kept_of_a_bucket_holds_no_credentials(reader: Proxy, tmp_path: Path) -> None:
    reader.fault = lambda path, number: "503" if number == 1 else None
    with load(gpuload.Dataset(URL_, cache=tmp_path)) as loader:  # type: ignore[arg-type]
        assert len(drain([loader])) == 96
        held = [repr(loader), str(loader.state_dict()), repr(loader.dataset), str(pickle.dumps(loader.dataset))]
    asked = {path: count for path, count in reader.asked.items() if path.endswith(".tar")}
    assert len(asked) == 10 and set(asked.values()) == {2}
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert not any(secret in text or os.environ["AWS_ACCESS_KEY_ID"] in text for text in held)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not any(secret.encode() in path.read_bytes() for path in files)


def test_a_wrong_secret_is_refused(reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(
        RemoteError, match=rf"^{URL_}/manifest.json: access was denied \(403\). Set the credentials"
    ) as error:
        gpuload.Dataset(URL_, tmp_path)
    assert "wrong-secret" not in str(error.value) and os.environ["AWS_ACCESS_KEY_ID"] not in str(error.value)


def test_credentials_of_a_profile(reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    names = ("aws_access_key_id", "aws_secret_access_key")
    file.write_text("\n".join(["[reader]", *(f"{name} = {os.environ[name.upper()]}" for name in names)]) + "\n")
    for name in names:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "reader")
    assert len(gpuload.Dataset(URL_, tmp_path)) == 97


def test_a_machine_without_a_role_has_no_credentials(
    reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata server answers 404, which says nothing of the set."""
    reader.fault = lambda path, number: "404"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("gpuload.store.objects._boto3_credentials", lambda: None)  # the user's may know some
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{reader.url}/169.254.169.254")
    with pytest.raises(
        RemoteError, match=f"^{URL_}/manifest.json: no credentials were found. Set the credentials by AWS"
    ):
        gpuload.Dataset(URL_, tmp_path)


def test_a_bucket_that_is_not_there(reader: Proxy, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="^s3://no/set: no manifest.json there, so this is not a packed set"):
        gpuload.Dataset("s3://no/set", tmp_path)
