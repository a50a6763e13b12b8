"""The compiled part of gpuload: kernels in C, built with the package, for every Python and each level of processor.

`src` has the sources, `loading.py` loads what they were compiled to, `structs.py` says what they take. What reads JPEGs
is used by both halves: `jpeg.py`.
"""
