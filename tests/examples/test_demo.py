"""tools/demo.sh as README says: on a folder of images of every kind, to its end."""

import os
import re
import subprocess
from pathlib import Path

import prepared
from images import encode, photo, write_files
from PIL import Image
from snippets import ROOT

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def mixed_photos() -> dict[str, bytes]:
    files = {"a/broken.jpg": b"\xff\xd8\xff", "a/notes.txt": b"no image"}
    for number in range(36):
        image = photo(number, 60, 50)
        kind = KINDS[number % len(KINDS)]
        files[f"{'abc'[number % 3]}/{number}.{kind.lower()}"] = encode(image, kind)
        files[f"b/deeper/{number}.jpg"] = encode(image.convert("CMYK" if number % 2 else "L"))
    return files


def test_a_folder_of_images_of_every_kind(tmp_path: Path) -> None:
    """In a copy of the repository, whose environment is that of the tests."""
    write_files(tmp_path / "photos", mixed_photos())
    root = tmp_path / "repository"
    (root / ".venv" / "bin").mkdir(parents=True)
    for name in ("benchmarks", "examples"):
        (root / name).symlink_to(ROOT / name)
    (root / "tools").mkdir()
    for path in (ROOT / "tools").iterdir():
        (root / "tools" / path.name).symlink_to(path)
    (root / "tools" / "setup.sh").unlink()
    (root / "tools" / "setup.sh").write_text(f"root={root}\nset_up() {{ :; }}\n")
    python = root / ".venv" / "bin" / "python"
    python.symlink_to(prepared.executable(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["bash", str(root / "tools" / "demo.sh"), str(tmp_path / "photos")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for text in (
        "rejected: 1 × ",
        "classes: 3: a, b, c",
        "epoch 3 of 3: ",
        "DataLoader + Pillow",
        "\n  gpuload ",
        "Decoding alone: ",
        "JPEGs by simplejpeg and others by Pillow",
    ):
        assert text in done.stdout, done.stdout
    (folder,) = re.findall(r"Done. In (\S+): shards, checkpoint.pt, and batch.png", done.stdout)
    with Image.open(root / folder / "batch.png") as sheet:
        assert sheet.width > 300
    assert (root / folder / "checkpoint.pt").exists()
