"""The loaders: one task, three of them, reading the same images from the same S3 server.

Nothing here needs gpuload but gpuload's own entry, so that each peer may have an environment of its own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from timing.crops import TorchvisionCrop
from timing.peers import litdata
from timing.stored import stored_samples
from timing.work import Batches, Work

BUCKET = "sets"
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Task(NamedTuple):
    """server: its URL. cache: an empty folder, or that of an earlier process. shard_samples: mean, of a shard.

    window: number of shards whose samples are mixed with one another, where a loader lets one choose.
    """

    server: str
    cache: str
    batch_size: int
    size: int
    threads: int
    window: int
    shard_samples: int

    @property
    def work(self) -> Work:
        """What the crops need."""
        return Work(Path(), self.batch_size, self.size, self.threads, images=0)


@contextmanager
def open_gpuload(task: Task, state: Any = None) -> Iterator[Batches]:
    import gpuload

    os.environ.update(_ENVIRONMENT, AWS_ENDPOINT_URL=task.server)
    with gpuload.DaliIterator(
        gpuload.Dataset(f"s3://{BUCKET}/gpuload/train", cache=task.cache),
        task.batch_size,
        augment=gpuload.Augment(task.size),
        device="cpu",
        num_threads=task.threads,
        shuffle=gpuload.Shuffle(window=task.window),
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        yield loader


def prepare_mosaic(packed: Path, folder: Path, shard_bytes: int) -> None:
    """MDS shards with the stored JPEGs, byte for byte: `bytes`, since `jpeg` would encode them again."""
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(
        out=str(folder), columns=columns, size_limit=shard_bytes, progress_bar=False
    ) as writer:
        for encoded, label in stored_samples(packed):
            writer.write({"image": encoded, "label": label})


@contextmanager
def open_mosaic(task: Task, state: Any = None) -> Iterator[Batches]:
    import simplejpeg
    import torch
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    os.environ.update(_ENVIRONMENT, S3_ENDPOINT_URL=task.server)
    clean_stale_shared_memory()  # left by a process that was killed
    transform = TorchvisionCrop(task.work)

    class Images(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            image = torch.from_numpy(simplejpeg.decode_jpeg(sample["image"])).permute(
                2, 0, 1
            )
            return transform(image), sample["label"]

    dataset = Images(
        remote=f"s3://{BUCKET}/mosaic",
        local=task.cache,
        shuffle=True,
        shuffle_block_size=task.window * task.shard_samples,
        batch_size=task.batch_size,
    )
    # The connection over which the index came would be inherited by all workers, which would get one another's shards.
    for stream in dataset.streams:
        stream._downloader.clean_up()
    loader = StreamingDataLoader(
        dataset,
        batch_size=task.batch_size,
        num_workers=task.threads,
        drop_last=True,
        persistent_workers=True,
    )
    if state is not None:
        loader.load_state_dict(state)
    yield loader
    del loader, dataset
    clean_stale_shared_memory()


def prepare_litdata(packed: Path, folder: Path, shard_bytes: int) -> None:
    litdata.prepare(Work(packed, 0, 0, 1, 0), folder, shard_bytes)


@contextmanager
def open_litdata(task: Task, state: Any = None) -> Iterator[Batches]:
    from litdata.streaming import downloader

    os.environ.update(_ENVIRONMENT)
    # It gives obstore no option for a server without TLS, and would fail.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    source = {"cache_dir": task.cache, "storage_options": {"endpoint_url": task.server}}
    with litdata.open_loader(
        task.work, state=state, input_dir=f"s3://{BUCKET}/litdata", **source
    ) as loader:
        yield loader


class Loader(NamedTuple):
    """what: its title. package, distribution: to import, and for pip. prepare: writes the set in its own format.

    end_s: in which it ends by itself; it leaves shared memory behind where it is killed.
    """

    what: str
    open: Callable[..., Any]
    package: str
    distribution: str
    prepare: Callable[[Path, Path, int], None] | None = None
    end_s: float = 0


LOADERS = {
    "gpuload": Loader("gpuload", open_gpuload, "gpuload", "gpuload"),
    "mosaic": Loader(
        "MosaicML Streaming",
        open_mosaic,
        "streaming",
        "mosaicml-streaming",
        prepare_mosaic,
        15,
    ),
    "litdata": Loader("LitData", open_litdata, "litdata", "litdata", prepare_litdata),
}
