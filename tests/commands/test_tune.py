"""`gpuload tune`: settings take turns, and the arguments of the fastest are printed."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import cli
from gpuload.commands import tune


class Search:
    """A run of the command on a clock of its own, with rates that are made up: images/s of a setting.

    turns: settings in the order of their turns; the first one warms up.
    """

    def __init__(self, folder: Path, figures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.figures, self.patch = folder, figures, monkeypatch
        self.now = 0.0
        self.turns: list[dict[str, Any]] = []

    def run(self, rate: Callable[[dict[str, Any]], float], device: str = "cpu") -> list[dict[str, Any]]:
        """The settings, the best first."""

        def measure(tuned: Any, setting: dict[str, Any], turn_s: float) -> float:
            self.now += turn_s + 0.001
            self.turns.append(setting)
            return rate(setting)

        asked = {"device": device, "decoder": "native", "num_threads": 4, "dataset": range(97)}
        self.patch.setattr(tune, "DaliIterator", lambda *_, **options: nullcontext(SimpleNamespace(**asked)))
        self.patch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.patch.setattr(tune.Tune, "measure", measure)
        assert cli.parse(["tune", str(self.folder), "--seconds", "600", "--json", str(self.figures)]).run() == 0
        return json.loads(self.figures.read_text())["settings"]  # type: ignore[no-any-return]


@pytest.fixture
def search(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    return Search(packed, tmp_path / "figures.json", monkeypatch)


def values(setting: dict[str, Any]) -> tuple[Any, ...]:
    return setting["decoder"], setting["num_threads"], setting["prefetch"]


USUAL = ('"native"', 4, 2)
SINGLE = [('"dali"', 4, 2), ('"native"', 2, 2), ('"native"', 8, 2), ('"native"', 4, 1), ('"native"', 4, 4)]


def test_the_defaults_and_single_changes_take_turns_and_then_the_best_values_join(search: Search) -> None:
    found = search.run(lambda setting: 100.0 + setting["num_threads"] + setting["prefetch"])
    turns = list(map(values, search.turns))
    best = ('"native"', 8, 4)
    assert turns[:15] == [USUAL, *[USUAL, *SINGLE] * 2, best, best]
    assert turns[15:22] == [USUAL, *SINGLE, best]
    assert values(found[0]) == best and found[0]["images_per_s"] == 112
    assert {len(one["turns"]) for one in found} == {3, 4} and len(found) == 7


def test_the_arguments_to_paste_are_printed(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    for decoder in ('"dali"', "gpuload.Both(cpu=0.25)", "gpuload.Dali(hardware=0.3)"):
        search.turns = []
        search.run(lambda setting: 100.0 + 50 * (setting["decoder"] == decoder), device="cuda:0")  # noqa: B023
        said = capsys.readouterr().out
        assert "in batches of 97 on cuda:0" in said and "1.50 times the images/s of the defaults" in said
        assert f"\nDaliIterator(…, decoder={decoder}, num_threads=4, prefetch=2)\n" in said
    assert {one["decoder"] for one in search.turns} >= {'"native"', "gpuload.Dali(hardware=0.0)"}


def test_of_several_sets_the_one_to_train_with_is_measured(
    search: Search, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("val", "train"):
        (tmp_path / name).symlink_to(packed)
    search.folder = tmp_path
    search.run(lambda setting: 100.0)
    assert capsys.readouterr().out.startswith(f"measured on {tmp_path}/train\n")


def test_a_setting_that_fails_has_no_more_turns(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(setting: dict[str, Any], fails: tuple[Any, ...] = ('"native"', 8, 2)) -> float:
        if values(setting) == fails and len(search.turns) > 9:  # its second turn, or the defaults' third
            raise RuntimeError("CUDA out of memory\nmore of it")
        return setting["num_threads"] * 100.0

    found = search.run(measure)
    failed = found[-1]
    assert values(failed) == ('"native"', 8, 2) and failed["failed"] == "CUDA out of memory"
    assert failed["turns"] == [800] and failed["images_per_s"] == 0
    assert 'left out: decoder="native", num_threads=8, prefetch=2: CUDA out of memory\n' in capsys.readouterr().out
    assert values(found[0]) == USUAL
    search.turns = []
    with pytest.raises(gpuload.GpuloadError, match="tune: the defaults fail: CUDA out of memory"):
        search.run(lambda setting: measure(setting, USUAL))


def test_every_setting_has_one_turn_however_long_they_take(search: Search) -> None:
    def measure(setting: dict[str, Any]) -> float:
        search.now += 1000
        return 100.0 + setting["num_threads"] + setting["prefetch"]

    assert [len(one["turns"]) for one in search.run(measure)] == [1] * 7


@pytest.mark.parametrize("mode", ["RGB", "float32x7"])
def test_the_command_measures_sets_of_any_mode(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    data, figures = packed, tmp_path / "figures.json"
    if mode != "RGB":
        samples = [{"image": np.zeros((20, 30, 7), np.float32)} for _ in range(9)]
        gpuload.pack(samples, tmp_path, workers=1, mode=mode, encode="raw", progress=False)
        data = tmp_path / "train"
        capsys.readouterr()
    before = sorted(data.iterdir())
    options = ["--device", "cpu", "--seconds", "0.5", "--size", "16", "--batch-size", "8", "--json", str(figures)]
    assert cli.main(["tune", str(data), *options]) == 0
    said = capsys.readouterr().out
    written = json.loads(figures.read_text())
    assert (written["device"], written["batch_size"]) == ("cpu", 8) and len(written["settings"]) >= 5
    assert all(one["images_per_s"] > 0 and one["failed"] is None for one in written["settings"])
    arguments = eval(said.splitlines()[-1].replace("DaliIterator(…, ", "dict("))
    options_of_all: dict[str, Any] = {
        "augment": gpuload.Augment(8, normalize=None),
        "device": "cpu",
        "fields": ("key",),
    }
    with gpuload.DaliIterator(data, 8, **options_of_all, **arguments) as loader:
        assert loader.decoder == arguments["decoder"] and loader.num_threads == arguments["num_threads"]
    assert sorted(data.iterdir()) == before
