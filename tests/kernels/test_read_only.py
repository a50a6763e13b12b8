"""A machine on which nothing can be written, as in a container: the first batch comes all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

# All that is mounted where something could be left: the root with the home, the temporary folders and shared memory.
READ_ONLY = """
for folder in / /tmp /dev/shm; do
    if mountpoint -q $folder; then mount -o remount,bind,ro $folder || exit 77; fi
done
exec "$@"
"""
FIRST_BATCH = """
import os, sys
import gpuload
for folder in (os.path.expanduser("~"), os.path.dirname(gpuload.__file__), "/tmp", os.environ["DATA"]):
    try:
        open(os.path.join(folder, "written"), "w")
    except OSError as error:
        assert "Read-only" in str(error), error
    else:
        sys.exit(f"{folder} can be written")
with gpuload.DaliIterator(os.environ["DATA"], 4, augment=gpuload.Augment(32), device="cpu", output="numpy") as loader:
    print(next(iter(loader))[0].shape)
"""


def test_the_first_batch_needs_no_writable_folder(packed: Path) -> None:
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh"]
    try:
        possible = subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("no mounts of one's own here: unshare")
    command = [*inside, "env", f"DATA={packed}", sys.executable, "-c", FIRST_BATCH]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(4, 3, 32, 32)\n"
    assert not done.stderr
