"""Measurements behind the claims of pyro_metricbnn; each module runs with `python -m benchmarks.NAME`."""
