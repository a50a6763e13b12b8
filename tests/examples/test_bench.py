"""benchmarks/bench.py: the table, the figures in JSON, the picture, and what it says of loaders that cannot run or deliver
something else."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import bench
import prepared
import pytest
import torch
from images import encode, photo
from PIL import Image
from snippets import ROOT
from timing import page_cache
from timing.contenders import CONTENDERS, why_not
from timing.course import Course
from timing.examine import Examined, describe, examine, faults
from timing.feature_data import prepare
from timing.features import FEATURES, VARIANTS, names_of, open_dataloader, open_gpuload
from timing.process import ContenderError, ContenderProcess, Round, check_out
from timing.stored import stored_samples
from timing.work import Contender, Work

import gpuload
from benchmarks.remote.processes import served, stats

SMALL = ["--images", "256", "--batch-size", "16", "--size", "32", "--threads", "2"]


@pytest.mark.usefixtures("quick_python")
def test_table_json_and_plot(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    options = ["--loaders", "torch", "gpuload", "--rounds", "2", "--cold", "1", *SMALL]
    started = time.time()
    assert bench.main([str(packed / "train"), *options, "--json", str(figures), "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    heads = ["gpuload", "images/s", "times torch", "times decoding alone", "resume", "torch 2."]
    for text in ("DataLoader + Pillow", "(whole JPEGs decoded by simplejpeg)", *heads):
        assert text in said
    record = json.loads(figures.read_text())
    assert record["complete"] and record["ceiling"]["images_per_s"] > 0
    resumes = {row["name"]: row["resumes"] for row in record["loaders"]}
    assert [*resumes.items()] == [("torch", "reads again"), ("gpuload", "state_dict")]
    rates = [[turn["images"] / turn["elapsed_s"] for turn in row["rounds"]] for row in record["loaders"]]
    for row, own in zip(record["loaders"], rates, strict=True):
        assert [turn["images"] for turn in row["rounds"]] == [256, 256]
        assert started < row["rounds"][0]["began"] < row["rounds"][1]["began"] < time.time()
        ratios = [rate / first for rate, first in zip(own, rates[0], strict=True)]  # round by round
        assert (row["ratio_min"], row["ratio"], row["ratio_max"]) == (min(ratios), median(ratios), max(ratios))
        assert (row["images_per_s_min"], row["images_per_s"]) == (min(own), median(own))
        assert row["share_of_ceiling"] == row["images_per_s"] / record["ceiling"]["images_per_s"]
        assert row["cpu_s_per_1000"] == median(1000 * turn["cpu_s"] / turn["images"] for turn in row["rounds"])
        [cold] = row["cold_rounds"]
        assert row["cold_images_per_s"] == cold["images"] / cold["elapsed_s"] and row["resume_s"] > 0
        assert row["memory_bytes"] > 10e6 and row["versions"]["torch"] == torch.__version__
        assert row["delivers"]["images"] == 256
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("quick_python")
def test_whole_images(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contenders whose pixels differ from the first one's are left out, so that all of these resize the whole image."""
    figures = tmp_path / "figures.json"
    options = ["--whole", "--loaders", "torch", "opencv", "gpuload", "--rounds", "1", "--cold", "0", *SMALL]
    assert bench.main([str(packed / "train"), *options, "--json", str(figures)]) == 0
    record = json.loads(figures.read_text())
    assert [row["name"] for row in record["loaders"]] == ["torch", "opencv", "gpuload"] and not record["left_out"]
    assert "whole images, 1 round of 256 images" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bench.main([str(packed / "train"), "--whole", "--with", "rotation"])
    assert "--whole: does not go with --with" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch", "gpuload"])
def test_whole_images_are_shown_to_their_edges(name: str, tmp_path: Path) -> None:
    """A frame that a crop would cut off is in each picture."""
    image = Image.new("RGB", (60, 50))
    image.paste((255, 255, 255), (12, 10, 48, 40))
    gpuload.pack([{"image": encode(image), "label": 0}] * 8, tmp_path / "set", workers=1, progress=False)
    work = Work(tmp_path / "set" / "train", 8, 25, 1, 8, samples=8, whole=True)
    with CONTENDERS[name].open(work) as loader:
        images, _ = next(iter(loader))
    dark = images[:, 1].numpy() < 0
    assert dark.all(axis=(0, 2))[[0, 3, 21, 24]].all() and not dark[:, 6:19, 6:19].any()


def pack_mixed(folder: Path, labelled: bool) -> Path:
    """A set of kept and re-encoded images of many kinds."""
    kinds = itertools.cycle(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "gray", "CMYK", "palette"])
    samples = []
    for number, kind in zip(range(72), kinds, strict=False):
        image = photo(number, 60, 50)
        converted = {
            "gray": lambda image: encode(image.convert("L"), "PNG"),
            "CMYK": lambda image: encode(image.convert("CMYK")),
            "palette": lambda image: encode(image.quantize(16), "PNG"),
        }
        data = converted[kind](image) if kind in converted else encode(image, kind)
        samples.append({"image": data, **({"label": "ab"[number % 2]} if labelled else {"caption": kind})})
    gpuload.pack(samples, folder, workers=1, progress=False, keep="webp,tiff", lossless=True)
    return folder / "train"


@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize("labelled", [True, False])
def test_every_set_of_rgb_images_is_measured(tmp_path: Path, labelled: bool, capsys: Any) -> None:
    figures = tmp_path / "figures.json"
    options = ["--loaders", "torch", "gpuload", "--rounds", "1", "--cold", "0", "--images", "128", "--batch-size", "8"]
    folder = pack_mixed(tmp_path / "mixed", labelled)
    assert len(gpuload.Dataset(folder).fields["image"].member.split(";")) > 2  # kinds of files
    assert bench.main([str(folder), *options, "--size", "32", "--threads", "1", "--json", str(figures)]) == 0
    assert "whole images decoded, JPEGs by simplejpeg and others by Pillow" in capsys.readouterr().out
    record = json.loads(figures.read_text())
    assert [row["name"] for row in record["loaders"]] == ["torch", "gpuload"] and not record["left_out"]


def test_peers_read_each_sample_of_a_mixed_set(tmp_path: Path) -> None:
    samples = [*stored_samples(pack_mixed(tmp_path / "labelled", True))]
    sizes = {Image.open(io.BytesIO(image)).size for image, _ in samples}
    assert (len(samples), sizes) == (72, {(60, 50)})
    assert Counter(label for _, label in samples) == {0: 36, 1: 36}
    assert [label for _, label in stored_samples(pack_mixed(tmp_path / "unlabelled", False))] == [0] * 72


@pytest.mark.parametrize("name", ["torch", "opencv", "imagecodecs", "dali", "gpuload"])
def test_peers_load_sets_of_pngs(tmp_path: Path, name: str) -> None:
    samples = [{"image": encode(photo(number, 60, 50), "PNG"), "label": number % 2} for number in range(16)]
    gpuload.pack(samples, tmp_path / "pngs", workers=1, progress=False)
    work = Work(tmp_path / "pngs" / "train", 8, 32, 1, 16)
    with CONTENDERS[name].open(work) as loader:
        examined, _ = examine(loader, CONTENDERS[name], work)
        del loader
    assert examined.labels == {"0": 8, "1": 8}


def test_a_set_of_another_mode_is_refused(tmp_path: Path, capsys: Any) -> None:
    gpuload.pack([{"image": encode(photo(0)), "label": 0}], tmp_path, workers=1, progress=False, mode="L")
    with pytest.raises(SystemExit, match="2"):
        bench.main([str(tmp_path / "train")])
    assert "has mode L, and loaders are compared on RGB images. Pack it with --mode RGB" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_python")
def test_against_a_commit(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    figures, python = tmp_path / "figures.json", tmp_path / "before"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(bench, "check_out", lambda commit: str(python))
    options = ["--against", "HEAD", "--rounds", "1", *SMALL, "--json", str(figures)]
    assert bench.main([str(packed / "val"), *options]) == 0
    before, now = json.loads(figures.read_text())["loaders"]
    assert (before["name"], before["ratio"], now["name"]) == ("gpuload-before", 1, "gpuload") and now["ratio"] > 0
    assert "cold" not in capsys.readouterr().out  # of which nobody has a figure
    examined, measured = ["-m timing.child gpuload-before"] * 2
    assert (tmp_path / "called").read_text().splitlines() == [examined, measured]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git clone with its history")
def test_a_commit_is_checked_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = check_out("HEAD")
    place = subprocess.run([python, "-c", "import gpuload; print(gpuload.__file__)"], capture_output=True, text=True)
    assert place.stdout.strip() == str(Path(python).parent / "gpuload" / "__init__.py")
    assert list((Path(python).parent / "gpuload" / "kernels" / "lib").glob("*.so"))
    history = ["git", "log", "--format=%H", "--diff-filter=A", "--", "tools/build_kernels.py"]
    begun = subprocess.run(history, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()[-1]
    assert Path(check_out(f"{begun}^")).exists()  # which has no kernels to build
    with pytest.raises(SystemExit, match="2"):
        bench.main([str(packed / "val"), "--against", "no-such-commit"])
    assert "--against no-such-commit: fatal: not a valid object name" in capsys.readouterr().err


def test_lock(packed: Path) -> None:
    """In a process of its own: what else runs in one, such as what other tests have left, would be counted, too."""
    command = [*prepared.python(), bench.__file__, str(packed / "train"), "--lock", "--size", "192"]
    done = subprocess.run([*command, "--batch-size", "8", "--images", "128"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.search(r"compiled steps take [\d.]+ ms an image, all else [\d.]+ µs", lines[0])
    assert [line.split(" threads that wait instead: ")[0] for line in lines[1:3]] == ["16", "64"]


def test_steps_that_seem_to_take_less_than_nothing(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside other threads. To wait as long as they take would be 71 minutes an image, by an unsigned number."""
    times = iter([1e-5] * 3 + [2e-5] * 3)
    monkeypatch.setattr("timing.lock._rates", lambda work: (next(times), 1.0))
    with pytest.raises(SystemExit, match="or other threads are at work in this process"):
        bench.main([str(packed / "train"), "--lock"])


@pytest.mark.usefixtures("quick_python")
def test_features(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpuload with a feature against gpuload without it, in turns; and a DataLoader. Some on sets made for them."""
    figures = tmp_path / "figures.json"
    options = ["--rounds", "2", *SMALL, "--json", str(figures), "--cache", str(tmp_path / "cache")]
    assert bench.main([str(packed / "train"), "--with", "captions", *options]) == 0
    said, record = capsys.readouterr().out, json.loads(figures.read_text())
    assert record["complete"] and record["left_out"] == {}
    assert [row["loader"] for row in record["features"]] == ["gpuload", "torch"]
    for row in record["features"]:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] and row["feature"] in said
        assert len(row["rounds"]) == 2 and row["cpu_us"] >= 0 and row["feature"] == "captions"
    assert (tmp_path / "cache" / "texts" / "set" / "train" / "manifest.json").exists()


@pytest.mark.parametrize(
    "name", sorted({one for name in FEATURES for pair in names_of(name) for one in pair if "+" in one})
)
def test_every_feature_loads(made: Work, name: str, transforms: ModuleType) -> None:
    """With its counterpart, and with what both are compared with."""
    loader_name, _, variant = name.partition("+")
    opens = {"gpuload": open_gpuload, "torch": open_dataloader}.get(loader_name)
    if loader_name == "rasterio":
        pytest.importorskip("rasterio", reason="needs rasterio, which nothing but its row of the benchmark uses")
    with opens(made, variant) if opens else CONTENDERS[name].open(made) as loader:
        assert describe(next(iter(loader)), CONTENDERS[name], made)["dtype"] == "float32"
        del loader


@pytest.fixture(scope="module")
def made(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    work = Work(packed / "val", 16, 32, 1, 64, cache=tmp_path_factory.mktemp("cache"))
    for data in {variant.data for variant in VARIANTS.values()} - {""}:
        (work.cache / data).mkdir()
        prepare(work, work.cache / data, data)
    return work


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    asked = urllib.request.Request(url, headers=headers, method=method)
    try:
        answer = urllib.request.urlopen(asked, timeout=250)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read()


def test_the_server_of_bench_remote_answers_ranges_and_counts_what_it_sends(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    size, place = len(data), "/bucket/object"
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "object").write_bytes(data)
    with served(tmp_path) as url:
        for asked, sent in (("10-99", data[10:100]), (f"{size - 5}-", data[-5:]), (f"0-{2 * size}", data)):
            status, headers, body = get(url + place, Range=f"bytes={asked}")
            assert (status, body) == (206, sent)
            assert headers["Content-Range"].endswith(f"/{size}") and len(body) == int(headers["Content-Length"])
        status, headers, body = get(url + place)
        assert (status, body, get(url + place, "HEAD")[2]) == (200, data, b"")
        found = stats(url)
        assert found.sent == {place: 2 * size + 90 + 5} and found.requests == 5
        assert get(f"{url}/bucket/other")[0] == 404
        assert get(url + place, Range=f"bytes={size}-")[0] == 416
        assert get(url + place, **{"If-None-Match": headers["ETag"]})[0] == 304
        assert stats(url).bytes == found.bytes


CANNOT = {
    "--loaders ffcv --python ffcv=/nowhere/python": "left out: ffcv: /nowhere/python: No such file or directory",
    **({} if torch.cuda.is_available() else {"--loaders gpuload-gpu": "left out: gpuload-gpu: there is no GPU"}),
    "--rounds 0": "--rounds 0: expected at least 1",
    "--cold -1": "--cold -1: expected 0 or more",
    "--batch-size 5000 --images 80000": "--batch-size 5000: is larger than",
    "--images 640": "--images 640: expected at least 16 batches (1,024 images)",
    "--device cuda --loaders torch-gpu dali gpuload": "--device cuda: contradicts --loaders dali gpuload, whose batches",
    "--loaders gpuload+jitter": "invalid choice: 'gpuload+jitter'",
    "--python fast=python3": "--python fast=python3: expected LOADER=PATH",
}


@pytest.mark.parametrize("options", CANNOT)
def test_what_cannot_be_is_named(packed: Path, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = bench.main([str(packed / "train"), *options.split()])
    except SystemExit as exit:
        code = int(exit.code or 0)
    assert code == 2 and CANNOT[options] in capsys.readouterr().err


@pytest.mark.usefixtures("quick_python")
def test_peers_that_are_installed_deliver_what_gpuload_does(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in ("opencv", "webdataset", "spdl-opencv", "dali") if why_not(CONTENDERS[name]) is None]
    assert "webdataset" in names  # gpuload itself needs it
    work = Work(packed / "val", 16, 32, 2, 10_000, samples=len(gpuload.Dataset(packed / "val")))
    course = Course(work, {}, bench.count_labels(gpuload.Dataset(packed / "val")))
    course.examine(["gpuload", *names])
    assert list(course.results) == ["gpuload", *names], capsys.readouterr().err
    for name, result in course.results.items():
        assert result.examined is not None and result.examined.whole
        assert result.examined.images > 0.7 * work.samples
        assert result.examined.resumes == ("state_dict" if name in ("gpuload", "dali") else "reads again")


def test_a_file_is_put_out_of_the_page_cache_and_read_back(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind} is the page cache itself")
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    page_cache.warm([path])
    assert page_cache.cached_share([path]) == 1
    page_cache.evict([path])
    assert page_cache.cached_share([path]) == 0


@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize("fault", [ContenderError("torch: it broke"), KeyboardInterrupt()])
def test_who_fails_is_left_out_and_an_interrupted_run_leaves_its_rounds(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Any
) -> None:
    take, turns = ContenderProcess.round, count()

    def take_or_fail(self: ContenderProcess) -> Round:
        if self.name == "torch" and next(turns):
            raise fault
        return take(self)

    monkeypatch.setattr(ContenderProcess, "round", take_or_fail)
    figures = tmp_path / "figures.json"
    options = ["--loaders", "gpuload", "torch", "--rounds", "3", "--cold", "0", *SMALL, "--json", str(figures)]
    with suppress(KeyboardInterrupt):
        assert bench.main([str(packed / "val"), *options]) == 0
    record = json.loads(figures.read_text())
    rounds = {row["name"]: len(row["rounds"]) for row in record["loaders"]}
    if isinstance(fault, ContenderError):
        assert record["complete"] and rounds == {"gpuload": 3} and record["left_out"] == {"torch": "it broke"}
        assert capsys.readouterr().err.count("left out: torch: it broke") == 1
    else:
        assert not record["complete"] and rounds == {"gpuload": 1, "torch": 1}


TRUTH = {"0": 128, "1": 128}
WORK = Work(folder=None, batch_size=32, size=16, threads=2, images=1024, samples=256)  # type: ignore[arg-type]
ANY = Contender("any", "any", open=None)  # type: ignore[arg-type]


def look_at(batches: int = 8, labels: int = 2, change: Any = lambda images: images) -> Examined:
    """At images, 256 by default, whose red is brighter than their blue; labels 0 and 1 in turn."""
    random, colour = torch.Generator().manual_seed(0), torch.tensor([0.5, 0.0, -0.5]).view(3, 1, 1)
    images = [torch.randn(32, 3, 16, 16, generator=random) + colour for _ in range(batches)]
    return examine([(change(one), torch.arange(32) % labels) for one in images], ANY, WORK)[0]


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({}, "^None$"),
        ({"batches": 6}, "^None$"),  # a last batch of each worker may be missing
        ({"batches": 5}, "its epoch has 160 of 256 images"),
        ({"batches": 9}, "label 0 occurs 144 times in an epoch, but 128 times in the set"),
        ({"labels": 3}, "but 0 times in the set"),
        ({"change": lambda images: images.flip(1)}, r"differ from the first loader's: mean -0\.\d+, .* in red, green"),
        ({"change": lambda images: images[..., :8]}, r"its batches are \(32, 3, 16, 8\), torch.float32 on cpu"),
        ({"change": lambda images: images.double()}, "torch.float64 on cpu; expected"),
        ({"change": lambda images: images * torch.nan}, "a pixel is not finite"),
    ],
)
def test_what_a_loader_delivers_is_examined(other: dict[str, Any], fault: str) -> None:
    first = look_at()
    assert (first.images, first.whole, first.labels) == (256, True, TRUTH)
    assert first.mean == pytest.approx([0.5, 0.0, -0.5], abs=0.02)
    assert first.std == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
    try:
        said = str(faults(look_at(**other), TRUTH, first, WORK))
    except ValueError as error:
        said = str(error)
    assert re.search(fault, said), said
