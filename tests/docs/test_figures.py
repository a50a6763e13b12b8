"""The figures and pictures of README and docs/ are those of the records and of the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from counting.report import is_exact
from documentation import figures, pictures
from PIL import Image
from snippets import ROOT

import gpuload.transforms
from gpuload import batchwise

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"<!-- figures: ([\w-]+) -->", text)
    assert text == figures.rewritten(text), "run `python tools/documentation/figures.py --write`"


def test_a_changed_figure_is_noticed() -> None:
    text = "<!-- figures: loaders -->\n| gpuload | 9,999 |\n<!-- end -->\n"
    assert "9,999" not in figures.rewritten(text) and "**3,621**" in figures.rewritten(text)


def record(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def claims() -> Iterator[tuple[str, str]]:
    """Pages, and what sentences of theirs say of records."""
    loaders, scale, found = record("cpu-2-cores"), record("scale-100-million"), record("report-100-thousand")
    raw = [record(f"cpu-2-cores-{name}")["ceiling"]["images_per_s"] for name in ("128-px-raw", "64-px-raw")]
    read = {row["name"]: f"{row['images_per_s']:,.0f}" for row in record("cpu-2-cores-read-only")["loaders"]}
    yield "performance", f"makes {loaders['ceiling']['images_per_s']:,.0f} images/s of the whole images"
    yield "performance", "makes {:,.0f} (128×128) and {:,.0f} (64×64)".format(*raw)
    yield "performance", f"reader {read['read-gpuload']} images/s, `fn.readers.webdataset` {read['read-dali']}"
    yield "performance", f"but {read['read-gpuload-dali']} where"
    yield "performance", f"waits {record('first-batch-million')['median_s']:.2f} s for its first batch"
    yield "performance", f"takes {1000 * scale['order']['seconds']:.2f} ms"
    yield "performance", f"{scale['open']['seconds']:.2f} s"
    yield "concepts", f"takes {scale['open']['seconds']:.2f} s"
    each = f"{found['images']:,} JPEGs of {found['image_bytes'] / found['images'] / 1000:.0f} kB"
    yield "report", f"{each} take {found['cpu_seconds']:.0f} s of processor time"
    yield "report", f"{found['max_own_bytes'] / 1e6:.0f} MB of memory"
    two = next(row for row in record("pairs-2-cores")["features"] if row["feature"] == "two-jpegs")
    yield "performance", f"{2 * two['ratio']:.2f} times the rate"
    each = [two["cpu_us"] / 2, two["cpu_us"] - two["more_cpu_us"]]
    yield "performance", "{:.2f} and {:.2f} ms of processor time".format(*(us / 1000 for us in each))
    for name in ("shapes", "digits"):
        pair = [record(f"recipe-{name}")[loader] for loader in ("gpuload", "DataLoader")]
        accuracies = [100 * one["accuracies"][0] for one in pair]
        seconds = [one["runs"][0]["seconds"][-1] for one in pair]
        if name == "shapes":
            assert f"{accuracies[0]:.1f}" == f"{accuracies[1]:.1f}"
            yield "examples", f"both nets classify {accuracies[0]:.1f} % of the validation images correctly"
            yield "examples", "takes {:.0f} s with gpuload and {:.0f} s with the".format(*seconds)
            yield "examples", f"{seconds[1] / seconds[0]:.2f} times as long"
        else:
            assert round((accuracies[1] - accuracies[0]) / 100 * 359) == 3
            yield "examples", "they reach {:.1f} % and {:.1f} %".format(*accuracies)
            yield "examples", "training takes {:.0f} s and {:.0f} s".format(*seconds)
    kills = [trial for row in record("kill-and-count-gpuload")["loaders"] for trial in row["trials"]]
    assert all(map(is_exact, kills))
    yield "kill-and-count", f"gpuload alone was killed {len(kills)} times"
    titles = {"dataloader": "torch", "ffcv": "FFCV", "dali": "DALI", "mosaic": "Streaming", "litdata": "LitData"}
    titles |= {"spdl": "SPDL"}
    for one in record("peers")["peers"]:
        version = next(iter(one["versions"].values())).partition("+")[0]
        yield "coming-from", f"{titles.get(one['peer'], one['peer'])} {version}"


def test_figures_within_sentences() -> None:
    pages = {path.stem: " ".join(path.read_text().split()) for path in (ROOT / "docs").glob("*.md")}
    assert [(page, claim) for page, claim in claims() if claim not in pages[page]] == []


def test_every_augmentation_has_a_picture() -> None:
    shown = set(re.findall(r"images/augmentations/(\S+?)\.webp", (ROOT / "docs" / "augmentations.md").read_text()))
    made = {path.stem for path in pictures.FOLDER.glob("*.webp")}
    assert shown == made == {"drawing", *pictures.AUGMENTS, *pictures.BATCHWISE}
    functions = {name for name in batchwise.__all__ if "Batch" not in name}
    no_pictures = {
        "PixelTransform",
        "Operation",
        "Function",
        "RandomMixer",
        "join_tiles",
    }  # users write them, or they put together
    assert made >= {*gpuload.transforms.__all__, *functions} - no_pictures
    assert sum(path.stat().st_size for path in (ROOT / "docs").rglob("*.*")) < 2e6


def test_the_pictures_are_what_the_code_makes(tmp_path: Path) -> None:
    pictures.pack(tmp_path)
    for name in ("crop-random", "RandAugment", "CutMix"):
        made = np.asarray(pictures.render(name, tmp_path)).astype(int)
        with Image.open(pictures.FOLDER / f"{name}.webp") as image:
            kept = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(made - kept).mean() < 6, f"{name}: run `python tools/documentation/pictures.py`"
