"""Mixtures whose weights change: which data set each position draws from, after any stop and with other ranks."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import drain, load, world

import gpuload
from gpuload.order.arguments import Between, MixtureSchedule
from gpuload.order.turns import ScheduledTurns, ShuffledBlocks, Stratified, Turns

BLOCK = 4096  # as in tests/order/test_stream.py
MAKERS = {"shuffled": partial(ShuffledBlocks, seed=5), "stratified": Stratified}
makers = st.sampled_from(sorted(MAKERS))

# Whole weights below 20, so that every share is 0 or large enough; of any point, one at least is not 0.
some_weights = st.lists(st.integers(0, 19), min_size=3, max_size=3).filter(any)
schedules = st.builds(
    lambda starts, weights, between: MixtureSchedule(
        (0, *sorted(starts)), tuple(map(tuple, weights[: len(starts) + 1])), "sample", between
    ),
    st.sets(st.integers(1, 40_000) | st.integers(10**6, 10**6 + 3 * BLOCK), max_size=4),
    st.lists(some_weights, min_size=5, max_size=5),
    st.sampled_from(["constant", "linear"]),
)


def turns_of(schedule: MixtureSchedule, batches: str, unit_samples: int = 1) -> Turns:
    return ScheduledTurns(schedule, unit_samples, MAKERS[batches])  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(schedules, makers, st.integers(0, 50_000) | st.integers(10**6, 10**6 + 9000), st.integers(1, 9000))
def test_what_was_drawn_before_a_position_is_known_without_going_there(
    schedule: MixtureSchedule, batches: str, start: int, samples: int
) -> None:
    turns = turns_of(schedule, batches)
    sources = turns.sources(start, start + samples)
    drawn = turns.drawn(start + samples)
    before = turns.drawn(start)
    assert (drawn - before).tolist() == np.bincount(sources, minlength=3).tolist()
    assert before.sum() == start
    middle = start + samples // 2
    parts = [
        turns_of(schedule, batches).sources(*part)
        for part in ((start, middle), (middle, start + samples))
        if part[0] < part[1]
    ]
    assert np.concatenate(parts).tolist() == sources.tolist()


@settings(max_examples=30, deadline=None)
@given(schedules, st.integers(0, 12))
def test_a_whole_block_holds_the_shares_of_its_middle(schedule: MixtureSchedule, block: int) -> None:
    """To less than a sample, or two if stratified; and what has a weight of 0 does not come."""
    begin, end = block * BLOCK, (block + 1) * BLOCK
    if any(begin < point < end for point in schedule.points):
        return
    shares = np.array(schedule.shares_at((begin + end) / 2))
    for batches in MAKERS:
        counts = np.bincount(turns_of(schedule, batches).sources(begin, end), minlength=3)
        most = 1 if batches == "shuffled" else 2  # of 3 data sets, each of which rounds
        assert (np.abs(counts - shares * BLOCK) < most).all()
        assert not counts[shares == 0].any()


@settings(max_examples=40, deadline=None)
@given(some_weights, makers, st.sampled_from(["constant", "linear"]), st.integers(0, 10**12))
def test_weights_that_do_not_change_are_those_of_a_usual_mixture(
    weights: list[int], batches: str, between: Between, start: int
) -> None:
    """Also between two points with the same weights, where linear ones are rounded to 1/4,096."""
    schedule = MixtureSchedule((0,), (tuple(weights),), "sample", between)
    usual: Turns = MAKERS[batches](tuple(weight / sum(weights) for weight in weights if weight))  # type: ignore[operator]
    active = np.flatnonzero(weights)
    changing = turns_of(schedule, batches)
    assert changing.sources(start, start + 500).tolist() == active[usual.sources(start, start + 500)].tolist()
    assert changing.drawn(start)[active].tolist() == usual.drawn(start).tolist()


def test_weights_change_exactly_at_a_point() -> None:
    """Within a block, and one after the other: what begins later does not come before."""
    schedule = MixtureSchedule(
        (0, 5000, 5010, 6000), ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)), "sample", "constant"
    )
    for batches in MAKERS:
        sources = turns_of(schedule, batches).sources(4990, 6020)
        assert sources[:10].tolist() == [0] * 10
        assert sources[10:20].tolist() == [1] * 10
        assert sources[20:1010].tolist() == [2] * 990
        assert set(sources[1010:].tolist()) == {0, 2}


def test_golden_turns() -> None:
    """A change here breaks every state_dict of a mixture with a schedule that people have saved."""
    schedule = MixtureSchedule((0, 2, 5), ((3, 1), (1, 1), (1, 3)), "epoch", "linear")
    shuffled, stratified = (turns_of(schedule, batches, 3000) for batches in MAKERS)
    assert shuffled.sources(5990, 6010).tolist() == GOLDEN["shuffled"]
    assert stratified.sources(5990, 6010).tolist() == GOLDEN["stratified"]
    assert shuffled.drawn(12_345).tolist() == GOLDEN["shuffled drawn"]
    assert stratified.drawn(12_345).tolist() == GOLDEN["stratified drawn"]


GOLDEN: dict[str, list[int]] = {
    "shuffled": [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0],
    "stratified": [0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1],
    "shuffled drawn": [6323, 6022],
    "stratified drawn": [6327, 6018],
}


def test_a_long_schedule_is_counted_in_parts() -> None:
    """Of a billion samples, from one linear weight to another: as the integral says, within a sample of each block."""
    end = 10**9
    turns = turns_of(MixtureSchedule((0, end), ((1, 0), (0, 1)), "sample", "linear"), "shuffled")
    for position in (end // 3 + 7, end + 10, end // 2):
        second = min(position, end) ** 2 / (2 * end) + max(position - end, 0)
        drawn = turns.drawn(position)
        assert abs(drawn[1] - second) < position / BLOCK
        assert drawn.sum() == position


# Loaders


@pytest.fixture
def halves(packed: Path) -> tuple[gpuload.Dataset, gpuload.Dataset]:
    dataset = gpuload.Dataset(packed)
    return dataset.subset(range(40)), dataset.subset(range(40, 97))


def test_every_set_has_its_weight_at_every_point(halves: Any) -> None:
    mixture = gpuload.mix([(halves[0], {0: 1, 4: 3}), (halves[1], {2: 1, 0: 2})], between="linear")
    assert mixture.schedule is not None
    assert (mixture.schedule.points, mixture.schedule.weights) == ((0, 2, 4), ((1, 2), (2, 1), (3, 1)))
    assert mixture.shares == mixture.shares_at(0) == pytest.approx((1 / 3, 2 / 3))
    assert [mixture.shares_at(at)[0] for at in (1, 2, 3, 4, 99)] == pytest.approx([0.5, 2 / 3, 2.5 / 3.5, 0.75, 0.75])
    steps = gpuload.mix([(halves[0], {0: 1, 4: 3}), (halves[1], {0: 2, 2: 1})])
    assert [steps.shares_at(at)[0] for at in (1.9, 2, 3.9, 4)] == pytest.approx([1 / 3, 0.5, 0.5, 0.75])
    usual = gpuload.mix([(halves[0], 1), (halves[1], 1)])
    assert usual.schedule is None and usual.shares_at(7) == (0.5, 0.5)
    kinds = [gpuload.mix([(halves[0], {0: 1}), (halves[1], 1)], by=unit).fingerprint for unit in ("epoch", "step")]
    assert len({mixture.fingerprint, steps.fingerprint, usual.fingerprint, *kinds}) == 5


@pytest.mark.parametrize("batches", ["shuffled", "stratified"])
def test_weights_change_by_epoch(halves: Any, batches: Any) -> None:
    mixture = gpuload.mix([(halves[0], {0: 1, 1: 0, 2: 1}), (halves[1], {0: 0, 1: 1})], batches=batches)
    loader = load(mixture, 4, steps_per_epoch=10)  # type: ignore[arg-type]
    counts = [sum(sample < 40 for sample, _ in drain([loader])) for _ in range(4)]
    assert counts[:2] == [40, 0] and sum(counts[2:]) == pytest.approx(40, abs=1 if batches == "stratified" else 20)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["shuffled", "stratified"]),
    st.sampled_from(["constant", "linear"]),
    st.sampled_from(["epoch", "step", "sample"]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(1, 9),
)
def test_a_run_resumes_with_other_ranks(
    packed: Path, batches: Any, between: Any, unit: Any, ranks: int, others: int, steps: int
) -> None:
    """Of 12 samples a step. The sequence is that of an uninterrupted run, whatever the schedule counts."""
    dataset = gpuload.Dataset(packed)
    parts: list[Any] = [(dataset.subset(range(40)), {0: 5, 1: 0, 3: 1}), (dataset.subset(range(40, 97)), {0: 1, 2: 4})]
    mixture: Any = gpuload.mix(parts, batches=batches, between=between, by=unit)
    options: dict[str, Any] = {"steps_per_epoch": 5, "fields": ("index", "image", "dataset")}
    loaders = world(mixture, ranks, 12 // ranks, **options)
    whole = [row for _ in range(4) for row in drain(loaders)]
    resumed = world(mixture, ranks, 12 // ranks, **options)
    rows = []
    for epoch in range(steps // 5 + 1):
        rows += drain(resumed, steps % 5) if epoch == steps // 5 and steps % 5 else []
        rows += drain(resumed) if epoch < steps // 5 else []
    states = [loader.state_dict() for loader in resumed]
    later = world(mixture, others, 12 // others, **options)
    for rank, loader in enumerate(later):
        loader.load_state_dict(states[rank % ranks])
    while len(rows) < len(whole):
        rows += drain(later)
    assert rows == whole


def test_a_state_of_another_unit_is_refused(halves: Any) -> None:
    parts = [(halves[0], {0: 1, 5: 2}), (halves[1], 1)]
    for unit, name in (("step", "samples_per_step=8"), ("epoch", "samples_per_epoch=80")):
        mixture: Any = gpuload.mix(parts, by=unit)
        state = load(mixture, 8, steps_per_epoch=10).state_dict()
        load(mixture, 4, rank=0, world_size=2, steps_per_epoch=10).load_state_dict(state)
        with pytest.raises(gpuload.StateError, match=f"was made with {name}, this loader has samples_per_"):
            load(mixture, 4, steps_per_epoch=10).load_state_dict(state)
    mixture = gpuload.mix(parts, by="sample")
    load(mixture, 3).load_state_dict(load(mixture, 8).state_dict())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([{1: 1}, 1], r"mix\(parts=.*weights from 0 by the points where they begin, such as \{0: 0.7, 10: 0.5\}"),
        ([{0: 0, 3: 0}, 1], "expected pairs of a data set"),
        ([{0: 1, 2.5: 1}, 1], "expected pairs of a data set"),
        ([{0: -1}, 1], "expected pairs of a data set"),
        ([{}, 1], "expected pairs of a data set"),
        ([{0: 1, 3: 0}, {0: 1, 2: 0, 4: 1}], "mix: at epoch 3 all weights are 0"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(halves: Any, weights: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        gpuload.mix(list(zip(halves, weights, strict=True)))


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([{0: 1, 3: 1e-5}, 1], {}, "expected each at least 1/4096. Raise the smallest weight"),
        ([{0: 1, 10**15: 1}, 1], {"by": "epoch"}, "begins after 97,000,000,000,000,000 samples, expected fewer"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(halves: Any, weights: Any, options: Any, message: str) -> None:
    mixture: Any = gpuload.mix(list(zip(halves, weights, strict=True)), **options)
    if "begins" in message:
        mixture = gpuload.Mixture(mixture.datasets * 60, mixture.shares, schedule=mixture.schedule)
        message = r"begins after .* samples, expected fewer than 2\^62"
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(mixture, 8)
