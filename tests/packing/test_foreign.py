"""Shards that others packed, indexed as they lie; and seek points that are added to an index."""

import json
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hostile_images import XMP_ROTATED, exif
from images import dali_decodes, encode, photo, smooth_image, write_files
from loaders import drain, load
from PIL import Image
from reading import files_of, rejected_of, rows_of
from tars import read_by_dali, same_as_wds2idx, sealed, write_tar

import gpuload
from gpuload import ArgumentError, FormatError, OutputError, ShardError, SourceError
from gpuload.cli import main
from gpuload.disk import Index, Manifest
from gpuload.disk.manifest import dali_index_text
from gpuload.disk.tar import group_members, read_members
from gpuload.fields.registry import index_schema
from gpuload.packing.image import prepare_image
from gpuload.packing.index import index_shards
from gpuload.packing.options import Encoding
from gpuload.packing.output import describe
from gpuload.packing.verify import verify

JPG = encode(photo())


def test_shards_by_webdataset(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    keys = [(f"{number}/{sample:03d}", sample) for number in range(2) for sample in range(3)]
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for key, n in keys[3 * number : 3 * number + 3]:
                fields = {"jpg": encode(photo(n, 20 + n, 10)), "cls": n, "txt": f"n° {n}", "json": {"a": n}}
                sink.write({"__key__": key, **fields})
    folder, manifest = index_shards([str(tmp_path / "s-{0..1}.tar")])
    assert folder == tmp_path and manifest == Manifest.read(tmp_path)
    assert [shard.name for shard in manifest.shards] == ["s-0.tar", "s-1.tar"]
    assert [field.member for field in manifest.fields] == ["jpg", "cls", "txt", "json"]
    for row, (key, n) in zip(rows_of(tmp_path), keys, strict=True):
        assert (row["key"], row["label"], row["caption"], json.loads(row["json"])) == (key, n, f"n° {n}", {"a": n})
        assert (row["width"], row["image"]) == (20 + n, encode(photo(n, 20 + n, 10)))
    assert all(same_as_wds2idx(tmp_path / f"s-{n}.tar", tmp_path / f"s-{n}.idx", tmp_path / "other") for n in range(2))


@pytest.mark.parametrize("format", ["gnu", "pax", "ustar", "v7"])
def test_shards_by_gnu_tar(tmp_path: Path, format: str) -> None:
    """With long names, for which GNU and PAX archives have headers before the header."""
    source = tmp_path / "in"
    long = "n" * (60 if format == "v7" else 90) + "/" + "x" * (30 if format in ("v7", "ustar") else 120)
    for name in ("a.jpg", "a.cls", ".hidden", "README", long + ".jpg", long + ".cls"):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"7\n" if name.endswith("cls") else JPG)
    (source / "README").unlink()  # wds2idx takes a file without an extension for a sample of its own
    shard = tmp_path / "t.tar"
    subprocess.run(["tar", "--sort=name", f"--format={format}", "-cf", shard, "."], cwd=source, check=True)
    index_shards([str(shard)])
    rows = rows_of(tmp_path)
    assert {row["key"] for row in rows} == {"./a", "./" + long}
    assert [(row["image"], row["label"]) for row in rows] == [(JPG, 7)] * 2
    # Of a GNU long name, wds2idx (DALI 2.4) takes the name's own block for the data; what DALI reads by ours is right.
    assert format == "gnu" or same_as_wds2idx(shard, tmp_path / "t.idx", tmp_path / "other")
    assert read_by_dali([shard], [tmp_path / "t.idx"], 2, "jpg") == [[JPG, JPG]]


def test_sizes_are_those_of_the_upright_image(tmp_path: Path) -> None:
    images = {
        "plain.jpg": JPG,
        "turned.JPEG": encode(photo(), exif=exif(6)),
        "mirrored.jpg": encode(photo(), exif=exif(2)),
        "png.png": encode(photo(width=30, height=9), "PNG", exif=exif(6)),
        "xmp.jpg": encode(photo(), xmp=XMP_ROTATED),
    }
    write_tar(tmp_path / "t.tar", images)
    _, manifest = index_shards([str(tmp_path / "t.tar")])
    assert manifest.fields[0].member == "jpg;JPEG;png"
    sizes = [(row["height"], row["width"], 3) for row in rows_of(tmp_path)]
    assert sizes[:-1] == [image.shape for image in dali_decodes(list(images.values()))][:-1]  # it passes over XMP
    assert sizes == [(32, 48, 3), (48, 32, 3), (32, 48, 3), (30, 9, 3), (48, 32, 3)]


def test_into_another_folder(tmp_path: Path) -> None:
    for name in ("x/0.tar", "y/0.tar"):
        write_tar(tmp_path / "in" / name, {"k.jpg": JPG, "k.cls": b"1"})
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    out = tmp_path / "out" / "deep"
    patterns = [str(tmp_path / "in" / "*" / "0.tar")]
    with pytest.raises(ArgumentError, match=r"the shards lie in 2 folders. Say with --out where"):
        index_shards(patterns)
    _, manifest = index_shards(patterns, out, tmp_path / "classes.txt")
    assert [shard.name for shard in manifest.shards] == ["../../in/x/0.tar", "../../in/y/0.tar"]
    assert manifest.classes == ("ant", "bee")
    assert [row["image"] for row in rows_of(out)] == [JPG, JPG]
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.idx")) == ["x/0.idx", "y/0.idx"]
    assert not list((tmp_path / "in").rglob("*.idx"))


def test_a_caption_that_only_some_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {"k.jpg": JPG, "k.txt": b"x", "l.jpg": JPG, "m.jpg": JPG, "m.txt": b"y"}
    shard = str(write_tar(tmp_path / "t.tar", members))
    message = r"t.tar: sample 'l' has no .txt, which others have. `--missing skip` leaves such samples out"
    with pytest.raises(ShardError, match=message):
        index_shards([shard])
    with pytest.raises(ArgumentError, match="--missing all: expected one of 'fail', 'skip'"):
        index_shards([shard], missing="all")  # type: ignore[arg-type]
    assert main(["index", shard, "--missing", "skip"]) == 3
    assert "left out: 1 sample\n" in capsys.readouterr().out
    assert (tmp_path / "rejected.jsonl").read_text() == '{"source": "t.tar/l.jpg", "reason": "has no .txt"}\n'
    assert [(row["key"], row["caption"]) for row in rows_of(tmp_path)] == [("k", "x"), ("m", "y")]
    assert verify(tmp_path) == []
    with pytest.raises(OutputError, match=r"holds index files already \('t.idx', .*Give --overwrite"):
        index_shards([shard], missing="skip")
    write_tar(tmp_path / "t.tar", {"k.jpg": JPG})
    index_shards([shard], overwrite=True)
    assert len(rows_of(tmp_path)) == 1 and not (tmp_path / "rejected.jsonl").exists()


def test_a_caption_of_no_bytes_as_earlier_versions_wrote(tmp_path: Path) -> None:
    """At the start of the image, for a sample without one."""
    shard = write_tar(tmp_path / "t.tar", {"k.jpg": JPG, "k.txt": b"x", "l.jpg": JPG})
    folder, manifest = index_shards([str(shard)], missing="skip")
    samples = list(group_members(read_members(shard)))
    ((_, (image,)),) = samples[1:]
    row = Index(folder / "index.arrow", manifest.fields).shard(0).to_pylist()[0]
    lacking = {
        "key": "l",
        "caption": "",
        "caption_bytes": 0,
        "image_offset": image.offset,
        "caption_offset": image.offset,
    }
    batch = pa.RecordBatch.from_pylist([row, {**row, **lacking}], index_schema(manifest.fields))
    describe(folder, replace(manifest, shards=(replace(manifest.shards[0], samples=2),)), [batch])
    (tmp_path / "t.idx").write_text(dali_index_text(members for _, members in samples))
    assert verify(tmp_path) == []
    options: dict[str, Any] = {"fields": ("caption",), "shuffle": False, "drop_last": False}
    with gpuload.DaliIterator(tmp_path, 2, augment=gpuload.Augment(8, crop="center"), **options) as loader:
        assert [list(batch[0]) for batch in loader] == [["x", ""]]


def test_what_is_indexed_is_packed_as_before(tmp_path: Path) -> None:
    """The index lacks a sample, which `pack` rejects."""
    members = {f"{n}.jpg": encode(photo(n)) for n in range(3)} | {f"{n}.txt": b"x" for n in range(1, 3)}
    shard = write_tar(tmp_path / "in" / "t.tar", dict(sorted(members.items())))
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "1"), "--from", "tar", "--no-shuffle"]) == 3
    index_shards([str(shard)], missing="skip")
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "2"), "--from", "tar", "--no-shuffle"]) == 3
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")
    assert [row["caption"] for row in rows_of(tmp_path / "2" / "train")] == ["x", "x"]
    assert rejected_of(tmp_path / "2" / "train") == {"t.tar/0.jpg": "has no .txt, which most samples have"}


@pytest.mark.parametrize(
    ("members", "missing", "message"),
    [
        ({"k.txt": b"x", "k.cls": b"1"}, "fail", "sample 'k' has no image"),
        ({"k.jpg": JPG, "k.cls": b"1", "l.jpg": JPG}, "fail", "sample 'l' has no .cls, which others have"),
        ({"k x.jpg": JPG}, "fail", "the name 'k x.jpg' holds white space"),
        ({"k.jpg": JPG, "l.jpg": JPG, "k.cls": b"1"}, "fail", "key 'k' comes again after other samples"),
        ({"k.jpg": JPG, "k.cls": b"cat"}, "fail", "'k.cls' holds b'cat', expected a class number"),
        ({"k.jpg": JPG, "k.cls": b"-1"}, "fail", "'k.cls' holds b'-1', expected a class number from 0"),
        ({"k.jpg": b"garbage"}, "fail", r"'k.jpg' is not an image that Pillow reads \(UnidentifiedImageError\)"),
        ({"k.jpg": b""}, "fail", "'k.jpg' is not an image"),
        ({"k.jpg": JPG, "k.txt": b"\xff\xff"}, "fail", "'k.txt' holds .*, expected UTF-8 text"),
        ({"k.jpg": JPG, "k.txt": b"", "l.jpg": JPG, "l.cls": b"1"}, "skip", "no sample has all of an image, cls, txt"),
        ({"README": b"x"}, "fail", "holds no sample"),
    ],
)  # fmt: skip
def test_what_cannot_be_indexed(tmp_path: Path, members: dict[str, bytes], missing: Any, message: str) -> None:
    shard = write_tar(tmp_path / "t.tar", members)
    with pytest.raises(ShardError, match=message) as caught:
        index_shards([str(shard)], missing=missing)
    assert str(caught.value).startswith(str(shard))
    assert list(tmp_path.iterdir()) == [shard]


@pytest.mark.parametrize("zeros", [False, True], ids=["cut", "filled"])
def test_images_without_their_end_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str], zeros: bool) -> None:
    """As downloads that broke off leave them; what lies behind the end of others does not count."""
    wholes = {"a.jpg": JPG, "b.jpg": JPG + bytes(5000)}
    lost = len(JPG) // 4
    halves = {f"half{name}": JPG[:-lost] + zeros * bytes(lost) for name in wholes}
    shard = write_tar(tmp_path / "t.tar", wholes | halves)
    assert main(["index", str(shard)]) == 0
    assert "note: 2 JPEGs cut short, without an end marker" in capsys.readouterr().out
    assert Manifest.read(tmp_path).packing["without_end"] == 2
    assert len(faults := verify(tmp_path)) == 2
    assert all("half" in fault for fault in faults)


@pytest.mark.parametrize("kind", [b"L", b"x"], ids=["long-name", "extended-header"])
def test_a_header_that_claims_gigabytes(tmp_path: Path, kind: bytes) -> None:
    """No memory is allocated for what the file does not have."""
    data = write_tar(tmp_path / "t.tar", {"a.jpg": JPG, "b.jpg": JPG}).read_bytes()
    (tmp_path / "t.tar").write_bytes(sealed(data, data.rindex(b"b.jpg"), {124: b"77777777777\0", 156: kind}))
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match="t.tar: not a complete, uncompressed tar archive"):
            index_shards([str(tmp_path / "t.tar")])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_plain_tar_is_named(tmp_path: Path) -> None:
    shard, url = write_tar(tmp_path / "in" / "k[1].tar", {"k.jpg": JPG, "k.cls": b"5"}), "http://host/train"
    for patterns, out, error, message in (
        ([tmp_path / "in"], None, SourceError, "in: is no file. Give tars, for instance"),
        ([tmp_path / "s-{1..2}.tar"], None, SourceError, "s-1.tar: is no file"),
        ([tmp_path / "z*.tar"], None, SourceError, r"z\*.tar: is no file"),
        ([tmp_path / "s-{0..2.tar"], None, SourceError, "s-{0..2.tar: its braces do not match"),
        (["ftp://example.org/x.tar"], None, SourceError, "is no file"),
        ([], None, ArgumentError, "expected a path or URL of tars, or several"),
        ([f"{url}/*.tar"], "x", ArgumentError, f"^{url}: what lies at http:// cannot be listed"),
        ([f"{url}/a.tar"], None, ArgumentError, f"^{url}/a.tar lies at a URL. Say with --out where"),
        ([f"{url}/a.tar.gz"], "x", SourceError, f"^{url}/a.tar.gz: is no plain .tar by its name"),
        (
            [f"{url}/a.tar", "s3://b/a.tar"],
            "x",
            ArgumentError,
            "^the shards lie in several places, as http://host/train/a.t",
        ),
        ([f"{url}/a.tar", shard], "x", ArgumentError, "^some shards are local files and others lie at URLs"),
    ):
        with pytest.raises(error, match=message) as caught:
            index_shards(list(map(str, patterns)), out and tmp_path / out)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()
    index_shards([str(shard)])


def test_members_that_are_passed_over_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {f"{n}.{end}": JPG for n in range(3) for end in ("jpg", "npy", "seg.png")}
    shard = write_tar(tmp_path / "t.tar", {**members, "3.JPG": JPG, "3.png": JPG, "README": b"", ".hidden": b""})
    with tarfile.open(shard, "a") as archive:
        link = tarfile.TarInfo("4.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "3.JPG"
        archive.addfile(link)
    assert main(["index", str(shard)]) == 0
    counts = {".npy": 3, ".png": 1, ".seg.png": 3, "link": 1, "without a name or an extension": 2}
    assert Manifest.read(tmp_path).packing["passed_over"] == counts
    assert (
        "note: members that are not indexed: 3 × .npy, 1 × .png, 3 × .seg.png, 1 × link, 2 × without a name or an "
        "extension; `python -m gpuload pack --from tar` takes more kinds" in capsys.readouterr().out
    )
    write_tar(tmp_path / "t.tar", {"1.jpg": JPG, "1.txt": b"x"})
    index_shards([str(shard)], overwrite=True)
    assert "passed_over" not in Manifest.read(tmp_path).packing


def test_shards_of_several_splits_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train-0", "train-1", "val-0"):
        write_tar(tmp_path / f"{name}.tar", {f"{name}.jpg": JPG})
    assert main(["index", str(tmp_path / "train-*.tar")]) == 0
    assert "as one set" not in capsys.readouterr().out
    assert main(["index", str(tmp_path / "*.tar"), "--out", str(tmp_path / "out")]) == 0
    assert "note: shards of train and val are indexed as one set; index each" in (capsys.readouterr().out)


def test_files_of_classes(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "t.tar", {"k.jpg": JPG, "k.cls": b"0"})
    path = tmp_path / "classes.txt"
    for text in ("ant\n\nbee\n", "\n", "ant\nbee\nant\n"):
        path.write_text(text)
        with pytest.raises(SourceError, match="classes.txt: cannot be read as names of classes, one a line"):
            index_shards([str(shard)], classes=path)
    with pytest.raises(SourceError, match="nowhere: cannot be read as names of classes, one a line .No such file"):
        index_shards([str(shard)], classes=tmp_path / "nowhere")
    path.write_text("\ufeff7 up \n101 dalmatians\nbee\n\n\n", encoding="utf-8")
    _, manifest = index_shards([str(shard)], classes=path)
    assert manifest.classes == ("7 up", "101 dalmatians", "bee")
    write_tar(tmp_path / "t.tar", {"k.jpg": JPG, "k.cls": b"3"})
    with pytest.raises(ShardError, match="'k.cls' holds b'3', expected a class number from 0 to 2, as --classes"):
        index_shards([str(shard)], classes=path, overwrite=True)
    other = write_tar(tmp_path / "x" / "t.tar", {"k.jpg": JPG})
    with pytest.raises(
        ArgumentError, match=r"--classes: no sample has a \.cls, so .*classes.txt names classes of nothing"
    ):
        index_shards([str(other)], classes=path)


@pytest.mark.parametrize(
    "pattern", ["s-{0..2}.tar", "{a,b}/s-{08..11}.tar", "s-{a,b{1..2}}.tar", "s{x}.tar", "{c..a}{1..5..2}"]
)
def test_braces_are_expanded_as_webdataset_does(tmp_path: Path, pattern: str) -> None:
    """Each name is taken once, in this order."""
    shardlists = pytest.importorskip("webdataset.shardlists")
    names = shardlists.expand_urls(pattern)
    for number, name in enumerate(names):
        write_tar(tmp_path / "in" / name, {f"{number}.jpg": JPG})
    again = [str(tmp_path / "in" / name.translate({ord("{"): "[{]"})) for name in names[:1]]  # as a wildcard
    _, manifest = index_shards([str(tmp_path / "in" / pattern), *again], tmp_path / "out")
    assert [shard.name.removeprefix("../in/") for shard in manifest.shards] == names


def test_an_index_of_several_places_is_refused(packed: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(packed)
    names = ["s3://one/a.tar", "s3://two/b.tar", *(shard.name for shard in manifest.shards[2:])]
    shards = tuple(replace(shard, name=name) for shard, name in zip(manifest.shards, names, strict=True))
    replace(manifest, shards=shards, packing={"indexed": "by hand"}).write(tmp_path)
    with pytest.raises(FormatError, match="its shards lie in several places, as s3://one/a.tar and"):
        gpuload.Dataset(tmp_path)


POINTS = "image_points"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """With points and without. A third of the images is too small for them."""
    root, rng, sizes = tmp_path_factory.mktemp("points"), np.random.default_rng(0), [(400, 300), (640, 450), (96, 64)]
    images = [encode(smooth_image(rng, *sizes[n % 3]), quality=95, subsampling=2) for n in range(12)]
    write_files(root / "images", {f"class{n % 2}/{n}.jpg": image for n, image in enumerate(images)})
    for name, how in (("with", "auto"), ("without", "no")):
        assert main(["pack", str(root / "images"), str(root / name), "--points", how, "--workers", "1"]) == 0
    return root / "with" / "train", root / "without" / "train"


def points_of(folder: Path) -> list[bytes]:
    dataset = gpuload.Dataset(folder)
    found = [dataset.rows(shard).column(POINTS).to_pylist() for shard in range(len(dataset.shard_paths))]
    return [points for shard in found for points in shard]


def test_shards_are_the_same_and_large_images_have_points(sets: tuple[Path, Path]) -> None:
    shards = [[shard.read_bytes() for shard in sorted(folder.glob("*.tar"))] for folder in sets]
    assert shards[0] == shards[1]
    heights = [int(row["height"]) for row in gpuload.Dataset(sets[0]).rows(0).to_pylist()]
    assert [bool(points) for points in points_of(sets[0])] == [height >= 300 for height in heights]
    assert POINTS not in gpuload.Dataset(sets[1]).schema.names


def test_a_progressive_jpeg_that_becomes_baseline_has_points() -> None:
    pytest.importorskip("jpeglib", reason="needs the extra 'sources'")
    data = encode(Image.effect_noise((640, 450), 60).convert("RGB"), progressive=True)
    kept, made = prepare_image(data), prepare_image(data, encoding=Encoding(jpeg="baseline"))
    assert not kept.points and made.points and made.points == prepare_image(made.data).points


@pytest.mark.parametrize(
    "augment",
    [gpuload.Augment(64), gpuload.Augment(64, crop=gpuload.RandomCrop(padding=8))],
    ids=["resized crops", "crops as they are"],
)
def test_batches_are_the_same(sets: tuple[Path, Path], augment: gpuload.Augment) -> None:
    options = {"batch_size": 4, "augment": augment, "decoder": "native"}
    with load(sets[0], **options) as one, load(sets[1], **options) as other:
        assert len(epoch := drain([one])) == 12 and epoch == drain([other])


def test_a_mixture_with_a_set_without_points(sets: tuple[Path, Path]) -> None:
    mixture = gpuload.mix([(folder, 0.5) for folder in sets])
    with load(mixture, decoder="native") as loader:
        assert sum(len(batch[0]) for batch in loader) == 24


def test_index_writes_what_the_packer_writes(
    sets: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sets[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for _ in range(2):  # again, with points that are there already
        assert main(["index", "--points", str(tmp_path)]) == 0
        assert "8 of 12 images with seek points" in capsys.readouterr().out
        assert points_of(tmp_path) == points_of(sets[0])
    assert (tmp_path / "index.arrow").read_bytes() == (sets[0] / "index.arrow").read_bytes()
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 0


def with_points(folder: Path, change: Callable[[list[bytes]], list[bytes]], to: Path) -> Path:
    """A copy of a packed folder whose index has changed seek points, and whose manifest has the digests of that."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    dataset = gpuload.Dataset(folder)
    (rows,) = (dataset.rows(shard) for shard in range(len(dataset.shard_paths)))
    points = pa.array(change(rows.column(POINTS).to_pylist()), pa.large_binary())
    changed = rows.drop_columns([POINTS]).append_column(POINTS, points)
    describe(to, dataset.manifest, [changed], points=True)
    return to


def with_changed_bit(points: bytes) -> bytes:
    """Points whose last coefficients are others: of the last row of the image, behind which there are no points."""
    return points[:-10] + bytes([points[-10] ^ 0x10]) + points[-9:]


def test_changed_points_change_no_pixel_and_verify_names_them(
    sets: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = with_points(sets[0], lambda points: [one and with_changed_bit(one) for one in points], tmp_path / "bad")
    options = {"batch_size": 4, "augment": gpuload.Augment(64), "decoder": "native"}
    with load(sets[1], **options) as expected, load(bad, **options) as loader:
        assert drain([loader]) == drain([expected])
    assert main(["verify", str(bad), "--workers", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("its seek points are not those of its image: write them anew" in line for line in lines) == 8
    assert main(["index", "--points", str(bad)]) == 0
    assert main(["verify", str(bad), "--workers", "1"]) == 0


def test_verify_names_points_that_were_forged(sets: tuple[Path, Path], tmp_path: Path) -> None:
    """Without a checksum, as older sets have them, so that the loader could not tell."""
    forged = with_points(
        sets[0], lambda points: [one and with_changed_bit(one)[:-8] + bytes(8) for one in points], tmp_path / "forged"
    )
    assert len(faults := verify(forged, 1)) == 8
    assert all("its seek points are not those of its image" in fault for fault in faults)


def test_points_of_older_sets_are_right(sets: tuple[Path, Path], tmp_path: Path) -> None:
    """They have zeros in place of a checksum."""
    older = with_points(sets[0], lambda points: [one and one[:-8] + bytes(8) for one in points], tmp_path / "older")
    assert points_of(older) != points_of(sets[0])
    assert verify(older, 1) == []
    options = {"batch_size": 4, "augment": gpuload.Augment(64), "decoder": "native"}
    with load(older, **options) as loader, load(sets[1], **options) as expected:
        assert drain([loader]) == drain([expected])
