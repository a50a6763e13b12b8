"""What a batch takes of the training's thread: it takes finished values."""

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch
from damaged import damage
from loaders import load
from painted import pack_painted

import gpuload
from gpuload import Augment, Boxes, DaliIterator, Keypoints
from gpuload.transforms import RandAugment, RandomRotation

KEYPOINTS = Keypoints("keypoints")


def called_while(loader: DaliIterator) -> set[str]:
    """The files of gpuload whose functions this thread calls for the batches of an epoch after the first."""
    called: set[str] = set()
    batches = iter(loader)
    next(batches)
    sys.setprofile(lambda frame, event, argument: called.add(_file(frame)) if event == "call" else None)
    try:
        for _ in batches:
            pass
    finally:
        sys.setprofile(None)
    return {name for name in called if name.startswith("gpuload/")}


def _file(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    root = Path(gpuload.__file__).parent.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""


@pytest.mark.parametrize("fields", [("image", "label"), ("image", Boxes(), KEYPOINTS)], ids=["labels", "places"])
def test_transforms_cost_the_training_nothing(tmp_path: Path, fields: tuple[object, ...]) -> None:
    folder = pack_painted(tmp_path / "set", 12)
    files = []
    for transforms in ([], [RandomRotation(30), RandAugment()]):
        augment = Augment(24, transforms=transforms, flip=0)
        with load(folder, 2, augment=augment, fields=fields) as loader:
            files.append(called_while(loader))
    plain, transformed = files
    assert "gpuload/output/collate.py" in plain
    assert not {name for name in plain if name.startswith("gpuload/transforms/")} and transformed <= plain
    assert not plain & {"gpuload/fields/boxes.py", "gpuload/fields/keypoints.py", "gpuload/fields/motion.py"}


def test_targets_of_replaced_samples_stay_dicts_of_tensors(tmp_path: Path) -> None:
    """Boxes are made where batches are read, before it is known which images do not decode."""
    folder = damage(pack_painted(tmp_path / "set", 5), tmp_path / "damaged", [2])
    fields, augment = ("image", Boxes(as_targets=True)), Augment(24, crop="none", flip=0)
    skip = gpuload.OnCorrupt("skip", most=1.0)
    with load(folder, 5, augment=augment, fields=fields, shuffle=False, on_corrupt=skip) as loader:
        ((_, targets),) = loader
    assert len(loader.report().samples) == 1
    assert all(isinstance(target["boxes"], torch.Tensor) for target in targets)
    assert targets[2]["image_id"] == 3 and torch.equal(targets[2]["boxes"], targets[3]["boxes"])
