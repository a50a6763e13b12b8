"""timm's train.py: where it ends its mixup. That it trains and validates: test_two_ranks.py."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small import load

import gpuload


def test_mixup_ends_where_timm_says_so(packed: Path) -> None:
    """timm's train.py: `if loader.mixup_enabled: loader.mixup_enabled = False` from --mixup-off-epoch on."""
    mixers = [gpuload.batchwise.RandomChoice([gpuload.batchwise.MixUp(), gpuload.batchwise.CutMix()])]
    plain, train = load(packed), load(packed, batch_transforms=mixers)
    assert train.mixup_enabled and not plain.mixup_enabled
    mixed = next(iter(train))
    assert (mixed[1].max(dim=1).values < 1).any()
    train.mixup_enabled = False
    assert not train.mixup_enabled
    expected = next(iter(plain)), next(iter(plain))
    images, labels = next(iter(train))
    assert torch.equal(images, expected[1][0])
    assert torch.equal(labels, F.one_hot(expected[1][1], 3).float())
    train.mixup_enabled = True
    train.set_epoch(0)
    assert all(map(torch.equal, next(iter(train)), mixed))
    with pytest.raises(gpuload.ArgumentError, match=r"mixup_enabled='off'\): expected True or False"):
        train.mixup_enabled = "off"  # type: ignore[assignment]
