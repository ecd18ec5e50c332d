"""The NVFP4 linear layer, declared as a suite."""
