"""Benchmarks: each prints ratios to a baseline that was measured in the same run."""
