"""`python -m gpuload`; see `gpuload.cli`."""

import sys


def main() -> int:
    """Runs one command. Ctrl-C ends it with 130, also while modules are imported and while it stops already."""
    try:
        from gpuload.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("gpuload: stopped; no half-written files are left", file=sys.stderr)  # noqa: T201, TID251
        return 130


if __name__ == "__main__":
    sys.exit(main())
