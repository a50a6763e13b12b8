"""Translates timm's automatic policies, without importing timm."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuload.errors import ArgumentError
from gpuload.transforms import TimmAutoAugment
from gpuload.transforms.timm import FARTHEST, FARTHEST_MIXED, TIMM_POLICIES, read_config

POLICIES = ("timm's RandAugment", "timm's AutoAugment", "timm's AugMixAugment")
_CHOICES = ("", "-inc1", "-tweights", "-t3aw", "-t3a")  # of changes, in RandAugment


def policy_of(step: Any) -> TimmAutoAugment:
    """What one of timm's objects does, by the text that makes it.

    Raises:
        ArgumentError: it was made by hand, of other changes, or with options that have no counterpart.
    """
    is_auto, is_mixed = hasattr(step, "policy"), hasattr(step, "blended")
    ops = [op for pair in step.policy for op in pair] if is_auto else list(step.ops)
    first = ops[0]
    share = FARTHEST_MIXED if is_mixed else FARTHEST
    if getattr(step, "blended", False) or first.kwargs["resample"] == 0:
        raise _refused(step, "blends step by step (b1), or takes the nearest pixel")
    if any("Translate" in op.name for op in ops) and first.hparams.get("translate_pct", FARTHEST) != share:
        raise _refused(step, f"translates by other shares of the side than {share}")
    spread = first.magnitude_std
    config = f"-mstd{101 if spread == np.inf else spread}"
    if is_auto:
        config = _policy(step) + config
    elif is_mixed:
        depth = f"-d{step.depth}" if step.depth > 0 else ""
        config = f"augmix-m{first.magnitude}-w{step.width}{depth}-a{step.alpha}{'' if spread == np.inf else config}"
    else:
        config = f"rand-m{first.magnitude}-n{step.num_layers}-p{first.prob}-mmax{first.magnitude_max or 10}{config}"
        config += _choice(step, [op.name for op in ops])
    return TimmAutoAugment(config, tuple(first.kwargs["fillcolor"]))


def _policy(step: Any) -> str:
    for name, pairs in TIMM_POLICIES.items():
        # Where a change has no magnitude, timm's have one without effect.
        same = (
            (ours.name, ours.p) == (op.name, op.prob) and ours.magnitude in (None, op.magnitude)
            for pair, given in zip(pairs, step.policy, strict=True)
            for ours, op in zip(pair, given, strict=True)
        )
        if list(map(len, pairs)) == list(map(len, step.policy)) and all(same):
            return name
    raise _refused(step, "has a policy of its own")


def _choice(step: Any, names: Sequence[str]) -> str:
    for choice in _CHOICES:
        weights = read_config(f"rand{choice}").weights
        shares = np.array(list(weights.values())) / sum(weights.values())
        theirs = step.choice_weights if step.choice_weights is not None else np.full(len(names), 1 / len(names))
        if list(weights) == names and np.allclose(shares, theirs):
            return choice
    raise _refused(step, "chooses among changes of its own")


def _refused(step: Any, why: str) -> ArgumentError:
    return ArgumentError(
        f"Augment.torchvision: timm's {type(step).__name__} {why}, which has no counterpart. Use one of the policies "
        "that timm makes of a text, such as auto_augment='rand-m9-mstd0.5-inc1'"
    )
