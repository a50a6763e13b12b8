"""examples/cpu_vs_gpu.py: figures within bounds, and a picture of the right thing."""

import re
from pathlib import Path

import cpu_vs_gpu
import numpy as np
import pytest
import torch
from PIL import Image


@pytest.mark.usefixtures("one_thread")
def test_cpu_vs_gpu(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "picture.png"
    assert cpu_vs_gpu.main([str(packed / "val"), "--size", "48", "--images", "100", "--picture", str(picture)]) == 0
    output = capsys.readouterr().out
    assert ("No GPU was found" in output) == (not torch.cuda.is_available())
    measured = r"[\d,]+ images/s +[\d.]+ CPU cores; [\d,]+ images/s into a training step"
    assert len(re.findall(measured, output)) == 2
    found = re.search(r"100 images, 48×48: .* differ by ([\d.]+) on average, by (\d+) at most", output)
    assert found, output
    # Decoder and resize round differently: by one step where libjpeg decodes, by a few where nvJPEG does.
    assert float(found[1]) < 1
    assert int(found[2]) <= (16 if torch.cuda.is_available() else 2)
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    left, right = pixels[60:84, 8:56], pixels[60:84, 64:112]
    assert np.abs(left - right).max() <= (16 if torch.cuda.is_available() else 2)
    assert left.std() > 10  # an image, not a blank


def test_cpu_vs_gpu_names_a_bad_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cpu_vs_gpu.main([str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
