"""Samples without any picture: of sets whose pictures lie in lists, in every source, reader, loader and command."""

import functools
import gc
import http.server
import json
import shutil
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from damaged import change_manifest, damage
from images import encode, photo
from loaders import load, skip_without_dali
from PIL import Image
from tars import members, read_by_dali, same_as_wds2idx, write_tar

import gpuload
from gpuload import ArgumentError, Augment, OnCorrupt, Pictures
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.doctor.checks import measure
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify

COUNTS = [0, 2, 1, 0, 3, 1, 0, 2, 1]
OUT = (16, 20)
MOVING = Augment(OUT, flip=0.5, normalize=None, dtype="uint8")


def level(number: int, place: int) -> int:
    """Of a picture: it tells which one of which sample it is."""
    return 20 * number + 5 * place


def picture(number: int, place: int) -> Image.Image:
    return Image.fromarray(np.full((24 + 3 * place, 40, 3), level(number, place), np.uint8))


def conversations(counts: list[int] = COUNTS) -> list[dict[str, Any]]:
    return [
        {"images": [picture(number, place) for place in range(count)], "text": f"no {number}"}
        for number, count in enumerate(counts)
    ]


def pack(samples: Any, out: Path, **options: Any) -> gpuload.Dataset:
    report = gpuload.pack(samples, out, workers=1, progress=False, **{"shuffle": False, **options})
    assert report.rejected == ()
    assert verify(out) == []
    return gpuload.Dataset(out / "train")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("conversations") / "set"
    pack(conversations(), out, maxcount=4)
    return out / "train"


def check_levels(data: Any, fields: tuple[Any, ...] = ("text", "images"), **options: Any) -> None:
    """Every sample of a set has its own pictures, and no others."""
    seen = []
    with load(data, 4, augment=MOVING, fields=fields, drop_last=False, **options) as loader:
        for text, images in loader:
            for words, pictures in zip(text, images.split(), strict=True):
                number = int(words.removeprefix("no "))
                expected = [level(number, place) for place in range(COUNTS[number])]
                # JPEGs of one colour differ by a level.
                assert np.allclose(pictures[:, 0, 9, 9].tolist(), expected, atol=1)
                seen.append(number)
    assert sorted(seen) == list(range(len(COUNTS)))


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
@pytest.mark.parametrize("geometry", ["shared", "own"])
def test_they_are_loaded_with_the_others(packed: Path, geometry: Any, decoder: str) -> None:
    skip_without_dali(decoder)
    check_levels(packed, ("text", Pictures("images", geometry=geometry)), decoder=decoder)


def test_a_batch_of_texts_alone(packed: Path) -> None:
    data = gpuload.Dataset(packed).filter(pc.field("image_bytes") == 0)
    assert len(data) == COUNTS.count(0)
    for decoder in ("native", "dali"):
        skip_without_dali(decoder)
        with load(data, 2, augment=MOVING, fields=("images", "text"), decoder=decoder) as loader:
            images, text = next(iter(loader))
        assert images.pixels.shape == (0, 3, *OUT) and images.counts.tolist() == [0, 0] and len(text) == 2
        assert [len(pictures) for pictures in images.split()] == [0, 0]
        padded = Pictures("images", count=2, more="first", fewer="pad")
        with load(data, 2, augment=MOVING, fields=(padded,), decoder=decoder) as loader:
            images = next(iter(loader)).images
        assert images.pixels.shape == (2, 2, 3, *OUT) and not images.pixels.any()
    with load(data, 3, augment=Augment(None, crop="keep", normalize=None), fields=("images",)) as loader:
        assert next(iter(loader)).images == [[], [], []]


def test_version_4_is_written_only_where_a_sample_has_none(packed: Path, tmp_path: Path) -> None:
    manifest = gpuload.Dataset(packed).manifest
    assert manifest.version == 4 and manifest.image.counts == (0, 1)
    assert manifest.fields[1].counts == (0, max(COUNTS))
    assert manifest.packing["without_image"] == COUNTS.count(0)
    others = pack(conversations([2, 1, 3]), tmp_path / "others").manifest
    assert others.version == 3 and others.image.counts is None
    assert "without_image" not in others.packing
    assert "counts" not in json.loads((tmp_path / "others/train/manifest.json").read_text())["fields"][0]


def test_pixels_are_those_of_a_set_that_has_an_image_of_one_pixel(packed: Path, tmp_path: Path) -> None:
    dot = Image.new("RGB", (1, 1))
    samples = [{"image": dot, **sample} for sample in conversations()]
    data = pack(samples, tmp_path, pictures=["images"], maxcount=4)
    spec = Pictures("images", geometry="own", colors="each")
    colours = Augment(OUT, transforms=[gpuload.transforms.ColorJitter(0.4)], normalize=None)
    options: dict[str, Any] = {"augment": colours, "fields": ("text", spec), "seed": 4}
    with load(packed, 3, **options) as loader, load(data.folder, 3, **options) as other:
        for (text, images), (same_text, same_images) in zip(loader, other, strict=True):
            assert text == same_text
            assert np.array_equal(images.pixels.numpy(), same_images.pixels.numpy())


def test_a_run_resumes_on_any_ranks(packed: Path) -> None:
    options: dict[str, Any] = {"augment": MOVING, "fields": ("text", "images"), "seed": 2, "drop_last": False}
    with load(packed, 2, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with load(packed, 2, **options) as loader:
        loader.load_state_dict(state)
        again = list(loader)
    assert [batch.text for batch in rest] == [batch.text for batch in again] and len(rest) == 4
    for batch, same in zip(rest, again, strict=True):
        assert np.array_equal(batch.images.pixels.numpy(), same.images.pixels.numpy())
    texts = [
        text for rank in range(2) for batch in load(packed, 1, rank=rank, world_size=2, **options) for text in batch[0]
    ]
    assert set(texts) == {f"no {number}" for number in range(len(COUNTS))}


def test_what_needs_an_image_of_each_is_refused_by_name(packed: Path) -> None:
    missing = r"3 samples of .* have no 'image', such as '0000000.*'. Request Pictures\('images'\), with count=1 and"
    with pytest.raises(ArgumentError, match=missing):
        load(packed, 4, augment=MOVING, fields=("image", "images"))
    called = Augment(OUT, transforms=[gpuload.transforms.Function(lambda sample, rng: sample)], normalize=None)
    with pytest.raises(ArgumentError, match=missing):
        load(packed, 4, augment=called, fields=("images",))
    data = gpuload.Dataset(packed)
    with load(data.filter(pc.field("image_bytes") > 0), 6, augment=MOVING, fields=("image", "images")) as loader:
        image, images = next(iter(loader))
    firsts = np.cumsum([0, *images.counts.tolist()[:-1]])
    assert np.array_equal(image.numpy(), images.pixels.numpy()[firsts])
    one = Pictures("images", count=1, more="first", fewer="pad")
    with load(data, 9, augment=MOVING, fields=(one, "text")) as loader:
        images, text = next(iter(loader))
    assert images.pixels.shape == (9, 1, 3, *OUT)
    assert images.counts.tolist() == [min(COUNTS[int(words.split()[1])], 1) for words in text]


@pytest.mark.parametrize("decoder", ["native", "dali"])
def test_a_bad_picture_beside_samples_without_any(packed: Path, tmp_path: Path, decoder: str) -> None:
    skip_without_dali(decoder)
    folder = damage(packed, tmp_path / "damaged", [4], lambda span: span[:50] + bytes(len(span) - 50), "images")
    options: dict[str, Any] = {"augment": MOVING, "fields": ("index", "images"), "drop_last": False}
    for action in ("skip", "mark"):
        with load(folder, 3, on_corrupt=OnCorrupt(action, most=1.0), decoder=decoder, **options) as loader:
            batches = list(loader)
            assert [sample.index for sample in loader.report().samples] == [4]
        for batch in batches:
            for number, pictures in zip(batch.index.tolist(), batch.images.split(), strict=True):
                expected = [0] * 3 if number == 4 else [level(number, place) for place in range(COUNTS[number])]
                assert pictures[:, 0, 9, 9].tolist() == expected


def test_other_lists_move_as_the_first_of_them(tmp_path: Path) -> None:
    """Frames of a sample without an image: all of a sample are cropped alike, by the size of the first."""
    frames = [[photo(10 * number, 60, 40)] * 2 for number in range(6)]
    samples = [
        {"images": [frames[number][0]] if number % 2 else [], "frames": frames[number], "text": f"no {number}"}
        for number in range(6)
    ]
    data = pack(samples, tmp_path)
    assert data.manifest.version == 4
    row = data.row(0).to_pylist()[0]
    assert (row["width"], row["height"], row["image_bytes"]) == (60, 40, 0)
    with load(data, 6, augment=MOVING, fields=("images", "frames"), shuffle=False) as loader:
        images, shown = next(iter(loader))
    for number, pictures in enumerate(shown.split()):
        assert np.array_equal(pictures[0].numpy(), pictures[1].numpy())
        if number % 2:
            assert np.array_equal(images.split()[number][0].numpy(), pictures[0].numpy())


@pytest.mark.parametrize("encode_as", ["raw", "jpeg"])
def test_resized_as_others_are(tmp_path: Path, encode_as: Any) -> None:
    samples = [{**sample, "views": [photo(number, 60, 40)]} for number, sample in enumerate(conversations())]
    data = pack(samples, tmp_path, encode=encode_as, size=20, resize={"images": "own", "views": "own"})
    assert data.manifest.version == 4
    assert {view.size for number in range(len(data)) for view in data[number]["views"]} == {(30, 20)}
    check_levels(data)


# Refusals of the packer


def rejections(samples: Any, out: Path, **options: Any) -> list[str]:
    report = gpuload.pack(samples, out, workers=1, progress=False, **options)
    assert verify(out) == []
    return [rejection.reason for rejection in report.rejected]


def test_samples_of_nothing_and_places_in_no_picture_are_rejected(tmp_path: Path) -> None:
    alone = [{"images": [picture(1, 0)]}, {"images": []}]
    assert rejections(alone, tmp_path / "alone") == ["has no picture, and nothing else"]
    assert gpuload.Dataset(tmp_path / "alone/train").manifest.version == 3
    boxes = [
        {"images": [picture(1, 0)], "boxes": [[1, 2, 9, 9]], "classes": [0]},
        {"images": [], "boxes": [], "classes": []},
        {"images": [], "boxes": [[1, 2, 9, 9]], "classes": [0]},
    ]
    assert rejections(boxes, tmp_path / "boxes") == ["has 'boxes' and no picture"]
    assert len(gpuload.Dataset(tmp_path / "boxes/train")) == 2


def test_a_set_without_any_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gpuload.SourceError, match=r"if 'images' is a list of pictures, pictures=\['images'\] tells it"):
        gpuload.pack(conversations([0, 0]), tmp_path / "a", progress=False)
    with pytest.raises(gpuload.SourceError, match="no sample has a picture in 'images'. A set without any is a table"):
        gpuload.pack(conversations([0, 0]), tmp_path / "b", progress=False, pictures=["images"])
    with pytest.raises(gpuload.SourceError, match="sample 1 has None for its image. Leave it out, or give lists"):
        gpuload.pack([{"image": picture(1, 0)}, {"image": None}], tmp_path / "c", progress=False)


def test_a_split_of_texts_alone(tmp_path: Path) -> None:
    samples = [{**sample, "split": "val" if not sample["images"] else "train"} for sample in conversations()]
    pack(samples, tmp_path)
    train = gpuload.Dataset(tmp_path / "train")
    val = gpuload.Dataset(tmp_path / "val")
    assert train.manifest.version == 3 and val.manifest.version == 4
    with load(val, 3, augment=MOVING, fields=("images", "text")) as loader:
        assert next(iter(loader)).images.counts.tolist() == [0, 0, 0]
    mixture = gpuload.mix([(train, 0.5), (val, 0.5)], batches="stratified")
    with load(mixture, 4, augment=MOVING, fields=("images", "text")) as loader:
        assert {len(pictures) > 0 for batch in loader for pictures in batch.images.split()} == {True, False}


def test_they_are_appended_to_a_set_of_version_3(tmp_path: Path) -> None:
    first = [sample for sample in conversations() if sample["images"]]
    assert pack(first, tmp_path).manifest.version == 3
    gpuload.pack([sample for sample in conversations() if not sample["images"]], tmp_path, append=True,
                 progress=False, workers=1, pictures=["images"])  # fmt: skip
    data = gpuload.Dataset(tmp_path / "train")
    assert data.manifest.version == 4 and verify(tmp_path) == []
    check_levels(data)


# Sources


def files_of(number: int) -> list[dict[str, Any]]:
    return [{"bytes": encode(picture(number, place)), "path": None} for place in range(COUNTS[number])]


TABLE = pa.table(
    {
        "images": pa.array([files_of(number) for number in range(len(COUNTS))]),
        "text": [f"no {number}" for number in range(len(COUNTS))],
    }
)


@pytest.mark.parametrize("empty", ["lists", "nulls"])
def test_parquet(tmp_path: Path, empty: str) -> None:
    table = TABLE
    if empty == "nulls":
        lists = [files or None for files in TABLE["images"].to_pylist()]
        table = table.set_column(0, "images", pa.array(lists, TABLE["images"].type))
    pq.write_table(table, tmp_path / "talks.parquet")
    data = pack(tmp_path / "talks.parquet", tmp_path / "out")
    assert data.manifest.version == 4
    check_levels(data, ("caption", "images"))


def test_saved_data_sets_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    given = datasets.Dataset(TABLE).cast_column("images", datasets.Sequence(datasets.Image()))
    check_levels(pack(given, tmp_path / "given"), ("caption", "images"))
    given.save_to_disk(tmp_path / "saved")
    check_levels(pack(tmp_path / "saved", tmp_path / "out"), ("caption", "images"))


def test_nulls_in_a_column_of_images_are_rejected_rows(tmp_path: Path) -> None:
    """Not the whole table: they are the samples without a picture of many tables for vision-language models."""
    column = [files[0] if files else None for files in TABLE["images"].to_pylist()]
    pq.write_table(TABLE.set_column(0, "image", pa.array(column)), tmp_path / "talks.parquet")
    report = gpuload.pack(tmp_path / "talks.parquet", tmp_path / "out", workers=1, progress=False)
    assert [rejection.source for rejection in report.rejected] == ["row 0", "row 3", "row 6"]
    assert {rejection.reason for rejection in report.rejected} == {"has nothing in its column 'image'"}
    assert len(gpuload.Dataset(tmp_path / "out/train")) == 6


def tar_of_others(folder: Path, pattern: str) -> Path:
    entries = []
    for number, count in enumerate(COUNTS):
        names = [f"{number:04d}.{pattern.format(place=place)}.jpg" for place in range(count)]
        entries += [(name, encode(picture(number, place))) for place, name in enumerate(names)]
        entries += [(f"{number:04d}.txt", f"no {number}".encode()), (f"{number:04d}.md", b"x")]
    return write_tar(folder / "talks.tar", entries)


@pytest.mark.parametrize("pattern", ["{place}", "images.{place}"])
def test_tars_of_others(tmp_path: Path, pattern: str) -> None:
    shard = tar_of_others(tmp_path / "tars", pattern)
    data = pack(shard, tmp_path / "out")
    assert data.manifest.version == 4
    check_levels(data, ("caption", "images"))
    folder = shard.parent
    assert main(["index", str(shard)]) == 0
    in_place = gpuload.Dataset(folder)
    assert in_place.manifest.version == 4 and verify(folder) == []
    assert in_place.manifest.packing["passed_over"] == {".md": len(COUNTS)}
    assert main(["index", "--points", str(folder)]) == 0
    check_levels(folder, ("caption", "images"))


def test_one_picture_by_itself_is_not_a_list_that_may_be_empty(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", [("1.jpg", encode(picture(1, 0))), ("1.txt", b"a"), ("2.txt", b"b")])
    with pytest.raises(gpuload.ShardError, match="sample '2' has no image"):
        index_shards(shard)
    report = gpuload.pack(shard, tmp_path / "out", workers=1, progress=False)
    assert [rejection.reason for rejection in report.rejected] == ["has no image"]


def test_its_own_shards_are_packed_again(packed: Path, tmp_path: Path) -> None:
    data = pack(packed, tmp_path)
    assert data.manifest.version == 4
    check_levels(data)


# Readers


def test_other_readers_see_the_same_samples(packed: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    shards = gpuload.Dataset(packed).shard_paths
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its shards open
        samples = [sample for shard in shards for sample in webdataset.WebDataset(str(shard), shardshuffle=False)]
        gc.collect()
    assert [sum(name.startswith("images.") for name in sample) for sample in samples] == COUNTS
    assert sum(".images." in name for name in members(packed)) == sum(COUNTS)
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.load_dataset(str(packed.parent), split="train", cache_dir=str(tmp_path / "cache"))
    assert [sum(row[name] is not None for name in row if name.startswith("images.")) for row in rows] == COUNTS


def test_dalis_own_reader_takes_the_index(packed: Path, tmp_path: Path) -> None:
    skip_without_dali("dali")
    shards = gpuload.Dataset(packed).shard_paths
    indexes = [shard.with_suffix(".idx") for shard in shards]
    texts = read_by_dali(shards, indexes, len(COUNTS), "text.txt")
    assert [bytes(text).decode() for text in texts[0]] == [f"no {number}" for number in range(len(COUNTS))]
    firsts = read_by_dali(shards, indexes, len(COUNTS), "images.0.png", missing_component_behavior="empty")
    assert [len(first) > 0 for first in firsts[0]] == [count > 0 for count in COUNTS]
    for shard, index in zip(shards, indexes, strict=True):
        assert same_as_wds2idx(shard, index, tmp_path / "index")


@pytest.fixture
def served(packed: Path) -> Iterator[str]:
    """The URL of the set, on a server without ranges."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(packed.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/train"
    server.shutdown()
    server.server_close()


def test_a_set_at_a_url(served: str, tmp_path: Path) -> None:
    check_levels(gpuload.Dataset(served, tmp_path / "cache"))


# What looks at a set


def test_samples_are_shown(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = gpuload.Dataset(packed)[0]
    assert sample["image"] is None and sample["images"] == [] and sample["text"] == "no 0"
    for number in ("0", "4"):
        assert main(["show", str(packed), number, "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "image: none" in printed and "images: 0 pictures" in printed
    assert main(["info", str(packed)]) == 0
    assert main(["report", str(packed), "-o", str(tmp_path / "report.html"), "--json", str(tmp_path / "r.json")]) == 0
    facts = json.loads((tmp_path / "r.json").read_text())
    assert facts["looked_at"]["images"] == len(COUNTS) - COUNTS.count(0)
    widths = next(entry for entry in facts["sizes"] if entry["what"] == "width")
    assert widths["percentiles"] == [40] * 5
    with load(packed, 4, augment=MOVING, fields=("text", "images"), shuffle=False) as loader:
        assert loader.preview(3).width > 2 * OUT[1]


def test_doctor_and_tune_measure_those_that_have_one(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(packed), "--device", "cpu", "--seconds", "0.1", "--size", "16"]) == 0
    assert "images/s" in capsys.readouterr().out
    assert measure(str(packed), "cpu", "native", 0.05)["images_per_s"] > 0


def test_a_dry_run_shows_the_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(TABLE, tmp_path / "talks.parquet")
    assert main(["pack", str(tmp_path / "talks.parquet"), str(tmp_path / "out"), "--dry-run"]) == 0
    assert "pictures" in capsys.readouterr().out


def test_a_decoded_copy_is_of_those_that_have_an_image(packed: Path, tmp_path: Path) -> None:
    data = gpuload.Dataset(packed)
    with pytest.raises(ArgumentError, match="decoded: 3 samples of .* have no 'image'. Leave them out: dataset.filter"):
        gpuload.decoded(data, folder=tmp_path)
    chosen = data.filter(pc.field("image_bytes") > 0)
    copy = gpuload.decoded(chosen, folder=tmp_path)
    options: dict[str, Any] = {"augment": MOVING, "fields": ("text", "image", "images")}
    with load(chosen, 6, **options) as loader, load(copy, 6, **options) as other:
        batch, same = next(iter(loader)), next(iter(other))
    assert batch.text == same.text and np.array_equal(batch.image.numpy(), same.image.numpy())
    assert np.array_equal(batch.images.pixels.numpy(), same.images.pixels.numpy())


# Manifests that cannot be


@pytest.mark.parametrize("counts", [[0, 2], [1, 1], [0], [1, 0]])
def test_an_image_has_one_picture_or_none(packed: Path, tmp_path: Path, counts: list[int]) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    change_manifest(folder, lambda manifest: manifest["fields"][0].update(counts=counts), fingerprint=False)
    with pytest.raises(gpuload.FormatError, match="its counts cannot be"):
        gpuload.Dataset(folder)


def test_an_image_that_no_sample_may_lack_does_not_decode(packed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    manifest = Manifest.read(folder)
    image, *others = manifest.fields
    replace(manifest, fields=(replace(image, counts=None), *others)).write(folder)
    assert any("there is no image at the offset in the index" in line for line in verify(folder))
