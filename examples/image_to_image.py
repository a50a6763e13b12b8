"""A photo of a condition image, as pix2pix and ControlNet are trained: drawings of edges, and photos.

    python examples/image_to_image.py            # edges of two photos that come with scikit-learn, in seconds
    python examples/image_to_image.py pairs      # your own: pairs/1.jpg, pairs/1.edges.png

Both get the same crop and flip. The photo's colours may be changed, those of the condition are not, and each has a
normalisation of its own: the photo's ends are -1 and 1, the condition's 0 and 1.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from recipe_command import run_recipe
from torch import nn

import gpuload

SIZE = 64  # of the crops; the images are stored somewhat larger, as pix2pix resizes 256 to 286
PATTERNS = {"photo": "*.jpg", "edges": "*.edges.png"}


def make_pairs(folder: Path, side: int = 72) -> None:
    """Tiles of two photos, and their edges as gray PNGs."""
    from sklearn.datasets import load_sample_images

    folder.mkdir(parents=True)
    number = 0
    for pixels in load_sample_images().images:
        photo = Image.fromarray(pixels)
        edges = photo.convert("L").filter(ImageFilter.FIND_EDGES)
        for top in range(0, photo.height - side + 1, side):
            for left in range(0, photo.width - side + 1, side):
                box = (left, top, left + side, top + side)
                photo.crop(box).save(folder / f"{number}.jpg", quality=95)
                edges.crop(box).save(folder / f"{number}.edges.png")
                number += 1


def pack(folder: Path, shards: Path) -> None:
    """Packs photos with the drawings that lie beside them."""
    gpuload.pack(folder, shards, pictures=PATTERNS, resume=True)


def open_loader(
    shards: Path, batch_size: int = 8, size: int = SIZE, jitter: float = 0.1
) -> gpuload.DaliIterator:
    """Batches of photos, float32 (N, 3, size, size) in -1..1, and conditions, float32 (N, 1, size, size) in 0..1."""
    augment = gpuload.Augment(
        size,
        crop=gpuload.RandomCrop(),
        flip=0.5,
        normalize=gpuload.Normalize((0.5,) * 3, (0.5,) * 3),
        transforms=[gpuload.transforms.ColorJitter(jitter, jitter, jitter)],
    )
    edges = gpuload.Picture(
        "edges", colors="none", normalize=gpuload.Normalize((0.0,), (1.0,))
    )
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=["photo", edges],
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def make_net() -> nn.Module:
    """A photo in -1..1 of a condition."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(48, 24, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 3, 4, 2, 1),
        nn.Tanh(),
    )


def train(shards: Path, epochs: int) -> list[float]:
    """The mean absolute error of each epoch; pix2pix adds what a discriminator says."""
    errors = []
    with open_loader(shards) as loader:
        net = make_net().to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
        for epoch in range(epochs):
            total = 0.0
            for photos, edges in loader:
                loss = F.l1_loss(net(edges), photos)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            errors.append(total / len(loader))
            print(f"epoch {epoch + 1} of {epochs}: off by {errors[-1]:.3f}")
    return errors


def main(argv: list[str] | None = None) -> int:
    return run_recipe(argv, __doc__, make_pairs, pack, train, epochs=4)


if __name__ == "__main__":
    sys.exit(main())
