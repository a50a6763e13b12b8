"""`gpuload tune`: the search finds the best of noisy candidates, and what it finds is kept and found again."""

import errno
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import cli
from gpuload.commands import tune
from gpuload.loader.tuning import Tuning, describe_device, load_tuning, save_tuning
from gpuload.machine.ranks import Ranks

NAMES = ("decoder", "num_threads", "prefetch", "batch_size")


def run(*arguments: str) -> int:
    return cli.parse(["tune", *arguments]).run()


def linked(packed: Path, folder: Path) -> Path:
    """A set of its own, beside which settings are saved."""
    folder.mkdir()
    for path in packed.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


class Search:
    """A run of the command on a clock of its own, with rates that are made up: images/s of a setting.

    opening_s: what each turn takes before it is measured. turns: settings in the order of their turns; the first two
    are those that warm up. beside: of each setting beside a training step, by the decoder.
    """

    def __init__(self, folder: Path, figures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.figures, self.patch = folder, figures, monkeypatch
        self.now, self.opening_s = 0.0, 0.001
        self.turns: list[Any] = []
        self.spent_s: list[float] = []
        self.beside: dict[str, float] = {}

    def run(self, rate: Callable[[Any], float], seconds: float = 600, device: str = "cpu") -> list[dict[str, Any]]:
        """The settings, the best first."""

        def measure(tuned: Any, setting: Any, turn_s: float, step: Any = None) -> float:
            self.now += self.opening_s + turn_s
            if step is not None:
                return self.beside.get(setting.decoder, 1.0)
            self.turns.append(setting)
            self.spent_s.append(self.opening_s + turn_s)
            return rate(setting)

        self.patch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.patch.setattr(tune.Tune, "measure", measure)
        self.patch.setattr(tune, "training_step", lambda device: object())
        options = ["--device", device, "--seconds", str(seconds), "--json", str(self.figures)]
        assert run(str(self.folder), *options) == 0
        return json.loads(self.figures.read_text())["settings"]  # type: ignore[no-any-return]

    @property
    def candidates(self) -> list[Any]:
        """The first round: each once."""
        return list(dict.fromkeys(self.turns))


@pytest.fixture
def search(packed: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    monkeypatch.setattr(tune, "count_threads", lambda ranks: 4)
    return Search(linked(packed, tmp_path / "train"), tmp_path / "figures.json", monkeypatch)


def test_candidates_are_the_defaults_then_single_changes_then_combinations(search: Search) -> None:
    search.run(lambda setting: 1000.0)
    found = search.candidates[:16]
    usual = found[0]
    assert [getattr(usual, name) for name in NAMES] == ["native", 4, 2, 64]
    assert search.turns[:3] == [usual] * 3 and search.turns[2:18] == found
    changed = [sum(getattr(one, name) != getattr(usual, name) for name in NAMES) for one in found]
    assert changed[:6] == [0, 1, 1, 1, 1, 1] and min(changed[6:]) > 1
    assert [one.decoder for one in found[:2]] == ["native", "dali"]  # both however little time there is
    assert {one.decoder for one in found[6:]} == {"native", "dali"}
    assert {one.num_threads for one in found} == {2, 4, 8} and {one.prefetch for one in found} == {1, 2, 4}


@pytest.mark.parametrize("best", [0, 1, 7, 15])
def test_the_best_of_noisy_candidates_is_found_and_the_defaults_stay(search: Search, best: int) -> None:
    rng = np.random.default_rng(best)

    def measure(setting: Any) -> float:
        is_best = search.candidates.index(setting) == best
        return float((1200 if is_best else 1000) * rng.uniform(0.92, 1.08))

    found = search.run(measure)
    turns = [one for one in search.turns[2:] if one.decoder != "both"]
    wanted = search.candidates[best]
    first = next(one for one in found if one["decoder"] != "both")
    assert {name: first[name] for name in NAMES} == {name: getattr(wanted, name) for name in NAMES}
    counts = Counter(turns)
    assert len(counts) == 16 and min(counts.values()) == 1
    assert counts[turns[0]] >= 1 + 16 // 9 + 16 // 5 + 16 // 4 >= max(counts.values()) - 3
    assert Counter(one.decoder for one in search.turns[-16:])["both"] == 4  # of four finalists
    # Interleaved: the last round does not give one its turns at a stretch.
    assert max(len(list(run)) for _, run in itertools.groupby(search.turns[-16:])) <= 2


def test_a_setting_that_fails_drops_out_and_failing_defaults_are_told(search: Search) -> None:
    def measure(setting: Any, fails: str = "dali") -> float:
        if setting.decoder == fails:
            raise RuntimeError("CUDA out of memory\nmore of it")
        return setting.num_threads * 100.0

    found = search.run(measure)
    failed = [one for one in found if one["failed"]]
    assert failed and {one["decoder"] for one in failed} == {"dali"}
    assert {one["failed"] for one in failed} == {"CUDA out of memory"} and not any(one["turns"] for one in failed)
    assert found[0]["num_threads"] == 8 and {one["decoder"] for one in found} == {"dali", "native"}
    with pytest.raises(RuntimeError, match="out of memory"):
        search.run(lambda setting: measure(setting, "native"))


@pytest.mark.parametrize("fails", ["the fastest", "the defaults"])
def test_a_setting_that_fails_later_is_not_taken(search: Search, fails: str) -> None:
    search.turns = []

    def measure(setting: Any) -> float:
        rate = 1000.0 + setting.num_threads * (setting.decoder == "native")
        chosen = rate == 1008 if fails == "the fastest" else setting == search.candidates[0]
        if chosen and Counter(search.turns)[setting] > 4:
            raise RuntimeError("CUDA out of memory")
        return rate

    if fails == "the defaults":
        with pytest.raises(gpuload.GpuloadError, match="tune: the defaults fail: CUDA out of memory"):
            search.run(measure)
        return
    found = search.run(measure)
    assert max(found, key=lambda one: median(one["turns"]))["failed"] and found[0]["failed"] is None
    ((saved),) = json.loads((search.folder / "tuning.json").read_text())["devices"].values()
    assert {one["num_threads"] for one in saved if one["decoder"] == "native"} == {4}


# A turn that takes longer than all were to have: each has had one then, and a round is left where it is.
@pytest.mark.parametrize(("late", "turns"), [(5, 16), (22, 20)])
def test_turns_end_when_the_time_is_over(search: Search, late: int, turns: int) -> None:
    def measure(setting: Any) -> float:
        search.now += 1000 * (len(search.turns) == late)
        return 100.0

    found = [len(one["turns"]) for one in search.run(measure) if one["decoder"] != "both"]
    assert min(found) == 1 and sum(found) == turns  # the second round would end after 16 + 9 * 2


def test_a_plan_fits_the_time(search: Search) -> None:
    counts = []
    for opening_s, seconds in ((2.0, 5), (2.0, 60), (0.5, 60), (0.5, 600)):
        search.turns, search.spent_s, search.opening_s = [], [], opening_s
        search.run(lambda setting: 100.0, seconds)
        counts.append(len(search.candidates) - 1)  # without both decoders at once
        alone_s = search.spent_s[2:]
        assert min(alone_s) >= 2 * opening_s - 1e-9  # no more than half of a turn goes before measuring
        assert counts[-1] == 2 or -1e-6 < sum(alone_s) - 0.7 * seconds < max(alone_s) + 1e-6
    assert counts[0] == 2 < counts[1] < counts[2] < counts[3] == 16


def test_the_best_of_each_decoder_is_kept_and_both_get_shares_that_take_them_equally_long(search: Search) -> None:
    rates = {"native": 1000.0, "dali": 3000.0, "both": 3500.0}
    more = {"dali": lambda one: -one.num_threads - 10 * one.prefetch}
    found = search.run(lambda one: rates[one.decoder] + more.get(one.decoder, lambda one: one.num_threads)(one))
    both = found[0]
    assert both["decoder"] == "both" and both["cpu_share"] == 0.25
    # As the best of each is set: DALI's settings, and the threads of the defaults, which are native and stay to the end.
    assert (both["num_threads"], both["prefetch"]) == (4, 1)
    kept = json.loads((search.folder / "tuning.json").read_text())["devices"]
    ((device, saved),) = kept.items()
    assert [(one["decoder"], one["num_threads"]) for one in saved] == [("both", 4), ("dali", 2), ("native", 4)]
    assert load_tuning(search.folder, device, "native") == Tuning("native", 4, 2, None, 64, 1004.0)
    # A busy machine may have stopped a decoder while it was measured: it has a share, too.
    for native, share in ((1.0, 0.01), (1e6, 0.99)):
        found = search.run(lambda one: {"native": native, "dali": 1000.0, "both": 0.5}[one.decoder])  # noqa: B023
        assert [one["cpu_share"] for one in found if one["decoder"] == "both"] == [share]


def test_what_is_to_be_passed_is_said(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    for best, words in (
        ("both", "pass decoder=gpuload.Both(cpu=0.5); pixels differ by rounding from those of 'native'"),
        ("dali", "pass decoder='dali'; pixels differ by rounding from those of 'native'"),
        ("native", "decoder='native', which is the default here"),
    ):
        search.beside = {best: 400.0}
        search.run(lambda setting: 100.0)
        assert f"best beside a training step: {words}" in " ".join(capsys.readouterr().out.split())


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
    wanted = {("a CPU",): FAST, ("a CPU", "dali"): SLOW, ("a GPU",): ENGINES}
    wanted |= dict.fromkeys([("a GPU", "native"), ("another GPU",)])
    assert {asked: load_tuning(tmp_path, *asked) for asked in wanted} == wanted
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
    with pytest.raises(gpuload.OutputError, match=r"cannot be saved: .*data/tuning.json \(Read-only.*Make one of"):
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


@pytest.mark.usefixtures("cache")
def test_the_command_measures_and_saves(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, figures = linked(packed, tmp_path / "train"), tmp_path / "figures.json"
    options = ["--device", "cpu", "--seconds", "0.5", "--size", "16", "--batch-size", "16", "--json", str(figures)]
    assert run(str(data), *options) == 0
    said = capsys.readouterr().out
    for text in ("threads", "images/s", "turns", "times the images/s of the defaults. Saved in"):
        assert text in said
    written = json.loads(figures.read_text())
    best = written["settings"][0]
    assert best["images_per_s"] > 0 and best["batch_size"] == 16 and len(written["settings"]) >= 2
    found: Any = load_tuning(data, written["device"], best["decoder"])
    assert (found.num_threads, found.prefetch) == (best["num_threads"], best["prefetch"])
    beside = {one["decoder"]: one for one in written["beside_training"]}
    assert set(beside) == {"native", "dali", "both"}
    assert all(one["images_per_s"] > 0 for one in beside.values())
    alone, one_of_many = (describe_device(None, Ranks(local_world_size=n)) for n in (1, 10_000))
    assert written["device"] == alone and one_of_many == f"{alone.rpartition(',')[0]}, 1 cores"  # of a rank
    share = beside["both"]["cpu_share"]
    assert 0 < share < 1 and load_tuning(data, written["device"], "both").cpu_share == share  # type: ignore[union-attr]
    assert re.search(r"best beside a training step: (pass )?decoder=('native'|'dali'|gpuload.Both)", said)
    for decoder, expected in (("both", share), (gpuload.Both(deterministic=True), 0.25)):
        usual: dict[str, Any] = {"augment": gpuload.Augment(8), "device": "cpu", "decoder": decoder}
        with gpuload.DaliIterator(data, 8, **usual) as loader:
            assert loader.cpu_share == expected


def test_on_a_gpu_its_engines_and_the_batch_size_are_tried(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nullcontext(SimpleNamespace(device="cuda:0", decoder="dali"))
    monkeypatch.setattr(tune, "DaliIterator", lambda *_, **options: asked)
    monkeypatch.setattr("gpuload.loader.tuning._gpu_name", lambda device_id: "NVIDIA H100")
    search.run(lambda setting: 100.0, device="cuda")
    usual, *others = search.candidates
    assert (usual.decoder, usual.batch_size, usual.hw_decoder_load) == ("dali", 97, 0.65)
    assert {one.batch_size for one in others} == {97, 64}  # of 64, 128, 256 and 408, those that 97 samples fill
    assert {0.0, 0.65, 1.0} <= {one.hw_decoder_load for one in others}
    assert {one.decoder for one in others if one.hw_decoder_load is None} == {"native"}
