"""Makes the notebooks beside this file out of the text below, without outputs, so that they can be reviewed as code.

    python examples/notebooks/make.py

`tests/docs/test_notebooks.py` compares the files with the text, and runs each of them.
"""

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

# The beginning of each notebook: a drawing of circles and squares, by number.
DRAW = """
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import gpuload


def draw(number):
    \"\"\"A reddish circle or a bluish square of a random size: the image, its class and its box.\"\"\"
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(200, 230, (96, 128, 3), np.uint8))
    size, x, y = rng.integers((24, 0, 0), (60, 68, 36))
    box = [int(x), int(y), int(x + size), int(y + size)]
    kind = ("circle", "square")[number % 2]
    shape = ImageDraw.Draw(image)
    color = rng.integers(0, 90, 3) + (110, 0, 0) if kind == "circle" else rng.integers(0, 90, 3) + (0, 0, 110)
    (shape.ellipse if kind == "circle" else shape.rectangle)(box, tuple(color.tolist()))
    return image, kind, box


folder = Path(tempfile.mkdtemp())
"""

# A cell is text in Markdown, or code, which begins with "#!".
NOTEBOOKS: dict[str, list[str]] = {
    "quickstart": [
        """
        # Quickstart

        From a folder of images to a training loop. The images are drawn here; use your own folder of class folders.
        """,
        "#!" + DRAW,
        "## 1. A folder of class folders",
        """#!
        for number in range(200):
            image, kind, _ = draw(number)
            path = folder / "photos" / kind / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=92)
        sorted(path.name for path in (folder / "photos").iterdir())
        """,
        "## 2. Pack it once",
        """#!
        from gpuload import cli

        assert cli.main(["pack", f"{folder}/photos", f"{folder}/shards", "--val", "0.2", "--workers", "1"]) == 0
        """,
        "On a command line that is `python -m gpuload pack photos shards --val 0.2`.\n\n## 3. Train",
        """#!
        import torch
        import torch.nn.functional as F

        augment = gpuload.Augment(48, crop=gpuload.RandomResizedCrop((0.5, 1.0)))
        train = gpuload.DaliIterator(folder / "shards" / "train", 32, augment=augment, num_threads=1)
        val = gpuload.DaliIterator(
            folder / "shards" / "val", 32, augment=gpuload.Augment(48, crop="center"), shuffle=False, num_threads=1
        )
        torch.set_num_threads(1)  # on a CPU, leaves the other cores to the loader
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(),
            torch.nn.AdaptiveMaxPool2d(3), torch.nn.Flatten(), torch.nn.Linear(288, 2),
        ).to(train.device)
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        for epoch in range(6):
            for images, labels in train:
                loss = F.cross_entropy(net(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in val)
        print(f"{right} of {len(val.dataset)} right; {train.metrics().binds} limits")
        assert right > 0.8 * len(val.dataset)
        """,
        "Next: [fields](../../docs/fields.md), [augmentations](../../docs/augmentations.md), "
        "[many GPUs](../../docs/training-loops.md).",
    ],
    "detection": [
        """
        # Boxes and masks

        Boxes and masks are packed with their images, and follow every crop, resize and flip.
        """,
        "#!" + DRAW,
        """#!
        def samples(count):
            for number in range(count):
                image, kind, (left, top, right, bottom) = draw(number)
                mask = np.zeros((96, 128), np.uint8)
                mask[top:bottom, left:right] = 1 + (number % 2)
                yield {"image": image, "boxes": [[left, top, right, bottom]], "boxes_class": [kind], "mask": mask}


        gpuload.pack(samples(64), folder / "shapes", workers=1)
        """,
        """#!
        loader = gpuload.DaliIterator(
            folder / "shapes" / "train",
            8,
            augment=gpuload.Augment(96, crop=gpuload.RandomResizedCrop((0.3, 1.0)), dtype="uint8"),
            fields=["image", gpuload.Boxes("boxes", min_visible=0.2), gpuload.Mask("mask")],
            num_threads=1,
        )
        batch = next(iter(loader))
        batch.image.shape, batch.boxes.boxes.shape, batch.boxes.counts, batch.mask.shape
        """,
        "The same crop and flip were applied to all three. Drawn on one another:",
        """#!
        sheet = Image.new("RGB", (8 * 100, 96), "white")
        for number in range(8):
            image = Image.fromarray(batch.image[number].cpu().numpy().transpose(1, 2, 0))
            mask = batch.mask[number].cpu().numpy()
            image = Image.composite(Image.new("RGB", image.size, "red"), image, Image.fromarray(90 * (mask > 0).astype(np.uint8)))
            for box in batch.boxes.boxes[number][: batch.boxes.counts[number]].tolist():
                ImageDraw.Draw(image).rectangle(box, outline="blue", width=2)
            sheet.paste(image, (100 * number, 0))
        sheet
        """,
        "Every box still encloses the pixels of its mask:",
        """#!
        for number in range(8):
            ys, xs = np.nonzero(batch.mask[number].cpu().numpy())
            for left, top, right, bottom in batch.boxes.boxes[number][: batch.boxes.counts[number]].tolist():
                assert abs(xs.min() - left) <= 2 and abs(xs.max() + 1 - right) <= 2
                assert abs(ys.min() - top) <= 2 and abs(ys.max() + 1 - bottom) <= 2
        """,
    ],
    "multi_crop": [
        """
        # Self-supervised training with several crops

        Methods such as DINO train on two large and several small crops of each image. Here an image is decoded once for
        all of them.
        """,
        "#!" + DRAW,
        """#!
        gpuload.pack(({"image": draw(number)[0]} for number in range(128)), folder / "images", workers=1)
        """,
        """#!
        from gpuload import transforms as T

        jitter = T.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8)
        crop = gpuload.RandomResizedCrop
        large = gpuload.Augment(64, crop=crop((0.4, 1.0)), transforms=[jitter, T.RandomGrayscale(p=0.2)])
        small = gpuload.Augment(32, crop=crop((0.05, 0.4)), transforms=[jitter, T.GaussianBlur(5, p=0.5)])
        loader = gpuload.DaliIterator(
            folder / "images" / "train", 32, augment=[large] * 2 + [small] * 4, fields=["image"], num_threads=1
        )
        (views,) = next(iter(loader))
        [tuple(view.shape) for view in views]
        """,
        "A training step that pulls the embeddings of all views of an image together:",
        """#!
        import torch
        import torch.nn.functional as F

        torch.set_num_threads(1)  # on a CPU, leaves the other cores to the loader
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 5, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
            torch.nn.Linear(128, 32),
        ).to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        losses = []
        for epoch in range(2):
            for (views,) in loader:
                embedded = [F.normalize(net(view), dim=1) for view in views]
                target = embedded[0]
                loss = sum(F.cross_entropy(10 * other @ target.T, torch.arange(32, device=other.device)) for other in embedded[1:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        losses[0], losses[-1]
        """,
        """#!
        assert losses[-1] < losses[0]
        """,
    ],
    "resume": [
        """
        # Resume in mid-epoch

        A run stops after any batch and goes on with the next one, here with another batch size.
        """,
        "#!" + DRAW,
        """#!
        gpuload.pack(
            ({"image": draw(number)[0], "label": number % 2} for number in range(96)), folder / "shapes", workers=1, maxcount=16
        )


        def load(batch_size):
            return gpuload.DaliIterator(
                folder / "shapes" / "train", batch_size, augment=gpuload.Augment(32), fields=["image", "index"], num_threads=1
            )
        """,
        "An undisturbed run of two epochs, as a reference:",
        """#!
        import torch

        with load(8) as loader:
            whole = [(index, images) for _ in range(2) for images, index in loader]
        order = torch.cat([index for index, _ in whole])
        assert sorted(order[:96].tolist()) == list(range(96))  # each sample once in an epoch
        """,
        "A run that stops after 5 batches of 8. Its state is a few numbers:",
        """#!
        first = []
        with load(8) as loader:
            for step, (images, index) in enumerate(loader, start=1):
                first.append(index)
                if step == 5:
                    state = loader.state_dict()
                    break
        state
        """,
        "It goes on with batches of 14, through the rest of this epoch and all of the next one:",
        """#!
        rest, pixels = [], []
        with load(14) as loader:
            loader.load_state_dict(state)
            for epoch in range(2):
                for images, index in loader:
                    rest.append(index)
                    pixels.append(images)
        resumed = torch.cat(first + rest)
        assert torch.equal(resumed[:96], order[:96])  # 40, and the remaining 56 in four batches of 14
        assert torch.equal(torch.cat(pixels)[:56], torch.cat([images for _, images in whole])[40:96])  # the same crops
        """,
        "The order and the crops are those of the undisturbed run. `torch.save` the state beside the weights of the net.",
    ],
}


def notebook(cells: list[str]) -> dict[str, Any]:
    """In nbformat 4.5."""
    notebook_cells: list[dict[str, Any]] = []
    for number, text in enumerate(cells):
        code = text.startswith("#!")
        source = textwrap.dedent(text.removeprefix("#!").strip("\n")).strip()
        cell: dict[str, Any] = {
            "cell_type": "code" if code else "markdown",
            "id": f"cell-{number}",
            "metadata": {},
        }
        if code:
            cell |= {"execution_count": None, "outputs": []}
        notebook_cells.append(cell | {"source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {
        "cells": notebook_cells,
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def texts() -> dict[str, str]:
    """The content of each file."""
    return {
        f"{name}.ipynb": json.dumps(notebook(cells), indent=1, ensure_ascii=False)
        + "\n"
        for name, cells in NOTEBOOKS.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
