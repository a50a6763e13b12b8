"""tools/gpu_check.sh and what it runs: ways to decode that crash are told apart, and no step stops the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_report
import probe_cropped_decode
import pytest

SCRIPT = Path(gpu_report.__file__).with_name("gpu_check.sh")


def test_all_ways_to_decode_give_the_same_pixels(packed: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--device", "cpu", "--images", "32", "--batch-size", "8", "--threads", "1", "--json", str(figures)]
    assert probe_cropped_decode.main([str(packed / "val"), *options]) == 0
    rows = json.loads(figures.read_text())["ways"]
    assert [row["way"] for row in rows] == ["slice", "region", "cropped"]
    for row in rows:
        assert row["ended"] == "works" and row["images_per_s"] > 0 and row["cpu_s_per_1000"] > 0
        # Another crop would differ by tens. A region's filter looks beyond its edge.
        assert row["difference"]["mean"] < (4 if row["way"] == "region" else 0.5)


@pytest.mark.parametrize(
    ("does", "ended"),
    [
        ("kill -SEGV $$", "crashed: SIGSEGV"),
        ("echo nvImageCodec failure >&2; exit 1", "failed: nvImageCodec failure"),
        ("exec sleep 60", "hung: ended after 0.5 s"),
    ],
)
def test_how_a_process_ended_is_told(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, ended: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    figures = tmp_path / "figures.json"
    options = ["--device", "cpu", "--time-limit", "0.5", "--json", str(figures)]
    assert probe_cropped_decode.main([str(packed / "val"), *options]) == 2  # not even whole images decode
    assert [row["ended"] for row in json.loads(figures.read_text())["ways"]] == [ended] * 3


def test_a_folder_that_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe_cropped_decode.main([str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


JUNIT = """<testsuites><testsuite>
<testcase classname="gpu" name="test_a"><properties><property name="difference" value="{'mean': 0.2}"/></properties>
</testcase>
<testcase classname="gpu" name="test_b"><failure message="assert 3 &lt; 1"/></testcase>
<testcase classname="gpu" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_a_summary_of_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "steps.tsv").write_text(
        "tests\t1\t12.34\tpytest -m gpu\nbench\t0\t60.0\tbench.py x\ntrain\t124\t9.9\ttrain.py\n"
    )
    (tmp_path / "tests.xml").write_text(JUNIT)
    (tmp_path / "bench.json").write_text('{"loaders": [1, 2]}')
    (tmp_path / "train.json").write_text('{"loaders": [')  # ended while it wrote
    (tmp_path / "train.log").write_text("\n".join(map(str, range(100))))
    assert gpu_report.main(["collect", str(tmp_path)]) == 1
    assert "3 steps in 82 s, not well: tests, train;" in capsys.readouterr().out
    steps = json.loads((tmp_path / "summary.json").read_text())
    assert steps["tests"]["figures"] == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "failures": {"gpu::test_b": "assert 3 < 1"},
        "recorded": {"test_a: difference": "{'mean': 0.2}"},
    }
    assert steps["bench"]["figures"] == {"loaders": [1, 2]} and steps["bench"]["command"] == "bench.py x"
    assert steps["train"]["timed_out"] and steps["train"]["figures"] is None
    assert steps["train"]["output"] == [str(number) for number in range(60, 100)]
    assert json.loads((tmp_path / "bench.json").read_text()) == steps["bench"]


def test_the_machine_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    assert gpu_report.main(["environment", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["cores"] == len(os.sched_getaffinity(0)) and found["cpu"] and found["memory_gb"] > 0
    assert {"torch", "numpy", "pyarrow"} <= set(found["packages"])
    assert gpu_report.main(["record"]) == 2


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


def test_no_step_stops_the_others(tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    (photos / "cut").touch()
    done = check(str(photos), "--device", "cpu", "--quick", "--out", str(out), PYTHON="/bin/false")
    assert done.returncode == 1
    steps = [line.split("\t") for line in (out / "steps.tsv").read_text().splitlines()]
    names = ["environment", "cut", "pack", "tests", "probe", "tune", "bench", "train", "pictures", "kernel"]
    assert [step[0] for step in steps] == names and {step[1] for step in steps} == {"1"}
    assert all((out / f"{name}.log").exists() for name in names)


@pytest.mark.parametrize(
    "arguments", [[], ["--quick"], ["a", "b"], ["a", "--device", "gpu"], ["a", "--out"], ["a", "--fast"]]
)
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = check(*arguments)
    assert done.returncode == 2
    assert done.stderr == "usage: bash tools/gpu_check.sh PHOTOS [--out FOLDER] [--device cuda|cpu] [--quick]\n"
    missing = check(str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert (missing.returncode, missing.stderr) == (2, f"{tmp_path / 'none'}: no such folder\n")
    assert not (tmp_path / "out").exists()
