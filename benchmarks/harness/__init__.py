"""What benchmarks share: they time variants in turn, start their ranks, and write what they found."""
