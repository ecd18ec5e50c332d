"""NVFP4 operations declared as suites: quantisers, dequantisation, scale layouts."""
