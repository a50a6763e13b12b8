"""`python -m gpuload`; see `gpuload.cli`."""

import sys

from gpuload.cli import main

if __name__ == "__main__":
    sys.exit(main())
