"""Lists of pictures from programs, tables, Hugging Face's data sets and tars; what is stored, and who else reads it."""

import gc
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, photo
from loaders import load
from PIL import Image
from tars import members, write_tar

import gpuload
from gpuload import SourceError
from gpuload.cli import main
from gpuload.packing.add_points import add_points
from gpuload.packing.verify import verify

COUNTS = [2, 1, 3, 2, 4]
FILES = [
    [encode(photo(10 * number + place, 30 + place, 24), "JPEG" if place % 2 else "PNG") for place in range(count)]
    for number, count in enumerate(COUNTS)
]


def shown(picture: Any) -> np.ndarray:
    if isinstance(picture, bytes):
        with Image.open(io.BytesIO(picture)) as image:
            return np.asarray(image.convert("RGB"))
    return np.asarray(picture)


def pack(samples: Any, out: Path, **options: Any) -> gpuload.Dataset:
    report = gpuload.pack(samples, out, workers=1, progress=False, shuffle=False, **options)
    assert report.rejected == ()
    assert verify(out) == []
    return gpuload.Dataset(out / "train")


def check(data: gpuload.Dataset, name: str = "images", files: Any = FILES) -> None:
    assert data.fields[name].kind == "pictures"
    assert data.fields[name].counts == (min(map(len, files)), max(map(len, files)))
    assert len(data) == len(files)
    for number, expected in enumerate(files):
        sample = data[number]
        assert len(sample[name]) == len(expected)
        for picture, file in zip(sample[name], expected, strict=True):
            assert np.array_equal(shown(picture), shown(file))
        assert np.array_equal(shown(sample["image"]), shown(expected[0]))


def as_paths(folder: Path) -> list[list[Path]]:
    lists = []
    for number, files in enumerate(FILES):
        lists.append([folder / f"{number}-{place}.{'jpg' if place % 2 else 'png'}" for place in range(len(files))])
        for path, file in zip(lists[-1], files, strict=True):
            path.write_bytes(file)
    return lists


@pytest.mark.parametrize("form", ["paths", "bytes", "PIL", "opened", "tuples"])
def test_the_first_of_a_list_is_the_image_and_stored_once(tmp_path: Path, form: str) -> None:
    make: dict[str, Any] = {
        "paths": lambda: as_paths(tmp_path),
        "bytes": lambda: FILES,
        "PIL": lambda: [[Image.fromarray(shown(file)) for file in files] for files in FILES],
        "opened": lambda: [[Image.open(io.BytesIO(file)) for file in files] for files in FILES],
        "tuples": lambda: list(map(tuple, FILES)),
    }
    samples = [{"images": files, "text": f"no {number}"} for number, files in enumerate(make[form]())]
    data = pack(samples, tmp_path / "out")
    check(data)
    names = members(data.folder)
    assert len(names) == sum(COUNTS) + len(COUNTS)
    assert not any(name.endswith((".image.jpg", "-.jpg")) for name in names)
    assert data.manifest.version == 3
    assert set(data.fields["image"].member.split(";")) <= {"images.0.jpg", "images.0.png"}
    if form not in ("PIL",):
        stored = sorted(content for name, content in names.items() if ".images." in name)
        assert stored == sorted(file for files in FILES for file in files)
    with load(data.folder, 5, fields=("image", "images"), augment=gpuload.Augment(16, normalize=None)) as loader:
        image, images = next(iter(loader))
        firsts = np.cumsum([0, *images.counts.tolist()[:-1]])
        assert np.array_equal(image.numpy(), images.pixels.numpy()[firsts])


def test_arrays_are_told_by_name_and_some_samples_have_none(tmp_path: Path) -> None:
    frames = [[shown(file) for file in files][: number % 3] for number, files in enumerate(FILES)]
    samples = [{"image": files[0], "frames": some} for files, some in zip(FILES, frames, strict=True)]
    data = pack(samples, tmp_path, pictures=["frames"])
    assert data.fields["frames"].counts == (0, 2)
    for number, some in enumerate(frames):
        found = data[number]["frames"]
        assert [shown(one).tolist() for one in found] == [array.tolist() for array in some]


def test_a_damaged_picture_rejects_its_sample(tmp_path: Path) -> None:
    last = {2: FILES[2][0][:500]}
    samples = [{"images": [*files, last.get(number, files[0])]} for number, files in enumerate(FILES)]
    report = gpuload.pack(samples, tmp_path, workers=1, progress=False)
    assert [one.reason for one in report.rejected] == ["its 'images' it is truncated"]


def test_pictures_of_a_list_have_one_mode(tmp_path: Path) -> None:
    deep = Image.fromarray(np.full((8, 8), 900, np.uint16))
    samples = [{"image": files[0], "maps": [deep, Image.fromarray(shown(files[0]))]} for files in FILES]
    with pytest.raises(SourceError, match="field 'maps': its pictures have different modes"):
        gpuload.pack(samples, tmp_path, workers=1, progress=False)


def hugging_face_rows() -> list[dict[str, Any]]:
    return [
        {"pictures": [{"bytes": file, "path": None} for file in files], "text": f"no {number}"}
        for number, files in enumerate(FILES)
    ]


@pytest.mark.parametrize("name", ["pictures", "images", "image"])
def test_columns_of_lists_in_parquet(tmp_path: Path, name: str) -> None:
    rows = [{name: row["pictures"], "text": row["text"]} for row in hugging_face_rows()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "lists.parquet")
    if name == "image":
        name = "images"  # the name of the image itself is taken
    check(pack(tmp_path / "lists.parquet", tmp_path / "out"), name)


def test_a_column_of_lists_beside_one_of_images(tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": files[0], "path": None}, "views": [{"bytes": file, "path": None} for file in files[1:]]}
        for files in FILES[::-1]
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "lists.parquet")
    data = pack(tmp_path / "lists.parquet", tmp_path / "out")
    assert [field.kind for field in data.fields.values()] == ["image", "pictures"]
    assert data.fields["views"].counts == (0, 3)
    assert [len(data[number]["views"]) for number in range(5)] == [3, 1, 2, 0, 1]


@pytest.mark.parametrize("form", ["List", "old", "sequence"])
def test_lists_of_images_of_hugging_face(tmp_path: Path, form: str) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    image = datasets.Image()
    feature: Any = {"List": datasets.List(image), "old": [image], "sequence": datasets.Sequence(image)}[form]
    features = datasets.Features({"pictures": feature, "text": datasets.Value("string")})
    whole = datasets.Dataset.from_list(hugging_face_rows(), features=features)
    check(pack(whole, tmp_path / "out"), "pictures")
    whole.save_to_disk(str(tmp_path / "saved"))
    check(pack(tmp_path / "saved", tmp_path / "again"), "pictures")


@pytest.mark.parametrize("pattern", ["{key}.images.{place}.{end}", "{key}.{place}.{end}"])
def test_tars_of_others(tmp_path: Path, pattern: str) -> None:
    entries = []
    for number, files in enumerate(FILES):
        key = f"{number:04d}"
        # Stored as somebody sorted them by name.
        places = sorted(range(len(files)), key=lambda place: -place)
        for place in places:
            end = "jpg" if place % 2 else "png"
            entries.append((pattern.format(key=key, place=place + 8, end=end), files[place]))
        entries.append((f"{key}.txt", b"a caption"))
    write_tar(tmp_path / "a.tar", entries)
    data = pack(tmp_path / "a.tar", tmp_path / "out")
    check(data)
    assert list(data.fields) == ["image", "images", "caption"]


def test_its_own_shards_are_packed_again(tmp_path: Path) -> None:
    samples = [{"images": files, "label": number} for number, files in enumerate(FILES)]
    first = pack(samples, tmp_path / "first")
    again = pack(first.folder, tmp_path / "again")
    check(again)
    assert sorted(members(again.folder).values()) == sorted(members(first.folder).values())


def test_more_samples_are_appended(tmp_path: Path) -> None:
    samples = [{"images": files} for files in FILES]
    pack(samples[:2], tmp_path)
    check(pack(samples[2:], tmp_path, append=True))


def test_shards_are_cut_by_the_size_of_all_pictures(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 5, 64, 64, 3), np.uint8)
    samples = [{"images": [Image.fromarray(frame) for frame in frames]} for frames in noise]
    data = pack(samples, tmp_path, maxsize=150_000)
    assert max(path.stat().st_size for path in data.shard_paths) <= 150_000
    assert len(data.shard_paths) == 3


def test_other_readers_see_the_same_pictures(tmp_path: Path) -> None:
    samples = [{"images": files, "text": f"no {number}"} for number, files in enumerate(FILES)]
    data = pack(samples, tmp_path / "out")
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its shards open
        found = list(webdataset.WebDataset(str(data.shard_paths[0]), shardshuffle=False))
        gc.collect()
    for sample, files in zip(found, FILES, strict=True):
        grouped = sorted(name for name in sample if name.startswith("images."))
        assert [sample[name] for name in grouped] == files
        assert grouped == [f"images.{place}.{'jpg' if place % 2 else 'png'}" for place in range(len(files))]
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    for row, files in zip(rows, FILES, strict=True):
        for place, file in enumerate(files):
            picture = row[f"images.{place}.{'jpg' if place % 2 else 'png'}"]
            assert np.array_equal(shown(picture), shown(file))


def test_they_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pack([{"images": files} for files in FILES], tmp_path / "out")
    assert main(["show", str(data.folder), "2", "-o", str(tmp_path)]) == 0
    assert "images: 3 pictures: 30 × 24, 31 × 24, 32 × 24 pixels of RGB" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "out")]) == 0
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "report.html")]) == 0
    files = tmp_path / "files.parquet"
    pq.write_table(pa.Table.from_pylist(hugging_face_rows()), files)
    capsys.readouterr()
    assert main(["pack", str(files), str(tmp_path / "dry"), "--dry-run"]) == 0
    assert "pictures" in capsys.readouterr().out
    with Image.open(tmp_path / "dry-preview.png") as sheet:
        shown = np.asarray(sheet.convert("RGB"))
    assert (shown.max(axis=2) - shown.min(axis=2) > 60).mean() > 0.1  # photos, and no white cells


def test_seek_points_are_found_again(tmp_path: Path) -> None:
    samples = [{"images": [encode(photo(number, 1000, 700), quality=90) for _ in range(2)]} for number in range(3)]
    data = pack(samples, tmp_path)
    points = data.row(0).to_pylist()[0]["images_points"]
    assert all(points) and len(points) == 2
    add_points(data.folder)
    assert gpuload.Dataset(data.folder).row(0).to_pylist()[0]["images_points"] == points
    assert verify(tmp_path) == []


@pytest.mark.parametrize("pattern", ["images.{place}", "{place}"])
def test_lists_in_tars_of_others_are_indexed_in_place(tmp_path: Path, pattern: str) -> None:
    """Next to a depth map that all samples have, and a picture that one lacks."""
    entries = []
    for number, files in enumerate(FILES):
        key = f"{number:04d}"
        for place, file in reversed(list(enumerate(files))):
            entries.append((f"{key}.{pattern.format(place=place + 1)}.{'JPG' if place % 2 else 'png'}", file))
        depth = Image.fromarray(np.full((6, 9), 500 + number, np.uint16))
        entries.append((f"{key}.depth.png", encode(depth, "PNG")))
        entries += [(f"{key}.extra.png", files[0])] if number else []
        entries.append((f"{key}.cls", b"%d" % number))
    write_tar(tmp_path / "a.tar", entries)
    folder, manifest = gpuload.index(tmp_path / "a.tar")
    assert verify(folder) == []
    assert manifest.packing["passed_over"] == {".extra.png": len(FILES) - 1}
    data = gpuload.Dataset(folder)
    check(data)
    assert data.fields["depth"].kind == "picture" and data.fields["depth"].dtype == "<u2"
    spec = gpuload.Pictures("images", count=2, more="first", fewer="repeat")
    fields = ("label", "image", spec, gpuload.Depth("depth"))
    with load(folder, 5, fields=fields, augment=gpuload.Augment(16, normalize=None)) as loader:
        label, image, images, depth = next(iter(loader))
        assert np.array_equal(images[:, 0].numpy(), image.numpy())
        assert depth[:, 0, 0, 0].tolist() == [500 + number for number in label.tolist()]


LOST = [
    ({"a": [0, 2]}, "lacks number 1 in its list a, which has number 2"),
    ({"a": [1, 2]}, "lacks number 0 in its list a, which has number 1"),
    ({"a": [0, 1], "b": [0, 3]}, "lacks number 1 in its list b, which has number 3"),
    ({"a": [0, 1, 1, 2]}, "has two pictures of number 1 in its list a"),
]


def tar_of_lists(folder: Path, samples: list[dict[str, list[int]]]) -> Path:
    """Numbers of pictures in the lists of each sample; one that comes again is written with a zero before it."""
    entries = []
    for key, lists in enumerate(samples):
        for name, numbers in lists.items():
            for place, number in enumerate(numbers):
                digits = f"0{number}" if number in numbers[:place] else f"{number}"
                entries.append((f"{key:04d}.{name}.{digits}.png", FILES[1][0]))
    return write_tar(folder / "a.tar", entries)


@pytest.mark.parametrize(("lists", "reason"), LOST)
@pytest.mark.parametrize("place", [0, 2])
def test_a_lost_picture_of_a_list_in_tars_of_others(
    tmp_path: Path, lists: dict[str, list[int]], reason: str, place: int
) -> None:
    """Closing up the numbers would pair the pictures behind it with those of another list."""
    samples = [{"a": [0, 1, 2], "b": [0, 1, 2]}, {"a": [0], "b": []}]
    samples.insert(place, lists)
    tar = tar_of_lists(tmp_path / "tars", samples)
    with pytest.raises(gpuload.ShardError, match=f"sample '000{place}' {reason}.*--missing skip"):
        gpuload.index(tar)
    _, manifest = gpuload.index(tar, missing="skip")
    assert manifest.packing["rejected"] == 1
    report = gpuload.pack(tar, tmp_path / "out", workers=1, progress=False, shuffle=False)
    (rejection,) = report.rejected
    assert rejection.reason.startswith(reason) and f"000{place}" in rejection.source
    for folder in (tar.parent, tmp_path / "out" / "train"):
        data = gpuload.Dataset(folder)
        assert [len(data[number]["a"]) for number in range(len(data))] == [3, 1]
        assert verify(folder) == []


def test_lists_of_a_set_begin_at_one_number(tmp_path: Path) -> None:
    """A list from 1 beside one from 0 has lost its first picture, or is one behind the other."""
    tar = tar_of_lists(tmp_path, [{"a": [0, 1], "b": [1, 2]}] * 2)
    with pytest.raises(gpuload.ShardError, match="'0000' lacks number 0 in its list b"):
        gpuload.index(tar)
    with pytest.raises(gpuload.ShardError, match="no sample is left; the last one lacks number 0 in its list b"):
        gpuload.index(tar, missing="skip")
    with pytest.raises(SourceError, match="lacks number 0 in its list b"):
        gpuload.pack(tar, tmp_path / "out", workers=1, progress=False)


def test_all_lists_may_have_the_same_numbers(tmp_path: Path) -> None:
    """As those of cameras."""
    tar = tar_of_lists(tmp_path / "tars", [{"a": [0, 5, 7], "b": [0, 5, 7]}, {"b": [0, 5, 7]}])
    gpuload.index(tar)
    assert [len(gpuload.Dataset(tar.parent)[number]["b"]) for number in range(2)] == [3, 3]
    assert len(pack(tar, tmp_path / "out")) == 2
    twice = tar_of_lists(tmp_path / "twice", [{"a": [0, 1, 1]}] * 2)
    with pytest.raises(gpuload.ShardError, match="has two pictures of number 1"):
        gpuload.index(twice)


def test_a_lost_picture_of_its_own_shards_packed_again(tmp_path: Path) -> None:
    pack([{"frames": [FILES[0][0]] * 3} for _ in range(3)], tmp_path / "set")
    (tar,) = gpuload.Dataset(tmp_path / "set" / "train").shard_paths
    stored = members(tar.parent)
    lost = sorted(stored)[1]
    assert ".frames.1." in lost
    write_tar(tar, [(name, content) for name, content in stored.items() if name != lost])
    report = gpuload.pack(tar.parent, tmp_path / "again", workers=1, progress=False)
    (rejection,) = report.rejected
    assert rejection.reason.startswith("lacks number 1 in its list frames, which has number 2")


def test_a_picture_of_several_modes_is_passed_over_in_place(tmp_path: Path) -> None:
    gray = encode(Image.fromarray(np.full((6, 9), 500, np.uint16)), "PNG")
    entries = []
    for number, other in enumerate((gray, FILES[0][0])):
        entries += [(f"{number}.jpg", FILES[0][1]), (f"{number}.b.png", other)]
    write_tar(tmp_path / "a.tar", entries)
    folder, manifest = gpuload.index(tmp_path / "a.tar")
    assert list(gpuload.Dataset(folder).fields) == ["image"]
    assert manifest.packing["passed_over"] == {".b.png": 2}
