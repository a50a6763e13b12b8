"""One caption out of several: what is drawn, left out and tokenized, and from which sources it comes."""

import json
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pyarrow as pa
import pytest
import torch
from damaged import damage
from images import Folder, encode, photo
from pyarrow import parquet

import gpuload
from gpuload import ArgumentError, Captions, DecodeError
from gpuload.sources import open_source

COUNT = 40


def texts_of(number: int) -> list[str]:
    return [f"{number}: {word}" for word in ("one", "two", "three")]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    image = encode(photo(0, 16, 16))
    texts = [{"caption": "\n".join(texts_of(n)), "captions": texts_of(n), "about": {"n": n}} for n in range(COUNT)]
    gpuload.pack([{"image": image, **fields} for fields in texts], folder, workers=1, maxcount=7, shuffle=False)
    return folder / "train"


def load(data: Any, spec: Any, *more: Any, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    """Without images, whatever the decoder, since texts are made before it."""
    return loaders.load(data, batch_size, fields=("index", spec, *more), **{"decoder": "native", **options})


def drawn(loader: Any, epochs: int = 1) -> list[tuple[int, Any]]:
    batches = (batch for _ in range(epochs) for batch in loader)
    return [pair for index, texts in batches for pair in zip(index.tolist(), texts, strict=True)]


@pytest.mark.parametrize("spec", [Captions("captions"), Captions("caption", lines=True)])
def test_one_of_several_is_drawn_each_time(packed: Path, spec: Captions) -> None:
    found = drawn(load(packed, spec, drop_last=False), epochs=20)
    assert all(text in texts_of(index) for index, text in found)
    words = Counter(text.split()[1] for _, text in found)
    assert all(180 < count < 353 for count in words.values()) and len(words) == 3  # 267 each; 6 standard deviations
    assert len({text for index, text in found if index == 5}) == 3


def test_dropout_leaves_out_its_share(packed: Path) -> None:
    with_all, dropped = (
        drawn(load(packed, Captions("captions", dropout=share, empty="(none)"), drop_last=False), epochs=20)
        for share in (0.0, 0.25)
    )
    left_out = [pair for pair in dropped if pair[1] == "(none)"]
    assert 128 < len(left_out) < 272  # of 800; 200 expected, standard deviation 12
    assert all(one == other for one, other in zip(with_all, dropped, strict=True) if other[1] != "(none)")
    assert {text for _, text in drawn(load(packed, Captions(dropout=1)))} == {""}
    assert drawn(load(packed, Captions(), shuffle=False))[0] == (0, "0: one\n0: two\n0: three")


def test_two_fields_draw_independently(packed: Path) -> None:
    loader = load(packed, Captions("captions"), Captions("caption", lines=True), drop_last=False)
    same = [one == other for _, ones, others in loader for one, other in zip(ones, others, strict=True)]
    assert 0 < sum(same) < len(same) / 2


def test_what_is_drawn_is_a_function_of_seed_epoch_and_sample(packed: Path) -> None:
    """For any ranks, and after a resume, see tests/iterator/test_ways.py; each time that a sample comes, otherwise."""
    spec = Captions("captions", dropout=0.2)
    expected = [dict(drawn(loader)) for loader in [load(packed, spec, drop_last=False)] for _ in range(2)]
    assert expected[0] != expected[1]
    assert dict(drawn(load(packed, spec, drop_last=False, seed=1))) != expected[0]
    part = gpuload.Dataset(packed).subset(range(0, COUNT, 3))
    assert dict(drawn(load(part, spec, drop_last=False, batch_size=5))).items() <= expected[0].items()
    often = drawn(load(packed, Captions("captions"), sampling=gpuload.Weights(np.arange(COUNT) == 3)))
    assert {text for _, text in often} == set(texts_of(3))


def test_a_tokenizer_is_called_while_reading(packed: Path, decoder: str) -> None:
    threads, calls = set(), []

    def tokenize(texts: list[str]) -> Any:
        threads.add(threading.current_thread().name)
        calls.append(len(texts))
        ids = np.array([[len(text), int(text.split(":")[0])] for text in texts])
        return {"input_ids": torch.from_numpy(ids), "words": [text.split() for text in texts], "mask": ids > 0}

    for index, tokens, _ in load(packed, Captions("captions", tokenizer=tokenize), "image", decoder=decoder):
        assert torch.equal(tokens["input_ids"][:, 1], index) and tokens["input_ids"].dtype == torch.int64
        assert tokens["mask"].dtype == torch.bool
        assert [int(words[0][:-1]) for words in tokens["words"]] == index.tolist()
    assert threading.current_thread().name not in threads and set(calls) == {8}


def test_the_training_loop_parses_no_documents(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def parse(text: str) -> Any:
        threads.add(threading.current_thread().name)
        return json.loads(text)

    monkeypatch.setattr("gpuload.fields.captions.parse_json", parse)
    assert all(about["n"] == index for index, about in drawn(load(packed, "about")))
    assert threads and threading.current_thread().name not in threads


def test_batches_before_one_that_fails_come_first(packed: Path) -> None:
    """Though the samples of several batches are read at once."""
    calls = count()
    spec = Captions("captions", tokenizer=lambda texts: np.full(len(texts), 6 // (2 - next(calls))))
    with load(packed, spec, shuffle=False) as loader:
        batches = iter(loader)
        assert [next(batches)[0].tolist() for _ in range(2)] == [[*range(8)], [*range(8, 16)]]
        with pytest.raises(ArgumentError, match="its tokenizer raised ZeroDivisionError"):
            next(batches)


def test_a_tokenizer_gets_no_empty_list(packed: Path) -> None:
    """A rank without samples in the last batch has arrays of the same form."""
    spec = Captions("captions", tokenizer=lambda texts: np.ones((len(texts), 5 if texts else 0), np.int32))
    ranks = [load(packed, spec, rank=rank, world_size=3, batch_size=1, drop_last="exact") for rank in range(3)]
    last = [list(loader)[-1][1] for loader in ranks]
    assert [tuple(tokens.shape) for tokens in last] == [(1, 5), (0, 5), (0, 5)]


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
def test_tokens_follow_samples_that_replace_others(packed: Path, tmp_path: Path, on_corrupt: str) -> None:
    folder = damage(packed, tmp_path / "damaged", [2])
    spec = Captions("captions", tokenizer=lambda texts: np.array([int(text.split(":")[0]) for text in texts]))
    with load(folder, spec, "image", shuffle=False, on_corrupt=gpuload.OnCorrupt(on_corrupt, most=1)) as loader:
        index, tokens, *_ = next(iter(loader))
    assert tokens.tolist() == index.tolist() == [0, 1, 3 if on_corrupt == "skip" else 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("tokenizer", "match"),
    [
        (lambda texts: 1 // 0, r"Captions\('captions'\): its tokenizer raised ZeroDivisionError for 8 texts"),
        (lambda texts: np.array(3), "its tokenizer returned ndarray .* for 8 texts"),
        (lambda texts: np.zeros((3, 4)), "returned ndarray .* for 8 texts"),
        (lambda texts: {"ids": texts[1:]}, "returned list .* for 8 texts, expected"),
        (lambda texts: None, "returned NoneType None for 8 texts"),
        (lambda texts: np.array(texts), "returned ndarray array"),
    ],
)
def test_what_a_tokenizer_may_not_do(packed: Path, tokenizer: Any, match: str) -> None:
    with load(packed, Captions("captions", tokenizer=tokenizer)) as loader:
        for _ in range(2):  # a loop that failed is not the end of the loader
            with pytest.raises(ArgumentError, match=match):
                next(iter(loader))


def test_a_document_that_is_no_text_is_refused(packed: Path) -> None:
    with pytest.raises(
        DecodeError, match="sample '00000000-00000000': its field 'about' is no text and no list of texts"
    ):
        list(load(packed, Captions("about"), shuffle=False))


# From a table, COCO and Parquet


ROWS = [{"file_name": f"{n}.jpg", "captions": texts_of(n)} for n in range(4)]
CSV_LISTS = "path,captions\n" + "".join(f'{n}.jpg,"[""{n}: one"", ""{n}: two"", ""{n}: three""]"\n' for n in range(4))
CSV_LINES = "path,captions\n" + "".join(f'{n}.jpg,"{n}: one\n{n}: two\n\n{n}: three"\n' for n in range(4))
CSV_COLUMNS = "path,a,b,c\n" + "".join(f"{n}.jpg,{n}: one,{n}: two,{n}: three\n" for n in range(4))


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("rows.jsonl", "\n".join(map(json.dumps, ROWS)), None),
        ("rows.csv", CSV_LISTS, None),
        ("rows.csv", CSV_LINES, None),
        ("rows.csv", CSV_COLUMNS, {"captions": ("a", "b", "c")}),
    ],
)
def test_tables_with_several_captions(make_folder: Folder, name: str, text: str, columns: Any) -> None:
    folder = make_folder({**{f"{n}.jpg": b"" for n in range(4)}, name: text.encode()})
    listing = open_source(folder, folder / name, columns).list_samples()
    assert [json.loads(texts) for texts in listing.samples.column("captions").to_pylist()] == [*map(texts_of, range(4))]
    assert {field.name: field.kind for field in listing.fields} == {"captions": "json"}


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"captions": []}, "a row has no caption"),
        ({"captions": [1]}, "is not a list of captions"),
        ({"captions": "[1"}, "is not a list of captions"),
        ({"caption": None}, "it is missing"),
        ({"caption": ["a", "b"]}, r"found \['a', 'b'\] .*several of each image are for --column captions="),
    ],
)
def test_tables_whose_captions_are_none(make_folder: Folder, row: Any, match: str) -> None:
    folder = make_folder({"0.jpg": b"", "rows.jsonl": json.dumps({"path": "0.jpg", **row}).encode()})
    with pytest.raises(gpuload.SourceError, match=match):
        open_source(folder, folder / "rows.jsonl").list_samples()


def test_parquet_with_several_captions(tmp_path: Path) -> None:
    table = pa.table({"image": [encode(photo(n, 16, 16)) for n in range(4)], "caption": [*map(texts_of, range(4))]})
    parquet.write_table(table, tmp_path / "set.parquet")
    gpuload.pack(open_source(tmp_path / "set.parquet"), tmp_path / "parquet", workers=1, shuffle=False)
    found = drawn(load(tmp_path / "parquet" / "train", Captions("caption"), batch_size=4), epochs=40)
    assert {text for _, text in found} == {text for n in range(4) for text in texts_of(n)}
