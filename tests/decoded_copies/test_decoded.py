"""Decoded copies: what they hold, and that a loader makes no difference between them and their set."""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinate_sets import pack_coordinates
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from images import encode, photo, smooth_image
from loaders import drain, load, world

import gpuload
from gpuload.decoded_copies import shard
from gpuload.disk.copied import SELECTION_NAME
from gpuload.disk.manifest import Manifest
from gpuload.fields.motion import place

FEW = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Those of which a batch can be made without a spec.
FIELDS = ("image", "label", "labels", "angle", "drive", "caption", "about", "features", "flag", "boxes", "mask", "key")


def batches(data: Any, **options: Any) -> list[Any]:
    usual = {"augment": gpuload.Augment(24), "fields": FIELDS, "output": "numpy", "device": "cpu", "drop_last": False}
    with gpuload.DaliIterator(data, 4, **{**usual, **options}) as loader:
        return list(loader)


def assert_equal(first: Any, second: Any) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_equal(tuple(one), tuple(other))


def assert_same_sample(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert list(first) == list(second)
    for name, value in first.items():
        pair = (value, second[name])
        if name in ("image", "mask"):
            pair = (np.asarray(pair[0]), np.asarray(pair[1]))
        np.testing.assert_equal(*pair)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of copies that several tests read."""
    return tmp_path_factory.mktemp("copies")


@FEW
@given(
    seed=st.integers(0, 100),
    crop=st.sampled_from(["random", "random_resized", "center", "cover"]),
    ranks=st.integers(1, 3),
    chosen=st.sets(st.integers(0, 10), min_size=1),
    window=st.integers(1, 3),
)
def test_batches_are_those_of_the_set(
    dataset: gpuload.Dataset, copies: Path, seed: int, crop: str, ranks: int, chosen: set[int], window: int
) -> None:
    """Bit for bit, with every field, for any seed, crop, number of ranks and selection."""
    part = dataset.subset(sorted(chosen))
    copy = gpuload.decoded(part, folder=copies)
    geometry = {"random": gpuload.RandomCrop(padding=4), "random_resized": gpuload.RandomResizedCrop()}
    augment = gpuload.Augment(16, crop=geometry.get(crop, crop.replace("cover", "pad_or_crop")))
    options: dict[str, Any] = {"augment": augment, "seed": seed, "shuffle": gpuload.Shuffle(window=window)}
    for rank in range(ranks):
        options |= {"rank": rank, "world_size": ranks}
        assert_equal(batches(part, **options), batches(copy, **options))


def test_a_copy_is_a_set(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    copy = gpuload.decoded(dataset, folder=tmp_path)
    assert gpuload.verify(copy.folder, workers=1) == []
    assert copy.manifest.is_raw
    assert copy.fingerprint == dataset.fingerprint
    assert copy.manifest.fingerprint != dataset.manifest.fingerprint
    assert (copy.classes, len(copy)) == (dataset.classes, len(dataset))
    assert not list(Path(copy.folder).glob("*.done")) + list(Path(copy.folder).glob("*.rows"))
    for number in range(len(dataset)):
        assert_same_sample(copy[number], dataset[number])


def test_a_copy_of_a_selection_is_a_set(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    """With masks of the size of the one pixel of images that were not copied."""
    for size in (None, 16):
        copy = gpuload.decoded(dataset.subset([1, 5, 7]), size, folder=tmp_path)
        assert gpuload.verify(copy.folder, workers=1) == []


def test_it_is_made_once(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    first = gpuload.decoded(dataset, folder=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in Path(first.folder).iterdir() if path.name != "copy.json"}
    done = list[tuple[int, int]]()
    again = gpuload.decoded(dataset, folder=tmp_path, watch=lambda *numbers: done.append(numbers))
    assert (again.folder, done) == (first.folder, [])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    smaller = gpuload.decoded(dataset, 12, folder=tmp_path, watch=lambda *numbers: done.append(numbers))
    assert smaller.folder != first.folder
    assert (done[0], done[-1]) == ((0, 3), (3, 3))


@pytest.mark.parametrize("fit", ["shortest", "longest"])
def test_resized_as_the_packer_resizes(photos: Path, packed: Path, tmp_path: Path, fit: Any) -> None:
    """The same pixels as of a set that was packed so."""
    copy = gpuload.decoded(gpuload.Dataset(packed), 50, fit=fit, folder=tmp_path / "copies")
    gpuload.pack(str(photos), tmp_path / "set", size=50, fit=fit, encode="raw", maxcount=10, workers=1, progress=False)
    other = gpuload.Dataset(tmp_path / "set" / "train")
    assert copy.manifest.fields == other.manifest.fields
    whole = gpuload.Augment(32, flip=0.5)
    options = {"augment": whole, "fields": ("image", "label", "key", "original_size")}
    assert_equal(batches(copy, **options), batches(other, **options))
    sides = [copy[number]["image"].size for number in range(len(copy))]
    assert max(min(size) if fit == "shortest" else max(size) for size in sides) == 50
    assert gpuload.verify(copy.folder, workers=1) == []


def test_annotations_move_with_resized_images(dataset: gpuload.Dataset, tmp_path: Path) -> None:
    copy = gpuload.decoded(dataset, 16, folder=tmp_path)
    assert gpuload.verify(copy.folder, workers=1) == []
    for number in range(len(dataset)):
        before = dataset[number]
        after = copy[number]
        placement = place(before["image"].size, (16, 16), "shortest", enlarge=False)
        assert after["image"].size == after["mask"].size == placement.canvas
        assert set(np.unique(after["mask"])) == {number}
        ratio = np.tile(np.array(placement.canvas) / before["image"].size, 2)
        np.testing.assert_allclose(after["boxes"], before["boxes"] * ratio, rtol=1e-5)
        np.testing.assert_allclose(after["keypoints"][..., :2], before["keypoints"][..., :2] * ratio[:2], rtol=1e-5)
        for name in ("label", "caption", "about", "tokens", "wave", "letters"):
            np.testing.assert_equal(after[name], before[name])


@pytest.mark.parametrize("size", [None, 40])
def test_a_state_of_the_set_is_one_of_the_copy(packed: Path, tmp_path: Path, size: int | None) -> None:
    """And the reverse, with another number of ranks: no sample is lost or comes twice."""
    dataset = gpuload.Dataset(packed)
    copy = gpuload.decoded(dataset, size, folder=tmp_path)
    for first, second in ((dataset, copy), (copy, dataset)):
        with load(first, 8, drop_last=False) as loader:  # type: ignore[arg-type]
            whole = [sample for sample, _ in drain([loader])]
        with load(first, 8, drop_last=False) as loader:  # type: ignore[arg-type]
            rows = [sample for sample, _ in drain([loader], steps=5)]
            state = loader.state_dict()
        loaders = world(second, 2, 4, drop_last=False)  # type: ignore[arg-type]
        for loader in loaders:
            loader.load_state_dict(state)
        rows += [sample for sample, _ in drain(loaders)]
        assert rows == whole
        assert sorted(rows) == list(range(97))


def test_ranks_differ_where_only_one_is_resized(packed: Path, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(packed)
    copy = gpuload.decoded(dataset, 40, folder=tmp_path)
    same = gpuload.decoded(dataset, folder=tmp_path)
    settings_of = []
    for data in (dataset, same, copy):
        with load(data) as loader:  # type: ignore[arg-type]
            settings_of.append(loader._settings())
    assert settings_of[0] == settings_of[1]
    assert [name for name in settings_of[0] if settings_of[0][name] != settings_of[2][name]] == ["resized"]


def test_a_selection_takes_the_room_of_its_images(packed: Path, tmp_path: Path) -> None:
    """Its folder is the selection, wherever it is opened."""
    dataset = gpuload.Dataset(packed)
    part = dataset.subset(range(3, 90, 7))
    whole = gpuload.decoded(dataset, folder=tmp_path)
    copy = gpuload.decoded(part, folder=tmp_path)
    assert copy.manifest.bytes < 0.4 * whole.manifest.bytes
    assert copy.fingerprint == part.fingerprint
    for opened in (pickle.loads(pickle.dumps(copy)), gpuload.Dataset(copy.folder)):
        assert opened.fingerprint == part.fingerprint
        assert opened.keys(opened.stored_samples(np.arange(len(opened)))) == part.keys(range(3, 90, 7))
    left = gpuload.Dataset(copy.folder, exclude=part.keys([3]))
    assert left.stored_samples(np.arange(len(left))).tolist() == list(range(10, 90, 7))
    assert gpuload.verify(copy.folder, workers=1) == []
    copy_path = Path(copy.folder)
    (copy_path / SELECTION_NAME).write_bytes(b"")
    with pytest.raises(gpuload.FormatError, match=r"selected\.npy: is damaged\. Delete the copy"):
        gpuload.Dataset(copy_path)
    (copy_path / SELECTION_NAME).unlink()
    with pytest.raises(gpuload.FormatError, match="cannot be read"):
        gpuload.Dataset(copy_path)


def test_tiles(packed: Path, tmp_path: Path) -> None:
    tiles = gpuload.Dataset(packed).subset([4, 5, 50]).tiles(32, overlap=8)
    copy = gpuload.decoded(tiles, folder=tmp_path)
    assert copy.fingerprint == tiles.fingerprint
    options = {"augment": gpuload.Augment(32, crop="pad_or_crop"), "fields": ("image", "index", "crop_top_left")}
    assert_equal(batches(tiles, **options), batches(copy, **options))
    with pytest.raises(gpuload.ArgumentError, match="tiles lie in images of their own size"):
        gpuload.decoded(tiles, 20, folder=tmp_path)


def test_further_pictures_and_lists(tmp_path: Path) -> None:
    """Maps stay as they are; a list whose first picture is the image keeps it."""
    maps = gpuload.Dataset(pack_coordinates(tmp_path / "maps"))
    copy = gpuload.decoded(maps, folder=tmp_path)
    specs = ("image", gpuload.Depth("x"), "label")
    assert_equal(batches(maps, fields=specs), batches(copy, fields=specs))
    with pytest.raises(gpuload.ArgumentError, match=r"has further pictures \('x'\)"):
        gpuload.decoded(maps, 20, folder=tmp_path)
    frames = [[encode(photo(10 * clip + n, 40, 30)) for n in range(2 + clip % 2)] for clip in range(5)]
    samples = [{"images": clip, "label": number} for number, clip in enumerate(frames)]
    gpuload.pack(samples, tmp_path / "clips", workers=1, maxcount=3, progress=False)
    clips = gpuload.Dataset(tmp_path / "clips" / "train")
    copy = gpuload.decoded(clips, folder=tmp_path)
    assert gpuload.verify(copy.folder, workers=1) == []
    fields = (clips.manifest.image.name, gpuload.Pictures("images", count=2, more="first"), "label")
    assert_equal(batches(clips, fields=fields), batches(copy, fields=fields))


MODES: dict[str, Callable[[int], Any]] = {
    "L": lambda n: encode(photo(n).convert("L")),
    "RGBA": lambda n: encode(photo(n).convert("RGBA"), "PNG"),
    "I;16": lambda n: np.random.default_rng(n).integers(0, 65_536, (30, 20 + n), np.uint16),
    "uint16x4": lambda n: np.random.default_rng(n).integers(0, 65_536, (30, 20 + n, 4), np.uint16),
    "F": lambda n: np.random.default_rng(n).normal(size=(30, 20 + n)).astype(np.float32),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(tmp_path: Path, mode: str) -> None:
    encode_as = "raw" if mode in ("uint16x4", "F") else "keep"
    samples = [{"image": MODES[mode](number), "label": number} for number in range(5)]
    gpuload.pack(samples, tmp_path / "set", mode=mode, encode=encode_as, workers=1, progress=False)
    dataset = gpuload.Dataset(tmp_path / "set" / "train")
    copy = gpuload.decoded(dataset, folder=tmp_path)
    assert gpuload.verify(copy.folder, workers=1) == []
    options = {"augment": gpuload.Augment(16, mode=mode, normalize=None), "fields": ("image", "label")}
    assert_equal(batches(dataset, **options), batches(copy, **options))
    small = gpuload.decoded(dataset, 16, folder=tmp_path)
    assert min(np.asarray(small[0]["image"]).shape[:2]) == 16


def test_indexed_and_joined(tmp_path: Path, make_folder: Any) -> None:
    """Shards of others, with names that USTAR has no place for and turned photos; and columns that were joined."""
    import tarfile

    turned = photo(1, 40, 24)
    exif = turned.getexif()
    exif[0x0112] = 6
    files = {}
    for number in range(4):
        stem = f"{'long-name-' * 12}{number}"
        files[f"{stem}.jpg"] = encode(smooth_image(np.random.default_rng(number), 40, 24))
        files[f"{stem}.txt"] = f"größe {number}".encode()
        files[f"{stem}.json"] = json.dumps({"n": number}).encode()
    files[f"{'long-name-' * 12}3.jpg"] = encode(turned, exif=exif)
    source = make_folder(files)
    (tmp_path / "foreign").mkdir()
    with tarfile.open(tmp_path / "foreign" / "a-000000.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(source.iterdir()):
            tar.add(path, path.name)
    folder, _ = gpuload.index(str(tmp_path / "foreign" / "a-000000.tar"))
    dataset = gpuload.Dataset(folder)
    copy = gpuload.decoded(dataset, folder=tmp_path)
    names = [name for name in dataset.fields if name != dataset.manifest.image.name]
    fields = (dataset.manifest.image.name, *names, "key")
    assert_equal(batches(dataset, fields=fields), batches(copy, fields=fields))
    assert copy[3]["image"].size == (24, 40)


def test_joined_columns(packed: Path, tmp_path: Path) -> None:
    from gpuload.packing.join import join

    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    keys = gpuload.Dataset(folder).keys(range(97))
    table = tmp_path / "table.csv"
    lines = [f"{key},{number % 5}" for number, key in enumerate(keys)]
    table.write_text("\n".join(["key,grade", *lines]) + "\n")
    join(folder, table, columns={"key": ("key",)})
    dataset = gpuload.Dataset(folder)
    assert dataset.manifest.joined
    copy = gpuload.decoded(dataset, folder=tmp_path)
    assert copy.manifest.joined == ()
    assert gpuload.verify(copy.folder, workers=1) == []
    assert_equal(batches(dataset, fields=("image", "grade")), batches(copy, fields=("image", "grade")))


def flip_bit(shard: Path, offset: int) -> None:
    with shard.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


@pytest.mark.parametrize("verify", [None, "sha256"])
def test_no_copy_is_made_of_a_damaged_shard(packed: Path, tmp_path: Path, verify: Any) -> None:
    """Its images still decode; and once the shard is repaired, the copy is that of the good set."""
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    row = gpuload.Dataset(folder).row(23).to_pylist()[0]
    shard = folder / "shard-000002.tar"
    offset = row["image_offset"] + row["image_bytes"] // 2
    flip_bit(shard, offset)
    damaged = gpuload.Dataset(folder, verify=verify)
    assert not np.array_equal(damaged[23]["image"], gpuload.Dataset(packed)[23]["image"])
    with pytest.raises(gpuload.ShardError, match=r"shard-000002\.tar: is damaged: its SHA-256 is .* Copy it again"):
        gpuload.decoded(damaged, folder=tmp_path / "copies")
    flip_bit(shard, offset)
    copy = gpuload.decoded(gpuload.Dataset(folder, verify=verify), folder=tmp_path / "copies")
    whole = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "others")
    assert copy.manifest == whole.manifest


@pytest.mark.parametrize("way", ["whole", "selection", "tiles", "pickled", "opened"])
def test_a_flipped_bit_of_a_copy_is_not_trained_on(dataset: gpuload.Dataset, tmp_path: Path, way: str) -> None:
    """Whatever its pixels are, they decode, so its SHA-256 is compared; a shard that was deleted is made again."""
    ways: dict[str, Callable[[gpuload.Dataset], gpuload.Dataset]] = {
        "selection": lambda data: data.subset([4, 5, 9]),
        "tiles": lambda data: data.tiles(16),
    }
    part = ways.get(way, lambda data: data)(dataset)
    copy = gpuload.decoded(part, folder=tmp_path)
    expected = batches(part, shuffle=False)
    damaged = Path(copy.folder) / "shard-000001.tar"
    row = copy.row(5).to_pylist()[0]
    flip_bit(damaged, row["image_offset"] + row["image_bytes"] // 2)
    again = gpuload.decoded(part, folder=tmp_path)
    if way == "pickled":
        again = pickle.loads(pickle.dumps(again))
    if way == "opened":
        again = gpuload.Dataset(copy.folder)
    with pytest.raises(
        gpuload.ShardError, match=r"shard-000001\.tar: is damaged: .*Delete this file: gpuload\.decoded"
    ):
        batches(again, shuffle=False)
    assert len(gpuload.verify(copy.folder, workers=1)) == 1
    damaged.unlink()
    assert_equal(batches(gpuload.decoded(part, folder=tmp_path), shuffle=False), expected)


def test_a_shard_that_changes_meanwhile(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its SHA-256 was compared, while its images are decoded."""
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    dataset = gpuload.Dataset(folder)
    row = dataset.row(9).to_pylist()[0]
    store = shard.store_raw
    stored = list[Any]()

    def damaging(*arguments: Any) -> Any:
        if not stored:
            flip_bit(folder / "shard-000000.tar", row["image_offset"] + row["image_bytes"] // 2)
        stored.append(arguments)
        return store(*arguments)

    monkeypatch.setattr(shard, "store_raw", damaging)
    with pytest.raises(gpuload.ShardError, match=r"shard-000000\.tar: was changed while it was being read"):
        gpuload.decoded(dataset, folder=tmp_path / "copies", threads=1)
    assert not list((tmp_path / "copies").rglob("*.tar"))


def test_what_does_not_decode_is_named(packed: Path, tmp_path: Path) -> None:
    """Where it was packed or indexed so. Nothing of the shard is kept; leaving the sample out helps."""
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    row = gpuload.Dataset(folder).row(23).to_pylist()[0]
    path = folder / "shard-000002.tar"
    with path.open("r+b") as file:
        file.seek(row["image_offset"] + 200)
        file.write(bytes(row["image_bytes"] - 200))
    manifest = Manifest.read(folder)
    infos = list(manifest.shards)
    infos[2] = replace(infos[2], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    replace(manifest, shards=tuple(infos)).write(folder)
    dataset = gpuload.Dataset(folder)
    with pytest.raises(
        gpuload.DecodeError, match=rf"shard-000002\.tar: sample '{row['key']}' does not decode.*exclude"
    ):
        gpuload.decoded(dataset, folder=tmp_path / "copies", threads=1)
    assert not list((tmp_path / "copies").rglob("*.part"))
    left = gpuload.Dataset(folder, exclude=[row["key"]])
    copy = gpuload.decoded(left, folder=tmp_path / "copies")
    assert len(copy) == 96
    assert_equal(batches(left, fields=("image", "key")), batches(copy, fields=("image", "key")))


def test_what_is_refused(packed: Path, tmp_path: Path) -> None:
    copy = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)
    with pytest.raises(gpuload.ArgumentError, match="is a decoded copy already"):
        gpuload.decoded(copy, folder=tmp_path)
    with pytest.raises(gpuload.ArgumentError, match="expected a gpuload.Dataset"):
        gpuload.decoded(str(packed))  # type: ignore[arg-type]
    with pytest.raises(gpuload.ArgumentError, match=r"folder.*Give a folder on a local disk"):
        gpuload.decoded(gpuload.Dataset(packed), folder="s3://bucket/copies")
    manifest = Path(copy.folder) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"resized": ""', '"resized": 3'))
    with pytest.raises(gpuload.FormatError, match="decoded_copy is not what gpuload.decoded writes"):
        gpuload.Dataset(copy.folder)
