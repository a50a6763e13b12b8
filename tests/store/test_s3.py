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


def test_credentials_of_a_profile(reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    names = ("aws_access_key_id", "aws_secret_access_key")
    file.write_text("\n".join(["[reader]", *(f"{name} = {os.environ[name.upper()]}" for name in names)]) + "\n")
    for name in names:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "reader")
    assert len(gpuload.Dataset(URL_, tmp_path)) == 97


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
REFUSED: list[tuple[str, dict[str, str | None], type[Exception], str]] = [
    ("s3://no/set", {}, FormatError, "s3://no/set: no manifest.json there, so this is not a packed set"),
    (URL_, {KEYS[1]: "wrong-secret"}, RemoteError, rf"{URL_}/manifest.json: access was denied \(403\). Set the cred"),
    # Of a machine without a role, whose metadata server answers 404, which says nothing of the set.
    (
        URL_,
        dict.fromkeys(KEYS),
        RemoteError,
        f"{URL_}/manifest.json: no credentials were found. Set the credentials by",
    ),
]


@pytest.mark.parametrize(("url", "changes", "error", "message"), REFUSED)
def test_what_is_refused(
    url: str, changes: dict[str, str | None], error: type[Exception], message: str,
    reader: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    known = os.environ["AWS_ACCESS_KEY_ID"]
    for name, value in changes.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    if KEYS[0] in changes:
        reader.fault = lambda path, number: "404"
        monkeypatch.setattr("gpuload.store.objects._boto3_credentials", lambda: None)  # the user's may know some
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{reader.url}/169.254.169.254")
    with pytest.raises(error, match=f"^{message}") as raised:
        gpuload.Dataset(url, tmp_path)
    assert "wrong-secret" not in str(raised.value) and known not in str(raised.value)
