"""The inpainting task: cuts out the centre of each image."""

from typing import Annotated

from gpuload.batchwise.transforms import BatchForm, FieldBatch, require_fields
from gpuload.checks import LARGEST, SIDES, number, settings, text
from gpuload.errors import ArgumentError
from gpuload.types import HeightWidth


@settings
class CenterHole:
    """The inpainting task: moves the centre of each image to a separate field and leaves a hole in the image.

    size: of the hole in pixels, or (height, width). If the number of remaining pixels is odd, there is one more below
        and to the right of the hole.
    fill: value in the hole, in units of the batch: 0 is the mean of a normalised image; for uint8, the units are 0..255
        and 0 is black.
    target: name of the added field: (N, 3, height, width) of the hole, of the image's dtype.

    Raises:
        ArgumentError: a size that is not positive.
    """

    size: Annotated[int | tuple[int, int], SIDES] = 32
    fill: Annotated[float, number(-LARGEST, LARGEST, "a number in -1e6..1e6")] = 0.0
    target: Annotated[str, text("the name of the field that is added")] = "middle"

    @property
    def adds(self) -> tuple[str, ...]:
        """As `BatchTransform`."""
        return (self.target,)

    @property
    def _hole(self) -> HeightWidth:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError if the hole does not fit into images of this form, or its fill into their dtype."""
        require_fields(self, form, "image")
        height, width = form.image_size
        if self._hole[0] > height or self._hole[1] > width:
            raise ArgumentError(f"{self}: the hole is larger than the image, {height}×{width} pixels (height×width)")
        if form.dtype == "uint8" and self.fill not in range(256):
            raise ArgumentError(f"{self}: the images are uint8; fill must be a whole number in 0..255")

    def __call__(self, batch: FieldBatch) -> None:
        self.check(batch.form)
        images, (height, width) = batch.fields["image"], self._hole
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        middle = images[..., top : top + height, left : left + width]
        batch.fields[self.target] = middle.copy()
        middle[...] = self.fill
