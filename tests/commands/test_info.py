"""`gpuload info`: options that it refuses. What it says: tests/order/test_mixedness.py."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import gpuload
from gpuload import cli
from gpuload.doctor import checks


@pytest.mark.parametrize("option", ["--window", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_options_that_cannot_be(packed: Path, capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert cli.main(["info", str(packed), option, value]) == cli.WRONG
    said = capsys.readouterr()
    assert said.err == f"gpuload: {option} {value}: expected a whole number of at least 1\n" and said.out == ""


def test_larger_than_the_set(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(packed), "--window", "10000", "--batch-size", "10000"]) == cli.DONE
    assert "10 of 10 shards mixed at a time" in capsys.readouterr().out


def test_the_memory_that_a_loader_takes_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 4 images of 1000×500, all in each batch of 4; crops of 224 in float16, of which three batches are there."""
    gpuload.pack([{"image": np.zeros((500, 1000, 3), np.uint8)}] * 4, tmp_path, workers=1)
    crops, whole = 4 * 3 * 224 * 224, 4 * 3 * 500_000
    dataset = gpuload.Dataset(tmp_path / "train")
    (found,) = [one for one in checks.SET["set"](dataset) if one.name == "GPU memory"]  # type: ignore[union-attr]
    assert found.data["dali"] == 2 * whole + 2 * 3 * 2 * crops
    assert found.data["native"] == 2 * crops + 3 * 2 * crops
    assert cli.main(["info", str(tmp_path / "train"), "--batch-size", "400"]) == cli.DONE
    said = capsys.readouterr().out
    assert (
        "GPU memory   about 1.9 GB with decoder='dali', 0.5 GB with 'native', for batches of 400 crops of 224" in said
    )


@pytest.mark.parametrize(("there", "grade"), [(None, "ok"), (8_000_000_000, "ok"), (20_000_000, "attention")])
def test_doctor_compares_it_with_the_gpu(
    packed: Path, monkeypatch: pytest.MonkeyPatch, there: int | None, grade: str
) -> None:
    monkeypatch.setattr("gpuload.doctor.sets.gpu_bytes", lambda device: there)
    (found,) = [one for one in checks.SET["set"](gpuload.Dataset(packed)) if one.name == "GPU memory"]
    assert (found.grade, bool(found.remedy)) == (grade, grade == "attention")
    assert found.said.startswith("a loader of batches of 97 crops of 224, two ahead, takes about 0.")
    assert found.data["dali"] > found.data["native"] > 0 and found.data["total"] == there


def test_samples_that_shuffled_epochs_leave_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch_size, said in (
        (8, "shuffled: 12 batches of 8 on one rank, 1 sample left out"),
        (97, None),
        (96, "1 batch"),
    ):
        assert cli.main(["info", str(packed), "--batch-size", str(batch_size)]) == cli.DONE
        out = " ".join(capsys.readouterr().out.split())
        assert ("left out" in out and said in out) if said else "left out" not in out
    assert "drop_last=False keeps them" in out


@pytest.mark.parametrize("name", ["key", "width", "image_offset", "image_bytes", "label"])
def test_an_index_that_lacks_values_is_an_error_in_a_line(
    packed: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "train"))
    with pa.ipc.open_file((folder / "index.arrow").read_bytes()) as index:
        schema, batches = index.schema, [index.get_batch(number) for number in range(index.num_record_batches)]
    place, field = schema.get_field_index(name), schema.field(name)
    batches[0] = batches[0].set_column(place, field, pa.nulls(batches[0].num_rows, field.type))
    with pa.ipc.new_file(folder / "index.arrow", schema) as index:
        for batch in batches:
            index.write_batch(batch)
    manifest = json.loads((folder / "manifest.json").read_text())
    kept = {name: value for name, value in manifest.items() if not name.startswith("index_")}
    (folder / "manifest.json").write_text(json.dumps(kept))
    for command in ("report", "verify", "show", "info"):
        found = cli.main([command, str(folder), *(["0"] if command == "show" else [])])
        said = "".join(capsys.readouterr())
        assert found in (cli.WRONG, cli.FAULTY) or (command, name) == ("info", "label")  # which it does not read
        assert command == "verify" or not found or f"index.arrow: lacks values in column '{name}'" in said
