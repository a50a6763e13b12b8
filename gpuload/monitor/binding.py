"""The stage that limits the speed of a run, and advice."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuload.store.url import URL

# training: the training loop itself, which is the goal. download: downloading shards from a URL. disk: reading shards
# into memory. read: locating samples in them and drawing their augmentation. decode: pixels. function: a function of
# `transforms.Function`. hand_over: fields, batch transforms, arrays of the user's library. none: no batches yet.
Stage = Literal["none", "training", "download", "disk", "read", "decode", "function", "hand_over"]

# Below this share of waiting, training is not limited: an epoch's first batches alone cost that much.
WAIT_SHARE = 0.1
# The read-ahead thread is busy for a few thousandths of the time if the shards are in memory (10 ms a GiB), and all the
# time if the disk is the bottleneck.
DISK_SHARE = 0.8
# The share of training's wait for reading that reading itself waited for downloads. Reading is some batches ahead of
# training, so the two do not cover the same batches.
DOWNLOAD_SHARE = 0.5


def binding_stage(
    seconds: float,
    wait_read_s: float,
    wait_decode_s: float,
    hand_over_s: float,
    disk_s: float,
    decode_s: float = 0.0,
    function_s: float = 0.0,
    download_s: float = 0.0,
) -> Stage:
    """The limiting stage: training, unless it waited for at least 10 % of these seconds.

    Otherwise it is downloading, if training mostly waited for reading and reading for downloads; the disk, if the
    read-ahead thread was busy for 80 % of the time and training did not mostly wait for its own hand-over; or else the
    stage that training waited for longest. A function counts as part of decoding: it is the limiting stage if its work
    took longer than decoding, or, if that is unknown, than half of the time.
    """
    waited = wait_read_s + wait_decode_s + hand_over_s
    if seconds <= 0:
        return "none"
    if not waited or waited < WAIT_SHARE * seconds:
        return "training"
    if hand_over_s > max(wait_read_s, wait_decode_s):
        return "hand_over"
    if wait_read_s > wait_decode_s and download_s > DOWNLOAD_SHARE * wait_read_s:
        return "download"
    if disk_s >= DISK_SHARE * seconds:
        return "disk"
    if wait_read_s > wait_decode_s:
        return "read"
    return "function" if function_s > (0.5 * seconds if math.isnan(decode_s) else decode_s) else "decode"


@dataclass(frozen=True)
class Setup:
    """The settings of a loader that advice depends on. cores: that it may use. device: as torch names it."""

    folder: Path | URL
    decoder: str
    device: str
    num_threads: int
    cores: int
    batch_size: int


_ADVICE: dict[Stage, str] = {
    "download": "Shards do not come from the URL any faster. On several nodes use Shuffle(lanes=...), so that each "
    "downloads its share; otherwise use a nearby server, a cache that holds the set, or `python -m gpuload fetch`",
    "disk": "The shards do not come from the disk any faster. Put them on a faster one, such as a local NVMe drive, or "
    "pack smaller images (`python -m gpuload pack --encode jpeg --size 256`)",
    "read": "One thread finds the samples and draws their augmentation. Raise batch_size={0.batch_size}, ask for fewer "
    "fields, or use fewer views and transforms",
    "hand_over": "Fields and batch_transforms are computed in the training loop's own thread. Leave out those that are "
    "not used, or do their work on the device",
    "function": "The function of an Augment takes most of the time. Raise num_threads; where it holds Python's "
    "lock, use Function(f, processes={0.cores}); or use one of gpuload.transforms in its place",
}


def advice(stage: Stage, setup: Setup) -> str:
    """Advice for a limiting stage: one or two sentences."""
    if stage == "decode":
        return _advice_on_decoding(setup)
    return _ADVICE.get(stage, "Nothing needs to be changed in the loader").format(setup)


def _advice_on_decoding(setup: Setup) -> str:
    smaller = "pack smaller images (`python -m gpuload pack --encode jpeg --size 256`)"
    if setup.device != "cpu":
        return (
            f"`python -m gpuload tune {setup.folder} --device cuda` finds the best num_threads, prefetch and "
            f"decoder; or {smaller}"
        )
    if setup.decoder != "native":
        return f"On a CPU decoder='native' is faster; or {smaller}"
    if setup.num_threads < setup.cores:
        return f"Raise num_threads={setup.num_threads}: this process may use {setup.cores} cores; or {smaller}"
    return (
        f"All {setup.cores} cores that this process may use decode. Give it more, decode on a GPU, or {smaller}; "
        "OMP_NUM_THREADS=1 keeps torch's threads from competing with the decoder"
    )
