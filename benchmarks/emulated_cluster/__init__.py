"""Several hosts with real links between them, on one Linux machine: ``python -m benchmarks.emulated_cluster``."""
