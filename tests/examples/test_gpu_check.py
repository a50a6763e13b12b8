"""tools/gpu_check.py: no step stops the others, and each is recorded."""

import contextlib
import json
import re
import sys
from pathlib import Path

import bench
import gpu_check
import pair_check
import pytest
from timing.contenders import CONTENDERS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_benchmark_is_of_the_device(tmp_path: Path, device: str, quick: bool) -> None:
    (tmp_path / "cut").touch()
    out, data = tmp_path / "out", tmp_path / "data"
    found = {step.name: step for step in gpu_check.Plan(tmp_path, out, data, device, quick).steps()}
    order = "packages smoke cut pack bench train pictures pair codec tune tests"
    assert list(found) == order.split()
    args = bench._parser().parse_args(found["bench"].command[2:])
    contenders = [CONTENDERS[name] for name in args.loaders]
    assert {contender.device for contender in contenders} == {args.device} == {device}
    assert args.images >= 16 * args.batch_size  # or bench.py refuses it
    for name in ("smoke", "tests", "bench", "tune", "train", "pair"):
        assert ("cuda" in found[name].command or "gpu" in found[name].command) == (device == "cuda"), name
    assert sum(step.estimate for step in found.values()) == gpu_check.SECONDS == 420
    assert all(step.estimate <= step.limit for step in found.values())


def test_each_decoder_is_measured_by_its_name(tmp_path: Path) -> None:
    """Not as "auto", which is one of them."""
    found = {step.name: step for step in gpu_check.Plan(tmp_path, tmp_path, tmp_path, "cuda", False).steps()}
    for name, end in (("bench", "-gpu"), ("train", "")):
        for decoder in (
            "gpuload-dali",
            "gpuload-native",
            "gpuload-both",
            "dali",
            "dali-cores",
            "dali-engines",
            "torch",
        ):
            assert f"{decoder}{end}" in found[name].command
        assert f"gpuload{end}" not in found[name].command
    decoders = [CONTENDERS[f"gpuload-{name}-gpu"].open.keywords["decoder"] for name in ("dali", "native", "both")]  # type: ignore[attr-defined]
    assert decoders == ["dali", "native", "both"]
    loads = [CONTENDERS[f"dali-{name}-gpu"].open.keywords["hw_decoder_load"] for name in ("cores", "engines")]  # type: ignore[attr-defined]
    assert loads == [0.0, 1.0]


def test_dali_decodes_beside_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--smoke", "cpu"]) == 0
    record, line = capsys.readouterr().out.splitlines()
    assert 0 < json.loads(record)["mean_difference"] < 5 and re.match(r"the CPU: dali \S+, torch \S+, numpy", line)


def test_pairs_are_compared_and_timed(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--size", "16", "--batch-size", "8", "--images", "24", "--rounds", "1", "--threads", "1"]
    figures = tmp_path / "pair.json"
    assert pair_check.main([str(packed / "train"), *work, "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["compared"] == 24
    assert capsys.readouterr().out.startswith("0 of 24 pairs differ; ")
    with pytest.raises(SystemExit):
        pair_check.main([str(packed / "train"), *work, "--images", "15"])


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
        ("train", '{"left_out": {"dali": "no DALI"}, "loaders": []}', "", "dali: no DALI"),
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
        found = [gpu_check.Step(name, lines[name][0], lines[name][0], command) for name, command in commands.items()]
        return [found[0]._replace(makes=out / "shards"), *found[1:]]

    def call(*options: str) -> tuple[int, list[str], str]:
        """The exit code, the steps that ran, and what was printed."""
        out.mkdir(exist_ok=True)
        (out / "order").write_text("")
        code = gpu_check.main([str(tmp_path), "--out", str(out), *options])
        return code, (out / "order").read_text().split(), capsys.readouterr().out

    monkeypatch.setattr(gpu_check, "GRACE_S", 1)
    monkeypatch.setattr(gpu_check.Plan, "steps", steps)
    code, order, said = call("--seconds", "400")
    assert (code, order) == (1, ["pack", "fails", "hangs", "stays", "works"])
    found = gpu_check.read_summary(out)["steps"]
    assert [step["exit"] for step in found.values()] == [0, 3, 124, 124, 0] and found["works"]["ok"]
    assert found["fails"]["output"] == ["it broke"] and found["hangs"]["figures"] == {"rows": [1]}
    assert (out / "caught").exists()  # it was asked to end before it was made to
    with contextlib.suppress(FileNotFoundError):  # a process that has ended may wait for its new parent
        state = Path(f"/proc/{(out / 'child').read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out-data"}  # results, and what they are made of
    for text in (
        r"^fails +begins: about 20 s, at most 20 s$",
        r"^  \| it broke$",
        r"^fails +exit 3 +\d+ s  it broke$",
        r"^hangs +timed out +\d s",
        "failed: fails, hangs, stays",
    ):
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
