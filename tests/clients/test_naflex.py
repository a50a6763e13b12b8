"""timm's NaFlexVit on batches with a budget of tokens."""

from pathlib import Path

import numpy as np
import pytest
import torchvision_anywhere  # noqa: F401
from loaders import load

import gpuload


def test_a_naflexvit_learns_from_them(packed: Path) -> None:
    """It takes the dict of a batch as it is. Padding changes nothing: a sample alone gives the same."""
    torch = pytest.importorskip("torch")
    naflexvit = pytest.importorskip("timm.models.naflexvit")
    torch.manual_seed(0)
    config = naflexvit.NaFlexVitCfg(patch_size=8, embed_dim=32, depth=1, num_heads=2, pos_embed_grid_size=(4, 4))
    model = naflexvit.NaFlexVit(config, in_chans=3, num_classes=3)
    augment = gpuload.Augment(None, gpuload.Patches(8, 30))
    loader = load(packed, gpuload.Budget(200), augment=augment, fields=("image", "label"))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = set()
    for image, label in loader:
        loss = torch.nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
        lengths.add(image["patches"].shape[1])
    assert len(lengths) > 1
    model.eval()
    with torch.no_grad():
        shortest = int(image["patch_valid"].sum(dim=1).argmin())
        length = int(image["patch_valid"][shortest].sum())
        alone = {name: value[shortest : shortest + 1, :length] for name, value in image.items()}
        assert torch.allclose(model(image)[shortest], model(alone)[0], atol=1e-5)


def test_patches_lie_as_timms(packed: Path) -> None:
    """Of the same images, in the order and with the positions of its Patchify."""
    transforms = pytest.importorskip("timm.data.naflex_transforms")
    patchify = transforms.Patchify(8)
    seen = 0
    options = {"drop_last": False, "shuffle": False, "fields": ("index", "image")}
    size = (24, 32)
    stretched = load(packed, 8, augment=gpuload.Augment(size, crop="none"), **options)
    whole = {int(i): image for index, images in stretched for i, image in zip(index, images, strict=True)}
    loader = load(packed, 8, augment=gpuload.Augment(None, gpuload.Patches(8, 12)), **options)
    for index, image in loader:
        for row, sample in enumerate(index.tolist()):
            valid = image["patch_valid"][row]
            if image["patch_coord"][row].max(dim=0).values.tolist() == [2, 3] and int(valid.sum()) == 12:
                expected = patchify(whole[sample])
                np.testing.assert_allclose(image["patches"][row, :12], expected["patches"], atol=0.02)
                assert image["patch_coord"][row, :12].equal(expected["patch_coord"])
                seen += 1
    assert seen > 5
