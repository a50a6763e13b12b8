"""Fuzzing of everything that reads bytes of a data set; `tests/fuzz.py` is its command line."""
