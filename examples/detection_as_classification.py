"""Classification on a detection set: the class of the largest object, one-hot with a background class.

    python examples/detection_as_classification.py                           # a small generated set
    python examples/detection_as_classification.py ILSVRC --shards packed    # your own: Annotations/**.xml beside Data
    python examples/detection_as_classification.py ILSVRC --epochs 9 --checkpoint run.pt
    python examples/detection_as_classification.py ILSVRC --epochs 9 --checkpoint run.pt --resume

Images are 482×415 (width × height), cropped or padded to that size but never scaled; note that `Augment` takes (height,
width). They are float16, each standardised by its own mean and standard deviation, and two batches are prefetched. A
training and a validation loader are open at the same time and used in turn: --validations times per epoch, training
pauses between two batches.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import measure
import torch
import torch.nn.functional as F
from tqdm import tqdm

import gpuload


def pack(folder: Path, shards: Path) -> None:
    """Packs the pairs of image and XML into shards, a tenth for validation, unless the shards exist."""
    measure.pack(folder, shards, "--from", "voc", "--no-splits", "--val", "0.1")


def open_loader(
    data: Path, args: argparse.Namespace, *, train: bool
) -> gpuload.DaliIterator:
    """Batches of images, float16 (N, 3, 415, 482), and labels, float32 (N, classes); column 0 is background."""
    width, height = map(int, args.size.split("x"))
    augment = gpuload.Augment(
        (height, width),
        crop="pad_or_crop",
        flip=0.5 if train else 0.0,
        dtype="float16",
        normalize="image",
    )
    label = gpuload.OneHot("label", background=True)
    return gpuload.DaliIterator(
        data,
        args.batch_size,
        augment=augment,
        fields=("image", label),
        prefetch=2,
        shuffle=train,
        seed=args.seed,
    )


class Trainer:
    """The net, its optimizer and the two loaders."""

    def __init__(self, shards: Path, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.train = open_loader(shards / "train", args, train=True)
        self.val = open_loader(shards / "val", args, train=False)
        self.classes = len(self.train.classes or ())
        self.device = self.train.device
        # The first strides are 4 and 2, since the images are large.
        layers = ((16, 7, 4), (32, 3, 2), (64, 3, 2), (128, 3, 2))
        self.net = measure.make_net(self.classes, layers, 1, norm=True).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), args.lr)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """On a GPU convolutions take float16 as it is; on a CPU they are faster in float32."""
        with torch.autocast("cuda", torch.float16, enabled=self.device != "cpu"):
            return self.net(images.float() if self.device == "cpu" else images).float()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step. Returns the sum of the losses and the number of correct answers, on the device."""
        logits = self.logits(images)
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return sums(loss.detach() * len(labels), logits, labels)

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Mean loss and accuracy over every image of the validation set."""
        total = torch.zeros(2, device=self.device)
        for images, labels in self.val:
            logits = self.logits(images)
            total += sums(
                F.cross_entropy(logits, labels, reduction="sum"), logits, labels
            )
        loss, accuracy = (total / len(self.val.dataset)).tolist()
        return loss, accuracy

    def save(self, path: Path) -> None:
        """Saves net, optimizer and position in the epoch. The file gets its final name when it is complete."""
        temporary = path.with_name(path.name + ".tmp")
        parts = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, "loader": self.train.state_dict()}, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> tuple[int, int]:
        """Loads what `save` wrote. Returns the epoch and the number of its batches that are done."""
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.net.load_state_dict(saved["net"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.train.load_state_dict(saved["loader"])
        return saved["loader"]["epoch"], saved["loader"][
            "samples"
        ] // self.train.batch_size


def sums(
    loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    return torch.stack([loss, (logits.argmax(1) == labels.argmax(1)).sum()])


def run(args: argparse.Namespace, folder: Path) -> None:
    shards = args.shards or folder.with_name(folder.name + "-packed")
    pack(folder, shards)
    trainer = Trainer(shards, args)
    batches = len(trainer.train)
    first_epoch = 0
    done = 0
    pauses = {
        round(batches * part / args.validations)
        for part in range(1, args.validations + 1)
    }
    if args.resume:
        first_epoch, done = trainer.load(args.checkpoint)
        print(
            f"Resumed from {args.checkpoint} in epoch {first_epoch + 1}, after {done} of its {batches} batches"
        )
    of_train = len(trainer.train.dataset)
    of_val = len(trainer.val.dataset)
    print(
        f"{of_train:,} images for training, {of_val:,} for validation, of {trainer.classes} classes with background; "
        f"chance is {1 / trainer.classes:.1%}"
    )
    history: list[dict[str, Any]] = []
    for epoch in range(first_epoch, args.epochs):
        total = torch.zeros(2, device=trainer.device)
        seen = 0
        with tqdm(
            total=batches,
            initial=done,
            desc=f"epoch {epoch + 1}/{args.epochs}",
            ncols=100,
            mininterval=1,
        ) as bar:
            for number, (images, labels) in enumerate(trainer.train, done + 1):
                total += trainer.step(images, labels)
                seen += len(labels)
                # Reading a value waits for the GPU.
                if number % 10 == 0 or number == batches:
                    loss, accuracy = (total / seen).tolist()
                    bar.set_postfix_str(f"loss {loss:.3f}, accuracy {accuracy:.1%}")
                bar.update()
                if args.checkpoint and number % args.checkpoint_every == 0:
                    trainer.save(args.checkpoint)
                if number in pauses:
                    val_loss, val_accuracy = trainer.validate()
                    bar.write(
                        f"  after batch {number}: validation loss {val_loss:.3f}, accuracy {val_accuracy:.1%}"
                    )
                    history.append(
                        {
                            "epoch": epoch + 1,
                            "batch": number,
                            "loss": val_loss,
                            "accuracy": val_accuracy,
                        }
                    )
                if args.stop_after == epoch * batches + number:
                    if args.checkpoint:
                        trainer.save(args.checkpoint)
                    print(
                        f"Stopped after {args.stop_after} batches, as --stop-after says; --resume continues"
                    )
                    return
        done = 0
        if args.checkpoint:
            trainer.save(args.checkpoint)
    measure.save_record(
        args.json,
        samples=of_train,
        classes=trainer.classes,
        batches=batches,
        batch_size=args.batch_size,
        size=args.size,
        validations=history,
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help="holds Annotations and Data (default: a generated set)",
    )
    parser.add_argument(
        "--shards",
        type=Path,
        help="folder to pack into, or a packed one (FOLDER-packed)",
    )
    parser.add_argument(
        "--size", help="WIDTHxHEIGHT in pixels (482x415; for the generated set 160x138)"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--validations", type=int, default=2, help="per epoch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="file to save to")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="BATCHES")
    parser.add_argument(
        "--resume", action="store_true", help="continue from --checkpoint"
    )
    parser.add_argument(
        "--stop-after",
        type=int,
        metavar="BATCHES",
        help="stop after so many since the start of the run",
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    args.size = args.size or ("482x415" if args.folder else "160x138")
    if args.resume and not (args.checkpoint and args.checkpoint.is_file()):
        parser.error(
            f"--resume: there is no file --checkpoint {args.checkpoint}; leave out --resume to start from the beginning"
        )
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return measure.run_on(run, args, args.folder, "detection", "made-up")


if __name__ == "__main__":
    sys.exit(main())
