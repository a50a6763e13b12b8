"""Megatron-Energon: a task encoder that crops Pillow's images, in the workers of its savable loader."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing.crops import TorchvisionCrop
from timing.peers.dataloader import Moved
from timing.stored import image_ends
from timing.work import Batches, Work

_BUFFER = 1000  # samples of the shuffle buffer, as in its quickstart


def prepare(work: Work, folder: Path) -> None:
    """Links to the shards, and the files that `energon prepare` writes beside them."""
    for shard in work.shards:
        (folder / shard.name).symlink_to(shard.resolve())
    (image_end,) = image_ends(work.folder)[:1]
    fields = f'{{"image": "{image_end.removeprefix(".")}", "label": "cls"}}'
    options = ["--non-interactive", "--split-parts", "train:shard-.*"]
    kind = ["--sample-type", "ImageClassificationSample", "--field-map", fields]
    subprocess.run(
        [Path(sys.executable).with_name("energon"), "prepare", *options, *kind, folder],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )


@contextmanager
def open_loader(
    work: Work, device: str = "cpu", state: Any = None
) -> Iterator[Batches]:
    loader = _Loader(work, state)
    yield loader if device == "cpu" else Moved(loader, device)


class _Loader:
    """Each pass is an epoch of a loader of its own, as Energon's datasets are used without repetition."""

    def __init__(self, work: Work, state: Any) -> None:
        self._work = work
        self._state = state
        self._epochs = 0
        self._loader: Any = None

    def __iter__(self) -> Iterator[Any]:
        import torch
        from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

        torch.set_num_threads(1)
        dataset = get_train_dataset(
            self._work.cache / "energon",
            worker_config=WorkerConfig(
                rank=0,
                world_size=1,
                num_workers=self._work.threads,
                seed_offset=self._epochs,
            ),
            batch_size=self._work.batch_size,
            batch_drop_last=True,
            shuffle_buffer_size=_BUFFER,
            max_samples_per_sequence=None,
            task_encoder=_task_encoder(TorchvisionCrop(self._work)),
            repeat=False,
        )
        self._epochs += 1
        self._loader = get_savable_loader(dataset)
        if self._state is not None:
            self._loader.restore_state_rank(self._state)
            self._state = None
        for batch in self._loader:
            yield batch.image, torch.as_tensor(batch.label)

    def state_dict(self) -> Any:
        return self._loader.save_state_rank()


def _task_encoder(crop: TorchvisionCrop) -> Any:
    """Energon's default task encoder, whose samples have cropped images."""
    import dataclasses

    from megatron.energon import DefaultTaskEncoder, SampleDecoder, stateless

    class Cropping(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="pil")

        @stateless(restore_seeds=True)
        def encode_sample(self, sample: Any) -> Any:
            return dataclasses.replace(sample, image=crop(sample.image))

    return Cropping()
