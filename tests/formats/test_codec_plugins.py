"""Codecs of other packages: the one of docs/own-codec.md, built and installed from its page."""

import io
import tarfile
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from page_packages import PagePackage, Run, failed, python_with, suites_run
from PIL import Image
from reading import rejected_of

import gpuload
from gpuload.formats import codecs
from gpuload.formats.registry import BUILT_IN, GROUP, REST
from gpuload.machine import plugins

PACKAGE = PagePackage("own-codec.md", "mrc_codec.py")
VALUES = np.arange(-300, 900, dtype="<f4").reshape(30, 40)


def mrc(values: np.ndarray, mode: int = 2, sections: int = 1) -> bytes:
    header = bytearray(1024)
    header[:16] = np.array([40, 30, sections, mode], "<i4").tobytes()
    header[208:212] = b"MAP "
    return bytes(header) + values.tobytes()


def members(folder: Path, ending: str) -> list[bytes]:
    """The two images of a set."""
    with tarfile.open(folder / "train" / "shard-000000.tar") as tar:
        named = [one for one in tar.getmembers() if one.name.endswith(ending)]
        assert len(named) == 2
        return [tar.extractfile(one).read() for one in named]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python in a folder where the page's package is installed."""
    return python_with(PACKAGE.install(tmp_path_factory), tmp_path_factory.mktemp("work"))


def test_the_codec_of_the_page_is_short() -> None:
    assert PACKAGE.code_lines <= 30


def test_a_package_adds_a_format(run: Run, tmp_path: Path) -> None:
    """In class folders: its numbers as they are, scaled to gray, a section of several; others refused by name."""
    folder = tmp_path / "micrographs" / "cell"
    folder.mkdir(parents=True)
    (folder / "1.mrc").write_bytes(mrc(VALUES))
    (folder / "2.mrc").write_bytes(mrc(np.stack([VALUES, VALUES[::-1]]), sections=2))
    (folder / "3.mrc").write_bytes(mrc(VALUES, mode=4))
    pack = ("-m", "gpuload", "pack", folder.parent)
    common = ("--workers", 1, "--no-shuffle")
    done = run(*pack, tmp_path / "numbers", "--mode", "F", "--encode", "raw", *common, code=3)
    assert "re-encoded: 2 × mrc" in done.stdout
    assert "pages or frames after the first are not packed: 1 have some" in done.stdout
    assert rejected_of(tmp_path / "numbers" / "train") == {"cell/3.mrc": "is an MRC file of mode 4"}
    for data in members(tmp_path / "numbers", ".npy"):
        np.testing.assert_array_equal(np.load(io.BytesIO(data))[..., 0], VALUES)
    scaled = run(
        *pack, tmp_path / "gray", "--mode", "L", "--lossless", "--scale=-300:899", "--page", 0, *common, code=3
    )
    assert "re-encoded: 2 × mrc" in scaled.stdout
    for data in members(tmp_path / "gray", ".png"):
        levels = np.asarray(Image.open(io.BytesIO(data)))
        assert np.abs(levels - (VALUES + 300) * 255 / 1199).max() <= 0.51


def test_the_suite_of_the_page(run: Run, tmp_path: Path) -> None:
    """It passes for the page's codec, and fails for one whose values are wrong."""
    head = "import numpy as np\nimport gpuload\nfrom mrc_codec import MrcCodec\n\n"
    wrong = PACKAGE.suite.replace("values.tobytes(), values)", "values.tobytes(), values + 1)")
    assert wrong != PACKAGE.suite
    outcomes = suites_run(run, tmp_path, {"test_mrc": head + PACKAGE.suite, "test_wrong": head + wrong})
    assert list(outcomes["test_mrc.TestMrc"].values()) == ["passed"] * 7
    assert failed(outcomes["test_wrong.TestMrc"]) == ["test_its_sizes_and_values_are_right"]


class Unfinished(gpuload.Codec):
    title = "a file"
    reads_with = "nothing"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("json:JSONDecoder", "it is no gpuload.Codec"), (f"{__name__}:Unfinished", "abstract"),
        ("no_such_module:Codec", "cannot be imported"),
    ],
)  # fmt: skip
def test_what_is_no_codec_is_left_out(value: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warning that names the package; images are read as before."""
    entry = EntryPoint("odd", value, GROUP)
    monkeypatch.setattr(plugins, "_installed", lambda group: (entry,))
    codecs.cache_clear()
    with pytest.warns(UserWarning, match=fault):
        assert "odd" not in codecs()
    codecs.cache_clear()


def test_a_package_changes_no_format_that_has_a_codec() -> None:
    """gpuload's own are asked before others, and Pillow's, which takes all, last."""
    assert list(codecs())[: len(BUILT_IN)] == list(BUILT_IN)
    assert list(codecs())[-1:] == list(REST)
