"""Faults, abuse and soak against running servers: ``python -m benchmarks.torture`` writes docs/reliability.md."""
