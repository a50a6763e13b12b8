"""Settings of the packer: which are refused, and which may be texts, as on the command line."""

from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload import ArgumentError
from gpuload.packing.options import Encoding, PackOptions

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"val": 1.0}, "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got 1.0"),
    ({"val": -0.1}, "--val: expected a share"),
    ({"maxcount": 0}, "--maxcount: expected a whole number of at least 1; got 0"),
    ({"maxsize": 0}, "--maxsize: expected a positive number of bytes, such as 1GB, or None; got 0"),
    ({"workers": 0}, "--workers: expected a whole number of at least 1, or None; got 0"),
    ({"time_limit_s": 0}, "--time-limit: expected a number of seconds above 0, up to 1e6; got 0"),
    ({"encode": "x"}, "--encode: expected one of 'keep', 'jpeg', 'raw'; got 'x'"),
    ({"encode": "jpeg", "size": (0, 3)}, r"--size: expected pixels, one positive whole number or two .* or None; got \(0, 3\)"),
    ({"size": (3, 3)}, "--size needs --encode jpeg or raw"),
    ({"encode": "jpeg", "fit": "pad"}, "--fit and --enlarge need --size"),
    ({"encode": "jpeg", "size": (3, 3), "fit": "x"}, "--fit: expected one of 'shortest', .* got 'x'"),
    ({"quality": 0}, r"--quality: expected a whole number in 1\.\.100, or None; got 0"),
    ({"encode": "raw", "lossless": True}, "--lossless needs --encode keep or jpeg"),
    ({"check": "x"}, "--check: expected one of 'full', 'header'; got 'x'"),
    ({"check": "header", "encode": "raw"}, "--check header needs --encode keep, --mode RGB and"),
    ({"min_size": -1}, "--min-size: expected a whole number of at least 0; got -1"),
    ({"splits": (("a", 0.5), ("a", 0.5))}, "names of folders, each once, with shares that add up to 1"),
    ({"splits": (("a", 0.5), ("b", 0.6))}, "--splits: expected names of folders, .* got .*0.6"),
    ({"splits": (("a/b", 1.0),)}, "--splits: expected names of folders, .* got .*a/b"),
    ({"splits": (("a", 1.0),), "val": 0.1}, "--val stands for splits train and val and excludes --splits"),
    ({"dedup": "x"}, "--dedup: expected one of 'no', 'report', 'drop'; got 'x'"),
    ({"max_rejected": 2}, "--max-rejected: expected a share from 0 to 1, which is 100%; got 2"),
    ({"engine": "x"}, "--engine: expected one of 'local', 'ray'; got 'x'"),
    ({"address": "x"}, "--address needs --engine ray"),
    ({"append": True, "overwrite": True}, "--append keeps the existing set, --overwrite replaces it"),
    ({"mode": "CMYK"}, "--mode: expected one of L, RGB"),
    ({"mode": "RGBA", "encode": "jpeg"}, "--mode RGBA needs --encode keep or raw"),
    ({"mode": "F"}, "--mode F needs --encode raw"),
    ({"mode": "L", "drop_gray": True}, "--drop-gray needs --mode RGB"),
    ({"keep": "gif"}, "--keep: expected encodings, some of jpeg, png, webp, avif, tiff; got 'gif'"),
    ({"keep": ("webp",), "encode": "raw"}, "--keep needs --encode keep"),
    ({"mode": 3}, "--mode: expected .*; got 3"),
    ({"keep": 3}, "--keep: expected encodings, .*; got 3"),
    ({"encode": "jpeg", "resizer": "torch"}, "--resizer torch needs --encode jpeg and --size"),
    ({"encode": "jpeg", "resizer": "cv2"}, "--resizer: expected one of 'auto', 'pillow', 'torch'; got 'cv2'"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        gpuload.pack([], tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_settings_may_be_texts_as_on_the_command_line() -> None:
    assert (Encoding("raw", "256").size, Encoding("raw", "482x415").size) == ((256, 256), (482, 415))  # type: ignore[arg-type]
    texts = PackOptions(splits="train=0.8, val=20%", max_rejected="1%", maxsize="1MB")  # type: ignore[arg-type]
    assert (texts.splits, texts.max_rejected, texts.maxsize) == ((("train", 0.8), ("val", 0.2)), 0.01, 1_000_000)
    sizes = {"3T": 3 * 10**12, "256 MiB": 2**28, "1e6": 10**6, "500": 500, "1.5k": 1500, "2Ki": 2048}
    for text, size in sizes.items():
        assert PackOptions(maxsize=text).maxsize == size  # type: ignore[arg-type]
    for text in ("", "GB", "1XB", "1 G B", "-", "nan", "1BB"):
        with pytest.raises(ArgumentError, match="--maxsize: expected a positive number of bytes, such as 1GB, or None"):
            PackOptions(maxsize=text)  # type: ignore[arg-type]
    assert PackOptions(val="10%").val == PackOptions(val="0.1").val == 0.1  # type: ignore[arg-type]
    for name, text in (("size", "12y"), ("splits", "train"), ("val", "x%"), ("maxsize", "1 GX"), ("max_rejected", "")):
        with pytest.raises(ArgumentError, match=rf"--{name.replace('_', '-')}: expected .*; got '{text}'"):
            (Encoding if name == "size" else PackOptions)(**{name: text})
