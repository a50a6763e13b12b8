"""What the doctor says: about machines and environments that this one is not, and as people and programs read it."""

import json
import re
import signal
import sys
import tempfile
from collections import namedtuple
from importlib import metadata
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuload
from gpuload import cli
from gpuload.doctor import Finding, checks, conclude, environment, sets

CUDA_13 = environment.Driver((13, 0), None, ("NVIDIA H200", "NVIDIA H200"))
CUDA_12 = environment.Driver((12, 4), None, ("NVIDIA A100",))

Answer = namedtuple("Answer", "grade said remedy data")


def look(name: str, subject: Any = None) -> Any:
    """What a check of the environment finds with this driver, or one of a set with this data set."""
    check = environment.CHECKS.get(name) or sets.CHECKS[name]
    answer = check(subject)  # type: ignore[arg-type]
    return None if answer is None else Answer(*answer)


@pytest.fixture
def usual_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "try_decoder", lambda folder, device, decoder, seconds: ("ok", decoder, "", DATA))


DATA = {"device": "cpu", "decoder": "", "first_s": 1.0}


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Pretends that of what is looked up only these are installed."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    found = [SimpleNamespace(metadata={"Name": name}, version=number) for name, number in versions.items()]
    monkeypatch.setattr(metadata, "distributions", lambda: found)


NO_DEVICE, MISMATCH = (environment.Driver((13, 0), f"CUDA_ERROR_{why}", ()) for why in ("NO_DEVICE", "MISMATCH"))
DALI_12, DALI_13 = "nvidia-dali-cuda120", "nvidia-dali-cuda130"


def torch_for(cuda: str | None, usable: bool) -> dict[str, Any]:
    return {"torch.version.cuda": cuda, "torch.cuda.is_available": lambda: usable}


def cores(quota: float | None = None, load: float = 0.0) -> dict[str, Any]:
    """8 of 64 cores, as affinity and quota allow."""
    usable = 8 if quota is None else min(8, int(quota))
    return {
        "os.sched_getaffinity": lambda process: set(range(8)),
        "os.cpu_count": lambda: 64,
        "os.getloadavg": lambda: (load, load, load),
        "gpuload.doctor.environment.cpu_quota": lambda: quota,
        "gpuload.doctor.environment.count_cores": lambda: usable,
    }


@pytest.mark.parametrize(
    ("name", "driver", "machine", "grade", "words"),
    [
        ("driver", None, {}, "note", "there is no NVIDIA driver"),
        ("driver", CUDA_13, {}, "ok", "2 × NVIDIA H200; runs CUDA 13.0 and older"),
        ("driver", NO_DEVICE, {}, "attention", "docker run --gpus all"),
        ("driver", MISMATCH, {}, "broken", "CUDA_ERROR_MISMATCH See `nvidia-smi`"),
        ("torch", None, torch_for(None, False), "ok", "built without CUDA"),
        ("torch", CUDA_13, torch_for(None, False), "broken", "which cannot use the GPU"),
        ("torch", CUDA_13, torch_for("13.0", True), "ok", "built for CUDA 13.0"),
        ("torch", CUDA_12, torch_for("13.0", False), "broken", "needs CUDA 13, and the driver runs CUDA 12.4 .*580 or"),
        ("torch", CUDA_12, torch_for("12.8", True), "ok", "built for CUDA 12.8"),  # a minor version may be newer
        ("torch", CUDA_13, torch_for("12.8", False), "broken", "cannot use the GPU that the driver has"),
        ("DALI", None, {"versions": {}}, "note", "is not installed"),
        ("DALI", CUDA_12, {"versions": {}}, "attention", r"is not installed.* `pip install 'gpuload\[cuda12\]'`"),
        ("DALI", None, {"versions": {DALI_12: "2.4", DALI_13: "2.4"}}, "broken", "both lie in the same folder"),
        ("DALI", CUDA_12, {"versions": {DALI_13: "2.4"}}, "broken", "needs CUDA 13, and the driver runs CUDA 12.4"),
        ("DALI", CUDA_13, {"versions": {DALI_12: "2.4", "nvidia-nvimgcodec-cu12": "0.9"}}, "ok", "nvimgcodec-cu12 0.9"),
        ("cores", None, cores(), "ok", "8 of the machine's 64 can be used: the process is bound to them"),
        ("cores", None, cores(2.5), "attention", "2 of the machine's 64 .*: the container's quota is 2.5 cores'"),
        ("cores", None, cores(2.5) | {"OMP_NUM_THREADS": "2"}, "ok", "2 of the machine's 64"),
        ("cores", None, cores(64.0), "ok", "8 of the machine's 64"),
        ("cores", None, cores(load=96.0), "ok", "8 of the machine's 64"),
        ("cores", None, cores(load=96.1), "note", "96.1 processes want to run at a time"),
    ],
)
def test_machines(
    monkeypatch: pytest.MonkeyPatch, name: str, driver: Any, machine: dict[str, Any], grade: str, words: str
) -> None:
    """machine: by the place that tells it; "versions", of what is installed."""
    monkeypatch.setenv("OMP_NUM_THREADS", machine.get("OMP_NUM_THREADS", ""))
    if "versions" in machine:
        installed(monkeypatch, machine["versions"])
    for place, value in machine.items():
        if "." in place:
            monkeypatch.setattr(place, value)
    found = look(name, driver)
    assert found.grade == grade and re.search(words, f"{found.said} {found.remedy}"), found
    assert grade in ("note", "ok") or found.remedy


@pytest.mark.usefixtures("usual_decoders")
@pytest.mark.parametrize(
    ("missing", "works"),
    [("nvidia.dali", ["native on cpu"]), ("torch", ["native on cpu", "dali on cpu"])],
)
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, packed: Path, missing: str, works: list[str]) -> None:
    """It is told what is missing and what that means, and all else is still checked."""
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "nvidia.dali":
        installed(monkeypatch, {})
    found = {one.name: one for one in checks.examine(packed, 1)}
    assert [name for name in found if " on cpu" in name] == works
    assert [one.said for one in found.values() if one.grade == "broken"] == []
    assert {"system", "cores", "disk", "set"} <= set(found)


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CHECKS", {"system": environment.CHECKS["system"]})


@pytest.mark.usefixtures("few_checks", "usual_decoders")
def test_a_check_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, packed: Path, tmp_path: Path
) -> None:
    def fail(driver: object) -> Any:
        raise RuntimeError("\nsomething odd\nmore")

    monkeypatch.setattr(environment, "CHECKS", {"torch": fail, **environment.CHECKS})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # in which the images without a set are packed
    for folder, grade in ((packed, "ok"), (None, "broken")):
        found = {one.name: one for one in checks.examine(folder, 1)}
        assert found["torch"].said == "could not be checked: RuntimeError: something odd more"
        assert found["torch"].grade == "broken" and found["system"].is_well
        assert found["native on cpu"].grade == grade


def test_the_kernels_of_the_cpu_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look("CPU decoder")
    assert found.grade == "ok" and found.data["library"] in found.said

    def fail() -> Any:
        raise gpuload.MissingPackageError("gpuload's kernels cannot be loaded: no such file. Build them: …")

    monkeypatch.setattr(environment, "library", fail)
    found = look("CPU decoder")
    assert found.grade == "broken" and "Build them" in found.remedy


def test_the_disk(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(packed)
    found = look("disk", dataset)
    assert found.data["bytes"] == dataset.manifest.bytes and "too little to measure" in found.said
    assert found.data["bytes_per_s"] is None  # which no conclusion is drawn from
    monkeypatch.setattr(sets, "_LEAST_BYTES", 0)
    found = look("disk", dataset)
    assert found.data["bytes_per_s"] > 0 and "images/s of" in found.said
    monkeypatch.setattr(sets, "_MOST_BYTES", 30_000)
    monkeypatch.setattr(sets, "_CHUNK_BYTES", 10_000)
    assert 30_000 <= look("disk", dataset).data["bytes"] <= 40_000


def test_measuring_a_decoder(packed: Path, decoder: str) -> None:
    told = checks.measure(str(packed), "cpu", decoder, 0.05)
    assert told["images"] >= 64 and told["images_per_s"] == told["images"] / told["seconds"]
    assert (told["device"], told["decoder"], told["batch_size"]) == ("cpu", decoder, 64)
    assert told["binds"] in ("read", "decode", "hand_over", "disk", "training") and told["advice"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"kill -{int(signal.SIGSEGV)} $$", "ended its process by SIGSEGV"),
        ("exec sleep 30", "gave no batch within"),
        ("echo oh; echo 'E: no such thing' >&2; exit 3", "E: no such thing"),
        ("exit 4", "ended with exit code 4"),
        ("""echo '{"error": "x: does not decode", "remedy": "y"}'""", "x: does not decode"),
    ],
)
def test_decoders_that_end_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    monkeypatch.setattr(checks, "_MOST_SECONDS", 0.5 if "sleep" in script else 250.0)
    grade, said, remedy, _ = checks.try_decoder(tmp_path, "cpu", "dali", 0.1)
    assert grade == "broken" and words in said and remedy


def a_trial(device: str, decoder: str, images: float) -> Finding:
    data = {"device": device, "decoder": decoder, "images_per_s": images, "bytes_per_s": 1e8}
    return Finding(f"{decoder} on {device}", "ok", "", data={**data, "binds": "decode", "advice": "Do this"})


def a_disk(**data: float) -> Finding:
    return Finding("disk", "ok", "", data=data)


def test_verdicts() -> None:
    found = conclude([a_disk(bytes_per_s=1e9), a_trial("cpu", "dali", 500), a_trial("cpu", "native", 900)])
    assert found[0].startswith("device='auto' decodes by native on cpu: 900 images/s")
    assert found[1:] == ["What limits is decode. Do this.", "Nothing needs attention."]
    found = conclude([a_disk(bytes_per_s=1e9), a_trial("cpu", "native", 900), a_trial("cuda:0", "dali", 500)])
    assert found[0].startswith("device='auto' decodes by dali on cuda:0")
    assert found[2] == "DaliIterator(device='cpu', decoder='native') is faster here."
    found = conclude([a_disk(bytes_per_s=5e7), a_trial("cpu", "native", 900)])
    assert found[1].startswith(
        "The disk limits the first epoch, and every one of a set that does not fit into memory: 50"
    )
    assert "50.0 MB/s, and this decoder takes 100.0 MB/s" in found[1]
    assert conclude([a_disk(), a_trial("cpu", "native", 900)])[1].startswith("What limits is decode")  # it failed
    found = conclude([Finding("a", "broken", "x"), Finding("b", "attention", "y"), Finding("c", "note", "z")])
    assert found[-1] == "1 thing broken, 1 to attend to; see the arrows above."


@pytest.fixture
def one_decoder(quick_python: None, few_checks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried in a process of its own; and of the machine only what it is."""
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])


@pytest.mark.usefixtures("one_decoder")
def test_with_a_set(packed: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary file can be written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(forkserver, "ensure_running", tempfile.mkdtemp)  # which comes first where none runs yet
    code, said, _ = command("doctor", packed.parent, "--seconds", "0.1")
    assert code == cli.DONE, said
    assert "97 samples in 10 shards" in said and " images/s (" in said
    assert "device='auto' decodes by native on cpu: " in said and said.endswith("\nNothing needs attention.\n")


@pytest.mark.usefixtures("one_decoder")
def test_a_loader_is_constructed_also_without_a_set(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, _ = command("doctor")
    assert code == cli.DONE and "native on cpu" in said and "loads images; the first batch came after" in said
    assert "Give a packed folder to measure how fast it loads" in said
    # The packages are there, and nothing can be loaded.
    monkeypatch.setattr(checks, "_PROGRAM", "import sys; sys.path[:] = {}; sys.exit('no kernels')")
    found = command("doctor")
    assert found.code == cli.FAULTY and "broken native on cpu" in found.words
    assert "No decoder works here, so nothing can be loaded." in found.out


@pytest.mark.usefixtures("one_decoder")
def test_what_is_told(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a check: its grade, name and finding, and below these what to do; or as JSON. The exit code is the worst."""
    bad = ("broken", "is ill", "Do this", {"version": "2.13.0"})
    monkeypatch.setattr(environment, "CHECKS", {"system": lambda _: ("ok", "x" * 200, "", {}), "torch": lambda _: bad})
    monkeypatch.setattr(checks, "decoders", lambda driver: [])
    code, said, _ = command("doctor")
    assert code == cli.FAULTY
    rows = [line.split(maxsplit=2) for line in said.splitlines()]
    assert rows[:3] == [["system", "x" * 200], ["broken", "torch", "is ill"], ["→", "Do", "this"]]
    places = [line.index(text) for line, text in zip(said.splitlines(), ("xx", "is ill", "→"), strict=False)]
    assert len(set(places)) == 1
    told = json.loads(command("doctor", "--json").out)
    assert told["well"] is False and told["verdict"][-1].startswith("2 things broken")
    wanted = dict(zip(("name", "grade", "said", "remedy", "data"), ("torch", *bad), strict=True))
    assert [one["name"] for one in told["findings"]] == ["system", "torch", "decoders"]
    assert told["findings"][1] == wanted
