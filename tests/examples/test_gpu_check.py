"""tools/gpu_check.py: no step stops the others, and each is recorded."""

import contextlib
import json
import re
import sys
from pathlib import Path

import bench
import gpu_check
import pytest
from benchmark.contenders import CONTENDERS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_benchmark_is_of_the_device(tmp_path: Path, device: str, quick: bool) -> None:
    found = {step.name: step for step in gpu_check.steps(tmp_path, tmp_path / "out", device, quick)}
    args = bench._parser().parse_args(found["bench"].command[2:])
    assert {CONTENDERS[name].device for name in args.loaders} == {args.device} == {device} and len(args.loaders) == 6
    assert args.images >= 16 * args.batch_size  # or bench.py refuses it
    for name in ("tests", "bench", "tune", "train", "kernel"):
        assert ("cuda" in found[name].command or "gpu" in found[name].command) == (device == "cuda"), name
    assert all(step.seconds <= gpu_check.SECONDS for step in found.values())


def test_the_host_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = gpu_check.requirements("cpu")
    for more in ([], ["no-such-one", "no-such-other"]):
        monkeypatch.setattr(gpu_check, "requirements", lambda *_, more=more: [*names, *more])
        assert gpu_check.main(["--packages", "cpu"]) == bool(more)
        told, _, last = capsys.readouterr().out.partition("\n")
        host = json.loads(told)
        assert host["cpu"] and {"torch", "numpy", "pyarrow"} <= set(host["packages"]) and host["missing"] == more
        assert ("missing: no-such-one no-such-other\n" in last) == bool(more)


@pytest.mark.parametrize(
    ("step", "figures", "log", "fault"),
    [
        ("bench", '{"left_out": {"dali-gpu": "there is no GPU"}, "loaders": []}', "", "dali-gpu: there is no GPU"),
        ("bench", '{"left_out": {}, "loaders": []}', "", None),
        ("bench", '{"loaders": [', "", "bench: no figures"),  # it ended while it wrote
        ("tests", "", "a.py::b SKIPPED (no GPU)", "no test ran: all were skipped"),
        ("tests", "", "a::b PASSED", None),
    ],
)
def test_faults_in_spite_of_exit_code_0(tmp_path: Path, step: str, figures: str, log: str, fault: str | None) -> None:
    (tmp_path / f"{step}.json").write_text(figures)
    assert gpu_check.find_fault(step, gpu_check.read_figures(tmp_path, step, [log])) == fault


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
    for crash, passed, *shown in (({"CRASH": "1"}, 1), ({}, 2), ({}, 2, "-s")):  # by -s, as the first step
        assert (gpu_check.run([*command, *shown], 60, log, crash) == 1) == (not crash)
        found = gpu_check.read_figures(tmp_path, "tests", log.read_text().splitlines())
        assert (found["passed"], found["failed"], found["skipped"]) == (passed, 1, 1)
        assert "::test_crashes" in found["last"] or not crash
    assert found["recorded"] == {"test_passes: difference": "0.2"}


# Steps that are lines of a shell, and the seconds that each may take. The child of the second would outlive it, and what
# that has written by then is kept; the third is made to end; the fifth needs more than a call has left.
HANGS = "echo '{\"rows\": [1]}' >hangs.json; sleep 60 & echo $! >child; trap 'touch caught; exit 1' INT; wait"
LINES = {
    "pack": (5, "mkdir -p shards"),
    "fails": (20, "echo it broke >&2; test -e mended || exit 3"),
    "hangs": (1, HANGS),
    "stays": (0.3, "trap '' INT; sleep 60"),
    "long": (500, "true"),
    "works": (20, "echo done"),
}


def test_no_step_stops_the_others_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "out", dict(LINES)

    def steps(*_: object) -> list[gpu_check.Step]:
        commands = {name: ["sh", "-c", f"cd {out}; echo {name} >>order; {line}"] for name, (_, line) in lines.items()}
        found = [gpu_check.Step(name, lines[name][0], command) for name, command in commands.items()]
        return [found[0]._replace(makes=out / "shards"), *found[1:]]

    def call(*options: str) -> tuple[int, list[str], str]:
        """The exit code, the steps that ran, and what was printed."""
        out.mkdir(exist_ok=True)
        (out / "order").write_text("")
        code = gpu_check.main([str(tmp_path), "--out", str(out), *options])
        return code, (out / "order").read_text().split(), capsys.readouterr().out

    monkeypatch.setattr(gpu_check, "GRACE_S", 1)
    monkeypatch.setattr(gpu_check, "steps", steps)
    code, order, said = call("--seconds", "400")
    assert (code, order) == (1, ["pack", "fails", "hangs", "stays", "works"])
    found = gpu_check.read_summary(out)["steps"]
    assert [step["exit"] for step in found.values()] == [0, 3, 124, 124, 0] and found["works"]["ok"]
    assert found["fails"]["output"] == ["it broke"] and found["hangs"]["figures"] == {"rows": [1]}
    assert (out / "caught").exists()  # it was asked to end before it was made to
    with contextlib.suppress(FileNotFoundError):  # a process that has ended may wait for its new parent
        state = Path(f"/proc/{(out / 'child').read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"
    for text in (r"^fails +exit 3 +\d+ s  it broke$", r"^hangs +timed out +\d s", "failed: fails, hangs, stays"):
        assert re.search(text, said, re.MULTILINE)
    assert "Not run yet: long. Repeat the command to continue." in said

    (out / "mended").touch()
    (out / "shards").rmdir()  # as on another host
    del lines["hangs"], lines["stays"]
    for options, ran in (
        ((), ["pack", "fails", "long"]),
        ((), []),
        (("--steps", "works", "fails"), ["fails", "works"]),
        (("--steps", "pack"), ["pack"]),
    ):
        assert call("--seconds", "600", *options)[1] == ran
