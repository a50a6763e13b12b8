"""The list of contenders. A new one is a file in `peers/` and a line here."""

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path

from timing import features
from timing.peers import (
    dali,
    dali_dynamic,
    datago,
    dataloader,
    energon,
    ffcv,
    grain,
    huggingface,
    lance,
    litdata,
    mosaic,
    own,
    spdl,
    turbo,
    webdataset,
)
from timing.work import Contender, Work

BEFORE = "gpuload-before"  # of another commit
_DALI = ("nvidia.dali", "nvidia-dali-cuda130")
_ALL = [
    Contender("torch", "DataLoader + Pillow", dataloader.open_pillow, "torch"),
    Contender("opencv", "DataLoader + simplejpeg, OpenCV", dataloader.open_opencv, "cv2"),
    Contender("imagecodecs", "DataLoader + imagecodecs, OpenCV",
              partial(dataloader.open_opencv, decoder="imagecodecs"), "imagecodecs", "imagecodecs"),
    Contender("torch-raw", "DataLoader over np.memmap", dataloader.open_array, "torch", None, dataloader.prepare_array,
              jpeg=False, raw=True),
    Contender("webdataset", "webdataset", webdataset.open_loader, "webdataset", "webdataset"),
    Contender("mosaic", "MosaicML Streaming", mosaic.open_loader, "streaming", "mosaicml-streaming", mosaic.prepare,
              raw=True),
    Contender("litdata", "LitData", litdata.open_loader, "litdata", "litdata", litdata.prepare, raw=True),
    Contender("spdl", "SPDL, its FFmpeg", spdl.open_ffmpeg, "spdl.io", "spdl"),
    Contender("spdl-opencv", "SPDL + simplejpeg, OpenCV", spdl.open_opencv, "spdl.pipeline", "spdl"),
    Contender("lance", "LanceDB", lance.open_loader, "lancedb", "lancedb", lance.prepare, raw=True),
    Contender("grain", "Grain, ArrayRecord + simplejpeg, OpenCV", grain.open_loader, "grain", "grain", grain.prepare),
    Contender("huggingface", "Hugging Face datasets, streaming", huggingface.open_loader, "datasets", "datasets"),
    Contender("turbo", "TurboLoader", turbo.open_loader, "turboloader", "turboloader", turbo.prepare),
    Contender("datago", "datago, crops in one thread", datago.open_loader, "datago", "datago", dali.prepare_files,
              data="dali-files"),
    Contender("ffcv", "FFCV", ffcv.open_loader, "ffcv", "ffcv", ffcv.prepare, raw=True),
    Contender("dali", "DALI by hand", dali.open_pipeline, *_DALI, with_state={"checkpoints": True}),
    Contender("dali-files", "DALI by hand, reader of files", partial(dali.open_pipeline, reader="file"), *_DALI,
              prepare=dali.prepare_files, with_state={"checkpoints": True}, if_asked=True),
    Contender("dali-dynamic", "DALI, dynamic mode", dali_dynamic.open_loader, *_DALI),
    Contender("energon", "Megatron-Energon", energon.open_loader, "megatron.energon", "megatron-energon",
              energon.prepare),
    *(
        Contender(
            name,
            f"gpuload, decoder='{decoder}'" if decoder != "auto" else name,
            partial(own.open_loader, decoder=decoder),
            package="gpuload" if decoder in ("auto", "native") else "nvidia.dali",
            distribution="gpuload",
            raw=True,
            without_end={"steps_per_epoch": 1_000_000},
            if_asked=name == BEFORE or decoder in ("native", "both"),  # on a CPU "auto" is the native one
        )
        for name, decoder in (
            ("gpuload", "auto"),
            (BEFORE, "auto"),
            ("gpuload-dali", "dali"),
            ("gpuload-native", "native"),
            ("gpuload-both", "both"),
        )
    ),
]  # fmt: skip


def _prepare(work: Work, folder: Path, data: str) -> None:
    from timing.feature_data import prepare

    prepare(work, folder, data)


_FEATURES = [
    Contender(
        name,
        description,
        opens,
        package="gpuload" if name.startswith("gpuload") else variant.package,
        raw=name.startswith("gpuload") or variant.raw,
        prepare=partial(_prepare, data=variant.data) if variant.data else None,
        data=variant.data or None,
        channels=variant.channels,
        one_size=variant.one_size,
    )
    for name, description, opens, variant in features.opened()
]


def _on_gpu(contender: Contender) -> Contender:
    """The same contender with batches on the GPU: decoded there if it can, otherwise copied."""
    decodes = contender.name.startswith(("dali", "gpuload"))
    return replace(
        contender,
        name=f"{contender.name}-gpu",
        what=f"{contender.what}, {'GPU' if decodes else 'to GPU'}",
        open=partial(contender.open, device="cuda"),
        device="cuda",
        if_asked=False,
        package="nvidia.dali" if contender.name == "gpuload" else contender.package,
    )


# On a CPU there are no JPEG engines, so that these would be "dali" again.
_LOADS = [
    replace(
        _on_gpu(
            Contender(
                name,
                f"DALI by hand, {units}",
                partial(dali.open_pipeline, hw_decoder_load=load),
                *_DALI,
            )
        ),
        if_asked=True,
    )
    for name, units, load in (
        ("dali-cores", "CUDA cores alone", 0.0),
        ("dali-engines", "JPEG engines alone", 1.0),
    )
]

CONTENDERS = {
    contender.name: contender
    for contender in (*_ALL, *map(_on_gpu, _ALL), *_LOADS, *_FEATURES)
}


def why_not(
    contender: Contender, raw: bool = False, elsewhere: bool = False
) -> str | None:
    """Why a contender cannot run here, or None if it can.

    raw: the set stores pixels. elsewhere: the contender has its own Python, so packages are not checked here.
    """
    if not (contender.raw if raw else contender.jpeg):
        return f"it does not load sets of {'raw pixels' if raw else 'JPEGs'}"
    if not elsewhere and contender.package is not None:
        try:
            spec = importlib.util.find_spec(contender.package)
        except ModuleNotFoundError:
            spec = None
        if not spec:
            return f"{contender.package} is not installed"
    if contender.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "there is no GPU"
    return None
