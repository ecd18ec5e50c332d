"""GPU kernels, usable on their own: nothing below this package imports the harness or the suites."""
