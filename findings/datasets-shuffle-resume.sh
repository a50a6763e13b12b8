#!/usr/bin/env bash
# datasets 5.2.0 (2026-11): a shuffled stream that resumes from its own state loses samples and repeats others, and in a
# StatefulDataLoader with two workers it cannot resume at all.
#
# Its documentation says that the content of a shuffle buffer is lost on resuming, and that it is filled with new
# samples. Beyond these losses, samples that were already given come again. With two workers, and the twelve files that
# leave six to each, loading the state raises an IndexError, as `shuffle` takes samples of up to ten files at once.
# Without `shuffle`, both resume exactly.
#
# Seen, of 120 samples, 40 of them given before the stop:
#   plain, no workers: 0 lost, 0 repeated
#   plain, 2 workers: 0 lost, 0 repeated
#   shuffled, no workers: 14 lost, 4 repeated
#   shuffled, 2 workers: IndexError
#   shuffled with max_buffer_input_shards=1, 2 workers: 25 lost, 5 repeated
#
# Installs into a temporary folder, needs a package index, and fails if they behave otherwise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  datasets==5.2.0 torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

HF_HOME=$folder/cache HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import datasets
from torchdata.stateful_dataloader import StatefulDataLoader

datasets.disable_progress_bars()
FILES = [f"{number:02d}.parquet" for number in range(12)]
for number, file in enumerate(FILES):
    datasets.Dataset.from_dict({"n": list(range(10 * number, 10 * number + 10))}).to_parquet(file)


def opened(shuffled, options, workers):
    stream = datasets.load_dataset("parquet", data_files=FILES, split="train", streaming=True)
    if shuffled:
        stream = stream.shuffle(seed=7, buffer_size=20, **options)
    return StatefulDataLoader(stream, batch_size=4, num_workers=workers)


def resumed(what, shuffled, workers, **options):
    """What is lost and repeated by a run that stops after ten batches and resumes in a new loader."""
    loader = opened(shuffled, options, workers)
    batches = iter(loader)
    before = [n for _ in range(10) for n in next(batches)["n"].tolist()]
    again = opened(shuffled, options, workers)
    again.load_state_dict(loader.state_dict())
    try:
        after = [n for batch in again for n in batch["n"].tolist()]
    except IndexError:
        print(f"{what}: IndexError")
        return "IndexError"
    lost = len({*range(120)} - {*before, *after})
    repeated = len(before) + len(after) - len({*before, *after})
    print(f"{what}: {lost} lost, {repeated} repeated")
    return lost, repeated


assert resumed("plain, no workers", False, 0) == (0, 0)
assert resumed("plain, 2 workers", False, 2) == (0, 0)
lost, repeated = resumed("shuffled, no workers", True, 0)
assert lost > 0 and repeated > 0
assert resumed("shuffled, 2 workers", True, 2) == "IndexError"
one = resumed("shuffled with max_buffer_input_shards=1, 2 workers", True, 2, max_buffer_input_shards=1)
assert one[0] > 0 and one[1] > 0
PYTHON
