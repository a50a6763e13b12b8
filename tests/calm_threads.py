"""Threads of math libraries that have nothing to do sleep: imported before NumPy and torch, which read this at their start.

Otherwise they wait in a loop, which takes a processor from whatever else runs: five tests of padded images took 7.4 s of
processor time instead of 2.2 s beside others (2 cores, 2026-11). torch has as many threads as ever; NumPy's products and
decompositions are too small here for more than one.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
