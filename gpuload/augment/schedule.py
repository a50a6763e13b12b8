"""The views that are made of each sample, epoch by epoch."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from gpuload.augment.augment import Augment
from gpuload.augment.fit import Constants, check_pixels, pixels_of
from gpuload.augment.views import Form
from gpuload.checks import check, shown, whole
from gpuload.counted import counted
from gpuload.errors import ArgumentError
from gpuload.fields.pixels import RGB, Pixels
from gpuload.types import HeightWidth

Augments = Augment | Sequence[Augment]  # one view of each sample, or several


class Schedule:
    """The views of each epoch.

    augment: one for all images; or several, each of which makes a view of every sample; or a dict of either by the
        first epoch in which it is used: {0: Augment(128), 6: Augment(160), 12: Augment(192)}.
    sizes: of the buckets, where batches have these; the views then have none of their own.
    is_single: one view is made of each sample, whether it was given in a list or not. pixels: of the images in a batch.

    Raises:
        ArgumentError: something that is no Augment; no entry for epoch 0; views that differ in dtype or layout; epochs
            that differ in more than sizes, crops, flips and transforms, which would need another decoder; a view
            without a size and no buckets, or the reverse.
    """

    def __init__(self, augment: Augments | Mapping[int, Augments], sizes: Sequence[HeightWidth] = ()) -> None:
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
                _check_alike(
                    one.form, other.form, f"epochs 0 and {start}", ("flips_vertically", "transforms", "function")
                )
        for view in first[1:]:
            if (view.dtype, view.layout) != (first[0].dtype, first[0].layout):
                raise ArgumentError("augment: its views differ in dtype or layout, which are those of the whole batch")
        self._sizes = tuple(sizes)
        for view in (view for views in self._views for view in views):
            _check_size(view, bool(sizes))
        self.forms = tuple(self._join(number) for number in range(len(first)))

    def fit(self, stored: Pixels, is_raw: bool, mean: Constants = None, std: Constants = None) -> None:
        """Fits it to images that are stored as these pixels. is_raw: not encoded. mean, std: what was measured of them,
        for messages.

        Raises:
            ArgumentError: an `Augment` is for others, has constants of another number, or something that is not defined
                for them.
        """
        self.pixels = pixels_of(self.all_augments(), stored, is_raw)
        for augment in self.all_augments():
            check_pixels(augment, self.pixels, *((mean, std) if self.pixels == stored else (None, None)))
        self.forms = tuple(form.fitted(self.pixels) for form in self.forms)

    def at(self, epoch: int) -> tuple[Augment, ...]:
        """The views of an epoch."""
        return self._views[bisect_right(self._starts, epoch) - 1]

    @property
    def first(self) -> Augment:
        """The first view of epoch 0; dtype and layout are those of all."""
        return self._views[0][0]

    @property
    def has_buckets(self) -> bool:
        """Whether batches have the sizes of buckets."""
        return bool(self._sizes)

    def all_augments(self) -> list[Augment]:
        """Every view of every epoch, in every size."""
        found = [augment for views in self._views for augment in views]
        return [augment.for_size(size) for augment in found for size in self._sizes] if self._sizes else found

    def _join(self, number: int) -> Form:
        """The form of a view, which allows for what any of the epochs needs."""
        forms = [views[number].form for views in self._views]
        return forms[0]._replace(
            flips_vertically=any(form.flips_vertically for form in forms),
            transforms=any(form.transforms for form in forms),
            function=next((form.function for form in forms if form.function), ""),
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


def _check_size(view: Augment, has_buckets: bool) -> None:
    if has_buckets and view.size is not None:
        raise ArgumentError(
            f"augment: has size={view.size}, and buckets= gives the sizes. Leave it out: Augment(crop='cover', ...)"
        )
    if not has_buckets and view.size is None:
        raise ArgumentError("augment: has no size, and there are no buckets. Give Augment(size, ...), or buckets=")


def _check_alike(one: Form, other: Form, which: str, free: tuple[str, ...]) -> None:
    if one.function and other.function and one.function != other.function:
        raise ArgumentError(
            f"augment: {which} differ in function_at ({one.function!r} and {other.function!r}). Use one"
        )
    for name in Form._fields:
        if name not in free and getattr(one, name) != getattr(other, name):
            what = "crop='pad_or_crop' or RandomCrop" if name == "pads" else name
            raise ArgumentError(
                f"augment: {which} differ in {what} ({getattr(one, name)!r} and {getattr(other, name)!r}). Between "
                "epochs sizes, other crops, flips and transforms may change. Or construct another DaliIterator"
            )
