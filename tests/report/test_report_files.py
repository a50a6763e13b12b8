"""What the headers of stored files tell: formats, sampling, and the quality of JPEGs."""

import io
from pathlib import Path

import numpy as np
from images import encode
from PIL import Image
from report_sets import textured

import gpuload
from gpuload.report.files import _facts_of_jpeg, read_files


def test_the_quality_of_a_jpeg() -> None:
    """To one unit, of every quality that libjpeg has."""
    image = Image.new("RGB", (8, 8), (90, 40, 200))
    for quality in range(1, 101):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        facts = _facts_of_jpeg(file.getvalue(), {})
        assert facts is not None and abs(facts.quality - quality) <= 1, quality


def test_files_of_every_kind(tmp_path: Path) -> None:
    image = textured(1)
    files = [encode(image, quality=80, subsampling=sampling) for sampling in range(3)]
    files += [encode(image.convert("L"), quality=60), encode(image, "PNG")]
    files += [encode(image, quality=70, comment=bytes(range(65, 90)) * 900, progressive=True)]  # a header of 22 kB
    gpuload.pack([{"image": file} for file in files], tmp_path / "set", workers=1, shuffle=False)
    found = read_files(gpuload.Dataset(tmp_path / "set" / "train"), np.arange(6))
    assert found.qualities.tolist() == [80, 80, 80, 60, 0, 70]
    assert dict(found.samplings) == {"4:4:4": 1, "4:2:2": 1, "4:2:0": 2}
    assert dict(found.formats) == {"JPEG": 5, "PNG": 1} and dict(found.colors) == {"colour": 4, "gray": 1}
    assert dict(found.modes) == {"baseline": 4, "progressive": 1}


def test_damaged_headers_are_only_not_known() -> None:
    data = encode(textured(1))
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(2, 600, rng.integers(1, 6)).tolist():
            broken[at] = int(rng.integers(256))
        facts = _facts_of_jpeg(bytes(broken[: rng.integers(2, 700)]), {})
        assert facts is None or 0 <= facts.quality <= 100
