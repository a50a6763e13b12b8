"""Your own functions, called for each sample on the CPU: `Augment(224, transforms=[Function(f)])`.

    def f(sample, rng):
        return np.rot90(sample["image"], rng.integers(4))

    augment = gpuload.Augment(224, transforms=[gpuload.transforms.Function(f)])
    loader = gpuload.DaliIterator("shards/train", 256, augment=augment)

`sample` is a dict of the requested fields as NumPy arrays, which the function may modify during the call:

    "image"                   uint8 (height, width, 3), RGB; of a set of another mode its type and channels
    "boxes", "boxes_class"    float32 (M, 4), x0, y0, x1, y1 in pixels of the image, and int64 (M,), their class numbers
    "mask"                    uint8 (height, width)
    "keypoints"               float32 (M, K, 3), x, y, visibility of K points of each of M instances
    "key", "index"            str and int
    "right", "depth", …       further pictures, cropped: colours as the image; maps with the values of a batch, float32
                              (height, width) or (height, width, C); lists of them with their number before these sides

Fields packed under other names keep those names. The function returns the new image, a dict of the entries that it
changed, or `sample` itself; omitted entries do not change. Draw random numbers from `rng`, a `numpy.random.Generator`
whose key is a pure function of (seed, epoch, sample, view): the results then do not depend on threads, processes, ranks
or batch size, and are the same after a resume. The generator is Philox4x64-10, whose bits never change; its methods,
such as `rng.normal`, depend on the installed NumPy.

Transforms of torchvision's v2 and of Albumentations can be passed directly: `Function(v2.ColorJitter(0.4))` is
`Function(Torchvision(v2.ColorJitter(0.4)))`, and draws the sample's random numbers, too.
"""

from gpuload.functions.function import (
    Albumentations,
    Sample,
    SampleFunction,
    Torchvision,
)

__all__ = ["Albumentations", "Sample", "SampleFunction", "Torchvision"]
