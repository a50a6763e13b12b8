"""Makes a decoded copy in a process of its own: SET FOLDER MARK BEFORE.

It stops for good before sample BEFORE of those that it decodes, and creates the file MARK then; -1: it does not stop.
"""

import sys
import time
from pathlib import Path
from typing import Any

import gpuload
from gpuload.decoded_copies import shard


def main(place: str, folder: str, mark: str, before: int) -> None:
    store = shard.store_raw
    decoded = 0

    def stopping(*arguments: Any) -> Any:
        nonlocal decoded
        if decoded == before:
            Path(mark).touch()
            time.sleep(600)
        decoded += 1
        return store(*arguments)

    shard.store_raw = stopping
    copy = gpuload.decoded(gpuload.Dataset(place), folder=folder, threads=1)
    print(decoded, len(copy))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
