"""Kills training runs of any loader, resumes them, and counts which samples came: see benchmarks/kill_and_count.py."""
