"""The facts of a report: what is counted, found and told of sets of every kind."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from images import encode, photo
from PIL import Image
from report_sets import CLASSES, again, make_report, textured

import gpuload
from gpuload.cli import main
from gpuload.pictures import as_rgb, for_eyes
from gpuload.report.pixels import choose


@pytest.fixture
def facts(split_report: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return split_report[0]


def test_splits_and_classes(facts: dict[str, Any]) -> None:
    assert {split["name"]: split["samples"] for split in facts["splits"]} == {"train": 120, "val": 20, "test": 10}
    (table,) = facts["classes"]
    assert table["classes"] == CLASSES == len(table["rows"])
    assert (table["smallest"], table["largest"]) == (1, 2)
    assert sum(row["counts"][0] for row in table["rows"]) == 120
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["class 004"]["counts"] == [2, 1, 0] and rows["class 090"]["counts"] == [1, 0, 0]
    assert {entry["split"]: entry["count"] for entry in table["missing"]} == {"val": CLASSES - 20, "test": CLASSES - 10}
    assert all(sample["label"] == name for name, row in rows.items() for sample in row["examples"])
    assert all(row["examples"] for row in table["rows"])


def test_duplicates_and_leaks(facts: dict[str, Any]) -> None:
    found = facts["duplicates"]
    assert {entry["split"]: entry["images"] for entry in found["leaked"]} == {"val": 2, "test": 0}
    assert (found["groups"], found["exact_groups"], found["between_splits"], found["labels_differ"]) == (13, 12, 12, 1)
    names = [{sample["source"] for sample in group["members"]} for group in found["shown"]]
    assert {"train-003", "val-v3"} in names and {"train-004", "val-v4"} in names and {"train-030", "train-031"} in names
    exact = {frozenset(members): group["exact"] for members, group in zip(names, found["shown"], strict=True)}
    assert exact[frozenset({"train-003", "val-v3"})] and not exact[frozenset({"train-004", "val-v4"})]
    texts = [finding["text"] for finding in facts["findings"]]
    assert "2 images of val also in the training set" in texts
    assert "1 group of alike images with different labels" in texts
    assert "75 classes missing in val" in texts and "85 classes missing in test" in texts


def test_duplicates_whose_labels_differ_come_first(tmp_path: Path) -> None:
    labels = [(1, "x"), (1, "x"), (1, "x"), (2, "x"), (2, "y")]
    samples = [{"image": encode(textured(n)), "label": label} for n, label in labels]
    assert [group["count"] for group in make_report(pack(tmp_path, samples))[0]["duplicates"]["shown"]] == [2, 3]


def test_classes_that_training_lacks_altogether(tmp_path: Path) -> None:
    pack(tmp_path / "a", [{"image": encode(textured(1)), "split": "train"}])
    gpuload.pack([{"image": encode(textured(2)), "label": "x", "split": "val"}], tmp_path / "b", workers=1)
    facts, _ = make_report(tmp_path / "a" / "train", tmp_path / "b" / "val")
    assert [(table["smallest"], table["largest"]) for table in facts["classes"]] == [(0, 0)]


def test_images_that_are_unlike_the_others(facts: dict[str, Any]) -> None:
    first = {ranking["name"]: ranking["samples"][0]["source"] for ranking in facts["extremes"]}
    assert first["darkest"] == first["least-informative"] == first["blurriest"] == first["smallest"] == "train-008"
    assert first["aspect"] == first["largest"] == "train-009"
    sizes = {(row["what"], row["split"]): row["percentiles"] for row in facts["sizes"]}
    assert len(sizes) == 4 * 3 and sizes["width", "train"] == [64, 120, 120, 120, 640]
    assert sizes["aspect", "train"][-1] == 16 and sizes["height", "val"] == [72, 89.1, 90, 90, 90]


def test_an_image_that_is_half_black_and_half_white_is_neither_dark_nor_bright(tmp_path: Path) -> None:
    half = Image.new("RGB", (64, 48))
    half.paste((255, 255, 255), (32, 0, 64, 48))
    images = [half, *(Image.new("RGB", (64, 48), (level,) * 3) for level in (60, 120, 200))]
    facts, _ = make_report(pack(tmp_path, [{"image": encode(one), "name": str(n)} for n, one in enumerate(images)]))
    ranked = {one["name"]: [sample["source"] for sample in one["samples"]] for one in facts["extremes"]}
    assert ranked["darkest"] == ["1", "2", "3", "0"] and ranked["brightest"] == ["3", "2", "1", "0"]
    texts = {one["name"]: [sample["value"] for sample in one["samples"]] for one in facts["extremes"]}
    assert texts["darkest"] == ["24%", "47%", "78%", "100%"] and texts["brightest"] == ["78%", "47%", "24%", "0%"]


def test_what_training_sees(facts: dict[str, Any]) -> None:
    training = facts["training"]
    assert training["split"] == "train" and training["width"] > 4 * 32
    assert training["mixing"]["window"] == 3 and not training["mixing"]["is_poor"]
    assert "data:image" not in json.dumps(facts) and facts["made_by"] == "gpuload report"  # the page alone has pictures


def pack(folder: Path, samples: list[Any], **options: Any) -> Path:
    gpuload.pack(samples, folder, workers=1, **options)
    return folder / "train"


def test_sets_of_every_kind(tmp_path: Path) -> None:
    """One image; no labels; raw pixels; all images alike."""
    kinds = {
        "one": pack(tmp_path / "one", [{"image": encode(photo())}]),
        "raw": pack(tmp_path / "raw", [{"image": encode(photo(n)), "label": "x"} for n in range(2)], encode="raw"),
        "alike": pack(tmp_path / "alike", [{"image": encode(photo())}] * 5),
    }
    found = {name: make_report(folder) for name, folder in kinds.items()}
    facts = {name: one[0] for name, one in found.items()}
    assert facts["one"]["classes"] == facts["one"]["extremes"] == [] and facts["one"]["looked_at"]["images"] == 1
    assert facts["raw"]["classes"][0]["rows"][0]["counts"] == [2] and len(facts["raw"]["extremes"]) > 1
    assert facts["alike"]["duplicates"]["exact_groups"] == 1 and facts["alike"]["duplicates"]["images"] == 4
    assert all("Nothing was rejected" in page for _, page in found.values())


def test_only_some_of_the_images_are_looked_at(tmp_path: Path) -> None:
    images = [{"image": encode(textured(n, 100 + n))} for n in range(40)]
    folder = pack(tmp_path / "set", images, maxcount=5, shuffle=False)
    facts, page = make_report(folder, images=12)
    assert facts["looked_at"] == {"images": 12, "of": 40} and "those of 12 of 40 images" in page
    assert facts["sizes"][0]["percentiles"][1:4] == pytest.approx([101.95, 119.5, 137.05])  # of all
    pack(tmp_path / "other", [{"image": encode(textured(n))} for n in range(3)])
    for most, seen in ((1, [1, 0]), (9, [6, 3])):  # a small split as a whole
        facts, _ = make_report(folder, tmp_path / "other" / "train", images=most)
        assert facts["looked_at"] == {"images": most, "of": 43}
        assert [split["looked_at"] for split in facts["splits"]] == seen


def test_no_image_decodes(tmp_path: Path) -> None:
    boxes = [{"boxes": [[0, 0, 9, 9]] * (4 if n else 1), "boxes_class": ["a"] * 4 if n else ["b"]} for n in range(6)]
    samples = [{"image": encode(textured(n)), "label": n % 2, **one} for n, one in enumerate(boxes)]
    facts, page = make_report(damage(pack(tmp_path / "set", samples), tmp_path / "damaged", range(6)))
    assert facts["undecodable"][0]["count"] == 6 and "6 do not decode" in page
    texts = [finding["text"] for finding in facts["findings"]]
    assert "The largest class of boxes has 20 times the samples of the smallest" in texts
    assert "6 images of damaged not decodable" in texts


def test_a_sorted_set_is_told(tmp_path: Path) -> None:
    samples = [{"image": encode(photo(n)), "label": f"{n // 8:02d}"} for n in range(160)]
    facts, page = make_report(pack(tmp_path / "set", samples, shuffle=False, maxcount=4))
    mixing = facts["training"]["mixing"]
    assert mixing["is_poor"] and mixing["good_window"] == 32
    text = r"Batches of 64 hold \d+\.\d classes on average; a full shuffle gives \d+\.\d: the shards are sorted"
    assert any(re.fullmatch(text, finding["text"]) for finding in facts["findings"])
    assert "<code>shuffle=gpuload.Shuffle(window=32)</code>" in page


def test_names_of_splits(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("val", "train", "extra"):
        (tmp_path / name).symlink_to(packed)
    splits = make_report(tmp_path, images=10)[0]["splits"]
    assert [split["name"] for split in splits] == ["train", "val", "extra"]
    assert splits[0]["given"] == str(tmp_path / "train")
    assert main(["report", str(tmp_path), str(tmp_path / "val")]) == 2
    assert "report: a packed set is there twice" in capsys.readouterr().err


def test_which_images_are_looked_at(packed: Path) -> None:
    dataset = gpuload.Dataset(packed)
    assert choose(dataset, 97).tolist() == choose(dataset, 10**6).tolist() == list(range(97))
    some = choose(dataset, 30)
    assert len(some) == 30 and len(set(some.tolist())) == 30 and (np.diff(some) > 0).all()
    assert len(set((some // 10).tolist())) in (3, 4)  # of ten shards
    assert choose(dataset.subset(np.arange(50)), 20).max() < 50


def test_near_duplicates_are_near(tmp_path: Path) -> None:
    """Scaled, recompressed and brightened images are found; other images, and flat ones of different colours, are not.
    Of a group with many images of one split, some of the others are shown."""
    image = textured(1, 200, 150)
    samples = [
        image, image.resize((100, 75)), image.point(lambda v: min(255, v + 6)), textured(2, 200, 150),
        image.transpose(0), image.rotate(180),
    ]  # fmt: skip
    flats = [photo(0, 1, 1).resize((80, 60)).point(lambda v, n=n: n * 60) for n in range(4)]
    flats.append(Image.linear_gradient("L").point(lambda v: 255 * (v > 127)))  # of much contrast, and two levels
    files = [again(sample, quality) for sample, quality in zip(samples, (95, 90, 40, 90, 90, 90), strict=True)]
    files += [*map(encode, flats), *[encode(textured(3))] * 43]
    named = [{"image": file, "name": f"{n}", "split": "val" if n > 50 else "train"} for n, file in enumerate(files)]
    gpuload.pack(named, tmp_path, workers=1)
    found = make_report(tmp_path)[0]["duplicates"]
    same, near = found["shown"]
    assert same["count"] == 43 and {sample["split"] for sample in same["members"]} == {"train", "val"}
    assert sorted(sample["source"] for sample in near["members"]) == ["0", "1", "2"]
    assert found["not_compared"] == 5


# Sets whose images are not 8-bit RGB are shown, too: in a report, a preview, and one by one.


def pixels_of(mode: str, number: int) -> Any:
    """A dark left half and a bright right one, and a texture in both."""
    levels = np.asarray(textured(number, 64, 48).convert("RGB"))
    levels = np.where(np.arange(64)[None, :, None] < 32, levels // 4, 128 + levels // 2).astype(np.uint8)
    if mode in ("L", "RGBA"):
        return Image.fromarray(levels).convert(mode)
    if mode == "I;16":
        return levels[..., 0].astype(np.uint16) * 257
    return np.concatenate([levels, levels], axis=2).astype(np.float32) + 300


@pytest.mark.parametrize(
    ("mode", "encode"),
    [("L", "keep"), ("L", "raw"), ("RGBA", "keep"), ("I;16", "keep"), ("I;16", "raw"), ("float32x6", "raw")],
)
def test_a_set_of_another_mode(tmp_path: Path, mode: str, encode: str) -> None:
    samples = [{"image": pixels_of(mode, number), "label": number % 2} for number in range(6)]
    dataset = gpuload.Dataset(pack(tmp_path, samples, mode=mode, encode=encode))
    levels = np.asarray(for_eyes(dataset[0]["image"]).convert("L"))
    assert levels[:, :32].mean() < 70 and levels[:, 32:].mean() > 150
    facts, page = make_report(tmp_path / "train")
    assert facts["looked_at"]["images"] == 6 and facts["undecodable"][0]["count"] == 0
    assert facts["training"]["height"] > 100 and page.count("no picture") == 0
    channels = dataset.manifest.pixels.channels
    normalize = gpuload.Normalize((0.4,) * channels, (0.2,) * channels)
    augment = gpuload.Augment(32, crop="none", mode=mode, normalize=normalize)
    with gpuload.DaliIterator(dataset, 2, augment=augment, device="cpu", shuffle=False) as loader:
        sheet = np.asarray(loader.preview(1).convert("L"), np.float64)
    assert sheet[8:40, 8:24].mean() < 70 and sheet[8:40, 24:40].mean() > 150  # of floats, too


def test_what_a_person_sees() -> None:
    gray = np.array([[[7]], [[200]]], np.uint8)
    assert as_rgb(gray).tolist() == [[[7, 7, 7]], [[200, 200, 200]]]
    assert as_rgb(np.array([[[1, 2, 3, 4]]], np.uint8)).tolist() == [[[1, 2, 3]]]
    assert as_rgb(np.array([[[0x1234, 0x5678, 0xFFFF]]], np.uint16)).tolist() == [[[0, 73, 255]]]
    floats = np.array([[[300.0], [np.nan]], [[-100.0], [100.0]]], np.float32)
    assert as_rgb(floats)[..., 0].tolist() == [[255, 0], [0, 128]]  # what is no number is black
    hot = np.arange(10_000, dtype=np.uint16).reshape(100, 100, 1)
    hot[0, 0] = 65_535  # which does not darken the others
    levels = as_rgb(hot)[..., 0]
    assert levels[1].max() == 0 and abs(int(levels[50, 0]) - 127) <= 2 and levels[98:].min() >= 254
    many = np.stack([floats, floats * 100])
    assert (as_rgb(many)[0] == as_rgb(many)[1]).all()
