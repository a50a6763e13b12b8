"""Decoders without a data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from made_batches import IMAGE

from gpuload.augment.pictures import MovedMask
from gpuload.decode.device import Device
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import PictureForm, Resources, Stored
from gpuload.decode.open import open_decoder
from gpuload.decode.runner import Runner
from gpuload.fields.images import GRAY


def picture_forms(
    forms: Sequence[Any], stored: Stored, fills: Mapping[str, int] | None = None
) -> tuple[PictureForm, ...]:
    """Of images and of their masks. fills: the class outside of each mask, by name."""
    image = PictureForm(IMAGE, tuple(forms), stored)
    masks = [
        PictureForm(
            name,
            MovedMask(name, IMAGE, fill).forms({IMAGE: image.forms}),
            Stored(plain=stored.plain, pixels=GRAY, source=GRAY, is_mask=True),
        )
        for name, fill in (fills or {}).items()
    ]
    return (image, *masks)


def open_guard(
    name: Any,
    forms: Sequence[Any],
    stored: Stored,
    batch_size: int = 8,
    on_corrupt: Any = "raise",
    fills: Mapping[str, int] | None = None,
    **options: Any,
) -> FaultHandler:
    """fills: as of `picture_forms`. options: of `Resources`, by default two threads and one batch ahead."""
    resources = {"num_threads": 2, "prefetch": 1, "cpu_share": 0.5, **options}
    pictures = picture_forms(forms, stored, fills)
    return open_decoder(name, None, pictures, Resources(batch_size, **resources), None, on_corrupt)


def open_runner(name: Any, forms: Sequence[Any], stored: Stored, batch_size: int = 8, **options: Any) -> Runner:
    """The same, unguarded: DALI meets itself what does not decode."""
    runner = open_guard(name, forms, stored, batch_size, **options).decoder
    assert isinstance(runner, Runner)
    return runner


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is opened from now on goes the way of a GPU, on the CPU."""
    monkeypatch.setattr("gpuload.decode.open.open_device", lambda _: Device(None))
