"""An image and texts in one sequence, as vision-language models such as LLaVA are trained: the batch they expect.

    python examples/vision_language.py           # drawn shapes with questions, in seconds
    python examples/vision_language.py folder    # your own: folder/1.jpg, folder/1.txt, one "question? answer" a line

A sequence is: a token for each patch of the image, the question, the answer. Labels are -100 but for the answer, so
that only it counts in the loss. The tokenizer works in the loader's thread, ahead of the training loop.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import nn

import gpuload

SIDE = 32  # of the image, in pixels
PATCH = 8
PATCHES = (SIDE // PATCH) ** 2
PAD, IMAGE, END = 0, 1, 2
IGNORED = -100  # of torch's cross entropy
COLORS = ("red", "green", "blue")
SHAPES = ("square", "disc")


def make_pictures(folder: Path, count: int = 96) -> None:
    """One shape a picture, and two questions with their answers."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        color, shape = rng.integers(3), rng.integers(2)
        image = Image.new("RGB", (SIDE, SIDE), "white")
        left, top = rng.integers(2, 12, 2).tolist()
        draw = ImageDraw.Draw(image)
        draw_shape = draw.rectangle if SHAPES[shape] == "square" else draw.ellipse
        draw_shape((left, top, left + 17, top + 17), fill=COLORS[color])
        image.save(folder / f"{number:04d}.jpg", quality=95)
        questions = f"which color? {COLORS[color]}\nwhich shape? {SHAPES[shape]}"
        (folder / f"{number:04d}.txt").write_text(questions)


def pack(folder: Path, shards: Path) -> None:
    """Packs images with the texts beside them."""
    gpuload.pack(folder, shards, from_="sidecar", resume=True)


class Tokenizer:
    """Words as numbers. A text is "question? answer".

    A model's own tokenizer and template take its place, such as `AutoProcessor`'s of transformers.
    """

    def __init__(self) -> None:
        self._words = {
            word: number
            for number, word in enumerate(
                ("which", "color?", "shape?", *COLORS, *SHAPES), start=END + 1
            )
        }
        self.size = END + 1 + len(self._words)

    def __call__(self, texts: list[str]) -> dict[str, np.ndarray]:
        """int64 (N, length) each: "input_ids", "labels" and "attention_mask"."""
        sequences = [self._encode(text) for text in texts]
        length = max(len(ids) for ids, _ in sequences)
        shape = (len(texts), length)
        batch = {
            "input_ids": np.full(shape, PAD),
            "labels": np.full(shape, IGNORED),
            "attention_mask": np.zeros(shape, np.int64),
        }
        for row, (ids, answer_start) in enumerate(sequences):
            batch["input_ids"][row, : len(ids)] = ids
            batch["labels"][row, answer_start : len(ids)] = ids[answer_start:]
            batch["attention_mask"][row, : len(ids)] = 1
        return batch

    def _encode(self, text: str) -> tuple[list[int], int]:
        """The numbers of a sequence, and where its answer begins."""
        question, _, answer = text.partition("? ")
        asked = [self._words[word] for word in f"{question}?".split()]
        answered = [self._words[word] for word in answer.split()]
        return [IMAGE] * PATCHES + asked + answered + [END], PATCHES + len(asked)


def open_loader(
    shards: Path, tokenizer: Tokenizer, batch_size: int = 16
) -> gpuload.DaliIterator:
    """Batches of images, float32 (N, 3, 32, 32), and the dict of `Tokenizer`, of one question drawn for each image."""
    augment = gpuload.Augment(
        SIDE, crop="none", normalize=gpuload.Normalize((0.5,) * 3, (0.5,) * 3)
    )
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=["image", gpuload.Captions("caption", lines=True, tokenizer=tokenizer)],
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


class SmallModel(nn.Module):
    """Patches in the place of their tokens, and a transformer that sees what lies before each token."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, words)

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(N, length, words): what follows each token."""
        states = self.words(ids)
        states[ids == IMAGE] = self.patches(images).flatten(2).mT.flatten(0, 1)
        states = states + self.places[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(
            ids.shape[1], device=ids.device
        )
        return self.head(self.layers(states, mask, is_causal=True))


def train(shards: Path, epochs: int) -> list[float]:
    """The mean loss of each epoch, on answers alone."""
    losses = []
    tokenizer = Tokenizer()
    with open_loader(shards, tokenizer) as loader:
        net = SmallModel(tokenizer.size).to(loader.device)
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        for epoch in range(epochs):
            total = 0.0
            for images, texts in loader:
                scores = net(images, texts["input_ids"])[:, :-1]
                wanted = texts["labels"][:, 1:]
                loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
            print(f"epoch {epoch + 1} of {epochs}: loss {losses[-1]:.3f}")
    return losses


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="default: drawn shapes")
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "pictures"
        if args.folder is None:
            make_pictures(folder)
        shards = folder.with_name(folder.name + "-packed")
        pack(folder, shards)
        train(shards, args.epochs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
