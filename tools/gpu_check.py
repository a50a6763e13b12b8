"""All checks that need a real GPU, for a host that is available for minutes: two calls of under 9 minutes each.

    python tools/gpu_check.py PHOTOS                        # writes gpu-check/summary.json; repeat it to continue
    python tools/gpu_check.py PHOTOS --steps bench train    # runs only these steps, again if they are done
    python tools/gpu_check.py PHOTOS --device cpu --quick   # the same steps with little work, to test them

PHOTOS: a folder of class folders of images, or a folder with a Python program `cut` that makes such a folder of any
size: `PHOTOS/cut OUT COUNT --like imagenet --workers N`. Nothing is installed or downloaded. Take to a host without a
network: the repository, PHOTOS, and wheels of the packages that step 1 reports as missing, for the host's Python: `pip
download --no-deps --python-version …` here, `pip install --no-index --no-deps --target SITE *.whl` and `export
PYTHONPATH=SITE` there. DALI needs nvidia-dali-cuda130, nvidia-nvimgcodec-cu13, nvidia-nvjpeg, and the small packages
that its metadata names.

The steps, the most valuable first, and their time limits in seconds:

    call 1  1. packages    30   the machine, the versions, and missing packages
            2. codec       60   one pixel test with nvImageCodec's log: JPEG engines, preallocated memory
            3. cut, pack  120   6,000 images like ImageNet's, in shards
               tests      150   every test marked `gpu`: pixels of each kind of JPEG, damaged ones, streams, memory
            4. bench      150   torch-gpu, dali-gpu and gpuload-gpu in turn, with `nvidia-smi dmon` beside them
    call 2  5. tune       100   the fastest settings: decoded on the GPU, on the CPU, and by both
               probe      150   ways to decode a crop, by hw_decoder_load; the cost of filtered chroma
            6. train      110   ResNet-50 by loader, compared with one resident batch
               pictures    40   decoded on the CPU and on the GPU, into the same training step
               kernel      40   a CUDA kernel on each batch
            7. streams     40   batches taken without waiting for them on the host: the same, and faster?
               thread      30   what a batch costs the thread that trains, by decoder

A call takes at most 520 s: a step starts only if its limit fits into the rest. The next call skips completed steps, and
retries failed ones after the new ones. A step that hangs is stopped at its limit, and what it has written by then is
kept. summary.json is updated after each step. It is all that the next call needs, even on another host, where only the
data is made again.

Exit codes: 0 all steps completed; 1 a step failed, or has not run yet; 2 wrong arguments.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gpu_report
from gpu_steps import ROOT, Step, steps

SECONDS = 520
GRACE_S = 10  # to write results after the interrupt


class Check:
    """Runs steps within the time of a call, and records each in `out`.

    again: whether to run completed steps, too.
    """

    def __init__(self, out: Path, setting: Mapping[str, object], seconds: float, again: bool = False) -> None:
        self.out, self._setting, self._again = out, setting, again
        self._deadline = time.monotonic() + seconds
        self._recorded = gpu_report.read_summary(out)["steps"]
        self._run: set[str] = set()

    def run(self, asked: list[Step]) -> list[str]:
        """Returns the names of the steps that have not run and are not completed."""
        for is_new in (True, False):
            for step in asked:
                if step.name in self._run or self._went_well(step):
                    continue
                # Steps that failed in an earlier call come after the new ones, except those that make the data.
                if is_new and step.name in self._recorded and not step.makes and not self._again:
                    continue
                if step.needs_data and not self._has_data(asked):
                    continue
                if step.seconds <= self._deadline - time.monotonic():
                    self._take(step)
        return [step.name for step in asked if step.name not in self._run and not self._went_well(step)]

    def _went_well(self, step: Step) -> bool:
        if self._again and step.name not in self._run:
            return False
        has_product = step.makes is None or step.makes.exists()
        return has_product and self._recorded.get(step.name, {}).get("ok", False)

    def _has_data(self, asked: list[Step]) -> bool:
        return all(step.makes.exists() for step in asked if step.makes)

    def _take(self, step: Step) -> None:
        self._run.add(step.name)
        log, started = self.out / f"{step.name}.log", time.monotonic()
        for path in (log, self.out / f"{step.name}.json"):
            path.unlink(missing_ok=True)
        with beside(step.name, self.out / "dmon.log"):
            code = run(step.command, step.seconds, log, step.environment)
        record = gpu_report.record(self.out, step.name, step.command, code, time.monotonic() - started, self._setting)
        self._recorded[step.name] = record
        last = record["fault"] or (record["output"] or [""])[-1]
        print(f"{step.name:<9} {gpu_report.outcome(record):<8} {record['seconds']:>5.0f} s  {last[:100]}", flush=True)


def run(command: list[str], seconds: float, log: Path, environment: Mapping[str, str]) -> int:
    """Runs a command and returns its exit code, or gpu_report.TIMED_OUT. No process that it has started survives it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return gpu_report.TIMED_OUT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def beside(name: str, log: Path) -> Iterator[None]:
    """While the benchmark runs, logs the output of `nvidia-smi dmon`, a line per second, preceded by the Unix time."""
    if name != "bench":
        yield
        return
    log.unlink(missing_ok=True)
    try:
        process = subprocess.Popen(["nvidia-smi", "dmon", "-s", "ut", "-d", "1"], stdout=subprocess.PIPE, text=True)
    except OSError:  # no driver
        yield
        return

    def write() -> None:
        assert process.stdout is not None
        with log.open("w") as file:
            for line in process.stdout:
                print(f"{time.time():.2f} {line}", end="", file=file, flush=True)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        thread.join()  # it has read to the end
        with process:
            pass  # waits, and closes the pipe


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="class folders of images, or a folder with a program `cut`")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder to work in (%(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="little work in each step")
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="run only these, again if they are completed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for this call (%(default)s)")
    args = parser.parse_args(argv)
    if not args.photos.is_dir():
        parser.error(f"{args.photos}: no such folder")
    out, setting = args.out.resolve(), {"device": args.device, "quick": args.quick}
    every = steps(args.photos.resolve(), out, args.device, args.quick)
    names = [step.name for step in every]
    if unknown := [name for name in args.steps or () if name not in names]:
        parser.error(f"--steps {' '.join(unknown)}: expected some of: {' '.join(names)}")
    before = gpu_report.read_summary(out)["setting"]
    if before not in (None, setting):
        parser.error(f"--out {args.out}: holds results of another setting, {before}; choose another folder")
    out.mkdir(parents=True, exist_ok=True)

    check = Check(out, setting, args.seconds, again=bool(args.steps))
    left = check.run([step for step in every if step.name in (args.steps or names)])
    bad = gpu_report.failed(out)
    print(f"{out / 'summary.json'}: {'failed: ' + ', '.join(bad) if bad else 'no step failed'}")
    if left:
        print(f"Not run yet: {', '.join(left)}. Repeat the command to continue.")
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
