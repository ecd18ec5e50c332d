"""The rooms: one file for each operation, or for each family of faults that share one."""
