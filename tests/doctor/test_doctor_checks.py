"""What the doctor says about machines and environments that this one is not."""

import os
import resource
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuload
from gpuload.doctor import checks, trial
from gpuload.doctor.findings import Finding, conclude

CUDA_13 = checks.Driver((13, 0), None, ("NVIDIA H200", "NVIDIA H200"))
CUDA_12 = checks.Driver((12, 4), None, ("NVIDIA A100",))


def look(name: str, driver: checks.Driver | None = None) -> Any:
    """What a check of the environment finds."""
    return checks.ENVIRONMENT[name](driver)


def test_drivers() -> None:
    assert look("driver").grade == "note"
    found = look("driver", CUDA_13)
    assert found.grade == "ok" and found.said.startswith("2 × NVIDIA H200; runs CUDA 13.0 and older")
    hidden = look("driver", checks.Driver((13, 0), "CUDA_ERROR_NO_DEVICE", ()))
    assert hidden.grade == "attention" and "docker run --gpus all" in hidden.remedy
    damaged = look("driver", checks.Driver((13, 0), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", ()))
    assert damaged.grade == "broken" and "MISMATCH" in damaged.said and "restarted" in damaged.remedy


@pytest.mark.parametrize(
    ("built", "usable", "driver", "grade", "words"),
    [
        (None, False, None, "ok", "a CPU build"),
        (None, False, CUDA_13, "broken", "which cannot use the GPU"),
        ("13.0", True, CUDA_13, "ok", "built for CUDA 13.0"),
        ("13.0", False, CUDA_12, "broken", r"the driver runs CUDA 12.4: it sees no GPU"),
        ("12.8", True, CUDA_12, "ok", "built for CUDA 12.8"),  # a minor version may be newer than the driver's
        ("12.8", False, CUDA_13, "broken", "cannot use the GPU that the driver has"),
    ],
)
def test_torchs_build_against_the_driver(
    monkeypatch: pytest.MonkeyPatch,
    built: str | None,
    usable: bool,
    driver: checks.Driver | None,
    grade: str,
    words: str,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    found = look("torch", driver)
    assert found.grade == grade and words in found.said
    assert (found.remedy == "") == (grade == "ok")
    if driver is CUDA_12 and grade == "broken":
        assert "580 or newer" in found.remedy


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Pretends that of what is looked up only these are installed."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("gpuload.doctor.environment.version", version)
    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("versions", "driver", "grade", "words"),
    [
        ({}, None, "note", "is not installed"),
        ({}, CUDA_12, "attention", r"is not installed"),
        (
            {"nvidia-dali-cuda120": "2.4.0", "nvidia-dali-cuda130": "2.4.0"},
            None,
            "broken",
            "both lie in the same folder",
        ),
        (
            {"nvidia-dali-cuda130": "2.4.0"},
            CUDA_12,
            "broken",
            "needs a driver for CUDA 13, and this one runs CUDA 12.4",
        ),
        ({"nvidia-dali-cuda120": "2.4.0"}, CUDA_13, "ok", "nvidia-dali-cuda120 2.4.0"),
    ],
)
def test_dali(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], driver: checks.Driver | None, grade: str, words: str
) -> None:
    installed(monkeypatch, versions)
    found = look("DALI", driver)[0]
    assert found.grade == grade and words in found.said
    if not versions and driver is CUDA_12:
        assert found.remedy == "`pip install 'gpuload[cuda12]'`"


def test_the_image_decoder_of_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"nvidia-dali-cuda130": "2.4.0", "nvidia-nvimgcodec-cu13": "0.9.0.20"})
    assert "nvImageCodec#55" in look("DALI")[1].said


@pytest.mark.parametrize("package", ["numba", "nvidia.dali", "simplejpeg"])
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, package: str, packed: Path) -> None:
    """It is told what is missing and what that means, and all else is still checked."""
    monkeypatch.setitem(sys.modules, package, None)
    if package == "nvidia.dali":
        monkeypatch.setattr("gpuload.doctor.environment._DALI_PACKAGES", ())
    monkeypatch.setattr(
        "gpuload.doctor.trial.try_decoder", lambda folder, device, decoder, seconds: Finding(decoder, "ok", "")
    )
    found = list(checks.examine(packed, 1))
    assert not [one for one in found if one.grade == "broken"]
    if package == "nvidia.dali":
        assert found[-1].name == "native"
    else:
        assert found[-1].name == "dali" and {one.name for one in found}.isdisjoint({"native"})
        (native,) = [one for one in found if one.name == "CPU decoder"]
        assert (
            native.grade == "note" and f"{package} is not installed" in native.said and "pip install" in native.remedy
        )
    assert {"system", "cores", "memory", "disk", "set"} <= {one.name for one in found}


@pytest.mark.parametrize("with_set", [True, False])
def test_without_any_decoder(monkeypatch: pytest.MonkeyPatch, packed: Path, with_set: bool) -> None:
    for package in ("numba", "nvidia.dali"):
        monkeypatch.setitem(sys.modules, package, None)
    found = list(checks.examine(packed if with_set else None, 1))
    assert found[-1].grade == "broken" and "nothing can be loaded" in found[-1].said
    assert conclude(found)[0].startswith("No decoder works here")


def test_a_check_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(driver: object) -> Any:
        raise RuntimeError("\nsomething odd\nmore")

    monkeypatch.setitem(checks.ENVIRONMENT, "torch", fail)
    monkeypatch.setitem(checks.ENVIRONMENT, "DALI", fail)
    monkeypatch.setattr(
        "gpuload.doctor.trial.try_decoder", lambda folder, device, decoder, seconds: Finding(decoder, "ok", "")
    )
    found = {one.name: one for one in checks.examine(None, 1)}
    assert found["torch"].said == "could not be checked: RuntimeError: something odd"
    assert found["torch"].grade == "broken" and found["memory"].is_well


@pytest.mark.parametrize(
    ("torch_build", "torchvision_build", "requires", "grade"),
    [
        ("2.13.0+cu130", "0.28.0+cu130", ["torch==2.13.0"], "ok"),
        ("2.13.0+cpu", "0.28.0+cu130", ["torch==2.13.0"], "note"),
        ("2.12.0", "0.28.0", ["torch==2.13.0"], "broken"),
        ("2.13.0+cu126", "0.28.0+cu130", ["torch==2.13.0"], "broken"),
    ],
)
def test_torchvision(
    monkeypatch: pytest.MonkeyPatch, torch_build: str, torchvision_build: str, requires: list[str], grade: str
) -> None:
    builds = {"torch": torch_build, "torchvision": torchvision_build}
    monkeypatch.setattr("gpuload.doctor.environment.build", lambda package: builds[package])
    monkeypatch.setattr(metadata, "requires", lambda package: requires)
    (found,) = look("torchvision")
    assert found.grade == grade and (found.remedy == "") == (grade == "ok")


def test_packages_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1.26", 'numba>=0.60; extra == "cpu"', "ray>=2.30", "rich"]
    monkeypatch.setattr(metadata, "requires", lambda package: wanted)
    installed(monkeypatch, {"numpy": "2.4.6", "numba": "0.59.1"})
    monkeypatch.setattr("gpuload.doctor.environment._names", lambda: ["cupy-cuda13x", "numpy"])
    found = look("versions")
    assert (found.grade, found.said) == ("broken", "numba 0.59.1, expected >=0.60")
    installed(monkeypatch, {"numpy": "2.4.6", "numba": "0.60.0rc1"})
    assert look("versions").grade == "ok"
    monkeypatch.setattr("gpuload.doctor.environment._names", lambda: ["cupy-cuda12x", "cupy-cuda13x"])
    assert "CuPy is installed 2 times" in look("versions").said


def test_the_machine_code_of_the_cpu_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look("CPU decoder")[0].is_well
    monkeypatch.setattr("gpuload.decode.native.compiled.cache_folders", lambda: [tmp_path])
    (found,) = look("CPU decoder")
    assert found.grade == "note" and "gpuload warm-up" in found.remedy and not found.data["compiled"]
    (tmp_path / "x.1.nbc").touch()
    assert look("CPU decoder")[0].grade == "ok"
    monkeypatch.setattr("gpuload.decode.native.compiled.cache_folders", list)
    assert look("CPU decoder")[0].grade == "attention"
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert "Unset it" in look("CPU decoder")[0].remedy


@pytest.mark.parametrize(
    ("quota", "throttled", "threads", "load", "grade", "words"),
    [
        (None, None, "", 0.0, "ok", "8 of the machine's 64 can be used: the process is bound to them"),
        (
            2.5,
            0.01,
            "",
            0.0,
            "attention",
            "2 of the machine's 64 can be used: the container's quota is 2.5 cores' time",
        ),
        (2.5, 0.01, "2", 0.0, "ok", "2 of the machine's 64"),
        (2.5, 0.6, "2", 0.0, "attention", "it was stopped in 60% of the periods"),
        (64.0, 0.0, "", 0.0, "ok", "8 of the machine's 64"),
        (None, None, "", 200.0, "note", "200.0 processes want to run at a time"),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch,
    quota: float | None,
    throttled: float | None,
    threads: str,
    load: float,
    grade: str,
    words: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("gpuload.doctor.environment.cpu_quota", lambda: quota)
    monkeypatch.setattr("gpuload.doctor.environment.count_cores", lambda: 8 if quota is None else min(8, int(quota)))
    monkeypatch.setattr("gpuload.doctor.environment.throttled", lambda: throttled)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    found = look("cores")
    assert found.grade == grade and words in found.said


def test_memory_and_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.doctor.environment.machine_memory", lambda: 64 * 10**9)
    monkeypatch.setattr("gpuload.doctor.environment.available_memory", lambda: 32 * 10**9)
    monkeypatch.setattr("gpuload.doctor.environment.memory_limit", lambda: None)
    assert (look("memory").grade, look("memory").said) == ("ok", "32 GB of 64 GB are free")
    monkeypatch.setattr("gpuload.doctor.environment.memory_limit", lambda: 5 * 10**8)
    found = look("memory")
    assert found.grade == "attention" and "this container may use 500 MB, page cache included" in found.said
    monkeypatch.setattr("gpuload.doctor.environment.machine_memory", lambda: None)
    assert look("memory").grade == "note"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 4096))
    assert look("file handles").grade == "attention"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    assert look("file handles").grade == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert look("file handles").grade == "ok"


def test_windows_larger_than_memory(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(packed)
    assert [one.name for one in checks.SET["set"](dataset)] == ["set", "GPU memory"]
    monkeypatch.setattr("gpuload.doctor.sets.memory_limit", lambda: dataset.manifest.bytes // 4)
    found = checks.SET["set"](dataset)[1]
    assert found.name == "window" and found.grade == "attention" and "gpuload.Shuffle(window=2)" in found.remedy


def test_the_disk(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(packed)
    (found,) = checks.SET["disk"](dataset)
    assert found.data["bytes"] == dataset.manifest.bytes and "too little to measure" in found.said
    monkeypatch.setattr("gpuload.doctor.sets._LEAST_BYTES", 0)
    (found,) = checks.SET["disk"](dataset)
    assert found.data["bytes_per_s"] > 0 and "images/s of" in found.said
    monkeypatch.setattr("gpuload.doctor.sets._MOST_BYTES", 30_000)
    monkeypatch.setattr("gpuload.doctor.sets._CHUNK_BYTES", 10_000)
    assert 30_000 <= checks.SET["disk"](dataset)[0].data["bytes"] <= 40_000


def test_measuring_a_decoder(packed: Path, decoder: str) -> None:
    told = trial.measure(str(packed), "cpu", decoder, 0.05)
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
    if "sleep" in script:
        monkeypatch.setattr("gpuload.doctor.trial._MOST_SECONDS", 0.5)
    found = trial.try_decoder(tmp_path, "cpu", "dali", 0.1)
    assert found.grade == "broken" and words in found.said


def a_trial(device: str, decoder: str, images: float, stored: float = 1e8) -> Finding:
    data = {"device": device, "decoder": decoder, "images_per_s": images, "bytes_per_s": stored}
    return Finding("", "ok", "", data={**data, "binds": "decode", "advice": "Do this"})


def machine_with(disk: float, stored: float = 1e12) -> list[Finding]:
    return [
        Finding("memory", "ok", "", data={"available": 10e9, "limit": None}),
        Finding("set", "ok", "", data={"bytes": stored}),
        Finding("disk", "ok", "", data={"bytes_per_s": disk}),
    ]


def test_verdicts() -> None:
    found = conclude([*machine_with(1e9), a_trial("cpu", "dali", 500), a_trial("cpu", "native", 900)])
    assert found[0].startswith("device='auto' decodes by native on cpu: 900 images/s")
    assert found[1:] == ["What limits is decode. Do this.", "Nothing needs attention."]
    found = conclude([*machine_with(1e9), a_trial("cpu", "native", 900), a_trial("cuda:0", "dali", 500)])
    assert found[0].startswith("device='auto' decodes by dali on cuda:0")
    assert found[2] == "DaliIterator(device='cpu', decoder='native') is faster here."
    found = conclude([*machine_with(5e7), a_trial("cpu", "native", 900)])
    assert found[1].startswith("The disk limits: 50 MB/s, and this decoder takes 100 MB/s. The set does not fit")
    found = conclude([*machine_with(5e7, 1e9), a_trial("cpu", "native", 900)])
    assert "In the first epoch alone: the set fits into memory (10 GB free)" in found[1]
    found = conclude([Finding("a", "broken", "x"), Finding("b", "attention", "y"), Finding("c", "note", "z")])
    assert found[-1] == "1 thing broken, 1 to attend to; see the arrows above."


@pytest.mark.parametrize(
    ("free", "of", "words"),
    [(0, 999, "0 bytes of 999 bytes"), (1500, 64e6, "1.5 kB of 64 MB"), (32e9, 3.2e12, "32 GB of 3.2 TB")],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, free: float, of: float, words: str) -> None:
    monkeypatch.setattr("gpuload.doctor.environment.available_memory", lambda: free)
    monkeypatch.setattr("gpuload.doctor.environment.machine_memory", lambda: of)
    assert look("memory").said.startswith(f"{words} are free")
