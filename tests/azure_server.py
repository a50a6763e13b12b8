"""A server of Azure's blobs: azurite, in a process of its own, with its well-known account, whose key is checked."""

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # not a secret
_ROOT = Path(__file__).parents[1]
_START_S = 60


class Azure(NamedTuple):
    """url: of the server."""

    url: str

    def use(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        """From now on the environment holds the credentials, and the server is at this URL, such as a proxy's."""
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/{_ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)

    def files(self, container: str, prefix: str = "") -> dict[str, bytes]:
        """All objects below a prefix, by the rest of their names."""
        store = self._store(container)
        return {
            path.removeprefix(prefix): bytes(store.get(path).bytes())
            for page in store.list(prefix or None)
            for path in (one["path"] for one in page)
        }

    def put(self, container: str, name: str, data: bytes) -> None:
        self._store(container).put(name, data)

    def delete(self, container: str, name: str) -> None:
        self._store(container).delete(name)

    def _store(self, container: str) -> Any:
        from obstore.store import AzureStore

        endpoint, options = f"{self.url}/{_ACCOUNT}", {"allow_http": True}
        return AzureStore(container, account_name=_ACCOUNT, account_key=_KEY, endpoint=endpoint, client_options=options)

    def make(self, container: str) -> None:
        """obstore makes none. The signature is that of Azure's "Shared Key"."""
        path, date, version = f"/{_ACCOUNT}/{container}", formatdate(usegmt=True), "2021-12-02"
        headers = f"x-ms-date:{date}\nx-ms-version:{version}"
        text = "\n".join(["PUT", *[""] * 11, headers, f"/{_ACCOUNT}{path}", "restype:container"])
        signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
        about = {"x-ms-date": date, "x-ms-version": version, "Content-Type": ""}
        about |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
        asked = urllib.request.Request(f"{self.url}{path}?restype=container", b"", about, method="PUT")
        urllib.request.urlopen(asked, timeout=250).close()


@contextmanager
def azure_server(*containers: str) -> Iterator[Azure]:
    command = shutil.which("azurite-blob") or str(_ROOT / "build/azurite/node_modules/.bin/azurite-blob")
    if not os.access(command, os.X_OK):
        pytest.skip("needs azurite: npm install --prefix build/azurite azurite")
    options = ["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with subprocess.Popen([command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            said, give_up = "", time.monotonic() + _START_S
            while (found := re.search(r"listens on (http://\S+)", said)) is None:
                line = server.stdout.readline()
                if not line or time.monotonic() > give_up:
                    pytest.skip(f"azurite does not start: {said.strip()[-300:]}")
                said += line
            azure = Azure(found[1])
            for container in containers:
                azure.make(container)
            yield azure
        finally:
            server.terminate()
