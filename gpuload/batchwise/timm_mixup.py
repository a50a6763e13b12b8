"""timm's MixUp and CutMix: drawn for a whole batch, for pairs or for samples, with smoothed labels."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from gpuload.batchwise.mixers import CutMix, Mix, Mixer, MixUp, RandomChoice
from gpuload.checks import COUNT, LARGEST, PROBABILITY, check_fields, choice, number, optional
from gpuload.draws import Draws
from gpuload.errors import ArgumentError
from gpuload.types import F64

_ALPHA = number(0, LARGEST, "a number from 0 on; 0 is never")


class _WholeBox(CutMix):
    def reach(self, sides: F64) -> tuple[F64, F64]:
        whole = np.trunc(sides)
        return whole // 2, (whole + 1) // 2


@dataclass(frozen=True)
class TimmMixup(Mixer):
    """timm's `Mixup`, with its arguments: `TimmMixup(mixup_alpha=0.8, cutmix_alpha=1.0)`.

    The n-th sample of a batch is mixed with the n-th from its end. label_smoothing has timm's default of 0.1 and also
    smooths the labels of samples that are not mixed. As in timm, a box of CutMix may extend beyond the image: its
    label's share is that of the pixels (correct_lam).

    mixup_alpha, cutmix_alpha: of Beta(alpha, alpha); 0 disables MixUp or CutMix.
    prob: probability of mixing. switch_prob: probability of CutMix if both are enabled.
    mode: "batch": one draw for the whole batch, on each rank. "pair": one for two samples that are mixed with each
        other. "elem": one for each sample.
    label_smoothing: share of a label spread evenly over all classes.
    num_classes: by default the number of classes of the data set.  The labels become float32 (N, num_classes); other
        fields do not change.

    Raises:
        ArgumentError: a value out of its range, or both alphas are 0.
    """

    mixup_alpha: float = 1.0
    cutmix_alpha: float = 0.0
    prob: float = 1.0
    switch_prob: float = 0.5
    mode: Literal["batch", "pair", "elem"] = "batch"
    label_smoothing: float = 0.1
    num_classes: int | None = None

    mirrored = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            mixup_alpha=_ALPHA,
            cutmix_alpha=_ALPHA,
            prob=PROBABILITY,
            switch_prob=PROBABILITY,
            mode=choice("batch", "pair", "elem"),
            label_smoothing=PROBABILITY,
            num_classes=optional(COUNT),
        )
        if not (self.mixup_alpha or self.cutmix_alpha):
            raise ArgumentError("TimmMixup(mixup_alpha=0, cutmix_alpha=0): mixes nothing. Give one of them above 0")

    def idle(self) -> "TimmMixup":
        """As `Mixer.idle`; labels stay smooth."""
        return replace(self, prob=0.0)

    def plan(self, draws: Draws, height: int, width: int) -> Mix:
        """As `Mixer.plan`."""
        return self._mixer.plan(lambda number: self._shared(draws(number)), height, width)

    @cached_property
    def _mixer(self) -> Mixer:
        mixers: list[MixUp | CutMix] = []
        if self.mixup_alpha:
            mixers.append(MixUp(self.mixup_alpha, self.prob))
        if self.cutmix_alpha:
            mixers.append(_WholeBox(self.cutmix_alpha, self.prob))
        return mixers[0] if len(mixers) == 1 else RandomChoice(mixers, [1 - self.switch_prob, self.switch_prob])

    def _shared(self, drawn: F64) -> F64:
        """The draws of all samples: those of the first one, or of the first of each pair."""
        if self.mode == "elem" or not len(drawn):
            return drawn
        rows = np.arange(len(drawn))
        shared: F64 = drawn[np.zeros_like(rows) if self.mode == "batch" else np.minimum(rows, rows[::-1])]
        return shared
