"""Whether a model trains as well with one loader as with another: `compare_accuracy.py`."""
