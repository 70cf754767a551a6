"""Benchmarks: what the built programs cost, beside bare gRPC and direct calls in the same run."""
