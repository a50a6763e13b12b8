"""A DALI pipeline written by hand, with either of DALI's own readers: of WebDataset shards, and of folders of files.

After DALI's ResNet-50 example for PyTorch (docs/examples/use_cases/pytorch/resnet50): cropped decode on the CPU; on the
GPU whole decode, then a crop, since cropped decode crashes there in nvImageCodec 0.9 (NVIDIA/nvImageCodec#55); index
files beside the shards; the reader's own shuffle; the example's share of the JPEG engines, and DALI's default chroma
upsampling, which is cheaper than the filtered one that gpuload asks for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing.recipes import dalis
from timing.stored import image_ends, stored_samples
from timing.work import MEAN, STD, Batches, Work

RANDOM_AREA = [0.08, 1.0]
RANDOM_RATIO = [3 / 4, 4 / 3]
HW_DECODER_LOAD = 0.65  # of the example


@contextmanager
def open_pipeline(
    work: Work,
    device: str = "cpu",
    reader: str = "webdataset",
    state: Any = None,
    checkpoints: bool = False,
    recipe: str = "",
    hw_decoder_load: float = HW_DECODER_LOAD,
) -> Iterator[Batches]:
    """reader: "webdataset" or "file". state: a checkpoint to build the pipeline from. checkpoints: whether the pipeline
    can give one. recipe: of `timing.recipes`. hw_decoder_load: share of the images for a GPU's JPEG engines."""
    import torch
    from nvidia.dali import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = pipeline_def(graph, enable_conditionals=bool(recipe))(
        work,
        device,
        reader,
        dalis(recipe) if recipe else None,
        hw_decoder_load,
        batch_size=work.batch_size,
        num_threads=work.threads,
        device_id=None if device == "cpu" else torch.cuda.current_device(),
        prefetch_queue_depth=2,
        enable_checkpointing=checkpoints or state is not None,
        checkpoint=state,
    )
    batches = DALIGenericIterator(
        pipeline,
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )
    yield _Checkpointed(batches, device) if checkpoints else _Pairs(batches, device)


def prepare_files(work: Work, folder: Path) -> None:
    """A folder of files, one for each label, as DALI's reader of files takes it."""
    for number, (image, label) in enumerate(stored_samples(work.folder)):
        path = folder / f"{label:06d}" / f"{number:08d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)


def graph(
    work: Work,
    device: str,
    reader: str = "webdataset",
    recipe: Any = None,
    hw_decoder_load: float = HW_DECODER_LOAD,
) -> tuple[Any, Any]:
    """Normalised images and labels, for the pipeline that is being defined."""
    from nvidia.dali import fn, types

    if reader == "file":
        files = sorted((work.cache / "dali-files").glob("*/*.jpg"))
        encoded, labels = fn.readers.file(
            files=[str(path) for path in files],
            labels=[int(path.parent.name) for path in files],
            random_shuffle=True,
            name="reader",
        )
    else:
        endings = [ending.removeprefix(".") for ending in image_ends(work.folder)]
        encoded, labels = fn.readers.webdataset(
            paths=[str(path) for path in work.shards],
            index_paths=[str(path.with_suffix(".idx")) for path in work.shards],
            ext=[";".join(endings), "cls"],
            random_shuffle=True,
            name="reader",
        )
    resize = {"size": [work.size, work.size], "interp_type": types.INTERP_TRIANGULAR}
    if device == "cpu" and work.whole:
        images = fn.resize(fn.decoders.image(encoded), **resize)
    elif device == "cpu":
        cropped = fn.decoders.image_random_crop(
            encoded, random_area=RANDOM_AREA, random_aspect_ratio=RANDOM_RATIO
        )
        images = fn.resize(cropped, **resize)
    else:
        width, height = work.largest
        hints = {"preallocate_width_hint": width, "preallocate_height_hint": height}
        decoded = fn.decoders.image(
            encoded, device="mixed", hw_decoder_load=hw_decoder_load, **hints
        )
        if work.whole:
            images = fn.resize(decoded, **resize)
        else:
            images = fn.random_resized_crop(
                decoded,
                random_area=RANDOM_AREA,
                random_aspect_ratio=RANDOM_RATIO,
                **resize,
            )
    if recipe is not None:
        images = recipe(images)
    normalised = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if work.dtype == "float16" else types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    # The reader of shards gives a label as ASCII digits, one byte each; padding makes a batch of them one tensor.
    return normalised, labels if reader == "file" else fn.pad(
        labels, fill_value=ord(" ")
    )


class _Pairs:
    def __init__(self, batches, device: str) -> None:
        self._batches = batches
        self._device = device

    def __iter__(self):
        import torch

        for (batch,) in self._batches:
            labels = batch["labels"]
            if labels.dtype == torch.uint8:  # digits
                labels = torch.tensor([int(bytes(digits)) for digits in labels.numpy()])
            labels = labels.flatten().long()
            if self._device != "cpu":  # pinned, so that nothing waits for the copy
                labels = labels.pin_memory().to(self._device, non_blocking=True)
            yield batch["images"], labels


class _Checkpointed(_Pairs):
    def state_dict(self) -> Any:
        return self._batches.checkpoints()[0]
