"""All checks that need a real GPU, for a host that is available for minutes.

    python tools/gpu_check.py PHOTOS                        # writes gpu-check/summary.json; repeat it to continue
    python tools/gpu_check.py PHOTOS --steps bench train    # runs only these steps, again if they are done
    python tools/gpu_check.py PHOTOS --device cpu --quick   # the same steps with little work, to test them

PHOTOS: a folder of class folders of images, or a folder with a Python program `cut` that makes such a folder of any
size: `PHOTOS/cut OUT COUNT --like imagenet --workers N`. Nothing is installed or downloaded: the first step names the
packages that are missing, which are those of the extras `cuda13` (or `cuda12`) and `gpu-check` in pyproject.toml. For a
host without a network, take the repository, PHOTOS and their wheels along: `pip download`, then `pip install --no-index
--target SITE *.whl` and `export PYTHONPATH=SITE` there.

Steps run in the order of their value. The estimates of all of them add up to --seconds. A step starts if its estimate
fits into the rest of that time, and is stopped at its limit, or when the time is over; what it has written by then is
kept. The next call skips completed steps; data that is missing, as on another host, is made again.

--out holds all results and nothing else: each step's log, figures and pictures, and summary.json, which is rewritten
after each step. The images and the packed set are in --data, which is not for keeping.

Exit codes: 0 all steps completed; 1 a step failed, or has not run yet; 2 wrong arguments.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_STARTED = time.perf_counter()
ROOT = Path(__file__).resolve().parents[1]
CORES = str(len(os.sched_getaffinity(0)))
SECONDS = 420
GRACE_S = 10  # to write results after the interrupt
TIMED_OUT = 124  # as of timeout(1)
_LAST_LINES = 40
_SHOWN_LINES = 14  # of each step's log, when it has ended
_QUERY = "name,driver_version,compute_cap,memory.total,pcie.link.gen.current,pcie.link.width.current"
# The lines of nvImageCodec's log about versions, JPEG engines and preallocated memory.
_CODEC = re.compile(
    r"nvJPEG version|HW |num_hw_engines|prealloc|hw_decoder", re.IGNORECASE
)
_MOST_LEVELS = 5.0  # of 255, between an image and its JPEG in the smoke test
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Step(NamedTuple):
    """estimate: seconds that it takes on one H100 with 16 cores. limit: seconds after which it is stopped.
    makes: data that is made again if missing."""

    name: str
    estimate: float
    limit: float
    command: list[str]
    environment: Mapping[str, str] = {}
    makes: Path | None = None


# By device: gpuload's decoders, DALI by hand with several shares of the JPEG engines, and the DataLoader.
BENCH_LOADERS = {
    "cpu": ["gpuload-dali", "gpuload-native", "gpuload-both", "dali", "torch"],
    "cuda": [
        *("gpuload-dali-gpu", "gpuload-native-gpu", "gpuload-both-gpu"),
        *("dali-gpu", "dali-cores-gpu", "dali-engines-gpu", "torch-gpu"),
    ],
}
TRAIN_LOADERS = {
    "cpu": [
        "synthetic",
        "gpuload-dali",
        "gpuload-native",
        "gpuload-both",
        "dali",
        "torch",
    ],
    "cuda": [
        *("synthetic", "gpuload-dali", "gpuload-native", "gpuload-both"),
        *("dali", "dali-cores", "dali-engines", "torch"),
    ],
}

# Those that are marked "gpu" lie in several folders.
TESTS = {
    "cpu": ["tests/gpu"],
    "cuda": [
        "tests/gpu",
        "tests/transforms/test_transforms_pixels.py",
        "tests/batchwise/test_batchwise.py",
    ],
}


class Plan(NamedTuple):
    """The work. photos: as on the command line. out: of the results. data: of the images and the packed set. quick:
    little work in each step."""

    photos: Path
    out: Path
    data: Path
    device: str
    quick: bool

    def steps(self) -> list[Step]:
        """All steps, the most valuable first."""
        return [
            Step(
                "packages", 5, 20, [sys.executable, __file__, "--packages", self.device]
            ),
            Step("smoke", 15, 60, [sys.executable, __file__, "--smoke", self.device]),
            *self._making(),
            Step("bench", 100, 140, self._bench()),
            Step("train", 125, 160, self._training()),
            Step("pictures", 15, 40, self._pictures()),
            Step("pair", 15, 40, self._pair()),
            Step("codec", 20, 60, self._codec(), {"DALI_NVIMGCODEC_LOG_LEVEL": "3"}),
            Step("tune", 35, 60, self._tune()),
            Step("tests", 45, 180, self._tests()),
        ]

    @property
    def _train(self) -> str:
        return str(self.data / "shards" / "train")

    def _making(self) -> list[Step]:
        images = self.photos
        steps = []
        if (self.photos / "cut").exists():
            images = self.data / "images"
            count = "240" if self.quick else "6000"
            cut = [
                sys.executable,
                str(self.photos / "cut"),
                str(images),
                count,
                "--like",
                "imagenet",
            ]
            steps.append(Step("cut", 30, 60, [*cut, "--workers", CORES], makes=images))
        shards = self.data / "shards"
        pack = [sys.executable, "-m", "gpuload", "pack", str(images), str(shards)]
        pack += ["--no-splits", "--val", "0.1", "--overwrite"]
        return [
            *steps,
            Step("pack", 15, 60, pack, makes=shards / "train" / "manifest.json"),
        ]

    def _bench(self) -> list[str]:
        loaders = BENCH_LOADERS[self.device]
        command = self._tool(
            "benchmarks/bench.py",
            "--loaders",
            *loaders,
            *self._batches(),
            "--threads",
            CORES,
        )
        command += [
            "--cold",
            "0",
            "--dtype",
            "float16",
            "--json",
            str(self.out / "bench.json"),
        ]
        return command + (
            ["--rounds", "1", "--images", "256"]
            if self.quick
            else ["--rounds", "3", "--images", "8192"]
        )

    def _training(self) -> list[str]:
        command = self._tool(
            "examples/train_resnet50.py", "--json", str(self.out / "train.json")
        )
        command += ["--loaders", *TRAIN_LOADERS[self.device]]
        if self.quick:
            return [
                *command,
                "--batch-size",
                "4",
                "--size",
                "32",
                "--steps",
                "1",
                "--warm-up",
                "0",
            ]
        return [
            *command,
            "--batch-size",
            "256",
            "--steps",
            "30",
            "--warm-up",
            "12",
            "--rounds",
            "2",
        ]

    def _pictures(self) -> list[str]:
        command = [
            sys.executable,
            str(ROOT / "examples/cpu_vs_gpu.py"),
            self._train,
            *self._batches(),
        ]
        command += ["--threads", CORES, "--images", "32" if self.quick else "512"]
        return [*command, "--picture", str(self.out / "cpu_vs_gpu.png")]

    def _pair(self) -> list[str]:
        command = self._tool(
            "tools/pair_check.py", "--json", str(self.out / "pair.json")
        )
        command += [*self._batches(), "--threads", CORES]
        work = ["--images", "64", "--rounds", "1"] if self.quick else []
        return [*command, *work]

    def _codec(self) -> list[str]:
        decoder = "default" if self.device == "cuda" else "native"
        pixels = f"test_pixels and 420 and center and {decoder}"
        return self._pytest("codec", "-s", "-k", pixels, "tests/gpu/test_gpu_pixels.py")

    def _tune(self) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "gpuload",
            "tune",
            self._train,
            "--device",
            self.device,
        ]
        command += ["--json", str(self.out / "tune.json")]
        return command + (
            ["--seconds", "5", *self._batches()] if self.quick else ["--seconds", "25"]
        )

    def _tests(self) -> list[str]:
        marked = ["-m", "gpu"] if self.device == "cuda" else []
        return self._pytest("tests", *marked, *TESTS[self.device])

    def _tool(self, path: str, *options: str) -> list[str]:
        return [
            sys.executable,
            str(ROOT / path),
            self._train,
            "--device",
            self.device,
            *options,
        ]

    def _batches(self) -> list[str]:
        return (
            ["--size", "64", "--batch-size", "16"]
            if self.quick
            else ["--size", "224", "--batch-size", "256"]
        )

    def _pytest(self, name: str, *options: str) -> list[str]:
        """The project's own settings of pytest need plug-ins that the host may not have."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-o",
            "addopts=",
            "-o",
            "filterwarnings=default",
        ]
        return [
            *command,
            "-p",
            "no:cacheprovider",
            f"--junitxml={self.out / name}.xml",
            *options,
        ]


def requirements(device: str, cuda: str = "cuda13") -> list[str]:
    """Names of the distributions that the steps need, out of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = [
        "dependencies",
        *([cuda] if device == "cuda" else ["cpu", "dali"]),
        "gpu-check",
    ]
    lists = [
        re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        for extra in extras
    ]
    entries = [
        entry
        for modules in lists
        if modules
        for entry in re.findall(r'"([^"]+)"', modules[1])
    ]
    return list(dict.fromkeys(re.split(r"[<>=~!\[; ]", entry)[0] for entry in entries))


def describe_host(device: str) -> dict[str, Any]:
    """Machine, GPUs, versions of the packages that the steps need, and those that are missing."""
    gpus = []
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        query = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
        rows = [line.split(", ") for line in done.stdout.splitlines()]
        gpus = [
            dict(zip(_QUERY.split(","), row, strict=True))
            for row in rows
            if len(row) == _QUERY.count(",") + 1
        ]
    # The first for CUDA 13.
    old_driver = any(int(gpu["driver_version"].split(".")[0]) < 580 for gpu in gpus)
    versions = {}
    missing = []
    for name in requirements(device, "cuda12" if old_driver else "cuda13"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    models = re.findall(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return {
        "gpus": gpus,
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": versions,
        "missing": missing,
    }


def record(step: Step, out: Path, seconds: float) -> dict[str, Any]:
    """Runs a step for at most `seconds`, and prints and returns what came of it."""
    log = out / f"{step.name}.log"
    started = time.monotonic()
    for suffix in (".log", ".json", ".xml"):
        log.with_suffix(suffix).unlink(missing_ok=True)
    print(
        f"{step.name:<9} begins: about {step.estimate:.0f} s, at most {seconds:.0f} s",
        flush=True,
    )
    code = run(step.command, seconds, log, step.environment)
    lines = [_COLOUR.sub("", line) for line in _text(log).splitlines()]
    figures = read_figures(out, step.name, lines)
    fault = find_fault(step.name, figures) if code == 0 else None
    gpus = {
        "ok": code == 0 and fault is None,
        "exit": code,
        "fault": fault,
        "seconds": round(time.monotonic() - started, 1),
        "command": " ".join(step.command),
        "figures": figures,
        "output": lines[-_LAST_LINES:],
    }
    if lines:
        print(*(f"  | {line[:160]}" for line in lines[-_SHOWN_LINES:]), sep="\n")
    outcome = (
        "ok"
        if gpus["ok"]
        else "failed"
        if fault
        else "timed out"
        if code == TIMED_OUT
        else f"exit {code}"
    )
    print(
        f"{step.name:<9} {outcome:<9} {gpus['seconds']:>5.0f} s  {(fault or (lines or [''])[-1])[:100]}",
        flush=True,
    )
    return gpus


def run(
    command: list[str], seconds: float, log: Path, environment: Mapping[str, str]
) -> int:
    """Runs a command and returns its exit code, or TIMED_OUT. No process that it has started survives it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return TIMED_OUT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def read_figures(folder: Path, name: str, log: list[str]) -> Any:
    """What a step has measured: its JSON, or the counts of its tests; None for nothing."""
    try:
        figures = json.loads(_text(folder / f"{name}.json"))
    except ValueError:  # it has none, or was stopped while it wrote them
        figures = None
    if name in ("packages", "smoke"):
        figures = json.loads(log[0]) if log and log[0].startswith("{") else None
    if name in ("codec", "tests"):
        figures = _tests(folder / f"{name}.xml", log)
    if name == "codec":
        figures["codec"] = list(
            dict.fromkeys(line for line in log if _CODEC.search(line))
        )
    return figures


def find_fault(name: str, figures: Any) -> str | None:
    """Why a step failed in spite of exit code 0: no test ran, or a loader was not measured. None if it did not fail."""
    if name in ("codec", "tests"):
        return None if figures["passed"] else "no test ran: all were skipped"
    if name in ("bench", "train"):
        left_out = (
            {name: "no figures"} if figures is None else figures.get("left_out", {})
        )
        return (
            "; ".join(f"{loader}: {reason}" for loader, reason in left_out.items())
            or None
        )
    return None


def _tests(path: Path, log: list[str]) -> dict[str, Any]:
    """Outcomes and what tests recorded, by pytest's XML; after a crash, which leaves none, outcomes by the log."""
    words = {"passed": "", "failed": "failure", "error": "error", "skipped": "skipped"}
    outcomes = [
        next((word for word in words if f" {word.upper()}" in line), None)
        for line in log
        if "::" in line
    ]
    recorded = {}
    with contextlib.suppress(OSError, ElementTree.ParseError):
        cases = list(ElementTree.parse(path).iter("testcase"))
        # With -s, which shows the decoder's log, the outcome of a test stands behind all that it printed.
        outcomes = [
            next(
                (w for w, tag in words.items() if tag and case.find(tag) is not None),
                "passed",
            )
            for case in cases
        ]
        for case in cases:
            for entry in case.iter("property"):
                recorded[f"{case.get('name')}: {entry.get('name')}"] = entry.get(
                    "value"
                )
    running = next((line.split()[0] for line in reversed(log) if "::" in line), None)
    counts = {word: outcomes.count(word) for word in words}
    return {**counts, "last": running, "recorded": recorded}


def read_summary(folder: Path) -> dict[str, Any]:
    """{"setting": device and amount of work, "steps": record by name}; None and {} for a new folder."""
    text = _text(folder / "summary.json")
    summary: dict[str, Any] = (
        json.loads(text) if text else {"setting": None, "steps": {}}
    )
    return summary


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def report_packages(device: str) -> int:
    """Prints the host as a line of JSON, then what it is and lacks. 1 where packages or the GPU are missing."""
    host = describe_host(device)
    lacks = f"; missing: {' '.join(host['missing'])}" if host["missing"] else ""
    names = ", ".join(gpu["name"] for gpu in host["gpus"]) or "no GPU"
    print(
        json.dumps(host),
        f"{names}; {host['cpu']}, {host['cores']} cores{lacks}",
        sep="\n",
    )
    return 1 if host["missing"] or (device == "cuda" and not host["gpus"]) else 0


def smoke(device: str) -> int:
    """Decodes a JPEG with DALI to a tensor of torch, and prints the result as a line of JSON. 1 if pixels are wrong."""
    import numpy
    import torch
    from nvidia import dali
    from PIL import Image

    seconds = {"imports": round(time.perf_counter() - _STARTED, 2)}
    begun = time.perf_counter()
    ramp = numpy.linspace(0, 255, 64 * 64 * 3).astype(numpy.uint8).reshape(64, 64, 3)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "JPEG", quality=95)
    jpeg = numpy.frombuffer(file.getvalue(), numpy.uint8)
    number = 0 if device == "cuda" else None
    pipeline = dali.Pipeline(
        batch_size=1, num_threads=1, device_id=number, exec_dynamic=True
    )
    with pipeline:
        encoded = dali.fn.external_source(lambda: [jpeg], batch=True)
        images = dali.fn.decoders.image(
            encoded, device="cpu" if number is None else "mixed"
        )
        pipeline.set_outputs(images)
    (images,) = pipeline.run()
    pixels = torch.from_dlpack(images.as_tensor()).cpu().numpy()[0]
    difference = float(numpy.abs(pixels.astype(int) - ramp).mean())
    seconds["decode"] = round(time.perf_counter() - begun, 2)
    versions = {
        "dali": dali.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    place = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print(
        json.dumps(
            {
                "device": place,
                "versions": versions,
                "seconds": seconds,
                "mean_difference": difference,
            }
        )
    )
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{place}: {named}; a JPEG differs by {difference:.2f} levels on average")
    return 0 if difference < _MOST_LEVELS else 1


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.smoke:
        return smoke(args.smoke)
    if args.packages:
        return report_packages(args.packages)
    if args.photos is None or not args.photos.is_dir():
        parser.error(f"{args.photos or 'PHOTOS'}: no such folder")
    out = args.out.resolve()
    data = args.data.resolve() if args.data else out.with_name(f"{out.name}-data")
    setting = {"device": args.device, "quick": args.quick}
    steps = Plan(args.photos.resolve(), out, data, args.device, args.quick).steps()
    names = [step.name for step in steps]
    unknown = [name for name in args.steps or () if name not in names]
    if unknown:
        parser.error(
            f"--steps {' '.join(unknown)}: expected some of: {' '.join(names)}"
        )
    before = read_summary(out)["setting"]
    if before not in (None, setting):
        parser.error(
            f"--out {args.out}: holds results of another setting, {before}; choose another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    return _run_steps(steps, out, setting, args.steps, args.seconds)


def _run_steps(
    steps: list[Step],
    out: Path,
    setting: dict[str, Any],
    chosen: list[str] | None,
    seconds: float,
) -> int:
    """Runs steps as far as the time goes, and records each. 1 where a step failed or has not run yet.

    Args:
        steps: All of them.
        out: The folder of the results.
        setting: That of the results.
        chosen: Names of steps to run; None runs those that are not completed.
        seconds: The time for all.
    """
    recorded = read_summary(out)["steps"]
    not_run: list[str] = []
    deadline = time.monotonic() + seconds
    for step in steps:
        if not _is_wanted(step, chosen, recorded):
            continue
        rest = deadline - time.monotonic()
        if step.estimate > rest:
            not_run.append(step.name)
            continue
        recorded[step.name] = record(step, out, min(step.limit, rest))
        temporary = out / "summary.json.tmp"
        temporary.write_text(
            json.dumps({"setting": setting, "steps": recorded}, indent=1) + "\n"
        )
        temporary.replace(out / "summary.json")
    failed = [name for name, outcome in recorded.items() if not outcome["ok"]]
    outcome_text = f"failed: {', '.join(failed)}" if failed else "no step failed"
    print(f"{out / 'summary.json'}: {outcome_text}")
    if not_run:
        print(f"Not run yet: {', '.join(not_run)}. Repeat the command to continue.")
    return 1 if failed or not_run else 0


def _is_wanted(
    step: Step, chosen: list[str] | None, recorded: dict[str, dict[str, Any]]
) -> bool:
    """Whether a step is to be run: what it makes is missing, or it is chosen, or else not completed."""
    if step.makes is not None and not step.makes.exists():
        return True
    if chosen:
        return step.name in chosen
    return not recorded.get(step.name, {}).get("ok")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "photos",
        type=Path,
        nargs="?",
        help="class folders of images, or a folder with a program `cut`",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gpu-check"),
        help="folder for all results (%(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder for images and shards (OUT-data, beside --out)",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="little work in each step")
    parser.add_argument(
        "--steps",
        nargs="+",
        metavar="NAME",
        help="run only these, again if they are completed",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="time for this call (%(default)s)",
    )
    parser.add_argument(
        "--packages",
        choices=["cuda", "cpu"],
        help="only describe the host and what it lacks",
    )
    parser.add_argument(
        "--smoke", choices=["cuda", "cpu"], help="only decode a JPEG with DALI"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
