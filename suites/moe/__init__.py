"""The mixture of experts, declared as suites."""
