"""The views that are made of each sample, epoch by epoch."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

from gpuload.augment.augment import Augment
from gpuload.augment.views import Form, Measured
from gpuload.checks import check, shown, whole
from gpuload.errors import ArgumentError
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.order.arguments import Buckets
from gpuload.types import HeightWidth

T = TypeVar("T")
Augments = Augment | Sequence[Augment]  # one view of each sample, or several
ByEpoch = Mapping[int, Augments]  # by the first epoch in which they are used
ByPicture = Mapping[str, Augments | ByEpoch]  # by the name of the picture

# What may differ between the forms of epochs.
_FREE = (
    "flips_vertically",
    "transforms",
    "function",
    "ops",
)


class Schedule:
    """The views of each epoch.

    Args:
        augment: One for all images; or several, each of which makes a view of every sample; or a dict of either by the
            first epoch in which it is used: {0: Augment(128), 6: Augment(160), 12: Augment(192)}.

    Attributes:
        pixels: Of the images in a batch.
        is_single: One view is made of each sample, whether it was given in a list or not.
        buckets: Of all views, where batches have their sizes; else None.
        grid: Of the patches that images become, or None.
        flips: Whether images may be flipped left to right.
        functions: Of the user's, each once.
        processes: That call them; 0: threads do.

    Raises:
        ArgumentError: something that is no Augment; no entry for epoch 0; views that differ in dtype or layout; epochs
            that differ in more than sizes, crops, flips and transforms, which would need another decoder; buckets of
            which one has others than another; functions that are called in other numbers of processes.
    """

    def __init__(self, augment: Augments | ByEpoch) -> None:
        by_epoch = _by_first_epoch(augment)
        if 0 not in by_epoch:
            raise ArgumentError(
                f"augment: has epochs {sorted(by_epoch)}, but none for epoch 0, the first"
            )
        self.pixels = RGB
        self._starts = sorted(by_epoch)
        self._views = [by_epoch[start] for start in self._starts]
        count = _shared("the number of views", map(len, self._views))
        self.is_single = count == 1
        self.forms = tuple(
            _join([views[number].form for views in self._views])
            for number in range(count)
        )
        everything = self._all_views()
        self.flips = any(view.flip_share > 0 for view in everything)
        for name in ("dtype", "layout"):
            _shared(name, (getattr(view, name) for view in everything))
        self.buckets = _shared(
            "Buckets",
            (
                view.size if isinstance(view.size, Buckets) else None
                for view in everything
            ),
        )
        self.grid = _shared("Patches", (view.grid for view in everything))
        if self.grid is not None and count > 1:
            raise ArgumentError(
                f"augment: Patches makes one view of each sample, and there are {count}. Use one"
            )
        self._set_functions(everything)

    def _set_functions(self, views: Sequence[Augment]) -> None:
        """Sets the user's functions, and how many processes call them."""
        planned = [view.function for view in views if view.function is not None]
        by_identity = {id(setting.function): setting.function for setting in planned}
        self.functions = tuple(by_identity.values())
        processes = [setting.processes for setting in planned]
        self.processes = _shared("Function(processes)", processes, 0)

    def fitted(self, stored: Pixels, is_raw: bool, measured: Measured) -> "Schedule":
        """The same schedule for images that are stored as these pixels.

        Args:
            stored: Their channels and the range of their values.
            is_raw: Whether they are stored as arrays and not encoded.
            measured: Their mean and std, for messages.

        Raises:
            ArgumentError: an `Augment` is for others, has constants of another number, or something that is not defined
                for them.
        """
        views = self._all_views()
        wanted = Pixels.of_mode(
            _shared("mode", (view.mode or stored.mode for view in views))
        )
        if (
            wanted != stored
            and (stored, wanted) != (RGB, GRAY)
            and ((stored, wanted) != (GRAY, RGB) or is_raw)
        ):
            raise ArgumentError(
                f"Augment(mode={wanted.mode!r}): the images have {stored.in_words} (mode {stored.mode}), which are not "
                f"converted while loading. Leave mode out, or pack them with --mode {wanted.mode}"
            )
        for view in views:
            view.check_pixels(wanted, measured if wanted == stored else (None, None))
        schedule = copy(self)
        schedule.pixels = wanted
        schedule.forms = tuple(form.fitted(wanted) for form in self.forms)
        return schedule

    def at(self, epoch: int) -> tuple[Augment, ...]:
        """The views of an epoch."""
        return self._views[bisect_right(self._starts, epoch) - 1]

    @property
    def first(self) -> Augment:
        """The first view of epoch 0; dtype and layout are those of all."""
        return self._views[0][0]

    @property
    def largest_sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of each view in pixels, of the epoch or bucket in which it is largest."""
        by_view = zip(*self._views, strict=True)
        return tuple(
            max((size for view in views for size in view.sizes), key=math.prod)
            for views in by_view
        )

    def all_augments(self) -> list[Augment]:
        """Every view of every epoch, in every size."""
        views = self._all_views()
        return (
            [view.for_size(size) for view in views for size in view.sizes]
            if self.buckets
            else views
        )

    def _all_views(self) -> list[Augment]:
        return [view for views in self._views for view in views]


def _by_first_epoch(
    augment: Augments | ByEpoch,
) -> dict[int, tuple[Augment, ...]]:
    """The views by the first epoch in which they are made."""
    stages = augment if isinstance(augment, Mapping) else {0: augment}
    return {
        check("augment", "epoch", epoch, whole(0)): _views(views)
        for epoch, views in stages.items()
    }


def _views(augment: Any) -> tuple[Augment, ...]:
    views = tuple(augment) if isinstance(augment, list | tuple) else (augment,)
    for view in views or [augment]:
        if not isinstance(view, Augment):
            raise ArgumentError(
                f"augment={shown(view)}: expected a gpuload.Augment, at least one, or a dict of them by epoch. "
                "Augment.torchvision(...) reads torchvision's transforms"
            )
    return views


def _join(forms: Sequence[Form]) -> Form:
    """The form of a view, which allows for what any of the epochs needs."""
    for name in Form._fields:
        if name not in _FREE:
            _shared(name, (getattr(form, name) for form in forms))
    return forms[0]._replace(
        flips_vertically=any(form.flips_vertically for form in forms),
        transforms=any(form.transforms for form in forms),
        function=_shared(
            "Function(before_crop)",
            (form.function for form in forms if form.function),
            "",
        ),
        ops=tuple(sorted({code for form in forms for code in form.ops})),
    )


def _shared(what: str, values: Iterable[T], *default: T) -> T:
    """The value that all have, or the default where there are none.

    Raises:
        ArgumentError: they differ.
    """
    first, *others = dict.fromkeys(values) or default
    if others:
        raise ArgumentError(
            f"augment: {what} differs, {' and '.join(map(repr, (first, *others)))}. Use the same in all views and "
            "epochs; between epochs sizes, crops that do not pad, flips and transforms may change"
        )
    return first
