"""tools/gpu_check.py: no step stops the others, and each is recorded."""

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import bench
import gpu_check
import pytest
from benchmark.contenders import CONTENDERS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_benchmark_is_of_the_device(tmp_path: Path, device: str, quick: bool) -> None:
    found = {step.name: step for step in gpu_check.steps(tmp_path, tmp_path / "out", device, quick)}
    args = bench._parser().parse_args(found["bench"].command[2:])
    names = ["torch", "dali", "dali-files", "gpuload", "gpuload-native", "gpuload-both"]
    assert [name.removesuffix("-gpu") for name in args.loaders] == names
    assert {CONTENDERS[name].device for name in args.loaders} == {args.device} == {device}
    assert args.images >= 16 * args.batch_size  # or bench.py refuses it
    assert args.json == tmp_path / "out" / "bench.json"
    for name in ("tests", "bench", "tune", "train", "kernel"):
        assert ("cuda" in found[name].command or "gpu" in found[name].command) == (device == "cuda"), name
    assert all(step.seconds <= gpu_check.SECONDS for step in found.values())


def test_the_host_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--packages", "cpu"]) == 0
    host = json.loads(capsys.readouterr().out.splitlines()[0])
    assert host["cores"] == len(os.sched_getaffinity(0)) and host["cpu"] and host["missing"] == []
    assert {"torch", "numpy", "pyarrow"} <= set(host["packages"])
    monkeypatch.setattr(gpu_check, "requirements", lambda *_: ["numpy", "no-such-one", "no-such-other"])
    assert gpu_check.main(["--packages", "cpu"]) == 1
    assert capsys.readouterr().out.endswith("cores; missing: no-such-one no-such-other\n")


def test_faults_in_spite_of_exit_code_0(tmp_path: Path) -> None:
    left_out = {"left_out": {"dali-gpu": "there is no GPU"}, "loaders": []}
    assert gpu_check.find_fault("bench", left_out) == "dali-gpu: there is no GPU"
    assert gpu_check.find_fault("bench", {"left_out": {}, "loaders": []}) is None
    (tmp_path / "bench.json").write_text('{"loaders": [')  # ended while it wrote
    assert gpu_check.find_fault("bench", gpu_check.read_figures(tmp_path, "bench", [])) == "bench: no figures"
    for log, fault in ((["a.py::b SKIPPED (no GPU)"], "no test ran: all were skipped"), (["a::b PASSED"], None)):
        assert gpu_check.find_fault("tests", gpu_check.read_figures(tmp_path, "tests", log)) == fault


def test_tests_are_counted_as_they_end(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, signal, pytest\n"
        "def test_passes(record_property): record_property('difference', 0.2); print('a line of the decoder')\n"
        "def test_fails(): assert 3 < 1\n"
        "@pytest.mark.skip\n"
        "def test_skips(): pass\n"
        "def test_crashes():\n"
        "    if 'CRASH' in os.environ: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += [f"--junitxml={tmp_path / 'tests.xml'}", str(tmp_path)]
    log = tmp_path / "tests.log"
    for crash, passed, shown in (({"CRASH": "1"}, 1, ""), ({}, 2, ""), ({}, 2, "-s")):  # by -s, as the first step
        assert (gpu_check.run([*command, *filter(None, [shown])], 60, log, crash) == 1) == (not crash)
        found = gpu_check.read_figures(tmp_path, "tests", log.read_text().splitlines())
        assert (found["passed"], found["failed"], found["skipped"]) == (passed, 1, 1)
        assert "::test_crashes" in found["last"] or not crash
    assert found["recorded"] == {"test_passes: difference": "0.2"}


class Host:
    """Where gpu_check runs steps that are lines of a shell: (name, seconds, line), or with the data that they make."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.photos, self.out = folder / "photos", folder / "out"
        self.photos.mkdir()
        self.lines: list[tuple[str, float, str]] = []
        self.makes: dict[str, str] = {}
        monkeypatch.setattr(gpu_check, "steps", lambda photos, out, device, quick: list(map(self._step, self.lines)))

    def _step(self, line: tuple[str, float, str]) -> gpu_check.Step:
        name, seconds, command = line
        makes = self.out / self.makes[name] if name in self.makes else None
        words = ["sh", "-c", f"cd {self.out}; echo {name} >>order; {command}"]
        return gpu_check.Step(name, seconds, words, makes=makes, needs_data=name.startswith("needs"))

    def call(self, *options: str) -> int:
        return gpu_check.main([str(self.photos), "--out", str(self.out), *options])

    def order(self) -> list[str]:
        """The steps that ran since the last look, in order."""
        path = self.out / "order"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def recorded(self) -> dict[str, dict[str, Any]]:
        return gpu_check.read_summary(self.out)["steps"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_no_step_stops_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "GRACE_S", 1)
    # The child of the second would outlive it, and what that has written by then is kept.
    hangs = "echo '{\"rows\": [1]}' >hangs.json; sleep 60 & echo $! >child; trap 'touch caught; exit 1' INT; wait"
    host.lines = [("fails", 20, "echo it broke >&2; exit 3"), ("hangs", 1, hangs)]
    host.lines += [("stays", 0.3, "trap '' INT; sleep 60"), ("works", 20, "echo done")]
    assert host.call("--seconds", "100") == 1
    found = host.recorded()
    assert [step["exit"] for step in found.values()] == [3, 124, 124, 0] and found["works"]["ok"]
    assert found["fails"]["output"] == ["it broke"] and found["hangs"]["figures"] == {"rows": [1]}
    assert (host.out / "caught").exists()  # it was asked to end before it was made to
    with contextlib.suppress(FileNotFoundError):  # a process that has ended may wait for its new parent
        state = Path(f"/proc/{(host.out / 'child').read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"
    said = capsys.readouterr().out
    assert re.search(r"^fails +exit 3 +\d+ s  it broke$", said, re.MULTILINE)
    assert re.search(r"^hangs +timed out +\d s", said, re.MULTILINE)
    assert "summary.json: failed: fails, hangs, stays" in said


def test_the_next_call_goes_on(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.lines = [("first", 5, "test -e mended"), ("second", 5, "true"), ("third", 500, "true"), ("fourth", 5, "true")]
    assert host.call("--seconds", "400") == 1 and host.order() == ["first", "second", "fourth"]
    assert "Not run yet: third. Repeat the command to continue." in capsys.readouterr().out
    (host.out / "mended").touch()
    assert host.call("--seconds", "600") == 0 and host.order() == ["third", "first"]  # failed ones after new ones
    assert "no step failed" in capsys.readouterr().out
    assert host.call() == 0 and host.order() == []
    assert host.call("--steps", "fourth", "first") == 0 and host.order() == ["first", "fourth"]


def test_on_another_host_only_the_data_are_made_again(host: Host) -> None:
    host.makes = {"cut": "images", "pack": "shards"}
    host.lines = [("cut", 5, "mkdir images"), ("pack", 5, "mkdir shards")]
    host.lines += [("needs-a", 5, "true"), ("needs-b", 500, "true")]
    assert host.call("--seconds", "400") == 1 and host.order() == ["cut", "pack", "needs-a"]
    carried = (host.out / "summary.json").read_bytes()
    shutil.rmtree(host.out)
    host.out.mkdir()
    (host.out / "summary.json").write_bytes(carried)
    assert host.call("--seconds", "600") == 0 and host.order() == ["cut", "pack", "needs-b"]


def test_without_data_nothing_that_needs_them_runs(host: Host) -> None:
    host.makes = {"pack": "shards"}
    host.lines = [("pack", 5, "test -e mended && mkdir shards"), ("needs-a", 5, "true"), ("other", 5, "true")]
    assert host.call() == 1 and host.order() == ["pack", "other"]
    (host.out / "mended").touch()
    host.lines.append(("new", 5, "true"))
    # Data that failed come before the new, which may need them.
    assert host.call() == 0 and host.order() == ["pack", "needs-a", "new"]
