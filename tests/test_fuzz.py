"""Some inputs for each fuzzed parser, and all that were findings once (tests/corpus); tests/fuzz.py goes on for hours."""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing.registry import TARGETS
from fuzzing.run import fuzz

CORPUS = Path(__file__).with_name("corpus")
ELSEWHERE = {"loader", "loader-dali", "loader-raw", "instances"}  # read/test_damaged_index.py
# Those of one line share a process and its imports.
GROUPS = [
    ("jpeg", "png", "headers", "packed-image", "loaded-image", "mask"),
    ("manifest", "index"),
    ("paths", "state"),
    ("tar", "tar-headers", "npy", "zip", "tar-source", "npy-source", "npz"),
    ("table", "coco", "voc", "sidecar", "lmdb-values", "lmdb-pickles"),
    ("lmdb", "hdf5", "parquet", "arrow"),
    ("duckdb", "lance"),
    ("golden-stores", "json-exports", "text-exports"),
]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_only_errors_of_gpuload_come_out_in_bounded_time_and_memory(names: tuple[str, ...], tmp_path: Path) -> None:
    if "lmdb-values" in names:
        pytest.importorskip("lmdb")
    if "duckdb" in names:
        pytest.importorskip("duckdb")
        pytest.importorskip("lance")
    if "hdf5" in names:
        pytest.importorskip("h5py")
    result = fuzz(",".join(names), 0, 60 * len(names), 3600, tmp_path)
    assert result["findings"] == []
    assert result["inputs"] == 60 * len(names)
    assert result["accepted"] > 20 and result["refused"] > 30


def test_each_target_is_fuzzed_here_and_each_finding_belongs_to_one() -> None:
    assert sorted({name for names in GROUPS for name in names} | ELSEWHERE) == sorted(TARGETS)
    assert {folder.name for folder in CORPUS.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize(
    ("fault", "title"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process ended (SIGSEGV)"),
        ("sum(iter(int, 1))", "too much processor time"),
        ("bytearray(4 << 30)", "MemoryError in faulty.py:run"),
        ("raise KeyError('x')", "KeyError in faulty.py:run"),
    ],
    ids=["crash", "loop", "memory", "exception"],
)
def test_a_fault_is_found_and_its_input_saved(
    fault: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty.py").write_text(
        "from fuzzing.target import Target\n"
        "class FaultyTarget(Target):\n"
        "    name, seconds, memory = 'faulty', 0.3, 1 << 30\n"
        "    def seeds(self): return [b'seed']\n"
        "    def run(self, data):\n"
        f"        if data != b'seed': {fault}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = fuzz("faulty:FaultyTarget", 0, 2, 20, tmp_path / "findings")["findings"]
    assert found["title"] == title and Path(found["input"]).read_bytes() not in (b"", b"seed")


@pytest.mark.parametrize("offset", [-1, 10])
def test_one_byte_outside_of_guarded_memory_ends_the_process(offset: int) -> None:
    code = (
        "import ctypes; from fuzzing.guarded import Guarded\n"
        f"memory = Guarded(10); at = memory.put(b'0123456789', at_end={offset > 0})\n"
        "assert ctypes.string_at(at, 10) == b'0123456789'; print('inside', flush=True)\n"
        f"ctypes.string_at(at + {offset}, 1)\n"
    )
    tests = str(Path(__file__).resolve().parent)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": tests})
    assert run.stdout == "inside\n" and run.returncode == -11
