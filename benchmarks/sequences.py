"""Random sequences of what a long run goes through, each compared with the order that one process alone has.

    python benchmarks/sequences.py                     # 100 sequences
    python benchmarks/sequences.py --count 857 --seed 3

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
    "scheduled": Kind({}),
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
    if name == "scheduled":
        weights = {0: 3, 150: 0, 400: 1}, {0: 1, 300: 2}
        halves = dataset.subset(range(40)), dataset.subset(range(30, SAMPLES))
        parts = list(zip(halves, weights, strict=True))
        return gpuload.mix(parts, by="sample", between="linear")
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
    sequence = Sequence(name, packed, drawn)
    state: dict[str, Any] | None = None
    for _ in range(drawn.randint(2, 5)):
        state = sequence.play_part(state)
    return sequence.run.events


class Sequence:
    """A run on loaders that are constructed again and again, each time with other ranks and batches.

    Args:
        name: Of its `Kind`.
        packed: The packed set.
        drawn: Draws all that is at random.
    """

    def __init__(self, name: str, packed: Path, drawn: random.Random) -> None:
        kind = KINDS[name]
        self._name = name
        self._kind = kind
        self._drawn = drawn
        self._data = data_of(name, packed)
        self._options = {**kind.options, "seed": drawn.randrange(4)}
        drop_last: Any = True
        if not kind.fixed:
            drop_last = drawn.choice([True, True, False, "exact", "even"])
        self._options["drop_last"] = drop_last
        self._is_virtual = drawn.random() < 0.5
        self._global_batch = drawn.choice([12, 24])
        rows, self._pass_samples = order_alone(
            name,
            packed,
            self._options["seed"],
            self._global_batch if kind.fixed else 12,
        )
        self.run = Run(
            rows, self._pass_samples, drop_last, self._is_virtual, kind.in_order
        )

    def play_part(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Some loops over loaders that resume from a state; returns their own state."""
        drawn = self._drawn
        run = self.run
        world = self._draw_world()
        batch_size = self._draw_batch_size(world)
        steps = drawn.randint(1, 8) if self._is_virtual else None
        fuse = Fuse()
        loaders = self._load(world, batch_size, steps, fuse)
        if state is not None:
            run.events["resumes"] += 1
            for loader in loaders:
                loader.load_state_dict(state)
        global_batch = batch_size * world
        epoch_samples = self._pass_samples if steps is None else steps * global_batch
        farthest = 2 * max(epoch_samples, self._pass_samples)
        for _ in range(drawn.randint(1, 3)):
            if run.begin + run.samples + farthest > len(run.rows):
                break
            run.begin_loop()
            self._announce_epoch(loaders)
            loop(run, loaders, fuse, drawn, epoch_samples, global_batch)
        # Of a loop that was left: where it was left.
        state = json.loads(json.dumps(loaders[0].state_dict()))
        run.left_at = None
        for loader in loaders:
            loader.close()
        return state

    def _draw_world(self) -> int:
        worlds = self._kind.worlds
        if self._kind.fixed:
            worlds = tuple(world for world in worlds if self._global_batch % world == 0)
        return self._drawn.choice(worlds)

    def _draw_batch_size(self, world: int) -> int:
        if self._kind.fixed:
            return self._global_batch // world
        batch_size = self._drawn.randint(1, max(40 // world, 1))
        if self._name == "lanes":
            batch_size = self._drawn.choice([4, 8]) // world * self._drawn.randint(1, 3)
        return batch_size

    def _load(
        self, world: int, batch_size: int, steps: int | None, fuse: Fuse
    ) -> list[gpuload.DaliIterator]:
        options = {
            **self._options,
            "steps_per_epoch": steps,
            "batch_transforms": [fuse],
        }
        return [
            load(self._data, batch_size, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]

    def _announce_epoch(self, loaders: list[gpuload.DaliIterator]) -> None:
        """Says the number of the epoch as trainers do, or an earlier one, which changes nothing."""
        announced = self._drawn.choice(
            ["nothing", "set_epoch", "sampler", "an earlier epoch"]
        )
        for loader in loaders:
            if announced == "set_epoch":
                loader.set_epoch(self.run.epoch)
            elif announced == "sampler":
                loader.sampler.set_epoch(self.run.epoch)
            elif announced == "an earlier epoch":
                loader.sampler.set_epoch(self._drawn.randint(0, self.run.epoch))


def loop(
    run: Run,
    loaders: list[gpuload.DaliIterator],
    fuse: Fuse,
    drawn: random.Random,
    epoch_samples: int,
    global_batch: int,
) -> None:
    """One loop over all ranks in step, to its end or to what ends it early."""
    end = run.end_of_epoch(run.samples, epoch_samples, global_batch)
    ending = drawn.choice(["whole", "left", "error", "error", "stopped"])
    steps = drawn.randint(0, 6)
    iterators = [iter(loader) for loader in loaders]
    while True:
        fails = ending == "error" and steps == 0
        if fails:
            fuse.error = drawn.choice([StepError(), KeyboardInterrupt()])
        try:
            parts = next_parts(iterators, fuse, fails=fails)
        except (StepError, KeyboardInterrupt):
            fail_others(fuse, iterators[1:])
            run.events["errors"] += 1
            check_states(run, loaders)
            return
        fuse.error = None
        if all(part is None for part in parts):
            break
        take_step(run, loaders, parts)
        steps -= 1
        if steps < 0 and ending in ("left", "stopped"):
            run.events[ending] += 1
            leave(run, loaders, iterators, end if ending == "left" else None)
            return
    dropped = epoch_samples - run.samples
    if dropped > 0 and (run.drop_last is not True or dropped >= global_batch):
        raise WrongOrderError(f"{dropped} samples of epoch {run.epoch} did not come")
    run.events["epochs"] += 1
    run.next_epoch(end)
    check_states(run, loaders)


def next_parts(iterators: list[Iterator[Any]], fuse: Fuse, *, fails: bool) -> list[Any]:
    """Each rank's part of the next batch; None where there is none. fails: whether the first one raises an error."""
    parts = []
    for iterator in iterators:
        parts.append(next(iterator, None))
        if fails and fuse.error is None:
            raise WrongOrderError("an error did not reach the loop")
    return parts


def take_step(run: Run, loaders: list[gpuload.DaliIterator], parts: list[Any]) -> None:
    """Compares a global batch, of which each rank has a part, with the order."""
    if any(part is None for part in parts):
        raise WrongOrderError("a rank has fewer batches")
    pairs = zip(loaders, parts, strict=True)
    run.take([row for loader, part in pairs for row in rows_of(loader, part)])
    run.events["steps"] += 1
    check_states(run, loaders)


def leave(
    run: Run,
    loaders: list[gpuload.DaliIterator],
    iterators: list[Iterator[Any]],
    end: int | None,
) -> None:
    """Leaves a loop in the middle. end: where its epoch ends; None: the loaders go on where they are."""
    for iterator in iterators:
        iterator.close()  # type: ignore[attr-defined]
    if end is not None:
        run.left_at = end
        return
    for loader in loaders:
        loader.load_state_dict(loader.state_dict())


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
    position = {name: json.loads(text)[name] for name in ("epoch", "begin", "samples")}
    if (
        position != {"epoch": run.epoch, "begin": run.begin, "samples": run.samples}
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
    kinds = Counter[str]()
    events = Counter[str]()
    refused = 0
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
