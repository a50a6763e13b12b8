"""Runs both sides of the diffs in docs/coming-from.md: a program with its own loader, and with gpuload.

    python tools/documentation/clients.py PHOTOS --write    # measures on a folder of class folders, 8 min on 2 cores

Both sides are programs. Their models, losses and optimizers are made here: small ones, so that loaders limit, which
note the labels of each step. `tests/clients/test_diffs.py` compares these; measured figures go into
benchmarks/results/clients.json.
"""

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import gpuload
from gpuload.sources.coco import CocoSource

sys.path.insert(0, str(Path(__file__).parents[1]))
figures = importlib.import_module("documentation.figures")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming-from.md"
RECORD = ROOT / "benchmarks" / "results" / "clients.json"
SIDES = ("before", "after")
MEASURED = 160
BATCH = 16
EPOCHS = 3
ROUNDS = 3
_DIFF = re.compile(r'^```diff title="(.+?)"\n(.*?)^```', re.DOTALL | re.MULTILINE)


class Diff(NamedTuple):
    """A program. before, after: the texts of both sides. lines: how many change; one that is replaced counts once."""

    before: str
    after: str
    lines: int


def read_diffs(text: str) -> dict[str, Diff]:
    """Those of a page, by their titles."""
    diffs = {}
    for title, body in _DIFF.findall(text):
        lines = [line for line in body.splitlines() if line.strip("+- ")]
        hunks = re.findall(r"-*\+*", "".join(line[0] for line in lines))
        before, after = (
            "\n".join(line[1:] for line in body.splitlines() if line[:1] != other)
            for other in "+-"
        )
        diffs[title] = Diff(
            before, after, sum(max(hunk.count("-"), hunk.count("+")) for hunk in hunks)
        )
    return diffs


class Seen:
    """Notes the labels of each step, and when it came."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.times: list[float] = []

    def __call__(self, labels: Any) -> None:
        self.steps.append(np.asarray(labels).reshape(-1).astype(int).tolist())
        self.times.append(time.perf_counter())

    def images_per_s(self, epochs: int) -> float:
        """Without the first epoch."""
        first = len(self.steps) // epochs
        return sum(map(len, self.steps[first:])) / (
            self.times[-1] - self.times[first - 1]
        )


def prepare(photos: Iterable[Path], folder: Path) -> None:
    """photos/, shards/train with labels and captions, and of the same images COCO's with a box or two, coco/train.

    photos: files in folders of their classes.
    """
    from PIL import Image

    samples: list[dict[str, Any]] = []
    images = folder / "images"
    boxes = []
    images.mkdir()
    for number, photo in enumerate(photos):
        name = photo.parent.name
        data = photo.read_bytes()
        place = folder / "photos" / name / f"{number:03d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        for path in (place, images / f"{number:03d}.jpg"):
            path.write_bytes(data)
        samples.append(
            {"image": data, "label": name, "caption": f"a photo of a {name}"}
        )
        with Image.open(photo) as image:
            width, height = image.size
        for part in range(1, 2 + number % 2):
            box = {
                "bbox": [1, 2, width // 3 * part, height // 2],
                "area": 1,
                "iscrowd": 0,
                "category_id": part,
            }
            boxes.append({"id": len(boxes) + 1, "image_id": number, **box})
    listed = [
        {"id": number, "file_name": f"{number:03d}.jpg"}
        for number in range(len(samples))
    ]
    names = [{"id": number, "name": f"part {number}"} for number in (1, 2)]
    document = {"images": listed, "annotations": boxes, "categories": names}
    (folder / "instances.json").write_text(json.dumps(document))
    options: dict[str, Any] = {"workers": 1, "progress": False}
    # In one shard, which open_clip's side names.
    gpuload.pack(samples, folder / "shards", **options, maxsize=2**40)
    annotated = CocoSource(images, labels=folder / "instances.json")
    gpuload.pack(annotated, folder / "coco", **options)


def given(title: str, seen: Seen, epochs: int) -> dict[str, Any]:
    """What a program finds: the model and what belongs to it, which note what they are trained with."""
    importlib.import_module("torchvision_anywhere")
    torch = importlib.import_module("torch")
    nn = torch.nn
    functional = torch.nn.functional
    transforms = importlib.import_module("torchvision.transforms")
    datasets = importlib.import_module("torchvision.datasets")
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 512))

    def criterion(logits: Any, labels: Any) -> Any:
        seen(labels if labels.ndim == 1 else labels.sum(1))  # of tokens
        return functional.cross_entropy(
            logits, labels if labels.ndim == 1 else labels.max(1).values % 512
        )

    names: dict[str, Any] = {
        "gpuload": gpuload,
        "epochs": epochs,
        "device": "cpu",
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 1e-3),
        "criterion": criterion,
        "transform": transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
        "ImageFolder": datasets.ImageFolder,
        "DataLoader": torch.utils.data.DataLoader,
        "default_collate": torch.utils.data.default_collate,
        "__name__": "diff",
    }
    return names | (_OTHERS[title](names, seen) if title in _OTHERS else {})


def _timm(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    return {"timm": SimpleNamespace(data=importlib.import_module("timm.data"))}


def _lightning(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    pl = importlib.import_module("pytorch_lightning")

    class Module(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = names["model"]

        def training_step(self, batch: Any, number: int) -> Any:
            return names["criterion"](self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return names["optimizer"]

    quiet = dict.fromkeys(
        (
            "logger",
            "enable_checkpointing",
            "enable_progress_bar",
            "enable_model_summary",
        ),
        False,
    )
    trainer = partial(pl.Trainer, accelerator="cpu", **quiet)
    return {
        "pl": SimpleNamespace(
            LightningDataModule=pl.LightningDataModule, Trainer=trainer
        ),
        "module": Module(),
    }


def _accelerate(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    return {
        "Accelerator": partial(
            importlib.import_module("accelerate").Accelerator, cpu=True
        )
    }


def _transformers(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    transformers = importlib.import_module("transformers")
    nn = importlib.import_module("torch.nn")

    class Net(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = names["model"]

        def forward(self, pixel_values: Any, labels: Any) -> dict[str, Any]:
            logits = self.model(pixel_values)
            return {"loss": names["criterion"](logits, labels), "logits": logits}

    fixed = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
    }
    arguments = transformers.TrainingArguments(
        "trainer",
        num_train_epochs=names["epochs"],
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=2,
        remove_unused_columns=False,
        **fixed,
    )
    return {"transformers": transformers, "model": Net(), "arguments": arguments}


def _keras(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    os.environ["KERAS_BACKEND"] = "torch"
    keras = importlib.import_module("keras")

    def loss(labels: Any, logits: Any) -> Any:
        if labels.device.type != "meta":
            seen(labels.cpu())
        return keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )

    pooling = keras.layers.GlobalAveragePooling2D(data_format="channels_first")
    net = keras.Sequential([pooling, keras.layers.Dense(512)])
    net.compile("sgd", loss)
    return {"net": net}


def _jax(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    jax = importlib.import_module("jax")
    update = jax.jit(lambda weights, images: weights + images.mean((0, 2, 3)))

    def step(weights: Any, images: Any, labels: Any) -> Any:
        seen(labels)
        return update(weights, images)

    return {"jax": jax, "weights": np.zeros(3, np.float32), "step": step}


def _open_clip(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    tokenizer = importlib.import_module("open_clip.tokenizer").SimpleTokenizer(
        context_length=16
    )
    return {"tokenizer": tokenizer, "wds": importlib.import_module("webdataset")}


def _detection(names: dict[str, Any], seen: Seen) -> dict[str, Any]:
    v2 = importlib.import_module("torchvision.transforms.v2")
    datasets = importlib.import_module("torchvision.datasets")
    torch = importlib.import_module("torch")

    def detector(images: Any, targets: Any) -> dict[str, Any]:
        seen([len(target["labels"]) for target in targets])
        assert all(
            target["boxes"].shape == (len(target["labels"]), 4) for target in targets
        )
        means = torch.stack([image.mean((1, 2)) for image in images])
        return {"loss": names["model"](means[:, :, None, None]).square().mean()}

    to_tensors = v2.Compose(
        [v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    originals = {
        "CocoDetection": datasets.CocoDetection,
        "to_tensors": to_tensors,
        "detector": detector,
    }
    return {
        **originals,
        "wrap_dataset_for_transforms_v2": datasets.wrap_dataset_for_transforms_v2,
    }


_OTHERS: dict[str, Callable[[dict[str, Any], Seen], dict[str, Any]]] = {
    "timm's train.py": _timm,
    "Lightning": _lightning,
    "Accelerate": _accelerate,
    "Hugging Face's Trainer": _transformers,
    "Keras": _keras,
    "JAX": _jax,
    "open_clip's training": _open_clip,
    "torchvision's detection": _detection,
}


def run(title: str, side: str, epochs: int) -> Seen:
    """What the program's training saw, in the current folder, which `prepare` made."""
    seen = Seen()
    names = given(title, seen, epochs)
    exec(
        compile(
            getattr(read_diffs(PAGE.read_text())[title], side),
            f"{title}, {side}",
            "exec",
        ),
        names,
    )
    for value in names.values():
        if isinstance(value, gpuload.DaliIterator):
            value.close()
    return seen


def measure(folder: Path, rounds: int, write: bool) -> list[str]:
    """The programs that failed. Both sides in turns, each round in a process of its own.

    write: puts each program into the record as soon as it was measured.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    failed = []
    for title, diff in read_diffs(PAGE.read_text()).items():
        measured: list[dict[str, Any]] = []
        for _ in range(rounds):
            command = [sys.executable, __file__, "--run", title]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                print(
                    f"{title} failed:",
                    *done.stderr.splitlines()[-3:],
                    sep="\n",
                    file=sys.stderr,
                    flush=True,
                )
                failed.append(title)
                break
            measured.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            rates = {
                side: [round_rates[side] for round_rates in measured] for side in SIDES
            }
            theirs, ours = (statistics.median(rates[side]) for side in SIDES)
            print(
                f"{title}: {theirs:,.0f} images/s with its own loader, {ours:,.0f} with gpuload",
                flush=True,
            )
            if write:
                record = json.loads(RECORD.read_text())
                counts = {name: measured[0][name] for name in ("steps", "samples")}
                record |= {"cores": os.cpu_count(), "date": time.strftime("%Y-%m")}
                record["clients"][title] = {"lines": diff.lines, **counts, **rates}
                RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return failed


def run_both(title: str) -> dict[str, Any]:
    """Rates of both sides, and the steps and samples of an epoch, which must be equal."""
    seen = {side: run(title, side, EPOCHS) for side in SIDES}
    counts = {
        (len(client.steps) // EPOCHS, sum(map(len, client.steps)) // EPOCHS)
        for client in seen.values()
    }
    assert len(counts) == 1, f"steps and samples differ: {counts}"
    ((steps, samples),) = counts
    return {"steps": steps, "samples": samples} | {
        side: client.images_per_s(EPOCHS) for side, client in seen.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "photos",
        nargs="?",
        type=Path,
        help=f"folder of class folders of at least {MEASURED} JPEGs",
    )
    parser.add_argument(
        "--run", metavar="PROGRAM", help="both sides once, in the current folder"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--write",
        action="store_true",
        help="write benchmarks/results/clients.json and the table of the page",
    )
    options = parser.parse_args(arguments)
    if options.run:
        print(json.dumps(run_both(options.run)))
        return 0
    photos = sorted(
        options.photos.glob("*/*.jp*g"), key=lambda path: (path.name, path.parent.name)
    )
    if len(photos) < MEASURED:
        parser.error(
            f"{options.photos} has {len(photos)} JPEGs in class folders, expected at least {MEASURED}"
        )
    with tempfile.TemporaryDirectory() as folder:
        prepare(photos[:MEASURED], Path(folder))
        failed = measure(Path(folder), options.rounds, options.write)
    if options.write:
        figures.main(["--write"])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
