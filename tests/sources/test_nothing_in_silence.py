"""What lies beside images is read, or named with its reason; a path in a text never leads out of the source."""

import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import digits
import numpy as np
import pyarrow as pa
import pytest
from images import Folder, encode, photo
from PIL import Image
from pyarrow import parquet
from reading import rejected_of, rows_of
from sources_read import PHOTOS, listed, names_of, packed, reasons_of
from zips import write_zip

import gpuload
from gpuload import SourceError, cli
from gpuload.sources import open_source

CLASSES = {"a/1.jpg": PHOTOS[0], "b/2.jpg": PHOTOS[1]}
# The first bytes of formats, by the ending that such files have.
BEGINNINGS = {
    "png": encode(photo(), "PNG"), "gif": encode(photo(), "GIF"), "webp": encode(photo(), "WEBP"),
    "tif": encode(photo(), "TIFF"), "bmp": encode(photo(), "BMP"), "jp2": encode(photo(), "JPEG2000"),
    "avif": b"\0\0\0 ftypavif", "heic": b"\0\0\0 ftypheic", "jxl": b"\0\0\0\x0cJXL \r\n", "psd": b"8BPS\0\1",
}  # fmt: skip


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_an_image_by_another_name_is_named(make_folder: Folder, tmp_path: Path, archive: bool, alone: bool) -> None:
    odd = {"a/3": PHOTOS[2], "a/4.JPG_large": PHOTOS[3], "b/5.cr2": b"raw"}
    odd |= {f"b/6{ending}.dat": start for ending, start in BEGINNINGS.items()}
    other = {"README": b"", "a/Thumbs.db": b"\xd0\xcf\x11\xe0", "a/7.txt": PHOTOS[2], "b/notes": b"text", ".x.jpg": b""}
    files = {**CLASSES, **odd, **other}
    root = write_zip(tmp_path / "a.zip", files, zipfile.ZIP_DEFLATED) if archive else make_folder(files)
    listing = listed(root, no_labels=alone)
    by_content = "is an image by its content, but its name does not end in ."
    assert dict(reasons_of(listing)) == {
        "a/3": f"{by_content}jpg",
        "a/4.JPG_large": f"{by_content}jpg",
        "b/5.cr2": "is of a format that is not read (.cr2). Convert it to PNG or JPEG",
        **{f"b/6{ending}.dat": by_content + ending for ending in BEGINNINGS},
    }
    assert "passed over, by extension: 1 × .db, 1 × .txt, 2 × no extension" in listing.notes
    assert names_of(listing) == list(CLASSES)


def test_heic(make_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed (extra sources)")
    pillow_heif.register_heif_opener()
    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((64, 48)).save(file, "HEIF")
    root = make_folder({**CLASSES, "b/3.HEIC": file.getvalue(), "b/4.heic": file.getvalue()[:200]})
    packed(root, tmp_path / "out", code=cli.REJECTED)
    out = tmp_path / "out" / "train"
    assert list(rejected_of(out)) == ["b/4.heic"]
    found = {row["source"]: row for row in rows_of(out)}
    pixels = np.asarray(Image.open(io.BytesIO(found["b/3.HEIC"]["image"])).convert("L")).astype(int)
    assert pixels.shape == (48, 64)
    assert abs(pixels[[0, 24, 47]].mean(axis=1) - [2, 130, 252]).max() < 8
    monkeypatch.setitem(os.sys.modules, "pillow_heif", None)  # type: ignore[attr-defined]
    with pytest.raises(gpuload.DecodeError, match=r"is HEIC, and pillow_heif is not installed: .*pip install"):
        from gpuload.packing.image import prepare_image

        prepare_image(file.getvalue())


@pytest.mark.parametrize("folder", ["__MACOSX", "@eaDir", ".ipynb_checkpoints", "__pycache__", "$RECYCLE.BIN"])
@pytest.mark.parametrize("archive", [False, True])
def test_folders_of_systems_are_no_classes(make_folder: Folder, tmp_path: Path, folder: str, archive: bool) -> None:
    files = {**CLASSES, f"{folder}/1.jpg": b"", f"a/{folder}/1.jpg": b"", "a/._1.jpg": b""}
    root = write_zip(tmp_path / "a.zip", files) if archive else make_folder(files)
    listing = listed(root)
    assert (listing.classes, names_of(listing)) == (("a", "b"), list(CLASSES))


def test_only_regular_files_are_read(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder(CLASSES)
    (root / "a" / "zero.jpg").symlink_to("/dev/zero")
    (root / "a" / "loop.jpg").symlink_to("loop.jpg")
    (root / "a" / "loop").symlink_to("loop")
    os.mkfifo(root / "b" / "pipe.jpg")
    os.mkfifo(root / "b" / "pipe")
    assert dict(reasons_of(listed(root))) == {
        "a/loop.jpg": "cannot be read: Too many levels of symbolic links",
        "a/zero.jpg": "cannot be read: is not a regular file",
        "b/pipe.jpg": "cannot be read: is not a regular file",
    }
    (tmp_path / "t.csv").write_text("path,label\na/zero.jpg,0\n")
    with pytest.raises(SourceError, match=r"names 1 of 1 files that are not in .*'a/zero.jpg'"):
        open_source(root, tmp_path / "t.csv").list_samples()
    with pytest.raises(
        SourceError, match=r"zero.jpg: cannot be read as the image of sample 0 \(is not a regular file\)"
    ):
        gpuload.pack([{"image": root / "a" / "zero.jpg"}], tmp_path / "2", workers=1)


@pytest.mark.parametrize("name", ["x.h5", "x.parquet", "x.npz", "x.npy", "x.zip", "x.mdb", "x.tar", "x"])
def test_a_source_that_is_neither_file_nor_folder(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError, match=f"{name}: cannot be opened .is neither a file nor a folder"):
        open_source(tmp_path / name)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match=r"loop: cannot be opened \(Too many levels of symbolic links\)"):
        open_source(tmp_path / "loop")
    (tmp_path / "t.csv").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=r"t\.csv: cannot be opened .is neither a file nor a folder"):
        open_source(tmp_path, tmp_path / "t.csv")


@pytest.mark.parametrize(
    "path", ["../secret.jpg", "{outside}/secret.jpg", "a/../../secret.jpg", "a/b/../../../secret.jpg", "/a/1.jpg", "a"]
)
@pytest.mark.parametrize("archive", [False, True])
def test_paths_in_texts_do_not_lead_out(make_folder: Folder, tmp_path: Path, path: str, archive: bool) -> None:
    (tmp_path / "secret.jpg").write_bytes(PHOTOS[2])
    root = write_zip(tmp_path / "a.zip", CLASSES) if archive else make_folder(CLASSES)
    path = path.format(outside=tmp_path)
    texts = {
        "t.csv": f"path,label\n{path},1\n",
        "m.csv": f"path,mask\na/1.jpg,{path}\n",
        "c.json": json.dumps({
            "images": [{"id": 1, "file_name": path}],
            "annotations": [{"id": 1, "image_id": 1, "caption": "x"}],
        }),
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(SourceError, match=r"names 1 of 1 files that are not in .*do not lead out of it"):
            listed(root, tmp_path / name)


def test_paths_that_stay_inside(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder(CLASSES)
    (tmp_path / "t.csv").write_text(f"path,label\n{root}/a/1.jpg,0\na/../b/2.jpg,1\n")
    assert names_of(listed(root, tmp_path / "t.csv")) == list(CLASSES)


def test_digits_do_not_mix_with_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(SystemExit, match="2"):
        digits.main([str(tmp_path)])
    assert "holds files already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


@pytest.mark.parametrize("store_schema", [False, True])
def test_one_large_image_many_times_takes_the_memory_of_a_few(tmp_path: Path, store_schema: bool) -> None:
    """A Parquet dictionary holds it once; 64 rows of it at a time would take 64 times as much."""
    image = encode(photo(), "BMP") + bytes(8_000_000)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 70, pa.int32()), pa.array([image]))
    parquet.write_table(pa.table({"image": column}), tmp_path / "x.parquet", store_schema=store_schema)
    source, usual = open_source(tmp_path / "x.parquet"), pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        source.prepare(tmp_path)
        peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert peak < 450_000_000
    assert len(source.list_samples()) == 70
