"""Benchmarks: each measures its baseline in the same run, and writes JSON with machine, versions, date and command."""
