"""Files made to harm: refused in words, before anything is allocated, followed or run."""

import io
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import change_manifest, damage
from images import encode, photo
from loaders import load
from made_batches import make_batch
from PIL import Image, _webp
from PIL.AvifImagePlugin import AvifImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

import gpuload
from gpuload import DecodeError, FormatError, GpuloadError, ShardError, SourceError
from gpuload.decode.dali.screen import Screen
from gpuload.decode.interface import PictureForm, Stored
from gpuload.decode.native.images import DecodePlan, ImageDecoder
from gpuload.headers import npy
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.verify import verify
from gpuload.sources import Listing, Source, open_source

JPG = encode(photo())


def huge_jpeg(side: int = 65_000) -> bytes:
    data = bytearray(encode(photo(0, 40, 30)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def huge_png(side: int = 100_000) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rest = encode(Image.new("RGB", (4, 4)), "PNG")[33:]
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + rest


def huge_icon() -> bytes:
    """An icon of 16×16 pixels by its directory, in which lies a PNG of another size."""
    png = huge_png()
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 24, len(png), 22) + png


def huge_tiff(side: int = 60_000) -> bytes:
    data = bytearray(encode(photo(), "TIFF"))
    for tag in (256, 257):  # width, height
        at = data.index(struct.pack("<HHI", tag, 4, 1))
        data[at + 8 : at + 12] = struct.pack("<I", side)
    return bytes(data)


def huge_avif(side: int = 16_000) -> bytes:
    """As large as libavif takes it."""
    data = bytearray(encode(photo(), "AVIF"))
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", side, side)
    return bytes(data)


def huge_webp(side: int = 60_000) -> bytes:
    """A canvas of which an animation fills the corner: 14.4 GB, which libwebp allocates when it is opened."""
    data = bytearray(encode(photo(), "WEBP", save_all=True, append_images=[photo(1)]))
    at = data.index(b"VP8X") + 12
    data[at : at + 6] = (side - 1).to_bytes(3, "little") * 2
    return bytes(data)


HUGE = {
    "jpeg": (huge_jpeg(), "65000 x 65000 pixels,"),
    "png": (huge_png(), "100000 x 100000 pixels,"),
    "icon": (huge_icon(), "has"),
    "tiff": (huge_tiff(), "60000 x 60000 pixels,"),
    "avif": (huge_avif(), "16000 x 16000 pixels,"),
    "webp": (huge_webp(), "has"),
}


@pytest.fixture
def nothing_large_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 178_956_970)  # as Pillow has it
    for kind in (Image.Image, AvifImageFile, TiffImageFile, WebPImageFile):
        monkeypatch.setattr(kind, "load", lambda image: pytest.fail("it decodes") if image.width > 99 else None)
    monkeypatch.setattr(_webp, "WebPAnimDecoder", lambda _: pytest.fail("it allocates"))


@pytest.mark.usefixtures("nothing_large_is_decoded")
@pytest.mark.parametrize("name", HUGE)
def test_the_packer_rejects_a_header_of_too_many_pixels(name: str) -> None:
    """Also in an icon, which is smaller by its directory."""
    data, size = HUGE[name]
    with pytest.raises(DecodeError, match=f"^{size} more than --max-pixels 178956970$"):
        prepare_image(data, encoding=Encoding(keep=("avif", "tiff", "webp")))


def test_verify_decodes_no_image_of_more_pixels_than_the_index_says(tmp_path: Path) -> None:
    names = ("tiff", "avif", "webp")
    images = [encode(photo(number, 400, 300), name) for number, name in enumerate(names)]
    gpuload.pack([{"image": one} for one in images], tmp_path / "set", workers=1, shuffle=False, keep=names)
    swaps = {one: HUGE[name][0] for name, one in zip(names, images, strict=True)}
    folder = damage(tmp_path / "set" / "train", tmp_path / "swapped", range(3), lambda data: swaps[data])
    lines = [line for line in verify(folder, workers=1) if "more than --max-pixels" in line]
    assert len(lines) == len(names)


@pytest.mark.usefixtures("nothing_large_is_decoded")
@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("plain", [True, False])
def test_decoders_allocate_nothing_for_a_header_of_too_many_pixels(name: str, plain: bool) -> None:
    batch, stored = (
        make_batch(gpuload.Augment(8), [np.frombuffer(HUGE[name][0], np.uint8)], [(16, 16)]),
        Stored(plain=plain),
    )
    plan = DecodePlan(batch.image, np.array([[0, 0, 16, 16]], np.int64), np.ones(1, np.int64))
    _, broken = ImageDecoder(stored).decode(plan, 0)
    screen = Screen([PictureForm("image", (), stored)], 1)
    _, faults = screen.screened(batch, np.arange(1))
    screen.close()
    assert list(broken) == list(faults) == [0]


def pack(folder: Path, images: list[Any]) -> Path:
    gpuload.pack([{"image": image, "label": 0} for image in images], folder, workers=1, shuffle=False)
    return folder / "train"


@pytest.fixture(scope="module")
def one_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("one"), [JPG])


def test_the_loader_refuses_images_with_more_than_max_pixels(tmp_path: Path, decoder: Any) -> None:
    if decoder == "dali":
        pytest.importorskip("nvidia.dali")
    folder = pack(tmp_path, [JPG, encode(photo(1, 90, 20)), encode(photo(2, 20, 90))])

    def read(**limits: int) -> int:
        data = gpuload.Dataset(folder, **limits)  # type: ignore[arg-type]
        with load(data, 2, decoder=decoder, shuffle=False, drop_last=False) as loader:
            return sum(len(labels) for *_, labels in loader)

    assert read() == read(max_pixels=1800) == 3
    message = r"sample '00000001-00000001' has 90 × 20 pixels, more than max_pixels=1,799. Give gpuload.Dataset a"
    with pytest.raises(ShardError, match=message):
        read(max_pixels=1799)
    with load(gpuload.Dataset(folder, max_pixels=1), 2, fields=("label",)) as loader:
        assert len(list(loader)) == 1  # nothing is decoded
    with pytest.raises(ShardError, match=message):
        gpuload.Dataset(folder, max_pixels=1799).tiles(8)
    assert len(gpuload.Dataset(folder, max_pixels=1800).tiles(8)) > 3


@pytest.mark.parametrize("field", ["right", "depth", "frames", "maps"])
def test_further_pictures_have_at_most_max_pixels_too(tmp_path: Path, decoder: Any, field: str) -> None:
    if decoder == "dali":
        pytest.importorskip("nvidia.dali")
    values = np.full((20, 90), 500, np.uint16)
    samples = [
        {
            "image": photo(number, 30, 20),
            "right": photo(number, 90, 20),
            "depth": values,
            "frames": [photo(number, 30, 20), photo(number, 90, 20)][: 1 + number],
            "maps": [values] * number,
        }
        for number in range(2)
    ]
    gpuload.pack(samples, tmp_path, workers=1, shuffle=False, progress=False, pictures=["depth", "maps"])
    spec: Any = {"depth": gpuload.Depth("depth"), "maps": gpuload.Depth("maps")}.get(field, field)

    def read(chosen: Any = spec, **limits: int) -> int:
        data = gpuload.Dataset(tmp_path / "train", **limits)  # type: ignore[arg-type]
        with load(data, 2, decoder=decoder, shuffle=False, fields=("image", chosen)) as loader:
            return sum(len(images) for images, *_ in loader)

    assert read() == read(max_pixels=1800) == 2
    message = f"sample '0000000[01]-0000000[01]' has 90 × 20 pixels in its '{field}', more than max_pixels=1,799. Give"
    with pytest.raises(ShardError, match=message):
        read(max_pixels=1799)
    # What is not read is not refused.
    assert read("index", max_pixels=1799) == 2
    if field == "frames":
        assert read(gpuload.Pictures("frames", count=1, more="first"), max_pixels=1799) == 2


def npy_with(shape: str, dtype: str = "'|u1'", elements: int = 6) -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(elements)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy_with("(99999, 99999, 99999)"), r"takes 999,970,000,299,999 bytes, and there are 6"),
        (npy_with("(4294967296, 4294967296)"), "takes 18,446,744,073,709,551,616 bytes"),
        (npy_with("(-1, -6)"), r"its shape cannot be \(-1, -6\)"),
        (npy_with("(True, 6)"), r"its shape cannot be \(True, 6\)"),
        (npy_with(str((1,) * 32 + (6,))), r"its shape cannot be \(1, 1,"),
        (npy_with("(6,)", "'|O'"), "Python objects, which are pickles and never opened"),
        (npy_with("(1,)", "[('a', '|O')]"), "Python objects"),
        (npy_with("(3,)", "('<u2', (1,))"), "cannot be"),
        (npy_with("(" * 400), "its header cannot be read"),
        (npy_with("(7,)"), "takes 7 bytes, and there are 6"),
        (b"\x93NUMPY", "its header cannot be read"),
    ],
)
def test_headers_of_arrays_that_no_file_can_hold(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        npy.read_array(data)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", ">f4", "<c16", "U3", "?"])
def test_arrays_are_read_as_numpy_reads_them(dtype: str, order: Any) -> None:
    for shape in [(), (0, 3), (4,), (2, 3, 4), (1,) * 32]:
        array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype), order=order)
        file = io.BytesIO()
        np.save(file, array)
        found = npy.read_array(file.getvalue())
        assert found.dtype == array.dtype and found.shape == shape and np.array_equal(found, array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["shards"][0].update(samples=10**9), "cannot hold 1,000,000,000 samples in"),
        (lambda found: found["shards"][0].update(name="a\0b"), r"shards\[0\].name is"),
        (lambda found: found["shards"][0].update(bytes=-1), r"shards\[0\].bytes is -1, expected a whole number"),
        (lambda found: found["shards"][0].update(samples=True), r"shards\[0\].samples is True"),
        (lambda found: found.update(shards={}), "shards is {}, expected a list"),
        (lambda found: found.update(fields=[3]), r"fields\[0\] is 3"),
        (lambda found: found.update(width=2**40), "width is 1099511627776"),
        (lambda found: found.update(mean=[0.5, float("nan"), 0.5]), "mean is"),
        (lambda found: found.update(classes=["a", "\ud800"]), "classes is"),
        (lambda found: found.update(packing=None), "packing is None, expected an object"),
        (lambda found: found["index_offsets"].reverse(), "are not those of an index of 1 shard"),
        (lambda found: found["index_offsets"].pop(), "are not those of an index of 1 shard"),
        (lambda found: found["index_parts"].pop(), "are not those of an index of 1 shard"),
        (lambda found: found["index_offsets"].__setitem__(-1, 1 << 50), "index_parts and index_offsets are not those"),
        (lambda found: found["fields"][1].pop("member"), "is damaged: .*'member'"),
        (lambda found: found["fields"][1].update(name="image"), "no two of one name; found 'image', 'image'"),
        (lambda found: found["fields"][1].update(kind="raw"), "has one field of kind image or raw"),
        (lambda found: found["fields"][1].update(kind="keypoints"), "its instances have no points"),
        (lambda found: found["fields"][1].update(kind="array", dtype="|O"), "cannot be of dtype '|O'"),
        (lambda found: found["fields"][1].update(kind="array", dtype="%"), "there is no dtype '%'"),
    ],
)
def test_manifests_are_checked_value_by_value(one_image: Path, tmp_path: Path, change: Any, message: str) -> None:
    shutil.copy(one_image / "manifest.json", tmp_path)
    change_manifest(tmp_path, change, fingerprint=False)
    with pytest.raises(FormatError, match=message):
        gpuload.Dataset(tmp_path)


def test_a_manifest_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match="is damaged: its lists or objects are nested too deeply"):
        gpuload.Dataset(tmp_path)


def test_messages_quote_no_control_characters() -> None:
    assert str(GpuloadError("a\x1b[31m\nü\ud800")) == r"a\x1b[31m\nü\ud800"


def prepared(path: Path, scratch: Path) -> Listing:
    source = open_source(path)
    source.prepare(scratch)
    return source.list_samples()


def test_hdf5_does_not_read_other_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["images"] = np.full((3, 4, 5, 3), 77, np.uint8)
    (tmp_path / "raw").write_bytes(bytes(180))

    layout = h5py.VirtualLayout((3, 4, 5, 3), np.uint8)
    layout[:] = h5py.VirtualSource(str(secret), "images", (3, 4, 5, 3))
    raw = [(str(tmp_path / "raw"), 0, 180)]
    for write, message in (
        (lambda f: f.create_virtual_dataset("images", layout), "'images' takes its elements from other files"),
        (lambda f: f.create_dataset("images", (3, 4, 5, 3), "u1", external=raw), "its elements from other files"),
        (lambda f: f.update(images=h5py.ExternalLink(str(secret), "images")), "which array holds .* It has none"),
        (
            lambda f: f.create_dataset("images", (10**9, 64, 64, 3), "u1", chunks=(1, 64, 64, 3)),
            "'images' claims 12,288,000,000,000 bytes, of which the file stores 0",
        ),
    ):
        with h5py.File(tmp_path / "hostile.h5", "w") as file:
            write(file)
        with pytest.raises(SourceError, match=message):
            prepared(tmp_path / "hostile.h5", tmp_path)


@pytest.mark.parametrize("role", ["image", "mask"])
def test_texts_in_files_of_samples_are_no_paths(tmp_path: Path, role: str) -> None:
    lmdb, msgpack = pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(JPG)
    with lmdb.open(str(tmp_path / "store.lmdb")) as store, store.begin(write=True) as transaction:
        transaction.put(b"0", msgpack.packb({"image": JPG, "label": 1, role: str(secret)}))
    with pytest.raises(SourceError, match=f"sample 0 has a text for its {role}, expected bytes or an array"):
        prepared(tmp_path / "store.lmdb", tmp_path)


class CrashingSource(Source):
    """Dies as a C library does."""

    needs_process = True

    def prepare(self, scratch: Path) -> None:
        os.abort()

    def rows(self, findings: object) -> Any:
        raise AssertionError


def test_a_source_that_crashes_its_library_does_not_end_the_packer(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"reading it ended the process that read it \(SIGABRT\). It is damaged"):
        gpuload.pack(CrashingSource(tmp_path / "source"), tmp_path / "out")


def test_an_npz_that_unpacks_to_more_than_the_disk_holds_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    np.savez_compressed(tmp_path / "images.npz", images=np.zeros((30, 64, 64, 3), np.uint8))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("gpuload.sources.arrays.shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(SourceError, match="its arrays take 368,768 bytes unpacked, and .* has 1,000 free"):
        prepared(tmp_path / "images.npz", tmp_path)
