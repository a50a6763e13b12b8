"""The position of a run, as plain numbers to save and resume from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuload.checks import shown
from gpuload.disk.dataset import Dataset
from gpuload.errors import StateError
from gpuload.order.mixture import Mixture

VERSION = 1
_QUOTES = "'\""


class Position(NamedTuple):
    """How far all ranks together are.

    begin: position in the stream where this epoch began. samples: how many were handed out since.
    """

    epoch: int
    begin: int
    samples: int


@dataclass(frozen=True)
class RunIdentity:
    """The settings that a position depends on, which must be the same when a run is resumed."""

    data: Dataset | Mixture
    seed: int
    shuffle: bool
    window: int
    sampling: str | None = None  # a fingerprint of the weights or classes that samples are drawn by
    buckets: str | None = None  # what the order by buckets depends on
    bucket_batch: int | None = None  # samples in a global batch, where there are buckets
    lanes: int = 1

    def state_dict(self, position: Position) -> dict[str, Any]:
        """Under 1 kB, and JSON: a checkpoint of any kind can hold it."""
        return {
            "version": VERSION,
            **position._asdict(),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window": self.window,
            "fingerprint": self.data.fingerprint,
            "dataset_samples": len(self.data),
            **({} if self.sampling is None else {"sampling": self.sampling}),
            **({} if self.buckets is None else {"buckets": self.buckets, "bucket_batch": self.bucket_batch}),
            **({} if self.lanes == 1 else {"lanes": self.lanes}),
        }

    def load(self, state: Mapping[str, Any]) -> Position:
        """The position in a state.

        Raises:
            StateError: the state is of another data set, of a run with another seed, shuffle, window or lanes, or
                damaged.
        """
        if "version" not in state:
            raise StateError(f"state_dict: {_about_foreign(state)}")
        if state["version"] != VERSION:
            raise StateError(
                f"state_dict: is of version {shown(state['version'])}, this gpuload reads {VERSION}. "
                "Was it made by another loader?"
            )
        self._check_same("sampling", state, "sampling=", "it, or they differ", "Balance or Weights")
        whole = "buckets, drop_last and steps_per_epoch"
        self._check_same("buckets", state, "buckets", "them, or they or drop_last differ", whole)
        batch = 0 if self.buckets is None else _count("bucket_batch", state.get("bucket_batch"))
        if batch != (self.bucket_batch or 0):
            raise StateError(
                f"state_dict: was made with global batches of {batch:,} samples (batch_size x world_size), this "
                f"loader's have {self.bucket_batch:,}. With buckets the order depends on that: construct it with "
                f"batch_size={batch:,} / world_size"
            )
        needed = self.state_dict(Position(0, 0, 0))
        if missing := sorted(set(needed) - set(state) - {"lanes"}):
            raise StateError(f"state_dict: has no entry {missing[0]!r}. Was it made by another loader, or edited?")
        if state["fingerprint"] != self.data.fingerprint:
            fingerprint = shown(state["fingerprint"]).strip(_QUOTES)
            raise StateError(
                f"state_dict: is of another data set ({_count('dataset_samples', state['dataset_samples']):,} "
                f"samples, fingerprint {fingerprint}); {self.data.folder} has {len(self.data):,}, fingerprint "
                f"{self.data.fingerprint}. Train on the set it was made with, or start from the beginning"
            )
        for name in ("seed", "shuffle", "window", "lanes"):
            expected, found = getattr(self, name), shown(state.get(name, 1))  # older states have no lanes
            if state.get(name, 1) != expected:
                raise StateError(
                    f"state_dict: was made with {name}={found}, this loader has {name}={expected}. "
                    f"The order would differ: construct it with {name}={found}"
                )
        return Position(*(_count(name, state[name]) for name in Position._fields))

    def _check_same(self, name: str, state: Mapping[str, Any], what: str, differ: str, needed: str) -> None:
        made, has = state.get(name), getattr(self, name)
        if made != has:
            raise StateError(
                f"state_dict: was made {'with' if made else 'without'} {what}, this loader is "
                f"{'with' if has else 'without'} {differ}. The order would differ: construct it with the same {needed}"
            )


def _about_foreign(state: Mapping[str, Any]) -> str:
    """The message for a dict that is not a loader's state."""
    for name, entry in state.items():
        if isinstance(entry, Mapping) and {"version", *Position._fields} <= set(entry):
            return f"is a checkpoint that holds one, not the state itself. Give its entry {shown(name)}"
    entries = f"its entries are {shown(list(state))}" if state else "it is empty"
    return f"is not what state_dict() of a loader returned ({entries}). Was it made by a model or another loader?"


def _count(name: str, value: Any) -> int:
    """A number in a state, also if a checkpoint turned it into a tensor or an array."""
    try:
        found = int(value)
        if found == value and 0 <= found < 2**62:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise StateError(f"state_dict: has {name}={shown(value)}, expected a whole number from 0. Was it edited?")
