"""Baseline JPEGs to RGB, compiled: whole or in part, at 1/1 to 1/8 of the size, many in one call."""

from gpuload.decode.native.jpeg.decode import decode, load_compiled, own_arguments, room_for
from gpuload.decode.native.jpeg.frame import Scratch
from gpuload.decode.native.jpeg.points import find_points, points_hold

__all__ = ["Scratch", "decode", "find_points", "load_compiled", "own_arguments", "points_hold", "room_for"]
