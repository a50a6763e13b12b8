"""Which images are made of each sample, and how, in which epoch."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from gpuload.augment import Augment, Form
from gpuload.errors import ArgumentError

Views = Augment | Sequence[Augment]


class Schedule:
    """The views of each epoch.

    augment: one for all images; or several, each of which makes a view of every sample; or either of them by the epoch
        from which on it holds: {0: Augment(128), 6: Augment(160), 12: Augment(192)}.

    Raises:
        ArgumentError: no entry for epoch 0; views that make no common batch; epochs that differ in more than sizes,
            crops, flips and transforms, for which the decoder would have to be built anew.
    """

    def __init__(self, augment: Views | Mapping[int, Views]) -> None:
        by_epoch = dict(sorted(augment.items())) if isinstance(augment, Mapping) else {0: augment}
        if 0 not in by_epoch:
            raise ArgumentError(f"augment: has epochs {list(by_epoch)}, but none for epoch 0, the first")
        self.is_single = isinstance(by_epoch[0], Augment)
        self._starts = list(by_epoch)
        self._views = [(views,) if isinstance(views, Augment) else tuple(views) for views in by_epoch.values()]
        first = self._views[0]
        if not first:
            raise ArgumentError("augment=[]: expected at least one Augment")
        for start, views in zip(self._starts, self._views, strict=True):
            if len(views) != len(first) or isinstance(by_epoch[start], Augment) != self.is_single:
                raise ArgumentError(f"augment: epoch {start} makes {len(views)} views, epoch 0 {len(first)}")
            for one, other in zip(first, views, strict=True):
                _check_alike(one.form, other.form, f"epochs 0 and {start}", ("flips_vertically", "transforms"))
        for view in first[1:]:
            if (view.dtype, view.layout) != (first[0].dtype, first[0].layout):
                raise ArgumentError("augment: its views differ in dtype or layout, which are those of the whole batch")
        self.forms = tuple(self._join(number) for number in range(len(first)))

    def at(self, epoch: int) -> tuple[Augment, ...]:
        return self._views[bisect_right(self._starts, epoch) - 1]

    @property
    def first(self) -> Augment:
        return self._views[0][0]

    def all_augments(self) -> list[Augment]:
        return [augment for views in self._views for augment in views]

    def _join(self, number: int) -> Form:
        """A view's form, able to do what any of the epochs asks for."""
        forms = [views[number].form for views in self._views]
        return forms[0]._replace(
            flips_vertically=any(form.flips_vertically for form in forms),
            transforms=any(form.transforms for form in forms),
        )


def _check_alike(one: Form, other: Form, which: str, free: tuple[str, ...]) -> None:
    for name in Form._fields:
        if name not in free and getattr(one, name) != getattr(other, name):
            raise ArgumentError(
                f"augment: {which} differ in {name} ({getattr(one, name)!r} and {getattr(other, name)!r}). Between "
                "epochs sizes, crops, flips and transforms may change, or construct another DaliIterator"
            )
