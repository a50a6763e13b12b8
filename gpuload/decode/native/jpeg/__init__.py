"""Baseline JPEGs to RGB, compiled: whole or in part, at 1/1 to 1/8 of the size, many a call without Python's lock."""

from gpuload.decode.native.jpeg.decode import decode, load_compiled, room_for
from gpuload.decode.native.jpeg.work import Work

__all__ = ["Work", "decode", "load_compiled", "room_for"]
