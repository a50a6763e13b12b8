"""Baseline JPEGs to RGB, compiled: whole or in part, at 1/1 to 1/8 of their size, many in one call without Python's lock."""

from gpuload.jpeg.decode import decode, load_compiled, room_for
from gpuload.jpeg.frame import Work, make_work

__all__ = ["Work", "decode", "load_compiled", "make_work", "room_for"]
