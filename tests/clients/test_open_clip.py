"""open_clip's training loop: its tokenizer, and what it asks of `data["train"]`."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from images import encode, photo
from small import load

import gpuload


@pytest.mark.filterwarnings("ignore")
def test_a_step_gets_images_and_tokens(tmp_path: Path) -> None:
    importlib.import_module("torchvision_anywhere")
    tokenize = importlib.import_module("open_clip.tokenizer").SimpleTokenizer(context_length=16)
    texts = [f"a photo of number {number}" for number in range(20)]
    image = encode(photo(0, 16, 16))
    gpuload.pack(({"image": image, "caption": text} for text in texts), tmp_path, workers=1, shuffle=False)
    fields = ("image", gpuload.Captions(tokenizer=tokenize), "index")
    loader = load(tmp_path / "train", 4, fields=fields)
    # Its DataInfo: a loader that counts, and something whose epoch is set.
    data = SimpleNamespace(dataloader=loader, set_epoch=loader.set_epoch, sampler=loader.sampler)
    assert (data.dataloader.num_batches, data.dataloader.num_samples) == (5, 20)
    orders = []
    for epoch in (0, 1, 1):
        data.set_epoch(epoch)
        order = []
        for images, tokens, index in data.dataloader:
            assert images.shape == (4, 3, 8, 8)
            assert (tokens == tokenize([texts[number] for number in index])).all()
            order += index.tolist()
        orders.append(order)
    assert orders[0] != orders[1] == orders[2] and sorted(orders[0]) == list(range(20))
