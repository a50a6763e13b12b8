"""Gives a Python process the changed module instead of the one on disk; for child processes, by PYTHONPATH."""

import importlib.abc
import importlib.util
import os
import sys


class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, and compiles it from another file than its own. No bytecode is written."""

    def __init__(self, name, path, source):
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_filename(self, name):
        return self.path

    def get_data(self, path):
        with open(self.source, "rb") as file:
            return file.read()


if "GPULOAD_MUTANT" in os.environ:  # module's name, its path, the file with the changed source
    sys.meta_path.insert(0, Changed(*os.environ["GPULOAD_MUTANT"].split(os.pathsep)))
