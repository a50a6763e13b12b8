"""Fuzzing of everything that reads bytes of a data set; `tools/fuzz.py` is its command line."""
