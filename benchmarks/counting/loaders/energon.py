"""Megatron-Energon: the state of each rank; `energon checkpoint redist` for another number of ranks.

Its page "Reproducible Scaling" asks for a constant number of workers over all ranks and for a constant micro-batch, and
for a global batch of as many micro-batches as there are workers: a step takes one micro-batch of each worker.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from counting.loaders import BUFFER, GLOBAL_BATCH, Loader, Place
from counting.samples import write_tars

_ALL_WORKERS = 6
_MICRO_BATCH = GLOBAL_BATCH // _ALL_WORKERS
_ENERGON = Path(sys.executable).with_name("energon")


class EnergonLoader(Loader):
    DISTRIBUTION = "megatron-energon"
    MEANS = "`save_state_rank`; `energon checkpoint redist`"

    @staticmethod
    def prepare(folder: Path) -> None:
        write_tars(folder)
        kind = [
            "--sample-type",
            "ImageClassificationSample",
            "--field-map",
            '{"image": "jpg", "label": "cls"}',
        ]
        options = ["--non-interactive", "--split-parts", "train:shard-.*", *kind]
        subprocess.run(
            [_ENERGON, "prepare", *options, folder],
            check=True,
            stdin=subprocess.DEVNULL,
        )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._workers = _ALL_WORKERS // place.world_size
        self._loader: Any = None
        self._state: Any = None

    def epoch(self, number: int) -> Iterator[list[int]]:
        dataset = get_train_dataset(
            self.place.folder,
            worker_config=WorkerConfig(
                rank=self.place.rank,
                world_size=self.place.world_size,
                num_workers=self._workers,
                seed_offset=number,
            ),
            batch_size=_MICRO_BATCH,
            shuffle_buffer_size=BUFFER,
            max_samples_per_sequence=None,
            repeat=False,
        )
        self._loader = get_savable_loader(dataset)
        if self._state is not None:
            self._loader.restore_state_rank(self._state)
            self._state = None
        step: list[int] = []
        for batch in self._loader:
            step += [int(key.rpartition("/")[2]) for key in batch.__key__]
            if len(step) >= self.place.batch_size:
                yield step
                step = []
        if step:
            yield step

    def state(self) -> Any:
        return self._loader.save_state_rank()

    def load(self, states: Sequence[Any]) -> None:
        if len(states) != self.place.world_size:
            states = _redistributed(states, self.place.world_size)
        self._state = states[self.place.rank]


def _redistributed(states: Sequence[Any], world_size: int) -> list[Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = []
        for rank, state in enumerate(states):
            files.append(folder / f"state-{rank}.pt")
            torch.save(state, files[-1])
        if (
            len(states) == 1
        ):  # a list of all ranks, as `save_state_global` gives it: from its file comes such a list
            torch.save(list(states), files[0])
        output = folder / "new"
        output.mkdir()  # it does not make a local folder
        command = [
            _ENERGON,
            "checkpoint",
            "redist",
            "--new-world-size",
            str(world_size),
            *files,
            output,
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)
        if len(states) == 1:
            return torch.load(output / files[0].name, weights_only=False)
        return [
            torch.load(output / f"state-{rank}.pt", weights_only=False)
            for rank in range(world_size)
        ]
