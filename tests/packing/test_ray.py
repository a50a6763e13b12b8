"""A real Ray cluster on this machine: the same bytes, even if a worker is killed during the run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from images import encode, photo, write_files
from reading import files_of, rejected_of
from stand_ins import FaultySource, HeldSource

import gpuload
from gpuload import GpuloadError
from gpuload.disk import Manifest

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.filterwarnings("ignore")

OPTIONS = {"maxcount": 30, "val": 0.2, "seed": 5, "workers": 2, "time_limit_s": 100_000}
OPTIONS |= {"encode": "jpeg", "size": (16, 16)}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    # Tests run from a checkout, whose modules Ray's workers must find as they would find an installed package's.
    folders = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80_000_000})
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def ray_workers() -> list[int]:
    """Process numbers of the Ray workers that run a task of this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if b"ray::pack_guarded" in (entry / "cmdline").read_bytes() and os.getpid() in ancestors(int(entry.name)):
                found.append(int(entry.name))
    return found


def ancestors(pid: int) -> Iterator[int]:
    while pid:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_same_bytes_although_a_worker_is_killed(cluster, photo_files: dict[str, bytes], tmp_path: Path) -> None:
    """The same resizer is used locally and on the cluster, too."""
    root = tmp_path / "photos"
    write_files(root, {**photo_files, "ant/segv.jpg": encode(photo()), "bee/bad.jpg": b"bad"})

    def kill() -> None:
        while not (found := ray_workers()):
            time.sleep(0.02)
        os.kill(found[0], signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    source = HeldSource(root, tmp_path)
    gpuload.pack(source, tmp_path / "ray", engine="ray", address=cluster.address, **OPTIONS)
    killer.join()
    gpuload.pack(source, tmp_path / "local", **OPTIONS)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    lost = {**rejected_of(tmp_path / "ray" / "train"), **rejected_of(tmp_path / "ray" / "val")}
    assert lost["ant/segv.jpg"] == "the decoder crashed: SIGSEGV"
    assert Manifest.read(tmp_path / "ray" / "train").packing["stored_anew"].keys() == {"resized"}


def test_no_cluster(tmp_path: Path) -> None:
    ray.shutdown()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(encode(photo()))
    with pytest.raises(GpuloadError, match=r"--address 127.0.0.1:9: no Ray cluster there .*`ray status` shows one"):
        gpuload.pack(FaultySource(tmp_path, tmp_path), tmp_path / "out", engine="ray", address="127.0.0.1:9")
    assert not (tmp_path / "out").exists()
