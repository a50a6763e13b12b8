"""The views that are made of each sample, epoch by epoch."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from gpuload.augment.augment import Augment
from gpuload.augment.views import Form, pixels_of
from gpuload.checks import check, shown, whole
from gpuload.counted import counted
from gpuload.errors import ArgumentError
from gpuload.fields.images import RGB, Pixels
from gpuload.order.arguments import Buckets

Augments = Augment | Sequence[Augment]  # one view of each sample, or several

_FREE = ("flips_vertically", "transforms", "function", "ops")  # what may differ between the forms of epochs


class Schedule:
    """The views of each epoch.

    augment: one for all images; or several, each of which makes a view of every sample; or a dict of either by the
        first epoch in which it is used: {0: Augment(128), 6: Augment(160), 12: Augment(192)}.
    buckets: of all views, where batches have their sizes; else None.
    is_single: one view is made of each sample, whether it was given in a list or not. pixels: of the images in a batch.
    functions: of the user's, each once. processes: that call them; 0: threads do.

    Raises:
        ArgumentError: something that is no Augment; no entry for epoch 0; views that differ in dtype or layout; epochs
            that differ in more than sizes, crops, flips and transforms, which would need another decoder; buckets of
            which one has others than another; functions that are called in other numbers of processes.
    """

    def __init__(self, augment: Augments | Mapping[int, Augments]) -> None:
        given = augment if isinstance(augment, Mapping) else {0: augment}
        by_epoch = {check("augment", "epoch", epoch, whole(0)): views for epoch, views in given.items()}
        if 0 not in by_epoch:
            raise ArgumentError(f"augment: has epochs {sorted(by_epoch)}, but none for epoch 0, the first")
        self.pixels = RGB
        self._starts = sorted(by_epoch)
        self._views = [_views(by_epoch[start]) for start in self._starts]
        first = self._views[0]
        self.is_single = len(first) == 1
        for start, views in zip(self._starts, self._views, strict=True):
            if len(views) != len(first):
                raise ArgumentError(f"augment: epoch {start} makes {counted(len(views), 'view')}, epoch 0 {len(first)}")
            for one, other in zip(first, views, strict=True):
                _check_alike(one.form, other.form, f"epochs 0 and {start}")
        for view in first[1:]:
            if (view.dtype, view.layout) != (first[0].dtype, first[0].layout):
                raise ArgumentError("augment: its views differ in dtype or layout, which are those of the whole batch")
        everything = [view for views in self._views for view in views]
        sizes = {view.size if isinstance(view.size, Buckets) else None for view in everything}
        if len(sizes) > 1:
            raise ArgumentError(
                "augment: its views differ in their Buckets, which are those of the whole batch. Use the same for all"
            )
        (self.buckets,) = sizes
        functions = [own for view in everything if (own := view.function) is not None]
        if len(processes := {one.processes for one in functions}) > 1:
            found = " and ".join(f"processes={count}" for count in sorted(processes))
            raise ArgumentError(f"augment: has Functions with {found}. Use the same for all of them")
        self.functions = tuple({id(one.function): one.function for one in functions}.values())
        self.processes = max(processes, default=0)
        self.forms = tuple(self._join(number) for number in range(len(first)))

    def fit(self, stored: Pixels, is_raw: bool, measured: tuple[Any, Any]) -> None:
        """Fits it to images that are stored as these pixels.

        is_raw: not encoded. measured: their mean and std, for messages.

        Raises:
            ArgumentError: an `Augment` is for others, has constants of another number, or something that is not defined
                for them.
        """
        views = [view for views in self._views for view in views]
        self.pixels = pixels_of([view.mode for view in views], stored, is_raw)
        for view in views:
            view.check_pixels(self.pixels, measured if self.pixels == stored else (None, None))
        self.forms = tuple(form.fitted(self.pixels) for form in self.forms)

    def at(self, epoch: int) -> tuple[Augment, ...]:
        """The views of an epoch."""
        return self._views[bisect_right(self._starts, epoch) - 1]

    @property
    def first(self) -> Augment:
        """The first view of epoch 0; dtype and layout are those of all."""
        return self._views[0][0]

    def all_augments(self) -> list[Augment]:
        """Every view of every epoch, in every size."""
        views = [view for views in self._views for view in views]
        return [view.for_size(size) for view in views for size in view.sizes] if self.buckets else views

    def _join(self, number: int) -> Form:
        """The form of a view, which allows for what any of the epochs needs."""
        forms = [views[number].form for views in self._views]
        return forms[0]._replace(
            flips_vertically=any(form.flips_vertically for form in forms),
            transforms=any(form.transforms for form in forms),
            function=next((form.function for form in forms if form.function), ""),
            ops=tuple(sorted({code for form in forms for code in form.ops})),
        )


def _views(augment: Augments) -> tuple[Augment, ...]:
    views = tuple(augment) if isinstance(augment, list | tuple) else (augment,)
    for view in views:
        if not isinstance(view, Augment):
            raise ArgumentError(
                f"augment={shown(view)}: expected a gpuload.Augment, several, or a dict of them by epoch. "
                "Augment.torchvision(...) reads torchvision's transforms"
            )
    if not views:
        raise ArgumentError(f"augment={augment!r}: expected at least one Augment")
    return views


def _check_alike(one: Form, other: Form, which: str) -> None:
    if one.function and other.function and one.function != other.function:
        raise ArgumentError(
            f"augment: {which} differ in Function(before_crop), {one.function!r} and {other.function!r}. Use one"
        )
    for name in Form._fields:
        if name not in _FREE and getattr(one, name) != getattr(other, name):
            what = "PadOrCrop or RandomCrop" if name == "pads" else "crops that pad" if name == "places" else name
            raise ArgumentError(
                f"augment: {which} differ in {what} ({getattr(one, name)!r} and {getattr(other, name)!r}). Between "
                "epochs sizes, other crops, flips and transforms may change. Or construct another DaliIterator"
            )
