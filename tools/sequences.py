"""Random sequences of what a long run goes through, each compared with the order that one process alone has.

    python tools/sequences.py                     # 100 sequences
    python tools/sequences.py --count 857 --seed 3

A sequence is a run over several loaders: numbers of ranks and batch sizes change when it resumes, loops end, are left,
or end with an error that a loader raises, and training loops say which epoch comes next. What is asked of each step:

- the samples of all ranks, with their crops, are those at the run's position in the order of one process;
- all ranks return the same state, of the position that this program counts itself, in less than 300 bytes;
- the next loop is the one that the documentation names: after an error it continues behind the last batch, after a loop
  that was left it is the next epoch, after a resume it is the rest of the epoch; with `steps_per_epoch`, no sample is
  skipped.

Prints how many sequences there were of each kind, and what happened in them.

Exit codes: 0 all held; 1 one did not, of which the seed is printed; 2 wrong arguments.
"""

import argparse
import functools
import json
import random
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload

SAMPLES = 61
PASSES = 12  # of which the order of one process is known
MOST_STATE_BYTES = 300

WEIGHTS = np.arange(SAMPLES) % 5 / 4.0
SIZES = gpuload.Buckets([(8, 8), (6, 12), (12, 6)])

Row = tuple[int, int]  # a sample, and a checksum of its crop


@dataclass(frozen=True)
class Kind:
    """One way to draw and divide samples.

    options: of the loader. in_order: whether ranks divide a global batch into consecutive parts. fixed: whether the
    global batch must stay the same. worlds: the numbers of ranks. subset: whether of a part of the set.
    """

    options: dict[str, Any]
    in_order: bool = True
    fixed: bool = False
    worlds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    subset: bool = False


KINDS = {
    "shuffled": Kind({}),
    "windows": Kind({"shuffle": gpuload.Shuffle(window=2)}),
    "stored": Kind({"shuffle": False}),
    "subset": Kind({"shuffle": gpuload.Shuffle(window=3)}, subset=True),
    "lanes": Kind(
        {"shuffle": gpuload.Shuffle(window=1, lanes=4)},
        in_order=False,
        worlds=(1, 2, 4),
    ),
    "weights": Kind({"sampling": gpuload.Weights(WEIGHTS)}),
    "balance": Kind({"sampling": gpuload.Balance("label")}),
    "repeated": Kind({"sampling": gpuload.Repeated(3)}, in_order=False),
    "mixture": Kind({}),
    "stratified": Kind({}),
    "buckets": Kind(
        {"augment": gpuload.Augment(SIZES, crop="cover", dtype="uint8")},
        fixed=True,
        worlds=(1, 2, 3, 4, 6),
    ),
}


class WrongOrderError(AssertionError):
    """A sequence in which something was not as documented."""


class StepError(Exception):
    """Raised by a batch transform, in the middle of a loop."""


@dataclass
class Fuse:
    """A batch transform that raises an error before one batch."""

    error: BaseException | None = None

    def __call__(self, batch: Any) -> None:
        if self.error is not None:
            error = self.error
            self.error = None
            raise error


@dataclass
class Run:
    """A run of which the position is counted here, apart from gpuload.

    epoch, begin, samples: as in a state. rows: the order of one process. pass_samples: in an epoch that is a pass.
    left_at: where the epoch ends of a loop that was left, so that the next loop begins there.
    """

    rows: list[Row]
    pass_samples: int
    drop_last: Any
    is_virtual: bool
    in_order: bool
    epoch: int = 0
    begin: int = 0
    samples: int = 0
    left_at: int | None = None
    events: Counter[str] = field(default_factory=Counter)

    def take(self, batch: list[Row]) -> None:
        """Compares a global batch with the order."""
        start = self.begin + self.samples
        expected = self.rows[start : start + len(batch)]
        if (batch if self.in_order else sorted(batch)) != (
            expected if self.in_order else sorted(expected)
        ):
            raise WrongOrderError(f"position {start}: {batch} instead of {expected}")
        self.samples += len(batch)

    def end_of_epoch(self, start: int, epoch_samples: int, global_batch: int) -> int:
        """Where an epoch ends of which the rest is gone through from `start` on, from its beginning."""
        rest = max(epoch_samples - start, 0)
        if self.is_virtual and self.drop_last is True:
            rest -= rest % global_batch
        return start + rest

    def begin_loop(self) -> None:
        """Another loop over the same loaders begins."""
        if self.left_at is not None:
            self.next_epoch(self.left_at)
            self.left_at = None

    def next_epoch(self, end: int) -> None:
        self.epoch += 1
        self.begin += end
        self.samples = 0


def pack_set(folder: Path) -> Path:
    """Packs small images of three shapes."""
    rng = np.random.default_rng(0)
    shapes = [(16, 16), (12, 24), (24, 12)]

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(SAMPLES):
            height, width = shapes[number % 3]
            yield {
                "image": Image.fromarray(
                    rng.integers(0, 256, (height, width, 3), np.uint8)
                ),
                "label": number % 4,
            }

    gpuload.pack(samples(), folder, workers=1, maxcount=7, progress=False)
    return folder / "train"


def data_of(name: str, packed: Path) -> Any:
    dataset = gpuload.Dataset(packed)
    if name in ("mixture", "stratified"):
        parts = [
            (dataset.subset(range(40)), 3),
            (dataset.subset(range(30, SAMPLES)), 1),
        ]
        return gpuload.mix(
            parts, batches="stratified" if name == "stratified" else "shuffled"
        )
    return dataset.subset(range(5, 50)) if KINDS[name].subset else dataset


def load(data: Any, batch_size: int, **options: Any) -> gpuload.DaliIterator:
    usual = {
        "augment": gpuload.Augment(8, dtype="uint8"),
        "device": "cpu",
        "num_threads": 1,
        "decoder": "native",
    }
    return gpuload.DaliIterator(
        data, batch_size, fields=("index", "image"), **{**usual, **options}
    )


def rows_of(loader: gpuload.DaliIterator, batch: Any) -> list[Row]:
    """The samples of a batch, without those that only keep a rank in step."""
    index, images = batch
    count = len(index) - loader.padding
    return [
        (int(index[row]), zlib.crc32(images[row].numpy().tobytes()))
        for row in range(count)
    ]


@functools.cache
def order_alone(
    name: str, packed: Path, seed: int, global_batch: int
) -> tuple[list[Row], int]:
    """The order of one process, and the samples of a pass."""
    options = {**KINDS[name].options, "seed": seed, "drop_last": KINDS[name].fixed}
    with load(data_of(name, packed), global_batch, **options) as loader:
        epochs = [
            [row for batch in loader for row in rows_of(loader, batch)]
            for _ in range(PASSES)
        ]
    return [row for epoch in epochs for row in epoch], len(epochs[0])


def play(name: str, packed: Path, drawn: random.Random) -> Counter[str]:
    """Plays one sequence; returns what happened in it.

    Raises:
        WrongOrderError: something was not as documented. ArgumentError: the options of the sequence do not go together.
    """
    kind = KINDS[name]
    data = data_of(name, packed)
    options = {**kind.options, "seed": drawn.randrange(4)}
    options["drop_last"] = (
        drawn.choice([True, True, False, "exact", "even"]) if not kind.fixed else True
    )
    is_virtual = drawn.random() < 0.5
    global_batch = drawn.choice([12, 24])
    rows, pass_samples = order_alone(
        name, packed, options["seed"], global_batch if kind.fixed else 12
    )
    run = Run(rows, pass_samples, options["drop_last"], is_virtual, kind.in_order)
    state: dict[str, Any] | None = None
    for _ in range(drawn.randint(2, 5)):
        world = drawn.choice(
            [
                world
                for world in kind.worlds
                if not kind.fixed or global_batch % world == 0
            ]
        )
        batch_size = (
            global_batch // world
            if kind.fixed
            else drawn.randint(1, max(40 // world, 1))
        )
        if name == "lanes":
            batch_size = drawn.choice([4, 8]) // world * drawn.randint(1, 3)
        steps = drawn.randint(1, 8) if is_virtual else None
        fuse = Fuse()
        more = {**options, "steps_per_epoch": steps, "batch_transforms": [fuse]}
        loaders = [
            load(data, batch_size, rank=rank, world_size=world, **more)
            for rank in range(world)
        ]
        if state is not None:
            run.events["resumes"] += 1
            for loader in loaders:
                loader.load_state_dict(state)
        epoch_samples = pass_samples if steps is None else steps * batch_size * world
        for _ in range(drawn.randint(1, 3)):
            if run.begin + run.samples + 2 * max(epoch_samples, pass_samples) > len(
                rows
            ):
                break
            run.begin_loop()
            told = drawn.choice(["nothing", "set_epoch", "sampler", "an earlier epoch"])
            for loader in loaders:
                if told == "set_epoch":
                    loader.set_epoch(run.epoch)
                elif told != "nothing":
                    loader.sampler.set_epoch(
                        run.epoch if told == "sampler" else drawn.randint(0, run.epoch)
                    )
            loop(run, loaders, fuse, drawn, epoch_samples, batch_size * world)
        state = json.loads(
            json.dumps(loaders[0].state_dict())
        )  # of a loop that was left: where it was left
        run.left_at = None
        for loader in loaders:
            loader.close()
    return run.events


def loop(
    run: Run,
    loaders: list[gpuload.DaliIterator],
    fuse: Fuse,
    drawn: random.Random,
    epoch_samples: int,
    global_batch: int,
) -> None:
    """One loop over all ranks in step, to its end or to what ends it early."""
    start = run.samples
    end = run.end_of_epoch(start, epoch_samples, global_batch)
    how = drawn.choice(["whole", "left", "error", "error", "stopped"])
    steps = drawn.randint(0, 6)
    iterators = [iter(loader) for loader in loaders]
    while True:
        if how == "error" and steps == 0:
            fuse.error = drawn.choice([StepError(), KeyboardInterrupt()])
        parts = []
        try:
            for iterator in iterators:
                parts.append(next(iterator, None))
                if fuse.error is None and how == "error" and steps == 0:
                    raise WrongOrderError("an error did not reach the loop")
        except (StepError, KeyboardInterrupt):
            fail_others(fuse, iterators[1:])
            run.events["errors"] += 1
            check_states(run, loaders)
            return
        fuse.error = None
        if all(part is None for part in parts):
            break
        if any(part is None for part in parts):
            raise WrongOrderError("a rank has fewer batches")
        run.take(
            [
                row
                for loader, part in zip(loaders, parts, strict=True)
                for row in rows_of(loader, part)
            ]
        )
        run.events["steps"] += 1
        check_states(run, loaders)
        steps -= 1
        if steps < 0 and how in ("left", "stopped"):
            run.events[how] += 1
            for iterator in iterators:
                iterator.close()  # type: ignore[attr-defined]
            if how == "left":
                run.left_at = end
                return
            for loader in loaders:
                loader.load_state_dict(loader.state_dict())
            return
    dropped = epoch_samples - run.samples
    if dropped > 0 and (run.drop_last is not True or dropped >= global_batch):
        raise WrongOrderError(f"{dropped} samples of epoch {run.epoch} did not come")
    run.events["epochs"] += 1
    run.next_epoch(end)
    check_states(run, loaders)


def fail_others(fuse: Fuse, iterators: list[Iterator[Any]]) -> None:
    """All ranks fail at the same step."""
    for iterator in iterators:
        fuse.error = StepError()
        try:
            next(iterator)
        except StepError:
            continue
        raise WrongOrderError("an error did not reach the loop")


def check_states(run: Run, loaders: list[gpuload.DaliIterator]) -> None:
    """All ranks tell the position that was counted here."""
    texts = {json.dumps(loader.state_dict()) for loader in loaders}
    if len(texts) > 1:
        raise WrongOrderError(f"ranks tell {texts}")
    (text,) = texts
    found = {name: json.loads(text)[name] for name in ("epoch", "begin", "samples")}
    if (
        found != {"epoch": run.epoch, "begin": run.begin, "samples": run.samples}
        or len(text) > MOST_STATE_BYTES
    ):
        raise WrongOrderError(
            f"the state is {text}, expected epoch {run.epoch}, begin {run.begin}, samples {run.samples}"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=100, help="sequences that are played to their end"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    args = parser.parse_args(argv)
    if args.count < 1:
        parser.error(f"--count {args.count}: expected at least 1")
    warnings.simplefilter("ignore")  # lanes that ranks cannot have
    kinds, events, refused = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_set(Path(folder) / "set")
        seed = args.seed
        while kinds.total() < args.count:
            drawn = random.Random(seed)
            name = drawn.choice([*KINDS])
            try:
                events += play(name, packed, drawn)
                kinds[name] += 1
            except gpuload.ArgumentError:
                refused += 1
            except WrongOrderError as error:
                print(f"sequence {seed} ({name}): {error}")
                return 1
            seed += 1
    print(
        f"{kinds.total()} sequences held, {refused} were refused: {dict(sorted(kinds.items()))}"
    )
    print(f"in them: {dict(sorted(events.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
