"""What lies beside images is read, or named with its reason; a path in a text never leads out of the source."""

import io
import json
import os
import tracemalloc
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

import gpuload
from gpuload import SourceError, cli
from gpuload.sources import open_source

CLASSES = {"a/1.jpg": PHOTOS[0], "b/2.jpg": PHOTOS[1]}


def test_files_of_other_names_are_counted(make_folder: Folder) -> None:
    other = {"README": b"", "a/3": PHOTOS[2], "a/4.JPG_large": PHOTOS[3], "a/7.txt": PHOTOS[2], ".x.jpg": b""}
    listing = listed(make_folder({**CLASSES, **other}))
    assert "passed over, by extension: 1 × .jpg_large, 1 × .txt, 2 × no extension" in listing.notes
    assert (names_of(listing), reasons_of(listing)) == (list(CLASSES), [])


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
def test_folders_of_systems_are_no_classes(make_folder: Folder, folder: str) -> None:
    files = {**CLASSES, f"{folder}/1.jpg": b"", f"a/{folder}/1.jpg": b"", "a/._1.jpg": b""}
    root = make_folder(files)
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


@pytest.mark.parametrize("name", ["x.h5", "x.parquet", "x.npz", "x.npy", "x.mdb", "x.tar", "x"])
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
def test_paths_in_texts_do_not_lead_out(make_folder: Folder, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.jpg").write_bytes(PHOTOS[2])
    root = make_folder(CLASSES)
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
        if path == "/a/1.jpg":  # of another machine: the image here whose path ends so
            assert names_of(listed(root, tmp_path / name)) == ["a/1.jpg"]
            continue
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
