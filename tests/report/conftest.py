"""Tests of reports: their sets are in report_sets.py beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
