"""Several images and texts in one sequence, as vision-language models such as LLaVA are trained: the batch they expect.

    python examples/vision_language.py           # drawn shapes with questions, in seconds
    python examples/vision_language.py folder    # your own: folder/questions.jsonl and the images that it names

A line of questions.jsonl is {"images": ["1.jpg", "2.jpg"], "text": "<image> <image> which color is last? red"}. A
sequence is: tokens for the patches of each image in the place of <image>, the question, the answer. Labels are -100 but
for the answer, so that only it counts in the loss. The tokenizer works in the loader's thread, ahead of the training
loop.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from recipe_command import run_recipe
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
    """One to three shapes a sample, each a picture, and a question about the last one."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        names = []
        color = shape = 0
        for place in range(rng.integers(1, 4)):
            color, shape = rng.integers(3), rng.integers(2)
            names.append(f"{number:04d}-{place}.png")
            _draw(COLORS[color], SHAPES[shape], rng).save(folder / names[-1])
        about_color = rng.random() < 0.5
        asked = "color" if about_color else "shape"
        answer = COLORS[color] if about_color else SHAPES[shape]
        marks = " ".join(["<image>"] * len(names))
        text = f"{marks} which {asked} is last? {answer}"
        lines.append(json.dumps({"images": names, "text": text}))
    (folder / "questions.jsonl").write_text("\n".join(lines))


def _draw(color: str, shape: str, rng: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white")
    left, top = rng.integers(2, 12, 2).tolist()
    draw = ImageDraw.Draw(image)
    draw_shape = draw.rectangle if shape == "square" else draw.ellipse
    draw_shape((left, top, left + 17, top + 17), fill=color)
    return image


def pack(folder: Path, shards: Path) -> None:
    """Packs lists of images with their texts."""
    lines = (folder / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    samples = [
        {
            "images": [folder / name for name in question["images"]],
            "text": question["text"],
        }
        for question in questions
    ]
    gpuload.pack(samples, shards, resume=True)


class Tokenizer:
    """Words as numbers. A text is "<image> question? answer".

    A model's own tokenizer and template take its place, such as `AutoProcessor`'s of transformers.
    """

    def __init__(self) -> None:
        known = ("which", "color", "shape", "is", "last?", *COLORS, *SHAPES)
        self.words = {word: END + 1 + place for place, word in enumerate(known)}
        self.size = END + 1 + len(known)

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
        ids: list[int] = []
        for word in f"{question}?".split():
            ids += [IMAGE] * PATCHES if word == "<image>" else [self.words[word]]
        answered = [self.words[word] for word in answer.split()]
        return [*ids, *answered, END], len(ids)


def open_loader(
    shards: Path, tokenizer: Tokenizer, batch_size: int = 16
) -> gpuload.DaliIterator:
    """Batches of images and sequences.

    Images are `PackedPictures`: `pixels`, float32 (images of all samples, 3, 32, 32), and `counts`, int64 (N,).
    Sequences are the dict of `Tokenizer`.
    """
    augment = gpuload.Augment(
        SIDE, crop="none", normalize=gpuload.Normalize((0.5,) * 3, (0.5,) * 3)
    )
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=augment,
        fields=[
            gpuload.Pictures("images", geometry="own"),
            gpuload.Captions("text", tokenizer=tokenizer),
        ],
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
        """(N, length, words): what follows each token. The images are those of all samples, one after another."""
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
                scores = net(images.pixels, texts["input_ids"])[:, :-1]
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
    return run_recipe(argv, __doc__, make_pictures, pack, train, epochs=6)


if __name__ == "__main__":
    sys.exit(main())
