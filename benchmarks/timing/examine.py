"""Checks that a contender delivers what was asked: shape, number of images, labels and pixels."""

from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

from timing.work import Batches, Contender, Work

# Number of batches whose pixels are compared; the rest of the epoch is only counted.
_COMPARED = 64


class Examined(NamedTuple):
    """One epoch, or its first `work.images`.

    whole: whether it was a whole epoch. labels: number of images by label. mean, std: of the normalised pixels, per
    channel, over `compared` images. middle: number of batches before the state was taken.
    """

    images: int
    whole: bool
    labels: dict[str, int]
    compared: int
    mean: list[float]
    std: list[float]
    middle: int
    resume_s: float = 0.0
    resumes: str = ""


def describe(
    batch: tuple[Any, Any], contender: Contender, work: Work
) -> dict[str, Any]:
    """Checks a batch: shape, dtype, device, no NaN."""
    images, labels = batch
    sides = (work.size, work.size) if contender.one_size else tuple(images.shape[2:])
    expected = (work.batch_size, contender.channels, *sides)
    dtype = f"torch.{work.dtype}"
    if (
        tuple(images.shape) != expected
        or str(images.dtype) != dtype
        or images.device.type != contender.device
    ):
        raise ValueError(
            f"its batches are {tuple(images.shape)}, {images.dtype} on {images.device}; "
            f"expected {expected}, {dtype} on {contender.device}"
        )
    # isfinite of all pixels would take one and a half times the batch's memory, and count as the loader's.
    is_finite = all(bool(extreme.isfinite()) for extreme in images.aminmax())
    if len(labels) != work.batch_size or not is_finite:
        raise ValueError("a label is missing or a pixel is not finite")
    return {"shape": expected, "dtype": work.dtype}


def examine(loader: Batches, contender: Contender, work: Work) -> tuple[Examined, Any]:
    """Examines an epoch; also returns the loader's state in the middle of it, or None."""
    import torch

    counts: Counter[str] = Counter()
    total = torch.zeros(3, dtype=torch.float64)
    squares = torch.zeros(3, dtype=torch.float64)
    images = compared = number = 0
    state = None
    middle = max(1, _epoch_batches(work) // 2)
    limit = -(-work.images // work.batch_size)
    for number, batch in enumerate(islice(loader, limit), start=1):
        describe(batch, contender, work)
        pixels, labels = batch
        counts.update(str(int(label)) for label in labels)
        images += len(labels)
        if number <= _COMPARED:
            # No copies of the batch: they would count as memory of the loader.
            total += pixels.mean((2, 3), dtype=torch.float32).sum(0).cpu()
            norms = torch.linalg.vector_norm(pixels, dim=(2, 3), dtype=torch.float32)
            squares += norms.square().sum(0).cpu() / pixels[0, 0].numel()
            compared += len(pixels)
        if number == middle and hasattr(loader, "state_dict"):
            state = loader.state_dict()
    if not images:
        raise ValueError("it delivers no batch")
    mean = total / compared
    result = Examined(
        images=images,
        whole=number < limit or work.images >= work.samples,
        labels=dict(counts),
        compared=compared,
        mean=mean.tolist(),
        std=(squares / compared - mean.square()).sqrt().tolist(),
        middle=min(middle, number - 1),
    )
    return result, state


def _epoch_batches(work: Work) -> int:
    """Number of batches in an epoch, or in the examined part of it."""
    return -(-min(work.images, work.samples) // work.batch_size)


def faults(
    found: Examined, truth: dict[str, int], first: Examined | None, work: Work
) -> str | None:
    """What is wrong with a contender's epoch, or None.

    truth: the number of samples of each label. first: the contender whose pixels are the reference. Random crops of the
    same images differ by chance: the mean by about 0.4 from crop to crop and by 1 from image to image, in units of the
    normalisation. Four standard errors of that are allowed, plus 0.05 for the way they resize.
    """
    stray = {
        label: count
        for label, count in found.labels.items()
        if count > truth.get(label, 0)
    }
    if stray:
        label, count = next(iter(stray.items()))
        return f"label {label} occurs {count} times in an epoch, but {truth.get(label, 0)} times in the set"
    # Each worker may drop what does not fill a batch.
    least = sum(truth.values()) - work.batch_size * max(1, work.threads)
    if found.whole and found.images < least:
        return f"its epoch has {found.images:,} of {sum(truth.values()):,} images"
    if first is None:
        return None
    spread = 0.4 if found.whole and found.images == found.compared else 1.0
    allowed = 0.05 + 4 * spread * (1 / found.compared + 1 / first.compared) ** 0.5
    for subject, actual, other in (
        ("mean", found.mean, first.mean),
        ("deviation", found.std, first.std),
    ):
        if max(abs(a - b) for a, b in zip(actual, other, strict=True)) > allowed:
            return (
                f"its images differ from the first loader's: {subject} {_show(actual)} in red, green, blue instead of "
                f"{_show(other)}; up to {allowed:.2f} could be chance"
            )
    return None


def _show(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
