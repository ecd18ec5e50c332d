"""Sparse-attention index metadata of DeepSeek-V4, declared as suites."""
