"""The commands of the ``harness`` program, one a file."""
