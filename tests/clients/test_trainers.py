"""What other trainers ask of a loader beyond a loop: it works, or is refused by a line that helps."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import BATCHES, load

import gpuload

pytestmark = pytest.mark.filterwarnings("ignore")


def val_of(packed: Path, **options: Any) -> gpuload.DaliIterator:
    """19 samples in batches of 8, 8 and 3."""
    return load(gpuload.Dataset(packed).subset(range(19)), shuffle=False, **options)


# fastai


@pytest.mark.parametrize("fields", [("image", "label"), ("image", "label", "key"), ("label",), ("key",)])
def test_a_batch_is_made_anew_as_torch_and_fastai_do(packed: Path, fields: Any) -> None:
    batch = next(iter(load(packed, fields=fields)))
    again = type(batch)(*batch)
    assert type(again) is type(batch) and all(one is other for one, other in zip(again, batch, strict=True))
    assert type(batch)(**batch._asdict()) == batch
    if len(fields) > 1:
        for values in (list(batch), tuple(batch)):
            again = type(batch)(values)
            assert type(again) is type(batch) and all(one is other for one, other in zip(again, batch, strict=True))
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            type(batch)(list(batch)[:-1])


def test_fastai_trains_validates_and_predicts(packed: Path) -> None:
    importlib.import_module("torchvision_anywhere")
    fastai = pytest.importorskip("fastai.learner", reason="needs fastai")
    importlib.import_module("fastai.callback.progress")  # adds `no_bar`
    dataloaders = importlib.import_module("fastai.data.core").DataLoaders
    seen: list[int] = []
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3))
    net.register_forward_hook(lambda module, given, result: seen.append(len(given[0])))
    val = val_of(packed)
    learn = fastai.Learner(dataloaders(load(packed), val), net, loss_func=F.cross_entropy)
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 0.01)
        assert seen == [*([8] * BATCHES), 8, 8, 3] * 2
        guesses, labels = learn.get_preds(dl=val)
    assert len(guesses) == 19 and labels.tolist() == [int(label) for _, labels in val for label in labels]


# Lightning


@pytest.fixture(scope="module")
def pl() -> Any:
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("pytorch_lightning")


def overfit(pl: Any, loader: gpuload.DaliIterator) -> list[list[str]]:
    """The keys of each step of two epochs of Lightning that overfits two batches."""
    steps: list[list[str]] = []

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            steps.append(batch.key)
            return self.weight * 1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "use_distributed_sampler": False, "accelerator": "cpu"}
    pl.Trainer(overfit_batches=2, max_epochs=2, **quiet).fit(Model(), loader)
    return steps


def test_lightning_overfits_the_first_batches_of_a_loader_that_does_not_shuffle(pl: Any, packed: Path) -> None:
    fields = ("image", "key")
    first = [keys for (_, keys), _ in zip(load(packed, shuffle=False, fields=fields), range(2), strict=False)]
    assert overfit(pl, load(packed, shuffle=False, drop_last=True, fields=fields)) == first * 2
    with pytest.raises(ValueError, match="needs to subclass"):  # the first batches of each epoch are others
        overfit(pl, load(packed, fields=fields))


def test_the_order_of_a_sampler_is_told_by_its_type(packed: Path) -> None:
    sequential = torch.utils.data.SequentialSampler
    stored, shuffled = load(packed, shuffle=False, drop_last=False), load(packed)
    assert isinstance(stored.sampler, sequential) and not isinstance(shuffled.sampler, sequential)
    assert list(stored.sampler) == list(range(97)) and len(stored.sampler) == 97  # type: ignore[call-overload]
    for loader in (stored, shuffled):
        loader.sampler.set_epoch(2)
        assert loader.state_dict()["epoch"] == 2


# Accelerate


def test_accelerate_is_refused_with_what_resumes(packed: Path) -> None:
    accelerate = importlib.import_module("accelerate")
    accelerate.Accelerator(cpu=True)
    for attempt in (accelerate.skip_first_batches, accelerate.data_loader.prepare_data_loader):
        with pytest.raises(
            gpuload.errors.CallError, match=r"none can be made of it.*register_for_checkpointing\(loader"
        ):
            attempt(load(packed))


# Ultralytics


def test_ultralytics_trains_and_validates(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the class of docs/training-loops.md."""
    importlib.import_module("torchvision_anywhere")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("ultralytics", reason="needs ultralytics, which brings another OpenCV")
    for split in ("train", "val"):
        (tmp_path / "shards").mkdir(exist_ok=True)
        (tmp_path / "shards" / split).symlink_to(packed)
    page = (Path(__file__).parents[2] / "docs/training-loops.md").read_text()
    (code,) = re.findall(r"```python\n(class Loader.*?)```", page, re.DOTALL)
    classification = importlib.import_module("ultralytics.models.yolo.classify").ClassificationTrainer
    sizes: list[int] = []

    class Base(classification):  # type: ignore[misc, valid-type]
        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            sizes.append(len(batch["img"]))
            return dict(super().preprocess_batch(batch))

    names: dict[str, Any] = {"gpuload": gpuload, "ClassificationTrainer": Base}
    exec(code.rpartition("Trainer(")[0].replace("(224", "(32"), names)
    options = {"model": "yolo11n-cls.yaml", "epochs": 2, "imgsz": 32, "batch": 16, "device": "cpu", "plots": False}
    options["project"] = str(tmp_path)
    trainer = names["Trainer"](overrides=options)
    trainer.train()
    assert sizes == [16] * 12 and "metrics/accuracy_top1" in trainer.metrics


# Keras


KERAS = """
    import sys, json, os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, torch
    from pathlib import Path
    from test_trainers import load, val_of


    class Batches(torch.utils.data.IterableDataset):
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            return iter(self.loader)

        def __len__(self):
            return len(self.loader)


    class Seen(keras.callbacks.Callback):
        counts = []

        def on_epoch_begin(self, epoch, logs=None):
            self.counts.append([0, 0])

        def on_train_batch_end(self, batch, logs=None):
            self.counts[-1][0] += 1

        def on_test_batch_end(self, batch, logs=None):
            self.counts[-1][1] += 1


    packed = Path(sys.argv[1])
    train, val = (torch.utils.data.DataLoader(Batches(one), batch_size=None) for one in (load(packed), val_of(packed)))
    samples = []
    net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])

    def count(labels, logits):
        if labels.device.type != "meta":
            samples.append(len(labels))
        return keras.ops.mean(keras.ops.cast(keras.ops.shape(labels)[0], "float32"))

    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[count])
    net.fit(train, epochs=3, validation_data=val, callbacks=[Seen()], verbose=0)
    print(json.dumps({"counts": Seen.counts, "samples": samples}))
"""


def test_keras_validates_all_samples_after_each_epoch(packed: Path) -> None:
    paths = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    )
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(KERAS), str(packed)]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == [[BATCHES, 3]] * 3
    assert found["samples"] == [*([8] * BATCHES), 8, 8, 3] * 3


# Ray Train


@pytest.fixture
def ray_train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    pytest.importorskip("pandas", reason="Ray Train needs it: the extra 'frameworks'")
    paths = os.pathsep.join(
        [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    )
    monkeypatch.setenv("PYTHONPATH", paths)
    ray.shutdown()
    quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=3, object_store_memory=80_000_000, **quiet)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield importlib.import_module("ray.train.torch")
    for number, handler in handlers.items():  # a TorchTrainer's stays when its run is over
        signal.signal(number, handler)
    ray.shutdown()


def train_on_a_rank(config: dict[str, str]) -> None:
    import ray.train.torch

    loader, found = load(Path(config["packed"]), fields=("key",)), {}
    try:
        ray.train.torch.prepare_data_loader(loader)
    except AttributeError as error:
        found["refused"] = str(error)
    same = ray.train.torch.prepare_data_loader(loader, add_dist_sampler=False)
    found["prepared"] = [keys for (keys,) in same]
    found["plain"] = [keys for (keys,) in loader]
    rank = ray.train.get_context().get_world_rank()
    Path(config["notes"], f"{rank}.json").write_text(json.dumps(found))


def test_ray_trains_with_the_loader_itself(packed: Path, ray_train: Any, tmp_path: Path) -> None:
    config = {"packed": str(packed), "notes": str(tmp_path)}
    scaling = importlib.import_module("ray.train").ScalingConfig(num_workers=2, use_gpu=False)
    run = importlib.import_module("ray.train").RunConfig(storage_path=str(tmp_path / "runs"))
    ray_train.TorchTrainer(train_on_a_rank, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    loaders = [load(packed, fields=("key",), rank=rank, world_size=2) for rank in range(2)]
    for found, loader in zip(ranks, loaders, strict=True):
        assert "leave out prepare_data_loader, or give it add_dist_sampler=False" in found["refused"]
        assert found["prepared"] == [keys for (keys,) in loader]
        assert found["plain"] == [keys for (keys,) in loader]
