"""The DALI graph: that its GPU half can be defined, and what is said where DALI is missing."""

import pytest
from nvidia.dali import Pipeline

from gpuload import Augment
from gpuload.decode.dali.graph import build_graph
from gpuload.decode.interface import Stored


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "augments",
    [
        [Augment(8)],
        [Augment(8, crop="center", dtype="uint8", layout="channels_last")],
        [Augment(8, crop="pad_or_crop", vertical_flip=0.5), Augment(4, normalize="image", interpolation="bicubic")],
    ],
)
def test_the_gpu_graph_can_be_defined(augments: list[Augment], raw: bool) -> None:
    """Without a GPU too: DALI checks the names of operators and of their arguments when a graph is defined."""
    forms, stored = [augment.form for augment in augments], Stored(640, 480, raw=raw, mask_fills=(0, 255))
    for device_id, device in ((0, "gpu"), (None, "cpu")):
        with Pipeline(batch_size=4, num_threads=1, device_id=device_id):
            outputs = build_graph(forms, stored, lambda: ())
            assert [output.device for output in outputs] == [device] * 3 * len(forms)
