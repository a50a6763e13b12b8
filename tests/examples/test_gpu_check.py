"""tools/gpu_check.py and what it runs: ways to decode that crash are told apart, and no step stops the others."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import gpu_check
import gpu_report
import gpu_steps
import gpu_tests
import probe_cropped_decode
import probe_streams
import pytest
import training_thread
from benchmark.contenders import CONTENDERS
from benchmark.peers import dali
from benchmark.work import Work
from nvidia.dali import Pipeline, fn

import gpuload
from gpuload.decode.dali import graph
from gpuload.decode.interface import Stored


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
        ("exec sleep 60", "hung: stopped after 0.5 s"),
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


def settings_of_the_decoder(monkeypatch: pytest.MonkeyPatch, define: Callable[[], object]) -> dict[str, object]:
    """What DALI's decoder is told in a graph for a GPU, which can be defined without one."""
    told: list[dict[str, object]] = []
    decode = fn.decoders.image

    def spy(images: object, **settings: object) -> object:
        told.append(settings)
        return decode(images, **settings)

    with monkeypatch.context() as patch, Pipeline(batch_size=4, num_threads=1, device_id=0):
        patch.setattr(fn.decoders, "image", spy)
        define()
    [settings] = told
    return settings


def test_what_is_compared_with_gpuload_decodes_alike(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where a setting less is less work: of another decode the rates would say nothing."""
    stored = Stored(64, 48, 1000)
    expected = settings_of_the_decoder(
        monkeypatch, lambda: graph.build_graph([gpuload.Augment(8).form], stored, lambda: (), decoder={})
    )
    assert expected["jpeg_fancy_upsampling"] is True and expected["preallocate_width_hint"] == 64
    work = Work(packed / "val", 4, 8, 1, 100, largest=(64, 48))
    assert settings_of_the_decoder(monkeypatch, lambda: dali.graph(work, "cuda")) == expected

    def probed(way: str) -> dict[str, object]:
        settings = probe_cropped_decode.decoder_settings(way, "cuda", 0.65, 64, 48, 4)
        inputs = [fn.external_source(lambda: (), batch=True) for _ in range(3)]
        return settings_of_the_decoder(monkeypatch, lambda: probe_cropped_decode.show(way, settings, *inputs))

    for way in ("slice", "region"):
        assert probed(way) == {**expected, "hw_decoder_load": 0.65}
    assert probed("unfiltered") == {**expected, "hw_decoder_load": 0.65, "jpeg_fancy_upsampling": False}


def test_the_benchmark_knows_the_largest_image(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Work] = []
    monkeypatch.setattr("bench.profile", seen.append)
    monkeypatch.setattr("bench.print_profile", lambda *_: None)
    assert bench.main([str(packed / "train"), "--profile"]) == 0
    assert tuple(seen[0].largest) == (64, 64)


def test_a_folder_that_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe_cropped_decode.main([str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


DMON = """1000.00 # gpu     sm    mem    enc    dec    jpg    ofa  rxpci  txpci
1000.00 # Idx      %      %      %      %      %      %   MB/s   MB/s
1001.00     0     10      5      0      0     80      -   4000    100
1002.00     0     30      5      0      0     60      -   6000    100
1003.00     0     99     50      0      0      0      -      0      0
1004.00     0     50
"""


def test_what_dmon_saw_is_told_by_loader(tmp_path: Path) -> None:
    (tmp_path / "dmon.log").write_text(DMON)
    turns = {"gpuload-gpu": [(1000.5, 1.0), (1001.8, 0.4)], "torch-gpu": [(1002.5, 1.0)], "dali-gpu": [(1010.0, 2.0)]}
    loaders = [
        {"name": name, "rounds": [{"began": began, "elapsed_s": seconds} for began, seconds in rounds]}
        for name, rounds in turns.items()
    ]
    (tmp_path / "bench.json").write_text(json.dumps({"loaders": loaders}))
    step = gpu_report.record(tmp_path, "bench", ["bench.py", "--loaders", *turns, "--rounds", "2"], 0, 9.0, {})
    assert step["ok"]
    use = step["figures"]["gpu_use"]
    assert use["gpuload-gpu"] == {
        "lines": 2,
        "sm": 20,
        "mem": 5,
        "enc": 0,
        "dec": 0,
        "jpg": 70,
        "rxpci": 5000,
        "txpci": 100,
    }
    assert use["torch-gpu"]["sm"] == 99 and use["dali-gpu"] == {"lines": 0}


def test_a_loader_that_was_not_measured_is_a_fault(tmp_path: Path) -> None:
    command = ["bench.py", "shards", "--device", "cuda", "--loaders", "torch-gpu", "dali-gpu", "gpuload-gpu"]
    figures = {"left_out": {"dali-gpu": "there is no GPU"}, "loaders": [{"name": "gpuload-gpu", "rounds": []}]}
    (tmp_path / "bench.json").write_text(json.dumps(figures))
    step = gpu_report.record(tmp_path, "bench", command, 0, 1.0, {})
    assert (step["ok"], step["fault"]) == (False, "torch-gpu: no figures; dali-gpu: there is no GPU")
    assert gpu_report.record(tmp_path, "bench", [*command[:5], "gpuload-gpu", "--rounds", "3"], 0, 1.0, {})["ok"]
    (tmp_path / "bench.json").write_text('{"loaders": [')  # ended while it wrote
    assert gpu_report.record(tmp_path, "bench", command, 124, 1.0, {})["figures"] is None


def test_tests_that_were_all_skipped_are_a_fault(tmp_path: Path) -> None:
    for passed in (0, 1):
        (tmp_path / "codec.json").write_text(json.dumps({"passed": passed, "skipped": 1}))
        assert gpu_report.record(tmp_path, "codec", ["gpu_tests.py"], 0, 1.0, {})["ok"] == bool(passed)
    assert gpu_report.failed(tmp_path) == []


def test_what_the_codec_says_of_its_engines(tmp_path: Path) -> None:
    hardware = "[INFO] [nvjpeg-ext] HW decoder available num_hw_engines=1 num_cores_per_hw_engine=7"
    lines = ["[INFO] [nvimgcodec] Registering extension", f"\x1b[0;32m{hardware}\x1b[0m", hardware]
    lines += ["[INFO] nvjpegDecodeBatchedPreAllocate batch_size=83", *map(str, range(100))]
    (tmp_path / "codec.log").write_text("\n".join(lines))
    (tmp_path / "codec.json").write_text('{"passed": 1}')
    step = gpu_report.record(tmp_path, "codec", ["gpu_tests.py"], 0, 1.0, {})
    assert step["figures"] == {"passed": 1, "codec": [hardware, lines[3]]}
    assert step["output"] == [str(number) for number in range(60, 100)]


def test_the_machine_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "packages.json"
    assert gpu_report.main(["packages", str(path), "cpu"]) == 0
    found = json.loads(path.read_text())
    assert found["cores"] == len(os.sched_getaffinity(0)) and found["cpu"] and found["memory_gb"] > 0
    assert {"torch", "numpy", "pyarrow"} <= set(found["packages"])
    assert found["missing"] == []
    assert gpu_report.main(["record"]) == 2


def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpu_report.NEEDED, "no_such.module", "no-such-one")
    monkeypatch.setitem(gpu_report.NEEDED_ON["cpu"], "no_such_module", "no-such-other")
    assert gpu_report.main(["packages", str(tmp_path / "packages.json"), "cpu"]) == 1
    assert capsys.readouterr().out.endswith("cores; missing: no-such-one no-such-other\n")


def test_each_test_is_recorded_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, signal, pytest\n"
        "def test_passes(record_property): record_property('difference', {'mean': 0.2})\n"
        "def test_fails(): assert 3 < 1\n"
        "@pytest.mark.skip\n"
        "def test_skips(): pass\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError('no GPU memory')\n"
        "def test_has_no_fixture(broken): pass\n"
        "def test_crashes(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    figures = tmp_path / "figures.json"
    command = [sys.executable, gpu_tests.__file__, str(figures), "--rootdir", str(tmp_path), str(tmp_path)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == -signal.SIGKILL
    assert json.loads(figures.read_text()) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "running": "test_some.py::test_crashes",
        "failures": {
            "test_some.py::test_fails": "assert 3 < 1",
            "test_some.py::test_has_no_fixture": "OSError: no GPU memory",
        },
        "recorded": {"test_passes: difference": {"mean": 0.2}},
    }


def test_what_the_head_says_of_the_steps_is_so(tmp_path: Path) -> None:
    (tmp_path / "cut").touch()
    seconds = {step.name: step.seconds for step in gpu_steps.steps(tmp_path, tmp_path / "out", "cuda", quick=False)}
    names = list(seconds)
    told = re.findall(
        r"^(?: {4}call \d  | {12})(?:\d\. |   )(\w+(?:, \w+)?) +(\d+) {3}\w", gpu_check.__doc__ or "", re.MULTILINE
    )
    assert [name for group, _ in told for name in group.split(", ")] == names
    assert [int(limit) for _, limit in told] == [sum(map(seconds.__getitem__, group.split(", "))) for group, _ in told]
    # Each half within a call, even if each of its steps has to be ended, and a call within 9 minutes.
    middle = names.index("bench") + 1
    for half in (names[:middle], names[middle:]):
        assert sum(map(seconds.__getitem__, half)) <= gpu_check.SECONDS
    assert gpu_check.SECONDS + 2 * gpu_check.GRACE_S <= 540


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_benchmark_is_of_the_device(tmp_path: Path, device: str, quick: bool) -> None:
    found = {step.name: step for step in gpu_steps.steps(tmp_path, tmp_path / "out", device, quick)}
    args = bench._parser().parse_args(found["bench"].command[2:])
    assert [name.removesuffix("-gpu") for name in args.loaders] == ["torch", "dali", "gpuload"]
    assert {CONTENDERS[name].device for name in (*args.loaders,)} == {args.device} == {device}
    assert args.images >= 16 * args.batch_size  # or bench.py refuses it
    assert args.json == tmp_path / "out" / "bench.json"
    for name in ("tests", "bench", "tune", "probe", "train", "kernel", "thread"):
        assert ("cuda" in found[name].command or "gpu" in found[name].command) == (device == "cuda"), name


class Host:
    """Where gpu_check runs steps that are lines of a shell: (name, seconds, line), or with the data that they make."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.photos, self.out = folder / "photos", folder / "out"
        self.photos.mkdir()
        self.lines: list[tuple[str, float, str]] = []
        self.makes: dict[str, str] = {}
        monkeypatch.setattr(gpu_check, "steps", lambda photos, out, device, quick: list(map(self._step, self.lines)))

    def _step(self, line: tuple[str, float, str]) -> gpu_steps.Step:
        name, seconds, command = line
        makes = self.out / self.makes[name] if name in self.makes else None
        words = ["sh", "-c", f"cd {self.out}; echo {name} >>order; {command}"]
        return gpu_steps.Step(name, seconds, words, makes=makes, needs_data=name.startswith("needs"))

    def call(self, *options: str) -> int:
        return gpu_check.main([str(self.photos), "--out", str(self.out), *options])

    def order(self) -> list[str]:
        """The steps that ran since the last look, in order."""
        path = self.out / "order"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def recorded(self) -> dict[str, dict[str, Any]]:
        return gpu_report.read_summary(self.out)["steps"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_no_step_stops_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "GRACE_S", 1)
    host.lines = [
        ("fails", 20, "echo it broke >&2; exit 3"),
        # Its child would outlive it, and what it has written by then is kept.
        (
            "hangs",
            0.3,
            "echo '{\"rows\": [1]}' >hangs.json; sleep 60 & echo $! >child; trap 'touch caught; exit 1' INT; wait",
        ),
        ("stays", 0.3, "trap '' INT; sleep 60"),
        ("works", 20, "echo done"),
    ]
    started = time.monotonic()
    assert host.call("--seconds", "30") == 1
    assert time.monotonic() - started < 15
    found = host.recorded()
    assert [(step["ok"], step["exit"], step["timed_out"]) for step in found.values()] == [
        (False, 3, False),
        (False, 124, True),
        (False, 124, True),
        (True, 0, False),
    ]
    assert found["fails"]["output"] == ["it broke"]
    assert found["hangs"]["figures"] == {"rows": [1]}
    assert (host.out / "caught").exists()  # it was asked to end before it was made to
    with contextlib.suppress(FileNotFoundError):  # a process that has ended may wait for its new parent
        state = Path(f"/proc/{(host.out / 'child').read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"
    said = capsys.readouterr().out
    assert re.search(r"^fails +exit 3 +0 s  it broke$", said, re.MULTILINE)
    assert re.search(r"^hangs +timed out +\d s", said, re.MULTILINE)
    assert "summary.json: failed: fails, hangs, stays" in said


def test_the_next_call_goes_on(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.lines = [("first", 5, "test -e mended"), ("second", 5, "true"), ("third", 50, "true"), ("fourth", 5, "true")]
    assert host.call("--seconds", "20") == 1
    assert host.order() == ["first", "second", "fourth"]
    assert "Not run yet: third. Repeat the command to continue." in capsys.readouterr().out
    (host.out / "mended").touch()
    assert host.call("--seconds", "60") == 0  # what failed comes after what is new
    assert host.order() == ["third", "first"]
    assert "no step failed" in capsys.readouterr().out
    assert host.call() == 0 and host.order() == []
    assert host.call("--steps", "fourth", "first") == 0 and host.order() == ["first", "fourth"]
    assert list(host.recorded()) == ["first", "second", "fourth", "third"]


def test_on_another_host_only_the_data_are_made_again(host: Host, tmp_path: Path) -> None:
    host.makes = {"cut": "images", "pack": "shards"}
    host.lines = [
        ("cut", 5, "mkdir images"),
        ("pack", 5, "mkdir shards"),
        ("needs-a", 5, "true"),
        ("needs-b", 50, "true"),
    ]
    assert host.call("--seconds", "20") == 1
    assert host.order() == ["cut", "pack", "needs-a"]
    carried = (host.out / "summary.json").read_bytes()
    shutil.rmtree(host.out)
    host.out.mkdir()
    (host.out / "summary.json").write_bytes(carried)
    assert host.call("--seconds", "60") == 0
    assert host.order() == ["cut", "pack", "needs-b"]


def test_without_data_nothing_that_needs_them_runs(host: Host) -> None:
    host.makes = {"pack": "shards"}
    host.lines = [("pack", 5, "test -e mended && mkdir shards"), ("needs-a", 5, "true"), ("other", 5, "true")]
    assert host.call() == 1
    assert host.order() == ["pack", "other"]
    (host.out / "mended").touch()
    host.lines.append(("new", 5, "true"))
    assert host.call() == 0
    assert host.order() == ["pack", "needs-a", "new"]  # data that failed come before the new, which may need them


def test_dmon_runs_beside_the_benchmark(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(
        f'#!/bin/sh\necho "$*" >{tmp_path}/asked\necho "# gpu sm jpg"\nwhile :; do echo "0 40 90"; sleep 0.1; done\n'
    )
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    row = '{\\"name\\": \\"torch-gpu\\", \\"rounds\\": [{\\"began\\": $began, \\"elapsed_s\\": 0.5}]}'
    write = f'began=$(date +%s.%N); sleep 0.6; echo "{{\\"loaders\\": [{row}]}}" >bench.json; : --loaders'
    host.lines = [("bench", 20, write)]
    monkeypatch.setattr(gpu_report, "_fault", lambda *_: None)
    assert host.call() == 0
    use = host.recorded()["bench"]["figures"]["gpu_use"]["torch-gpu"]
    assert use["lines"] >= 2 and (use["sm"], use["jpg"]) == (40, 90)
    assert (tmp_path / "asked").read_text() == "dmon -s ut -d 1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: photos"),
        (["none"], "none: no such folder"),
        (["photos", "--device", "gpu"], "invalid choice: 'gpu'"),
        (
            ["photos", "--steps", "tests", "fast"],
            "--steps fast: expected some of: packages codec pack tests bench tune",
        ),
    ],
)
def test_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(SystemExit) as caught:
        gpu_check.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "gpu-check").exists()


def test_results_of_another_setting_are_not_mixed(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.lines = [("works", 5, "true")]
    assert host.call("--device", "cpu") == 0
    with pytest.raises(SystemExit):
        host.call("--device", "cuda")
    assert "holds results of another setting, {'device': 'cpu', 'quick': False}" in capsys.readouterr().err


def test_the_thread_that_trains_is_measured(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    options = [
        "--batch-size",
        "8",
        "--size",
        "16",
        "--turns",
        "1",
        "--decoder",
        "dali",
        "native",
        "--json",
        str(figures),
    ]
    assert training_thread.main([str(packed / "train"), *options]) == 0
    rows = json.loads(figures.read_text())["rows"]
    assert [row["decoder"] for row in rows] == ["dali", "native"]
    assert all(0 < row["ms"] <= row["most_ms"] and row["batches"] == training_thread.TURN for row in rows)
    assert len(re.findall(r"ms a batch of 8", capsys.readouterr().out)) == 2
    assert training_thread.main([str(tmp_path / "none")]) == 2


def test_batches_are_taken_on_a_stream_where_one_is_given(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU DALI does not look at the stream."""
    run, streams = Pipeline.run, []
    monkeypatch.setattr(Pipeline, "run", lambda self, *stream: streams.append(stream) or run(self))
    options: dict[str, Any] = {"augment": gpuload.Augment(8), "device": "cpu", "decoder": "dali", "num_threads": 1}
    with gpuload.DaliIterator(packed / "train", 8, **options) as loader:
        expected = [images.sum().item() for images, _ in loader]
        assert set(streams) == {()}
        streams.clear()
        loader.set_epoch(0)
        loader._decoder._decoder.stream = lambda: 7  # type: ignore[attr-defined]
        assert [images.sum().item() for images, _ in loader] == expected and set(streams) == {(7,)}
    if not probe_streams.torch.cuda.is_available():
        assert probe_streams.main([str(packed / "train")]) == 2
