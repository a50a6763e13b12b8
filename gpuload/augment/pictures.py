"""The views of further pictures of a sample: what moves with its image, and what moves alone.

A picture that moves with another one shows the same part of the scene, whatever its size: its crop is that of the other
picture in relative coordinates, and its flips and warps are the same.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuload.augment.augment import Augment
from gpuload.augment.views import Form, View
from gpuload.errors import ArgumentError
from gpuload.fields.images import Pixels
from gpuload.fields.motion import Crops
from gpuload.fields.rows import Ragged, take
from gpuload.transforms.steps import Steps, is_affine, is_mixed, is_warp, join
from gpuload.transforms.warps import mask_steps
from gpuload.types import F64, I32, I64, Bools, HeightWidth

Colors = Literal["same", "own", "none"]

_NAMED_VIEW = 1 << 40  # above the numbers of the views of images
_MOST_IN_LIST = 20  # bits of the number of a picture in a list
_WHOLE = 1e-6  # how far a number of pixels may be from a whole one, by rounding


# By the name of a picture, one view for each `Augment`; of a list of pictures, with a row for each picture.
Views = dict[str, tuple[View, ...] | Ragged[tuple[View, ...]]]

# By the name of a picture, int64 (N, 2), height and width of each in pixels; of a list, with a row for each picture.
Sizes = dict[str, I64 | Ragged[I64]]


class DrawnViews(NamedTuple):
    """The views of N samples while they are made, picture by picture.

    Attributes:
        seed: Of the pass.
        epoch: Of the pass.
        samples: int64 (N,), sample indices in stored order.
        repeats: int64 (N,), how often each sample came before in this pass; None: never.
        augments: Of the image, one for each view.
        views: Of the pictures whose views are made; at first, of the image.
        sizes: Of these, and of the picture that is moved next.
    """

    seed: int
    epoch: int
    samples: I64
    repeats: I64 | None
    augments: Sequence[Augment]
    views: Views
    sizes: Sizes

    def draw(
        self, name: str, augments: Sequence[Augment], first_view: int
    ) -> tuple[View, ...]:
        """Views of a picture that moves by itself.

        Args:
            name: Of the picture, whose sizes are known.
            augments: One for each view.
            first_view: The number of the first view, by which its draws differ from others.
        """
        heights: I32
        widths: I32
        heights, widths = self.sizes_of(name).astype(np.int32).T
        return tuple(
            augment.draw(
                self.seed, self.epoch, self.samples, widths, heights, view, self.repeats
            )
            for view, augment in enumerate(augments, first_view)
        )

    def with_picture(
        self, picture: "MovedPicture", sizes: I64 | Ragged[I64]
    ) -> "DrawnViews":
        """These with the views of a further picture.

        Args:
            picture: It.
            sizes: Of its pictures.
        """
        before = self._replace(sizes={**self.sizes, picture.name: sizes})
        views: Any = picture.move(before)
        if isinstance(sizes, Ragged):
            views = Ragged(sizes.counts, views)
        return before._replace(views={**self.views, picture.name: views})

    def views_of(self, name: str) -> tuple[View, ...]:
        """The views of a picture that each sample has one of."""
        views = self.views[name]
        assert not isinstance(views, Ragged)
        return views

    def rows_of(self, name: str) -> tuple[View, ...]:
        """The views of a picture, or of a list, with a row for each of its pictures."""
        views = self.views[name]
        return views.content if isinstance(views, Ragged) else views

    def sizes_of(self, name: str) -> I64:
        """int64 (N, 2): the sizes of a picture that each sample has one of."""
        sizes = self.sizes[name]
        assert not isinstance(sizes, Ragged)
        return sizes

    def of_list(self, name: str, *, apart: bool) -> "DrawnViews":
        """These with a row for each picture of a list in place of each sample. Lists of which each sample has as
        many pictures become pictures of these rows.

        Args:
            name: Of the list, whose sizes become those of a picture of this name.
            apart: Whether what is drawn differs between the pictures of a sample.
        """
        pictures = self.sizes[name]
        assert isinstance(pictures, Ragged)
        rows = pictures.samples
        repeats = None if self.repeats is None else self.repeats[rows]
        if apart:
            before = 0 if repeats is None else repeats << _MOST_IN_LIST
            repeats = pictures.positions + before
        sizes: Sizes = {name: pictures.content}
        views: Views = {}
        for other, of_other in self.views.items():
            sizes_of_other = self.sizes[other]
            if not isinstance(of_other, Ragged):
                views[other] = take(of_other, rows)
                sizes[other] = take(sizes_of_other, rows)
            elif np.array_equal(of_other.counts, pictures.counts):
                assert isinstance(sizes_of_other, Ragged)
                views[other] = of_other.content
                sizes[other] = sizes_of_other.content
        return self._replace(
            samples=self.samples[rows], repeats=repeats, views=views, sizes=sizes
        )


class MovedPicture(ABC):
    """A picture of a sample besides its image.

    Attributes:
        name: Of the field.
        swapped_with: The picture with which it changes places where that one is flipped left to right; "" for none.
    """

    name: str
    swapped_with: str = ""

    @abstractmethod
    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """The picture's views of a batch, one for each view of the image."""

    @abstractmethod
    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """What decoders are built for.

        Args:
            leaders: The forms of other pictures, by name.
        """

    @abstractmethod
    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """(height, width) of each of its views in pixels, where it is largest.

        Args:
            leaders: Those of other pictures, by name.
        """


class MovedMask(MovedPicture):
    """A mask of the image's size, of which each pixel is a class.

    Args:
        name: Of the field.
        image: The name of the image.
        fill: The class outside of the image.
    """

    def __init__(self, name: str, image: str, fill: int) -> None:
        self.name = name
        self._image = image
        self._fill = fill

    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """As `MovedPicture.output_sizes`."""
        return leaders[self._image]

    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """As `MovedPicture.move`."""
        return tuple(self._moved(view) for view in drawn.views_of(self._image))

    def _moved(self, view: View) -> View:
        steps = None if view.steps is None else mask_steps(view.steps, self._fill)
        return view._replace(steps=steps, erased=None)

    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """As `MovedPicture.forms`."""
        return tuple(
            values_form(form, "nearest", self._fill)._replace(
                dtype="uint8", transforms=form.transforms, function=form.function
            )
            for form in leaders[self._image]
        )


def values_form(
    leader: Form, interpolation: Literal["nearest", "bilinear"], fill: int = 0
) -> Form:
    """The form of a picture whose values stay what they are, and which moves as another one.

    Args:
        leader: The form of the other picture.
        interpolation: How its values are taken.
        fill: What is outside of the picture.
    """
    return leader._replace(
        dtype="float32",
        layout="NCHW",
        interpolation=interpolation,
        normalize="levels",
        mean=(0.0,),
        std=(1.0,),
        fill=fill,
        transforms=False,
        erases=False,
        function="",
        ops=(),
    )


class Follower(MovedPicture):
    """A picture that moves as another one does.

    Args:
        name: Of the field.
        like: The name of the other picture.
        scale: Pixels of the output, along each side, for each pixel of the other picture's output.
        colors: Whether changes of colour are the same as those of the other picture, drawn for this one, or left out.
        form: Makes the form for a view, of that of the other picture.
        swapped: Whether the two change places where the other one is flipped left to right, as left and right views.
    """

    def __init__(
        self,
        name: str,
        like: str,
        scale: float,
        colors: Colors,
        form: "FormOf",
        swapped: bool = False,
    ) -> None:
        self.name = name
        self.swapped_with = like if swapped else ""
        self.like = like
        self._scale = scale
        self._colors = colors
        self._form = form

    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """As `MovedPicture.forms`."""
        forms = leaders[self.like]
        if self._scale != 1 and any(form.sizes != "one" for form in forms):
            raise ArgumentError(
                f"{self.name!r}: scale={self._scale:g} needs images of one size, thus Augment(size=…)"
            )
        return tuple(map(self._form.of, forms))

    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """As `MovedPicture.output_sizes`."""
        scale = self._scale
        return tuple(
            (round(height * scale), round(width * scale))
            for height, width in leaders[self.like]
        )

    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """As `MovedPicture.move`."""
        leaders = drawn.sizes_of(self.like)
        sizes = drawn.sizes_of(self.name)
        views = []
        for number, view in enumerate(drawn.views_of(self.like)):
            if self._scale != 1:
                self._check_scale(drawn, view, leaders, sizes)
            moved = followed(view, leaders, sizes, self._scale, self._form.reach)
            steps = self._steps(drawn, number, view)
            views.append(moved._replace(steps=steps, erased=None, function=None))
        return tuple(views)

    def _check_scale(
        self, drawn: DrawnViews, view: View, leaders: I64, sizes: I64
    ) -> None:
        """Raises ArgumentError where nothing is scaled, and a picture is not `scale` times as large as the other one.

        It would be resized all the same, and be a target that is no longer sharp.
        """
        crops = view.crops
        is_unscaled = (crops.roi_start == 0) & (crops.roi_end == crops.shape)
        is_unscaled &= crops.shape == crops.own_sizes(view.size)
        unlike = (np.abs(sizes - leaders * self._scale) >= 1).any(axis=1)
        wrong = np.flatnonzero(is_unscaled.all(axis=1) & unlike)
        if len(wrong):
            row = wrong[0]
            height, width = sizes[row].tolist()
            high, wide = leaders[row].tolist()
            raise ArgumentError(
                f"{self.name!r} of sample {drawn.samples[row]} is {width} × {height}, and {self.like!r} {wide} × "
                f"{high}, which scale={self._scale:g} does not tell. Crop or resize them before they are "
                "packed, give the right scale, or a crop that resizes, such as 'random'"
            )

    def _steps(self, drawn: DrawnViews, number: int, view: View) -> Steps | None:
        if view.steps is None:
            return None
        if self._form.takes_values:
            return mask_steps(scaled_steps(view.steps, self._scale), 0)
        if self._colors == "same":
            return scaled_steps(view.steps, self._scale)
        moves = scaled_steps(_geometric(view.steps), self._scale)
        if self._colors == "none":
            return moves
        colors = drawn.augments[number].draw_transforms(
            drawn.seed,
            drawn.epoch,
            drawn.samples,
            view_of(self.name, number),
            drawn.repeats,
        )
        if colors is None:
            return moves
        return join([_without_moves(colors), moves])


class FormOf(NamedTuple):
    """How the form of a picture follows from that of the one that it moves with.

    Attributes:
        takes_values: Whether its values stay what they are, as those of a depth map.
        interpolation: How it is resized; None: as the other picture.
        pixels: As the picture is stored.
        mean: Of each channel, for `Normalize`; None: as the other picture.
        std: The same.
    """

    takes_values: bool
    interpolation: Literal["nearest", "bilinear", "bicubic"] | None
    pixels: Pixels
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def reach(self) -> int:
        """Of the resize filter, in pixels of the output or of the picture, whichever are larger."""
        return {"nearest": 1, "bilinear": 1, "bicubic": 2, None: 2}[self.interpolation]

    def of(self, leader: Form) -> Form:
        """The form, of that of the other picture."""
        if self.takes_values:
            assert self.interpolation in ("nearest", "bilinear")
            form = values_form(leader, self.interpolation)
            return form._replace(transforms=leader.transforms)
        form = leader._replace(erases=False, function="", patch=0)
        if self.interpolation is not None:
            form = form._replace(interpolation=self.interpolation)
        if self.mean is not None and self.std is not None:
            form = form._replace(mean=self.mean, std=self.std, normalize="constants")
        is_changed = any(form.mean) or any(value != 1 for value in form.std)
        is_normalized = form.normalize == "constants" and form.dtype != "uint8"
        is_normalized = is_normalized and is_changed
        if form.channels != self.pixels.channels and is_normalized:
            raise ArgumentError(
                f"Picture: the constants of normalize are {form.channels} each, and the picture has "
                f"{self.pixels.in_words}. Give Picture(…, normalize=gpuload.Normalize(mean, std))"
            )
        return form.fitted(self.pixels)


class Alone(MovedPicture):
    """A picture with crops, flips and changes of its own.

    Args:
        name: Of the field.
        augment: Of the picture, in all epochs.
        views: The number of views of the image.
    """

    def __init__(self, name: str, augment: Augment, views: int) -> None:
        self.name = name
        self._augment = augment
        self._views = views

    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """As `MovedPicture.forms`."""
        return (self._augment.form,) * self._views

    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """As `MovedPicture.output_sizes`."""
        return (max(self._augment.sizes, key=math.prod),) * self._views

    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """As `MovedPicture.move`."""
        augments = [self._augment] * self._views
        return drawn.draw(self.name, augments, view_of(self.name, 0))


class AsImage(MovedPicture):
    """A picture with crops, flips and changes of its own, drawn as those of the image are.

    Args:
        name: Of the field.
        image: The name of the image.
        form: Makes the form for a view, of that of the image.
    """

    def __init__(self, name: str, image: str, form: "FormOf") -> None:
        self.name = name
        self._image = image
        self._form = form

    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """As `MovedPicture.forms`."""
        return tuple(map(self._form.of, leaders[self._image]))

    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """As `MovedPicture.output_sizes`."""
        return leaders[self._image]

    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """As `MovedPicture.move`."""
        first_view = view_of(self.name, 0)
        views = drawn.draw(self.name, drawn.augments, first_view)
        return tuple(view._replace(erased=None, function=None) for view in views)


# Of int64 (N,), the pictures that samples have: how many of each are taken, and the numbers of these.
Choice = Callable[[I64], tuple[I64, I64]]


class MovedList(MovedPicture):
    """A list of pictures, each of which moves as a picture of its sample does, or by itself.

    Args:
        picture: How each of them moves.
        choice: Which of them are taken.
        geometry: As of `Pictures`.
        colors: As of `Pictures`.
    """

    def __init__(
        self,
        picture: MovedPicture,
        choice: Choice,
        geometry: Literal["shared", "own"],
        colors: Literal["same", "own", "each", "none"],
    ) -> None:
        self.name = picture.name
        self.swapped_with = picture.swapped_with
        self._picture = picture
        self._choice = choice
        self._geometry = geometry
        self._colors = colors

    @property
    def like(self) -> str:
        """The picture with which they move; their own name, where each moves by itself."""
        return getattr(self._picture, "like", self.name)

    def forms(self, leaders: Mapping[str, tuple[Form, ...]]) -> tuple[Form, ...]:
        """As `MovedPicture.forms`."""
        return self._picture.forms(leaders)

    def choose(self, counts: I64) -> tuple[I64, I64]:
        """Which pictures of each sample are taken, as `Pictures.chosen` says."""
        return self._choice(counts)

    def output_sizes(
        self, leaders: Mapping[str, tuple[HeightWidth, ...]]
    ) -> tuple[HeightWidth, ...]:
        """As `MovedPicture.output_sizes`."""
        return self._picture.output_sizes(leaders)

    def move(self, drawn: DrawnViews) -> tuple[View, ...]:
        """Views with a row for each picture of the list."""
        is_own = self._geometry == "own"
        is_each = self._colors == "each"
        apart = is_own or is_each
        views = self._picture.move(drawn.of_list(self.name, apart=apart))
        if is_each or not is_own:
            return views
        together = self._picture.move(drawn.of_list(self.name, apart=False))
        pairs = zip(views, together, strict=True)
        return tuple(self._recoloured(view, shared) for view, shared in pairs)

    def _recoloured(self, view: View, shared: View) -> View:
        """A view whose pictures move by themselves, with changes of colour drawn for all of a sample, or without."""
        if view.steps is None:
            return view
        moves = _geometric(view.steps)
        if self._colors == "none":
            return view._replace(steps=moves)
        assert shared.steps is not None
        return view._replace(steps=join([_without_moves(shared.steps), moves]))


def view_of(name: str, number: int) -> int:
    """The number by which the draws of a picture differ from those of the image and of other pictures.

    Args:
        name: Of the picture: so its draws do not depend on which others are loaded.
        number: Of the view.
    """
    return _NAMED_VIEW | zlib.crc32(name.encode()) << 8 | number


def _geometric(steps: Steps) -> Steps:
    """Only the steps that move whole images."""
    moves = (is_warp(steps.ops) | is_affine(steps.ops)) & ~is_mixed(steps.ops)
    return Steps(np.where(moves, steps.ops, np.int8(0)), steps.args)


def _without_moves(steps: Steps) -> Steps:
    """Only the steps that leave pixels where they are."""
    moves = is_warp(steps.ops) | is_affine(steps.ops)
    return Steps(np.where(moves, np.int8(0), steps.ops), steps.args)


def scaled_steps(steps: Steps, scale: float) -> Steps:
    """The steps of images, for outputs that are so many times as high and as wide."""
    if scale == 1:
        return steps
    args = steps.args.copy()
    affine = is_affine(steps.ops)
    for shift in (2, 5):  # of the matrices (2, 3) and (3, 3), row by row
        args[affine, shift] *= scale
    warps = is_warp(steps.ops)
    for shift in (2, 5):
        args[warps, shift] *= scale
    for perspective in (6, 7):
        args[warps, perspective] /= scale
    return Steps(steps.ops, args)


def followed(
    view: View, leaders: I64, sizes: I64, scale: float = 1, reach: int = 1
) -> View:
    """The view of pictures that show what others do.

    Args:
        view: Of the others.
        leaders: int64 (N, 2), height and width of the others.
        sizes: int64 (N, 2), of these.
        scale: Pixels of the output for each pixel of the others' output.
        reach: As `FormOf.reach`.
    """
    if scale == 1 and np.array_equal(leaders, sizes):
        return view
    crops = view.crops
    outputs = np.rint(crops.own_sizes(view.size) * scale)
    ratio = sizes / leaders
    first_corners, last_corners = crops.edges
    first = first_corners * ratio
    last = last_corners * ratio
    is_unscaled = _is_whole(first) & _is_whole(last - first - outputs)
    is_unscaled &= np.abs(last - first - outputs) < _WHOLE
    is_unscaled = is_unscaled.all(axis=1, keepdims=True)
    first = np.where(is_unscaled, np.rint(first), first)
    last = np.where(is_unscaled, first + outputs, last)
    moved = _crops_of(crops, first, last, outputs, sizes, reach)
    if scale == 1:
        is_alike = (leaders == sizes).all(axis=1)
        moved = _with_windows_of(crops, moved, is_alike, sizes)
    frame = view.frame
    if not isinstance(frame, int):
        frame = round(frame[0] * scale), round(frame[1] * scale)
    return view._replace(frame=frame, crops=moved)


def _is_whole(numbers: F64) -> np.ndarray:
    return np.abs(numbers - np.rint(numbers)) < _WHOLE


def _with_windows_of(crops: Crops, moved: Crops, rows: Bools, sizes: I64) -> Crops:
    """Crops of which some have the windows of others, as far as these lie in the images.

    Args:
        crops: The others.
        moved: The crops.
        rows: bool (N,), which of them.
        sizes: int64 (N, 2), height and width of their images.
    """
    low = np.clip(crops.start.astype(np.int64), 0, sizes - 1)
    high = np.clip(crops.start.astype(np.int64) + crops.shape, low + 1, sizes)
    is_chosen = rows[:, None]
    return moved.within(
        np.where(is_chosen, low, moved.start),
        np.where(is_chosen, high, moved.start.astype(np.int64) + moved.shape),
    )


def _crops_of(
    crops: Crops, first: F64, last: F64, outputs: F64, sizes: I64, reach: int
) -> Crops:
    """Crops of regions whose edges fall between pixels. As of the others, filters use pixels beyond the region only
    where theirs do."""
    is_closed = (crops.roi_start == 0) & (crops.roi_end == crops.shape)
    support = np.where(is_closed, 0, reach * np.maximum((last - first) / outputs, 1))
    low = np.clip(np.floor(np.maximum(first, 0) - support), 0, sizes - 1)
    high = np.clip(np.ceil(np.minimum(last, sizes) + support), low + 1, sizes)
    scaled = None if crops.sizes is None else outputs.astype(np.int64)
    return crops._replace(
        start=low.astype(np.int32),
        shape=(high - low).astype(np.int32),
        roi_start=(first - low).astype(np.float32),
        roi_end=(last - low).astype(np.float32),
        sizes=scaled,
    )
