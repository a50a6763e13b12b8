"""Prometheus: what it gets is what `metrics` says."""

import gc
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from loaders import load

import gpuload

parser = pytest.importorskip("prometheus_client.parser")


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Values by name and values of labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=250) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    assert len(families) == 13
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize("decoder", ["native", "dali"])
def test_what_is_served(packed: Path, decoder: str) -> None:
    with load(packed, decoder=decoder) as loader, gpuload.monitor.prometheus(loader, 0) as exporter:
        assert scrape(exporter.port)["gpuload_steps_total", "train"] == 0
        for _ in loader:
            found, expected = scrape(exporter.port), loader.metrics()
            break
        last = loader.metrics(100)
    assert found["gpuload_steps_total", "train"] == 1 and found["gpuload_images_total", "train"] == 8
    assert found["gpuload_read_bytes_total", "train"] == expected.bytes > 0
    assert found["gpuload_loop_seconds_total", "train"] == expected.seconds
    assert found["gpuload_wait_seconds_total", "train", "read"] == expected.wait_read_s
    assert found["gpuload_wait_seconds_total", "train", "decode"] == expected.wait_decode_s
    assert found["gpuload_wait_seconds_total", "train", "hand_over"] == expected.hand_over_s
    assert found["gpuload_work_seconds_total", "train", "read"] == expected.read_s
    assert found["gpuload_bad_samples_total", "train"] == 0
    assert found["gpuload_images_per_second", "train"] == last.images_per_s
    assert found["gpuload_wait_share", "train"] == last.wait_share
    assert found["gpuload_binds", "train", last.binds] == 1
    assert (found["gpuload_epoch", "train"], found["gpuload_position", "train"]) == (0, 8)
    told = {key for key in found if key[0] == "gpuload_queue_depth" or key[-1] == "decode"}
    assert (("gpuload_queue_depth", "train") in told) == (decoder == "native")
    assert (("gpuload_work_seconds_total", "train", "decode") in told) == (decoder == "native")


def test_several_loaders_as_long_as_they_live(packed: Path) -> None:
    train, val = load(packed), load(packed, shuffle=False)
    with gpuload.monitor.prometheus({"train": train, "val": val}, port=0) as exporter:
        list(val)
        found = scrape(exporter.port)
        assert found["gpuload_steps_total", "train"] == 0 and found["gpuload_steps_total", "val"] == 13
        del val
        gc.collect()
        assert {key[1] for key in scrape(exporter.port)} == {"train"}
        taken = exporter.port
        with pytest.raises(gpuload.GpuloadError, match=rf"monitor.prometheus\(port={taken}, .*cannot be opened"):
            gpuload.monitor.prometheus(train, taken)
    gpuload.monitor.prometheus(train, taken).close()  # it is free again
    train.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), r"monitor.prometheus\(loaders=3\): expected a DaliIterator, or a dict"),
        (({},), r"monitor.prometheus\(loaders=\{\}\): expected a DaliIterator"),
        (({1: None},), r"loaders=.*: expected a DaliIterator"),
        ((None, 70_000), r"monitor.prometheus\(port=70000\): expected a whole number in 0..65535"),
        ((None, 0, 127), r"monitor.prometheus\(host=127\): expected an address"),
    ],
)
def test_arguments(packed: Path, arguments: Any, message: str) -> None:
    with load(packed) as loader, pytest.raises(gpuload.ArgumentError, match=message):
        gpuload.monitor.prometheus(loader if arguments[0] is None else arguments[0], *arguments[1:])


def test_without_the_package(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    message = r"prometheus_client is not installed. `pip install 'gpuload\[monitor\]'` brings it"
    with load(packed) as loader, pytest.raises(gpuload.MissingPackageError, match=message):
        gpuload.monitor.prometheus(loader, 0)
