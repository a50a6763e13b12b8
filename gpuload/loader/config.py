"""What a loader is asked to do: the arguments of `DaliIterator`, checked, apart from what is built for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuload.augment import Augment
from gpuload.augment.schedule import Augments, ByEpoch
from gpuload.batchwise import BatchTransform
from gpuload.decode.arguments import Both, Dali, DecoderName, OnCorrupt
from gpuload.disk.dataset import Dataset
from gpuload.fields.kind import FieldSpec
from gpuload.loader.arguments import by_pictures
from gpuload.machine.ranks import Ranks, find_ranks
from gpuload.order.arguments import AnySampling, DropLast, Mixture, Shuffle
from gpuload.order.budget import Budget
from gpuload.output.arrays import Output


@dataclass(frozen=True)
class LoaderConfig:
    """The arguments of a loader. Two loaders with equal ones, on the same data, return the same batches.

    Attributes:
        data: The data set, or a mixture of several.
        batch_size: Samples in a batch of this process, or a budget of tokens.
        augment: Of the image: one view, several, or either by the first epoch in which it is used.
        alone: By name, the augmentations of further pictures that move by themselves.
        fields: The requested fields, in the order of a batch.
        keys: Their names in batches that are dicts; None for named tuples.
        batch_transforms: Functions of whole batches.
        shuffle: How shards are mixed; None for stored order.
        seed: Of all random numbers.
        drop_last: What becomes of an incomplete last batch.
        steps_per_epoch: Batches in an epoch; None for one pass.
        sampling: How samples are drawn; None for each once.
        on_corrupt: What becomes of samples that do not decode; None raises.
        decoder: As of `DaliIterator`.
        num_threads: As of `DaliIterator`.
        prefetch: As of `DaliIterator`.
        device: As of `DaliIterator`.
        output: As of `DaliIterator`.
        ranks: This process among those that train together.
    """

    data: Dataset | Mixture
    batch_size: int | Budget
    augment: Augments | ByEpoch
    alone: Mapping[str, Augment]
    fields: tuple[str | FieldSpec, ...]
    keys: tuple[str, ...] | None
    batch_transforms: tuple[BatchTransform, ...]
    shuffle: Shuffle | None
    seed: int
    drop_last: DropLast
    steps_per_epoch: int | None
    sampling: AnySampling | None
    on_corrupt: OnCorrupt | None
    decoder: DecoderName | Dali | Both
    num_threads: int | None
    prefetch: int | None
    device: str
    output: Output
    ranks: Ranks

    @classmethod
    def of_arguments(
        cls,
        data: Any,
        augment: Any,
        fields: Sequence[str | FieldSpec] | Mapping[str, str | FieldSpec],
        shuffle: bool | Shuffle,
        drop_last: DropLast | None,
        on_corrupt: Any,
        batch_transforms: Sequence[BatchTransform],
        rank: int | None,
        world_size: int | None,
        **others: Any,
    ) -> "LoaderConfig":
        """The config of a loader, with the defaults that depend on other arguments. The arguments are those of
        `DaliIterator`, each checked by itself.

        Raises:
            ArgumentError: two of them contradict each other. FormatError: there is no packed set.
        """
        dataset = data if isinstance(data, Dataset | Mixture) else Dataset(data)
        image = datasets_of(dataset)[0].manifest.image.name
        of_image, alone = by_pictures(augment, image)
        keys = tuple(fields) if isinstance(fields, Mapping) else None
        wanted = fields.values() if isinstance(fields, Mapping) else fields
        mixing = shuffle if isinstance(shuffle, Shuffle) else None
        if shuffle is True:
            mixing = Shuffle()
        return cls(
            data=dataset,
            augment=of_image,
            alone=alone,
            fields=tuple(wanted),
            keys=keys,
            shuffle=mixing,
            drop_last=mixing is not None if drop_last is None else drop_last,
            on_corrupt=on_corrupt if isinstance(on_corrupt, OnCorrupt) else None,
            batch_transforms=tuple(batch_transforms),
            ranks=find_ranks(rank, world_size),
            **others,
        )

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The data set, or those that are mixed."""
        return datasets_of(self.data)

    @property
    def action(self) -> Literal["raise", "skip", "mark"]:
        """What is done about samples that do not decode."""
        return "raise" if self.on_corrupt is None else self.on_corrupt.action


def datasets_of(data: Dataset | Mixture) -> tuple[Dataset, ...]:
    """The data set, or those that are mixed."""
    return data.datasets if isinstance(data, Mixture) else (data,)
