"""`gpuload tune`: the search finds the best of noisy candidates, and what it finds is kept and found again."""

import errno
import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import cli
from gpuload.commands.settings import (
    Beside,
    Measured,
    Setting,
    TunedLoader,
    both_of,
    candidates,
    count_turns,
    plan,
    sweep,
)
from gpuload.commands.tune import advice, best_of_each, choose
from gpuload.loader.tuning import Tuning, describe_device, load_tuning, save_tuning
from gpuload.machine.ranks import Ranks

USUAL = Setting("native", 4, 2, 64)
CHOICES: dict[str, Any] = {
    "decoder": ("native", "dali"),
    "num_threads": (4, 2, 8),
    "prefetch": (2, 1, 4),
    "batch_size": (64, 128),
}


def never() -> bool:
    return False


def test_candidates_are_the_defaults_then_single_changes_then_combinations() -> None:
    found = candidates(USUAL, CHOICES, most=16)
    changed = [sum(getattr(one, name) != getattr(USUAL, name) for name in CHOICES) for one in found]
    assert changed[:7] == [0, 1, 1, 1, 1, 1, 1] and min(changed[7:]) > 1
    assert len(found) == len(set(found)) == 16
    assert len(candidates(USUAL, CHOICES, most=100)) == 2 * 3 * 3 * 2
    assert candidates(USUAL, CHOICES, most=3) == found[:3]
    assert [one.decoder for one in found[:2]] == ["native", "dali"]  # both however little time there is
    assert {one.decoder for one in found[7:]} == {"native", "dali"}  # spread over all there are


@pytest.mark.parametrize("best", [0, 1, 7, 15])
def test_the_best_of_noisy_candidates_is_found_and_the_defaults_stay(best: int) -> None:
    settings = candidates(USUAL, CHOICES, most=16)
    rng = np.random.default_rng(best)
    turns: list[Setting] = []

    def measure(setting: Setting) -> float:
        turns.append(setting)
        return float((1200 if setting == settings[best] else 1000) * rng.uniform(0.92, 1.08))

    found = sweep(settings, measure, never)
    assert found[0].setting == settings[best]
    assert {one.setting for one in found} == set(settings)
    assert len(turns) == count_turns(16) == 16 + 9 * 2 + 5 * 4 + 3 * 8
    counts = Counter(turns)
    assert counts[USUAL] == max(counts.values()) == 1 + 2 + 4 + 8
    assert sorted(counts.values())[0] == 1
    # Interleaved: the last, longest round does not give one its turns at a stretch.
    assert max(len(list(run)) for _, run in itertools.groupby(turns[-24:])) <= 2


def test_a_setting_that_fails_drops_out_and_failing_defaults_are_told() -> None:
    settings = candidates(USUAL, CHOICES, most=8)

    def measure(setting: Setting) -> float:
        if setting.decoder == "dali":
            raise RuntimeError("CUDA out of memory\nmore of it")
        return setting.num_threads * 100.0

    found = sweep(settings, measure, never)
    failed = [one for one in found if one.failed]
    assert failed and {one.setting.decoder for one in failed} == {"dali"}
    assert {one.failed for one in failed} == {"CUDA out of memory"} and not any(one.rates for one in failed)
    assert found[0].setting.num_threads == 8
    with pytest.raises(RuntimeError, match="out of memory"):
        sweep([Setting("dali", 4, 2, 64), USUAL], measure, never)


def test_when_the_time_is_over_each_has_had_a_turn() -> None:
    settings = candidates(USUAL, CHOICES, most=12)
    found = sweep(settings, lambda setting: float(setting.num_threads), lambda: True)
    assert [len(one.rates) for one in found] == [1] * 12


def test_a_round_is_left_when_the_time_is_over() -> None:
    turns: list[Setting] = []

    def measure(setting: Setting) -> float:
        turns.append(setting)
        return float(setting.num_threads)

    found = sweep(candidates(USUAL, CHOICES, most=12), measure, lambda: len(turns) >= 15)
    assert len(turns) == sum(len(one.rates) for one in found) == 15  # the second round would end after 12 + 7 * 2


def test_a_plan_fits_the_time() -> None:
    settings = candidates(USUAL, CHOICES, most=16)
    for seconds, opening_s in itertools.product((5, 60, 600), (0.01, 0.3, 2.0)):
        chosen, turn_s = plan(settings, seconds, opening_s)
        assert chosen == settings[: len(chosen)] and len(chosen) >= 2 and turn_s >= opening_s
        if len(chosen) > 2:
            assert count_turns(len(chosen)) * (turn_s + opening_s) == pytest.approx(seconds)
    assert len(plan(settings, 600, 0.3)[0]) == 16
    assert 2 < len(plan(settings, 60, 2.0)[0]) < 16


def test_the_best_of_each_decoder_is_kept() -> None:
    found = [Measured(Setting("native", 2, 2, 64), [5.0]), Measured(USUAL, [4.0]), Measured(Setting("dali", 1, 1, 64))]
    assert best_of_each(found) == [Tuning("native", 2, 2, None, 64, 5.0)]


def test_both_decoders_have_shares_that_take_them_equally_long() -> None:
    dali, native = Measured(Setting("dali", 4, 3, 128, 0.3), [3000.0]), Measured(Setting("native", 16, 2, 64), [1000.0])
    assert both_of([dali, native]) == Setting("both", 16, 3, 128, 0.3, 0.25)
    assert both_of([native]) is both_of([dali, Measured(native.setting)]) is None


def test_what_is_to_be_passed_is_said() -> None:
    both = Setting("both", 4, 2, 64, cpu_share=0.3)
    assert advice(both, USUAL) == "pass decoder=gpuload.Both(cpu=0.3); pixels differ by rounding from those of 'native'"
    assert advice(USUAL, USUAL) == "decoder='native', which is the default here"


def test_what_is_left_of_device_and_cores() -> None:
    resident, one = Beside([900.0], [0.1], [1.0]), Beside([500.0, 700.0], [0.1, 0.15, 0.125], [1.5, 0.5])
    assert (one.rate, one.device_left(resident)) == (600.0, pytest.approx(0.8))
    assert one.cores_left == len(os.sched_getaffinity(0)) - 1.0
    assert resident.device_left(one) == 1.0 and Beside([1.0], [1.0], [1e6]).cores_left == 0


FAST, SLOW = Tuning("native", 3, 1, None, 64, 900.5), Tuning("dali", 2, 4, None, 64, 700.0)
ENGINES = Tuning("dali", 16, 3, 0.45, 256, 9000.0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_tunings_are_found_by_device_and_decoder(tmp_path: Path) -> None:
    assert load_tuning(tmp_path, "a CPU") is None
    assert save_tuning(tmp_path, "a CPU", [SLOW, FAST]) == tmp_path / "tuning.json"
    save_tuning(tmp_path, "a GPU", [ENGINES])
    assert load_tuning(tmp_path, "a CPU") == FAST
    assert load_tuning(tmp_path, "a CPU", "dali") == SLOW
    assert load_tuning(tmp_path, "a GPU") == ENGINES
    assert load_tuning(tmp_path, "a GPU", "native") is None
    assert load_tuning(tmp_path, "another GPU") is None
    better = Tuning("dali", 1, 1, None, 128, 2000.0)
    save_tuning(tmp_path, "a CPU", [better])
    assert load_tuning(tmp_path, "a CPU") == better and load_tuning(tmp_path, "a CPU", "native") == FAST
    assert list(tmp_path.iterdir()) == [tmp_path / "tuning.json"]  # nothing temporary is left


def refuse_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def refusing(path: Path, *args: Any) -> int:
        if path.is_relative_to(folder):
            raise OSError(errno.EROFS, "Read-only file system")
        return write(path, *args)

    monkeypatch.setattr(Path, "write_text", refusing)


def test_where_the_folder_is_read_only_the_cache_keeps_them(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    refuse_below(data, monkeypatch)
    saved = save_tuning(data, "a CPU", [FAST])
    assert saved.is_relative_to(cache) and load_tuning(data, "a CPU") == FAST
    assert load_tuning(other, "a CPU") is None  # each set has its own
    refuse_below(tmp_path, monkeypatch)
    with pytest.raises(
        gpuload.OutputError, match=r"cannot be saved: .*data/tuning.json \(Read-only.*Make one of the two"
    ):
        save_tuning(data, "a CPU", [FAST])


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"version": 1, "devices": {}}',
        '{"version": 2, "devices": {"a CPU": [{"decoder": "native"}]}}',
        json.dumps({"version": 2, "devices": {"a CPU": [{**FAST.__dict__, "num_threads": 0}]}}),
        json.dumps({"version": 2, "devices": {"a CPU": [{**FAST.__dict__, "prefetch": "two"}]}}),
    ],
)
def test_a_file_that_cannot_be_read_counts_as_none_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "tuning.json").write_text(content)
    with pytest.warns(UserWarning, match=r"tuning.json: cannot be read .*delete it, or run `gpuload tune` again"):
        assert load_tuning(tmp_path, "a CPU") is None
    save_tuning(tmp_path, "a CPU", [FAST])
    assert load_tuning(tmp_path, "a CPU") == FAST


def test_a_device_is_told_with_the_cores_of_a_rank() -> None:
    alone, one_of_many = (describe_device(None, Ranks(local_world_size=n)) for n in (1, 10_000))
    assert one_of_many.endswith(", 1 cores") and alone.rpartition(",")[0] == one_of_many.rpartition(",")[0] != ""


def run(*arguments: str) -> int:
    return cli.parse(["tune", *arguments]).run()


@pytest.mark.usefixtures("cache")
def test_the_command_measures_and_saves(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, figures = tmp_path / "train", tmp_path / "figures.json"
    data.mkdir()
    for path in packed.iterdir():
        (data / path.name).symlink_to(path)
    options = ["--device", "cpu", "--seconds", "1", "--size", "32", "--batch-size", "16", "--json", str(figures)]
    assert run(str(data), *options) == 0
    said = capsys.readouterr().out
    for text in (
        "decoder",
        "threads",
        "images/s",
        "turns",
        "times the images/s of the defaults. Saved in",
        "cores left",
    ):
        assert text in said
    written = json.loads(figures.read_text())
    best = written["settings"][0]
    assert best["images_per_s"] > 0 and best["batch_size"] == 16 and len(written["settings"]) >= 2
    found = load_tuning(data, written["device"], best["decoder"])
    assert found is not None
    assert (found.num_threads, found.prefetch) == (best["num_threads"], best["prefetch"])
    beside = {one["decoder"]: one for one in written["beside_training"]}
    assert set(beside) == {"native", "dali", "both"} and written["resident_images_per_s"] > 0
    for one in beside.values():
        assert one["images_per_s"] > 0 and 0 < one["device_left"] <= 1 and one["cores_left"] >= 0
    share = beside["both"]["cpu_share"]
    assert 0 < share < 1 and load_tuning(data, written["device"], "both").cpu_share == share  # type: ignore[union-attr]
    assert re.search(r"best beside a training step: (pass )?decoder=('native'|'dali'|gpuload.Both)", said)
    for decoder, expected in (
        ("both", share),
        (gpuload.Both(deterministic=True), 0.25),
        (gpuload.Both(cpu=0.5), 0.5),
    ):
        usual: dict[str, Any] = {"augment": gpuload.Augment(8), "device": "cpu", "decoder": decoder}
        with gpuload.DaliIterator(data, 8, **usual) as loader:
            assert loader.cpu_share == expected


class OnGpu:
    """What `choose` asks a loader."""

    device, decoder = "cuda:0", "dali"

    def __init__(self, *args: object, **options: object) -> None: ...

    def __enter__(self) -> "OnGpu":
        return self

    def __exit__(self, *error: object) -> None: ...


def test_on_a_gpu_its_engines_and_the_batch_size_are_tried(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.loader.iterator.DaliIterator", OnGpu)
    tuned, usual, choices = choose(TunedLoader(packed, "cuda", 224), None)
    assert (tuned.device, usual.decoder, usual.batch_size, usual.hw_decoder_load) == ("cuda:0", "dali", 97, 0.65)
    assert choices["batch_size"] == [97, 64]  # of 64, 128, 256 and 408, those that 97 samples fill
    assert all(values[0] == getattr(usual, name) for name, values in choices.items())
    loads = {one.hw_decoder_load for one in candidates(usual, choices)}
    assert {0.0, 0.65, 1.0} <= loads
    assert {one.decoder for one in candidates(usual, choices) if one.hw_decoder_load is None} == {"native"}
    assert choose(TunedLoader(packed, "cuda", 224), 32)[2]["batch_size"] == [32]


def test_arguments_that_cannot_be(packed: Path) -> None:
    for seconds in ("0", "-1", "nan", "inf"):
        with pytest.raises(gpuload.ArgumentError, match=r"--seconds .*: expected seconds, above 0 and up to 1e6"):
            run(str(packed), "--seconds", seconds)
    with pytest.raises(gpuload.ArgumentError, match="--size 0: expected pixels in 1..65,535"):
        run(str(packed), "--size", "0")
    with pytest.raises(gpuload.ArgumentError, match="--batch-size 0: expected a whole number of at least 1"):
        run(str(packed), "--batch-size", "0")
    for place, wrong in (
        (packed, "is a folder. Give the name of a file"),
        (packed / "none" / "figures.json", "its folder does not exist. Make it, or give another --json"),
    ):
        with pytest.raises(gpuload.GpuloadError, match=f"{place}: {wrong}"):
            run(str(packed), "--json", str(place))
    with pytest.raises(gpuload.FormatError, match="no such folder"):
        run(str(packed / "none"))
    with pytest.raises(gpuload.ArgumentError, match="batch_size 5000: is larger than"):
        run(str(packed), "--batch-size", "5000", "--device", "cpu")


@pytest.mark.usefixtures("cache")
def test_figures_are_kept_where_it_is_stopped(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, turns = tmp_path / "figures.json", itertools.count()

    def measure(*_: object) -> float:
        if next(turns) == 5:  # two to warm up, then three that count
            raise KeyboardInterrupt
        return 100.0

    monkeypatch.setattr("gpuload.commands.tune.measure_setting", measure)
    with pytest.raises(KeyboardInterrupt):
        run(str(packed), "--device", "cpu", "--json", str(figures))
    written = json.loads(figures.read_text())
    assert written["saved"] is None
    assert [one["turns"] for one in written["settings"]][:4] == [[100.0], [100.0], [100.0], []]
    assert list(tmp_path.glob(".figures*")) == []


def test_a_file_that_cannot_be_written_is_said_at_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.commands.tune.measure_setting", lambda *_: 100.0)
    with pytest.raises(gpuload.OutputError, match=r"/proc/figures.json: cannot be written .*another --json"):
        run(str(packed), "--device", "cpu", "--json", "/proc/figures.json")
