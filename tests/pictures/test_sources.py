"""Several pictures in a sample, from folders, tables, tars and programs; what is kept, refused and rejected."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, photo
from PIL import Image
from tars import write_tar

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.cli import main
from gpuload.packing.verify import verify

RNG = np.random.default_rng(3)
COUNT = 6


def pixels(height: int = 12, width: int = 16, dtype: Any = np.uint8, channels: int = 3) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, channels)).astype(dtype)


def png(array: np.ndarray) -> bytes:
    return encode(Image.fromarray(array.squeeze()), "PNG")


def pack(samples: Any, out: Path, **options: Any) -> gpuload.Dataset:
    gpuload.pack(samples, out, workers=1, progress=False, **options)
    assert verify(out) == []
    return gpuload.Dataset(out / "train")


def pair(folder: Path, ending: str = "", classes: bool = False) -> tuple[Path, Path]:
    """Folders of small pictures and of large ones, by the same names, or by these and an ending."""
    low, high = folder / "low", folder / "high"
    high.mkdir(parents=True)
    for number in range(COUNT):
        place = low / ("cats", "dogs")[number % 2] if classes else low
        place.mkdir(parents=True, exist_ok=True)
        image = pixels()
        (place / f"{number:04d}.png").write_bytes(png(image))
        (high / f"{number:04d}{ending}.png").write_bytes(png(np.repeat(np.repeat(image, 2, axis=0), 2, axis=1)))
    return low, high


@pytest.mark.parametrize(("ending", "classes"), [("", False), ("x2", False), ("_depth", True), ("", True)])
def test_folders_of_files_that_are_called_alike(tmp_path: Path, ending: str, classes: bool) -> None:
    low, high = pair(tmp_path, ending, classes)
    data = pack({"low": low, "high": high}, tmp_path / "out", shuffle=False)
    assert [field.kind for field in data.fields.values()] == ["image", *(["class"] * classes), "picture"]
    assert data.manifest.version == 3
    for number in range(COUNT):
        sample = data[number]
        small = np.asarray(sample["low"])
        assert np.array_equal(np.asarray(sample["high"]), np.repeat(np.repeat(small, 2, axis=0), 2, axis=1))
        assert Path(sample["source"]).suffix == ".png"


def test_a_picture_that_is_missing_leaves_its_sample_out(tmp_path: Path) -> None:
    low, high = pair(tmp_path)
    (high / "0003.png").unlink()
    report = gpuload.pack(low, tmp_path / "out", pictures={"high": high}, workers=1, progress=False)
    assert [(one.source, one.reason) for one in report.rejected] == [("0003.png", "lacks its picture high")]


def test_the_command_line_takes_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low, high = pair(tmp_path)
    assert main(["pack", str(low), str(tmp_path / "out"), "--picture", f"high={high}", "--workers", "1"]) == 0
    assert "high (.high.png)" in capsys.readouterr().out
    assert main(["pack", str(low), str(tmp_path / "two"), "--picture", "high"]) == 2
    assert "--picture high: write NAME=FOLDER" in capsys.readouterr().err


def test_names_that_have_nothing_to_do_with_each_other_are_refused(tmp_path: Path) -> None:
    low, high = pair(tmp_path)
    for number, file in enumerate(sorted(high.iterdir())):
        file.rename(high / f"other-{number}.png")
    with pytest.raises(SourceError, match="no file is called as an image is; the images are such as '0000.png'"):
        gpuload.pack({"low": low, "high": high}, tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda low, high: (low, {"pictures": {"image": high}}), "'image' is the image of each sample"),
        (
            lambda low, high: (low, {"pictures": {"high": high / "no"}}),
            "no such folder. Give the folder of the pictures",
        ),
        (lambda low, high: (low, {"pictures": ["high"]}), "expected a dict of folders by the name of the picture"),
        (lambda low, high: ([], {"pictures": {"high": high}}), "expected names of entries"),
    ],
)
def test_what_cannot_be_beside(tmp_path: Path, make: Any, message: str) -> None:
    samples, options = make(*pair(tmp_path))
    with pytest.raises((ArgumentError, SourceError), match=message):
        gpuload.pack(samples, tmp_path / "out", progress=False, **options)


def test_columns_of_images_in_parquet(tmp_path: Path) -> None:
    files = [{"bytes": png(pixels()), "path": None} for _ in range(2 * COUNT)]
    rows = [{"image": files[n], "edited": files[n + COUNT], "prompt": f"no {n}"} for n in range(COUNT)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    data = pack(tmp_path / "pairs.parquet", tmp_path / "out", shuffle=False)
    assert {name: field.kind for name, field in data.fields.items()} == {
        "image": "image",
        "edited": "picture",
        "prompt": "caption",
    }
    expected = np.asarray(Image.open(io.BytesIO(rows[2]["edited"]["bytes"])))
    assert np.array_equal(np.asarray(data[2]["edited"]), expected)


def stereo(count: int = COUNT) -> list[dict[str, Any]]:
    return [
        {
            "left": encode(photo(number, 40, 30)),
            "right": encode(photo(number + 50, 40, 30), "PNG"),
            "disparity": Image.fromarray(pixels(dtype=np.uint16, channels=1).squeeze()),
            "flow": RNG.normal(size=(30, 40, 2)),
            "label": number % 2,
        }
        for number in range(count)
    ]


def test_plain_files_are_kept_and_others_lose_nothing(tmp_path: Path) -> None:
    rows = stereo()
    data = pack(rows, tmp_path / "out", pictures=["flow"], shuffle=False)
    members = {name: field.member for name, field in data.fields.items()}
    assert members == {
        "left": "left.jpg",
        "right": "right.png",
        "disparity": "disparity.png",
        "flow": "flow.npy",
        "label": "cls",
    }
    shard = data.shard_paths[0].read_bytes()
    for number, row in enumerate(rows):
        stored = data.row(number).to_pylist()[0]
        for name in ("left", "right"):
            begin = stored[f"{name}_offset"]
            assert shard[begin : begin + stored[f"{name}_bytes"]] == row[name]
        sample = data[number]
        assert np.array_equal(sample["disparity"][..., 0], np.asarray(row["disparity"]))
        assert np.array_equal(sample["flow"], row["flow"].astype(np.float32))


@pytest.mark.parametrize("known", [True, False])
def test_tars_of_several_pictures_are_packed_again(tmp_path: Path, known: bool) -> None:
    """known: with the manifest of the set, or as the tars of somebody else."""
    rows = [{name: value for name, value in row.items() if name != "flow"} for row in stereo()]
    first = pack(rows, tmp_path / "first", shuffle=False)
    place = first.folder
    if not known:
        place = tmp_path / "tars"
        place.mkdir()
        (place / "a.tar").write_bytes(first.shard_paths[0].read_bytes())
    again = pack(place, tmp_path / "again", shuffle=False)
    image = "left" if known else "image"
    assert list(again.fields) == [image, "right", "disparity", "label"]
    for number in range(COUNT):
        assert np.array_equal(np.asarray(first[number]["left"]), np.asarray(again[number][image]))
        assert np.array_equal(first[number]["disparity"], again[number]["disparity"])


def test_the_first_of_several_pictures_in_a_tar_is_the_image(tmp_path: Path) -> None:
    members = [(f"{number:04d}.{name}.png", png(pixels())) for number in range(COUNT) for name in ("before", "after")]
    write_tar(tmp_path / "a.tar", members)
    data = pack(tmp_path / "a.tar", tmp_path / "out", shuffle=False)
    assert {name: field.kind for name, field in data.fields.items()} == {"image": "image", "after": "picture"}


def test_pictures_of_one_name_have_one_mode(tmp_path: Path) -> None:
    rows = [{"image": png(pixels()), "depth": png(pixels(dtype=dtype, channels=1))} for dtype in (np.uint8, np.uint16)]
    with pytest.raises(SourceError, match="field 'depth': its pictures have different modes .'I;16', 'L'."):
        pack(rows, tmp_path)


def test_gray_pictures_among_colours_are_colours(tmp_path: Path) -> None:
    rows = [{"image": png(pixels()), "other": png(pixels(channels=channels))} for channels in (1, 3, 3)]
    assert pack(rows, tmp_path).fields["other"].dtype is None


def test_a_damaged_picture_rejects_its_sample(tmp_path: Path) -> None:
    rows = [{"image": png(pixels()), "depth": png(pixels(dtype=np.uint16, channels=1))} for _ in range(COUNT)]
    rows[2]["depth"] = rows[2]["depth"][:-30]
    report = gpuload.pack(rows, tmp_path, workers=1, progress=False)
    assert [one.reason for one in report.rejected] == ["its 'depth' it is truncated"]


def test_more_pictures_of_the_same_fields_are_appended(tmp_path: Path) -> None:
    rows = stereo()
    pack(rows[:3], tmp_path, pictures=["flow"])
    data = pack(rows[3:], tmp_path, pictures=["flow"], append=True)
    assert len(data) == COUNT and len(data.shard_paths) == 2
    with pytest.raises(SourceError, match="the first picture of train is 'left', that of the new samples 'image'"):
        pack([{"image": row["left"], "right": row["right"]} for row in rows], tmp_path, append=True)


def test_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(stereo(), tmp_path / "out", pictures=["flow"])
    assert main(["show", str(tmp_path / "out"), "0", "-o", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "disparity: 16 × 12 pixels of I;16" in out and "flow: 40 × 30 pixels of float32x2" in out
    [sheet] = tmp_path.glob("*.png")
    with Image.open(sheet) as picture:
        assert picture.width > 40
    assert main(["info", str(tmp_path / "out")]) == 0
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "report.html")]) == 0
