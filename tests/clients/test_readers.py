"""Other programs that read what gpuload packs: each opens a packed folder as it is, by its own code."""

import importlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packed_fields
import pytest
from images import encode, photo
from PIL import Image
from reading import rows_of
from tars import read_by_dali

import gpuload
from gpuload import OutputError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.disk.card import write_card
from gpuload.packing.run import PackReport

CLASSES = ("ant", "no", 'the "bee"')  # YAML takes the second for a truth value
PNGS = (7, 22, 31)  # the first five samples of a split are JPEGs
COUNTS = {"train": 28, "validation": 5}

pytestmark = pytest.mark.filterwarnings("ignore")


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def samples(is_png: Any = lambda number: number in PNGS) -> Iterator[dict[str, Any]]:
    for number in range(33):
        image = photo(number, 24 + number, 20)
        split = "val" if number % 7 == 1 else "train"
        data = png(image) if is_png(number) else encode(image)
        yield {"image": data, "label": CLASSES[number % 3], "split": split}


def pack(out: Path, **options: Any) -> PackReport:
    return gpuload.pack(samples(), out, workers=1, maxcount=20, shuffle=False, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits, with JPEGs and some PNGs."""
    pack(out := tmp_path_factory.mktemp("mixed"))
    return out


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, all as JPEGs."""
    pack(out := tmp_path_factory.mktemp("jpegs"), encode="jpeg")
    return out


def stored(split: Path) -> list[tuple[str, bytes, str]]:
    classes = Manifest.read(split).classes or ()
    return [(row["key"], row["image"], classes[row["label"]]) for row in rows_of(split)]


# Hugging Face's `datasets`


def load_dataset(folder: Path, cache: Path, streaming: bool) -> Mapping[str, Any]:
    datasets = pytest.importorskip("datasets", reason="needs the extra 'frameworks'")
    datasets.disable_progress_bars()
    return dict(datasets.load_dataset(str(folder), streaming=streaming, cache_dir=str(cache)))


def read_split(dataset: Any) -> list[tuple[str, bytes, str]]:
    """Keys, bytes of images, and names of classes."""
    image = importlib.import_module("datasets").Image(decode=False)
    columns = [name for name in ("jpg", "png") if name in dataset.features]
    for column in columns:
        dataset = dataset.cast_column(column, image)
    names = dataset.features["cls"]
    rows = []
    for row in dataset:
        (data,) = (row[column]["bytes"] for column in columns if row[column] is not None)
        rows.append((row["__key__"], data, names.int2str(row["cls"])))
    return rows


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_opens_a_set_with_all_splits_and_images(mixed: Path, tmp_path: Path, streaming: bool) -> None:
    splits = load_dataset(mixed, tmp_path, streaming)
    assert {name: len(list(split)) for name, split in splits.items()} == COUNTS
    assert read_split(splits["train"]) == stored(mixed / "train")
    assert read_split(splits["validation"]) == stored(mixed / "val")


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_opens_one_split(mixed: Path, tmp_path: Path, streaming: bool) -> None:
    splits = load_dataset(mixed / "train", tmp_path, streaming)
    assert read_split(splits["train"]) == stored(mixed / "train") and [*splits] == ["train"]


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_reads_every_kind_of_field(dataset: gpuload.Dataset, tmp_path: Path, streaming: bool) -> None:
    (split,) = load_dataset(Path(str(dataset.folder)), tmp_path, streaming).values()
    for number, row in enumerate(split):
        given = packed_fields.sample(number)
        assert row["jpg"].size == (24 + number, 20 + number % 3) == row["mask.png"].size
        assert split.features["cls"].int2str(row["cls"]) == given["label"]
        assert [split.features["labels.json"].feature.int2str(label) for label in row["labels.json"]] == given["labels"]
        assert (row["angle.json"], row["drive.json"], row["txt"]) == (given["angle"], given["drive"], given["caption"])
        assert row["about.json"] == given["about"] and row["boxes.json"]["boxes"] == given["boxes"]
        names = split.features["boxes.json"]["classes"].feature.int2str(row["boxes.json"]["classes"])
        assert names == given["boxes_class"] and row["keypoints.json"] == [[1, 1, 2, 3, 3, 2]]
        for name in ("tokens", "text", "features", "flag", "letters"):
            assert np.array(row[f"{name}.npy"]).tolist() == given[name].tolist()
        assert (np.array(row["mask.png"]) == number).all()
    assert number == packed_fields.COUNT - 1


def test_pixels_and_instances_are_columns(tmp_path: Path) -> None:
    outlines = [[[0, 0, 5, 0, 5, 5]], {"size": [20, 24], "counts": [0, 8, 472]}]
    one = {"boxes": [[0, 0, 5, 5], [1, 1, 9, 9]], "boxes_class": ["a", "b"], "boxes_masks": outlines}
    images = [photo(number, 24, 20) for number in range(3)]
    gpuload.pack(({"image": np.asarray(image), **one} for image in images), tmp_path / "out", encode="raw", workers=1)
    (split,) = load_dataset(tmp_path / "out", tmp_path / "cache", streaming=False).values()
    rows = {int(row["__key__"][:8]): row for row in split}
    for number, image in enumerate(images):
        row = rows[number]
        assert np.array(row["npy"], np.uint8).tolist() == np.asarray(image).tolist()
        assert row["boxes.json"]["masks"] == outlines and row["boxes.json"]["boxes"] == one["boxes"]


@pytest.mark.parametrize("name", ["tr[ai]n", "a-b", "__all", "my split"])
def test_names_of_splits_that_other_readers_refuse(tmp_path: Path, name: str) -> None:
    report = gpuload.pack(
        samples(), tmp_path / "out", workers=1, own_splits=False, splits=((name, 0.5), ("train", 0.5))
    )
    splits = load_dataset(tmp_path / "out", tmp_path / "cache", streaming=False)
    sizes = {split: manifest.samples for split, manifest in report.manifests.items()}
    assert {split: len(rows) for split, rows in splits.items()} == {
        re.sub(r"\W", "_", split): count for split, count in sizes.items()
    }


def test_the_hub_understands_the_card(mixed: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra 'remote'")
    data = hub.DatasetCard.load(mixed / "README.md").data.to_dict()
    (config,) = data["configs"]
    assert config["data_files"] == [
        {"split": "train", "path": ["train/*.tar"]},
        {"split": "validation", "path": ["val/*.tar"]},
    ]
    features = {one["name"]: one["dtype"] for one in data["dataset_info"]["features"]}
    assert features["cls"]["class_label"]["names"] == {str(number): name for number, name in enumerate(CLASSES)}


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", "b\u2028\x85\x7f", "é\U0001f41d: [1] #'\\\""]])
def test_all_names_of_classes(mixed: Path, tmp_path: Path, names: list[str]) -> None:
    """Two classes of one name, which `datasets` refuses, stay numbers; others are as they were given."""
    manifest = json.loads((mixed / "train" / "manifest.json").read_text())
    folder = Path(shutil.copytree(mixed / "train", tmp_path / "train"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "classes": names}))
    write_card(folder, {folder: Manifest.read(folder)})
    (split,) = load_dataset(folder, tmp_path / "cache", streaming=True).values()
    label = split.features["cls"]
    assert label.dtype == "int64" and getattr(label, "names", names[::2]) == (
        names if len({*names}) == 3 else names[::2]
    )


def test_shards_that_were_indexed_in_place_open_as_before(jpegs: Path, tmp_path: Path) -> None:
    """But for `gpuload index`, `datasets` would take them for WebDataset; other tars in the folder are not theirs."""
    folder = tmp_path / "train"
    folder.mkdir()
    for shard in (jpegs / "train").glob("*.tar"):
        shutil.copy(shard, folder)
    shutil.copy(jpegs / "val/shard-000000.tar", folder / "val-000000.tar")
    assert main(["index", str(folder / "shard-{000000..000001}.tar")]) == 0
    splits = load_dataset(folder, tmp_path / "cache", streaming=True)
    assert {name: sum(1 for row in split if row["jpg"].mode == "RGB") for name, split in splits.items()} == {
        "train": 28
    }
    (folder / "README.md").write_text("my own")
    assert main(["index", str(folder / "shard-{000000..000001}.tar"), "--overwrite"]) == 0
    assert (folder / "README.md").read_text() == "my own"


# Appending and replacing


def test_the_card_follows_a_set_that_grows(tmp_path: Path) -> None:
    out, late = tmp_path / "out", [{"image": png(photo(99)), "label": CLASSES[0]}]
    gpuload.pack(samples(lambda number: False), out, workers=1)
    assert "png" not in (out / "README.md").read_text()
    gpuload.pack(late, out, workers=1, append=True)
    splits = load_dataset(out, tmp_path / "cache", streaming=False)
    assert {name: len(split) for name, split in splits.items()} == {**COUNTS, "train": 29}
    assert sum(row["png"] is not None for row in splits["train"]) == 1
    assert json.loads((out / "_info.json").read_text())["splits"]["train"]["num_samples"] == 29


def test_an_edited_card_stays(tmp_path: Path) -> None:
    out, late = tmp_path / "out", [{"image": png(photo(99)), "label": CLASSES[0]}]
    gpuload.pack(samples(lambda number: False), out, workers=1)
    edited = (out / "README.md").read_text().replace("# Images packed by gpuload", "# My insects")
    (out / "README.md").write_text(edited)
    report = gpuload.pack(late, out, workers=1, append=True)
    assert (out / "README.md").read_text() == edited
    assert any("README.md was edited and is left as it is" in note for note in report.notes)
    assert 'name: "png"' in (out / "train/README.md").read_text()
    report = gpuload.pack(late, out, workers=1, overwrite=True)
    assert Manifest.read(out / "train").samples == 1 and (out / "README.md").read_text() == edited
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [note for note in report.notes if "README.md was edited" in note] == list(report.notes)
    (out / "README.md").write_text("my own")
    (out / "train/README.md").unlink()
    gpuload.pack(samples(), out, workers=1, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "_info.json", "train", "val"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_card_alone_is_no_set(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a clone of a repository")
    choices: list[dict[str, bool]] = [{}, {"append": True}, {"overwrite": True}]
    for options in choices:
        with pytest.raises(OutputError, match="README.md|holds no packed set"):
            gpuload.pack(samples(), tmp_path, workers=1, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_set_of_an_older_version_gets_what_it_lacks(tmp_path: Path) -> None:
    """Its splits hold `_info.json`, which stays, and true."""
    pack(out := tmp_path / "out", encode="jpeg")
    for split in ("train", "val"):
        (out / split / "README.md").unlink()
        old = {"name": split, "num_samples": 1, "filenames": ["shard-000000.tar"], "shard_lengths": [1]}
        (out / split / "_info.json").write_text(json.dumps({"splits": {split: old}}))
    for name in ("README.md", "_info.json"):
        (out / name).unlink()
    assert main(["verify", str(out)]) == 0
    assert sum(len(labels) for _, labels in gpuload.DaliIterator(out / "train", 7, augment=gpuload.Augment(8))) == 28
    late = [{"image": encode(photo(99)), "label": CLASSES[0]}]
    gpuload.pack(late, out, workers=1, append=True)
    assert {name: len(split) for name, split in load_dataset(out, tmp_path / "cache", False).items()} == {
        **COUNTS,
        "train": 29,
    }
    assert timm_samples(out / "train", "train") == 29 == timm_samples(out, "train")


# timm


def timm_samples(folder: Path, split: str) -> int:
    importlib.import_module("torchvision_anywhere")
    timm = pytest.importorskip("timm", reason="needs the extra 'frameworks'")
    found = timm.data.create_dataset("wds/", str(folder), split=split)
    return sum(image.mode == "RGB" and label in range(3) for image, label in found)


@pytest.mark.parametrize(("split", "count"), [("train", 28), ("validation", 5), ("val", 5)])
def test_timm_opens_a_set_with_its_own_names_of_splits(mixed: Path, split: str, count: int) -> None:
    assert timm_samples(mixed, split) == count


# webdataset and DALI: also in tests/packing/test_packer.py


def test_webdataset_reads_both_encodings(mixed: Path) -> None:
    wds = pytest.importorskip("webdataset")
    (pattern,) = re.findall(r'WebDataset\("FOLDER/(\S+)"', (mixed / "README.md").read_text())
    found = wds.WebDataset(str(mixed / pattern), shardshuffle=False).decode("pil").to_tuple("__key__", "jpg;png", "cls")
    assert [(key, image.size, label) for key, image, label in found] == [
        (row["key"], (row["width"], row["height"]), row["label"]) for row in rows_of(mixed / "train")
    ]


def test_dali_reads_both_encodings(mixed: Path) -> None:
    shards = sorted((mixed / "train").glob("*.tar"))
    images, labels = read_by_dali(shards, [shard.with_suffix(".idx") for shard in shards], 28, "jpg;png", "cls")
    rows = rows_of(mixed / "train")
    assert images == [row["image"] for row in rows]
    assert [int(label) for label in labels] == [row["label"] for row in rows]


# Ray


@pytest.fixture(scope="module")
def ray_data() -> Iterator[Any]:
    pytest.importorskip("pandas", reason="Ray Data needs it: the extra 'frameworks'")
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    ray.shutdown()
    quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=1, object_store_memory=80_000_000, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data
    ray.shutdown()


def test_ray_reads_a_set_of_one_encoding(jpegs: Path, ray_data: Any) -> None:
    for folder, count in ((jpegs / "train", 28), (jpegs, 33)):
        rows = ray_data.read_webdataset(str(folder), file_extensions=["tar"]).take_all()
        assert len(rows) == count and all(row["jpg"].shape[2] == 3 and row["cls"] in range(3) for row in rows)


def test_pack_says_who_reads_one_encoding_alone(jpegs: Path, tmp_path: Path, ray_data: Any) -> None:
    report = pack(tmp_path / "out")
    note = "images are stored as .jpg and .png, and Ray Data and Daft read one encoding alone: for them, --encode jpeg"
    assert note in report.notes
    assert not any("Daft" in note for note in pack(tmp_path / "one", encode="jpeg").notes)
    with pytest.raises(Exception, match="cast column jpg"):
        ray_data.read_webdataset(str(tmp_path / "out/train"), file_extensions=["tar"]).take_all()


# Megatron Energon


def test_energon_prepares_and_reads_a_set(jpegs: Path, tmp_path: Path) -> None:
    energon = pytest.importorskip("megatron.energon", reason="needs megatron-energon, which pins another botocore")
    folder = Path(shutil.copytree(jpegs, tmp_path / "set"))
    last = len(list((folder / "train").glob("*.tar"))) - 1
    parts = [f"train:train/shard-{{000000..{last:06d}}}.tar", "val:val/shard-000000.tar"]
    options = [word for part in parts for word in ("--split-parts", part)]
    options += ["--sample-type", "ImageClassificationSample", "--field-map", '{"image": "jpg", "label": "cls"}']
    program = [Path(sys.executable).with_name("energon"), "prepare", "--non-interactive", *options, folder]
    subprocess.run(program, check=True, capture_output=True)
    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    for split, count in (("train", 28), ("val", 5)):
        data = energon.get_val_dataset(folder, split_part=split, worker_config=config, batch_size=1)
        assert sum(1 for _ in energon.get_loader(data)) == count
    assert main(["verify", str(folder)]) == 0
