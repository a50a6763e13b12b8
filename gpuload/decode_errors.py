"""Names the shard and the sample of what does not decode."""

from collections.abc import Sequence

import numpy as np

from gpuload.counted import counted
from gpuload.decode.interface import BatchDecodeError
from gpuload.disk.dataset import Dataset
from gpuload.errors import DecodeError


def explain(error: BatchDecodeError, datasets: Sequence[Dataset]) -> DecodeError:
    """The user's error for a decoder's. datasets: those that `error.batch.sources` counts."""
    row = error.rows[0]
    dataset, sample = datasets[int(error.batch.sources[row])], int(error.batch.encoded.samples[row])
    shard = dataset.shard_paths[int(np.searchsorted(dataset.first_samples, sample, side="right")) - 1]
    key = dataset.keys([sample])[0]
    if error.reason is not None:
        return DecodeError(
            f"{shard}: the {error.what} of sample {key!r} cannot be used: {error.reason}. Pack it again: "
            "`python -m gpuload pack` leaves out what does not fit, and says so"
        )
    what = "sample" if error.what == "image" else f"the {error.what} of sample"
    others = (
        f", nor {counted(len(error.rows) - 1, 'other does', 'others do')} of its batch" if len(error.rows) > 1 else ""
    )
    return DecodeError(
        f"{shard}: {what} {key!r} does not decode{others}. Pack its images again: `python -m gpuload pack` leaves out "
        "what does not decode, and says so"
    )
