"""Benchmarks: variants timed in turn against a baseline, every sample kept, one file of results each."""
