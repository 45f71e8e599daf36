"""What the tasks show: ``python -m benchmarks.results`` trains them and writes docs/results.md."""
