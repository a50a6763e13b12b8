"""Kills training runs of any loader, resumes them, and counts which samples came: see tools/kill_and_count.py."""
