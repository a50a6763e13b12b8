"""Functions of your own, called for each sample on the CPU: `Augment(224, transforms=[Function(f)])`.

    def f(sample, rng):
        return np.rot90(sample["image"], rng.integers(4))

    augment = gpuload.Augment(224, transforms=[gpuload.transforms.Function(f)])
    loader = gpuload.DaliIterator("shards/train", 256, augment=augment)

`sample` is a dict of what the loader's `fields` ask for, as NumPy arrays that are the function's own during the call:

    "image"                   uint8 (height, width, 3), RGB; of a set of another mode its type and channels
    "boxes", "boxes_class"    float32 (M, 4), x0, y0, x1, y1 in pixels of the image, and int64 (M,), their class numbers
    "mask"                    uint8 (height, width)
    "keypoints"               float32 (M, K, 3), x, y, visibility of K points of each of M instances
    "key", "index"            str and int

Fields that were packed under other names have these. The function returns the new image, or a dict of the entries that
it changed, or `sample` itself; entries that it leaves out stay as they are. Random numbers are those of `rng`, a
`numpy.random.Generator` whose key is a pure function of (seed, epoch, sample, view): so the results depend on neither
threads, processes, ranks nor batch size, and are the same after a resume. The generator is Philox4x64-10, whose bits
NumPy does not change; its methods, such as `rng.normal`, draw as the installed NumPy does.

A transform of torchvision's v2 or of Albumentations can be given as it is: `Function(v2.ColorJitter(0.4))` is
`Function(Torchvision(v2.ColorJitter(0.4)))`, and its random numbers are those of the sample, too.
"""

from gpuload.functions.adapters import Albumentations, Torchvision
from gpuload.functions.interface import Sample, SampleFunction

__all__ = ["Albumentations", "Sample", "SampleFunction", "Torchvision"]
