"""Sources of other packages: the one of docs/own-source.md, built and installed from its page, and broken ones."""

import json
from pathlib import Path

import pytest
from images import encode, photo
from page_packages import PagePackage, Run, failed, python_with, suites_run

import gpuload
from gpuload.cli import parser_of

PACKAGE = PagePackage("own-source.md", "rig_source.py")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PACKAGE.install(tmp_path_factory)


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    return python_with(installed, tmp_path)


def write_recordings(folder: Path) -> Path:
    folder.mkdir()
    moments = [{"left": f"{n}-l.jpg", "right": f"{n}-r.jpg", "blocked": n % 2, "speed": n / 2} for n in range(6)]
    for number, moment in enumerate(moments):
        for side in ("left", "right"):
            (folder / moment[side]).write_bytes(encode(photo(number, 50 if side == "left" else 60, 40)))
    (folder / "rig.jsonl").write_text("\n".join(map(json.dumps, moments)))
    return folder


def test_the_source_of_the_page_is_short() -> None:
    assert PACKAGE.code_lines <= 30


def test_a_package_adds_a_source(run: Run, tmp_path: Path) -> None:
    """Recognised, named, with an option of its own, from a program; the images are those of the files."""
    recordings = write_recordings(tmp_path / "recordings")
    pack = ("-m", "gpuload", "pack", "recordings")
    run(*pack, "left", "--workers", 1)
    run(*pack, "right", "--workers", 1, "--from", "rig", "--option", "camera=right")
    program = "gpuload.pack('recordings', 'again', from_='rig', source_options={'camera': 'right'}, workers=1)"
    run("-c", f"import gpuload; {program}")
    for side, out in (("left", "left"), ("right", "right"), ("right", "again")):
        data = gpuload.Dataset(tmp_path / out / "train")
        assert data.classes == ("free", "blocked")
        rows = {row["source"]: row for row in data.rows(0).to_pylist()}
        assert sorted(rows) == [f"{number}-{side[0]}.jpg" for number in range(6)]
        tar = (tmp_path / out / "train" / "shard-000000.tar").read_bytes()
        for name, row in rows.items():
            image = tar[row["image_offset"] : row["image_offset"] + row["image_bytes"]]
            assert image == (recordings / name).read_bytes()
            assert (row["label"], row["speed"]) == (int(name[0]) % 2, int(name[0]) / 2)


def test_help_lists_what_is_installed(run: Run) -> None:
    assert ", rig" in " ".join(run("-m", "gpuload", "pack", "--help").stdout.split())
    assert "rig" not in parser_of("pack").format_help().split()
    done = run("-m", "gpuload", "pack", "x", "y", "--from", "rug", code=2)
    assert "--from" in done.stderr and "rig" in done.stderr


def test_an_option_that_a_source_does_not_have(run: Run, tmp_path: Path) -> None:
    write_recordings(tmp_path / "recordings")
    done = run("-m", "gpuload", "pack", "recordings", "out", "--option", "kamera=right", code=2)
    assert "--option kamera=: recordings is packed as 'rig', which has 'camera'" in done.stderr


def test_the_suite_of_the_page(run: Run, tmp_path: Path) -> None:
    """It passes for the page's source, and fails for one whose listing differs each time."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(encode(photo(1, 50, 40)))
    head = "from pathlib import Path\n\nimport gpuload\nfrom rig_source import RigSource\n\n"
    source = PACKAGE.suite.replace('Path("photos/1.jpg")', f"Path({str(tmp_path / 'photos' / '1.jpg')!r})")
    restless = """
class Restless(RigSource):
    def rows(self, findings):
        for row in super().rows(findings):
            yield {**row, "moment": __import__("random").random()}

class TestRestless(TestRig):
    kind, recognised = Restless, True
"""
    outcomes = suites_run(run, tmp_path, {"test_rig": head + source + restless})
    assert sorted(outcomes["test_rig.TestRig"].values()) == ["passed"] * 7 + ["skipped"]
    assert "test_it_lists_its_samples_the_same_each_time" in failed(outcomes["test_rig.TestRestless"])


def test_a_fault_of_a_package_is_called_its_own(run: Run, tmp_path: Path) -> None:
    """And what gpuload raises itself is not."""
    recordings = write_recordings(tmp_path / "recordings")
    (recordings / "rig.jsonl").write_text('{"left": "0-l.jpg", "speed": 1.0}')
    done = run("-m", "gpuload", "pack", "recordings", "out", code=70)
    assert "KeyError: 'blocked'" in done.stderr
    assert done.stderr.endswith("this is a bug in gpuload-rig 1.0; please report the lines above\n")
    broken = "gpuload.sources.source.rows = None"  # which no plug-in does
    done = run(
        "-c", f"import gpuload.cli, gpuload.sources.source; {broken}; gpuload.cli.main(['pack', 'recordings', 'o'])"
    )
    assert done.stderr.endswith("this is a bug in gpuload; please report the lines above\n")


def test_broken_packages(run: Run, installed: Path, tmp_path: Path) -> None:
    """One that cannot be imported, and one that takes the name of another, say so and stop nothing else."""
    folder = tmp_path / "others"
    for name, entry in (("absent", "absent = no_such_module:Absent"), ("thief", "voc = rig_source:RigSource")):
        info = folder / f"{name}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[gpuload.sources]\n{entry}\n")
    write_recordings(tmp_path / "recordings")
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from gpuload.cli import main\nfor words in {}:\n    print(main(words.split()))"
    )
    done = run("-c", code.format(["pack recordings out --workers 1", "pack recordings x --from absent"]))
    assert done.stdout.split()[-1] == "2" and (tmp_path / "out" / "train").exists()
    assert "'absent', no_such_module:Absent of absent 2.0 cannot be imported" in done.stderr
    assert "'voc' of thief 2.0 is left out, since gpuload has one of this name" in done.stderr


KIND = '''
from gpuload.fields.captions import CaptionKind


class WaveKind(CaptionKind):
    """Texts that begin with "~": of a kind of their own."""

    name = "wave"
    specs = ()
    usual_names = ()
    in_tables = False
    keys = ("wave",)
    members = ("wave",)

    def claims(self, value):
        return isinstance(value, str) and value.startswith("~")
'''


def test_a_package_adds_a_kind_of_field(run: Run, tmp_path: Path) -> None:
    """Packed and read where it is installed; elsewhere the set says which kind is unknown."""
    folder = tmp_path / "kinds"
    info = folder / "waves-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "waves.py").write_text(KIND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpuload.kinds]\nwave = waves:WaveKind\n")
    (tmp_path / "1.jpg").write_bytes(encode(photo(1, 50, 40)))
    (tmp_path / "program.py").write_text(
        "import gpuload\nif __name__ == '__main__':\n"
        "    gpuload.pack([{'image': '1.jpg', 'sound': '~~'}], 'out', workers=1)\n"
        "    data = gpuload.Dataset('out/train')\n"
        "    print(data.fields['sound'].kind, data[0]['sound'])\n"
    )
    start = f"import os, runpy, sys; os.environ['PYTHONPATH'] += os.pathsep + {str(folder)!r}; "
    program = "os.execv(sys.executable, [sys.executable, 'program.py'])"
    assert run("-c", start + program).stdout.split() == ["wave", "~~"]
    with pytest.raises(gpuload.FormatError, match="field 'sound' has kind 'wave'; this gpuload knows"):
        gpuload.Dataset(tmp_path / "out" / "train")
