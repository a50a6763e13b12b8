"""examples/raw_kernel.py: its CUDA source, run as C++ thread after thread, does what its NumPy twin does."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import cpu_vs_gpu
import numpy as np
import pytest
import raw_kernel
import torch
from PIL import Image

import gpuload
from gpuload.batchwise import FieldBatch

SHIM = r"""
struct Three { int x; };
static Three blockIdx, blockDim, threadIdx;
#define __global__
%s
extern "C" void launch(int blocks, int threads, float* images, const float* strength, int planes, int height, int width)
{
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) fade(images, strength, planes, height, width);
}
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (apt install g++), to run the kernel without a GPU")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "fade.cpp").write_text(SHIM % raw_kernel.SOURCE)
    command = ["g++", "-O1", "-shared", "-fPIC", "-Wall", "-o", str(folder / "fade.so"), str(folder / "fade.cpp")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "fade.so")).launch


@pytest.mark.parametrize("shape", [(5, 3, 12, 17), (1, 3, 1, 1), (2, 3, 64, 32)])
def test_kernel_and_numpy_agree(launch: ctypes._CFuncPtr, shape: tuple[int, ...]) -> None:  # type: ignore[name-defined]
    rng = np.random.default_rng(0)
    images, strength = rng.normal(size=shape).astype(np.float32), rng.random(shape[0]).astype(np.float32)
    guarded = np.concatenate([images.ravel(), np.full(1000, 7, np.float32)])  # the last block reaches beyond the images
    blocks = (images.size + raw_kernel.THREADS - 1) // raw_kernel.THREADS
    address = ctypes.POINTER(ctypes.c_float)
    pointers = guarded.ctypes.data_as(address), strength.ctypes.data_as(address)
    launch(blocks, raw_kernel.THREADS, *pointers, shape[0] * 3, *shape[2:])
    expected = images.copy()
    raw_kernel.fade_on_cpu(expected, strength)
    np.testing.assert_allclose(guarded[: images.size].reshape(shape), expected, rtol=1e-5, atol=1e-6)
    assert (guarded[images.size :] == 7).all()
    assert shape[-1] == 1 or not np.allclose(expected, images)


def test_fade_takes_its_strength_from_the_sample() -> None:
    strength = np.array([0.0, 0.25, 0.5, 0.999])
    for count in (4, 0):
        images = np.ones((count, 3, 9, 9), np.float32)
        raw_kernel.Fade(most=0.8)(FieldBatch({"image": images}, None, lambda number, own=strength[:count]: own))
        np.testing.assert_allclose(images[:, 0, 4, 4], 1)  # the middle
        corner = 1 - 0.8 * strength[:count] * 2 * 2 * (0.5 / 9 - 0.5) ** 2
        np.testing.assert_allclose(images[:, 2, 0, 8], corner, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"dtype": "uint8"}, {"layout": "channels_last"}])
def test_other_images_are_refused(packed: Path, wrong: dict[str, str]) -> None:
    augment = gpuload.Augment(16, **wrong)  # type: ignore[arg-type]
    options = {"augment": augment, "device": "cpu", "batch_transforms": [raw_kernel.Fade()]}
    loader = gpuload.DaliIterator(packed / "val", 8, **options)
    with loader, pytest.raises(gpuload.ArgumentError, match="Fade: images must be contiguous float32"):
        next(iter(loader))


def test_the_example_says_what_ran(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "faded.png"
    options = ["--device", "cpu", "--size", "32", "--batch-size", "16", "--picture", str(picture)]
    assert raw_kernel.main([str(packed / "val"), *options]) == 0
    said = capsys.readouterr().out
    assert "16 images on cpu: faded by NumPy, since there is no GPU" in said
    caption = raw_kernel.CAPTION_PX
    parts = np.asarray(Image.open(picture)).astype(int).reshape(2, 32 + caption, 8 * 32, 3)
    assert np.abs(parts[0, caption:] - parts[1, caption:]).max() > 20  # faded
    assert parts[:, :caption].min() < 100 and parts[:, :3].min() == 255  # captions, not cut off


@pytest.mark.usefixtures("one_thread")
def test_cpu_vs_gpu(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "picture.png"
    assert cpu_vs_gpu.main([str(packed / "val"), "--size", "48", "--images", "100", "--picture", str(picture)]) == 0
    output = capsys.readouterr().out
    assert ("No GPU was found" in output) == (not torch.cuda.is_available())
    measured = r"[\d,]+ images/s +[\d.]+ CPU cores; [\d,]+ images/s into a training step"
    assert len(re.findall(measured, output)) == 2
    found = re.search(r"100 images, 48×48: .* differ by ([\d.]+) on average, by (\d+) at most", output)
    # Decoder and resize round differently: by one step where libjpeg decodes, by a few where nvJPEG does.
    most = 16 if torch.cuda.is_available() else 2
    assert found and float(found[1]) < 1 and int(found[2]) <= most
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    left, right = pixels[60:84, 8:56], pixels[60:84, 64:112]
    assert np.abs(left - right).max() <= most and left.std() > 10  # images, not blanks
