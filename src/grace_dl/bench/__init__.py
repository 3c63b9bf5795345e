"""Benchmarks: each names its comparator, measured in the same run, and writes JSON that says where it was made."""
