"""`python -m gpuload verify DIR`: reads a packed folder again and lists its faults."""

import argparse

from gpuload.commands.exit_codes import DONE, FAULTY
from gpuload.counted import counted
from gpuload.packing.progress import progress_bar
from gpuload.packing.verify import verify
from gpuload.packing.verify_shard import DecodeCheck


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser(
        "verify",
        help="read a packed folder again and list its faults",
        description="Reads everything again: sizes, SHA-256, index against tar, and every image. Images are decoded in "
        "processes that may die: one that crashes its decoder is listed as such.",
        epilog="Exit codes: 0 all is well; 1 faults, one a line on stdout; 2 not a packed folder.",
    )
    check.set_defaults(run=_verify)
    check.add_argument("folder", metavar="DIR", help="a packed folder or its URL, or one that holds several")
    check.add_argument("--workers", type=int, metavar="N", help="processes (default: one for each core)")
    check.add_argument(
        "--decoder",
        choices=["native", "dali"],
        help="decode each image by this decoder of DaliIterator, too (default: Pillow and libjpeg-turbo alone)",
    )
    check.add_argument(
        "--quarantine",
        metavar="FILE",
        help="write the samples that have a fault to FILE, for DaliIterator(exclude=FILE) to leave them out",
    )


def _verify(args: argparse.Namespace) -> int:
    decode = _open_check(args.decoder)
    with progress_bar("verifying", "shards") as bar:
        faults = verify(
            args.folder, args.workers, lambda n, of: bar(n, of, 0), decode=decode, quarantine=args.quarantine
        )
    for fault in faults:
        print(fault)
    print(f"{args.folder}: {counted(len(faults), 'fault')}" if faults else f"{args.folder}: all is well")
    return FAULTY if faults else DONE


def _open_check(decoder: str | None) -> DecodeCheck | None:
    if decoder is None:
        return None
    from gpuload.decode.open import choose_backend
    from gpuload.decode.single import find_dali_fault, find_native_fault
    from gpuload.ranks import Ranks

    choose_backend(decoder, "cpu", Ranks())  # raises the error that says what is missing
    return find_dali_fault if decoder == "dali" else find_native_fault
