"""Latency: what may be compared, what a set of blocks says, and what the machine makes impossible. No device needed.

- ``contract``: how a duration was measured, and the hash under which it may be compared
- ``blocks``: A B B A blocks as log-ratios, in time and in clock cycles, and why a block is void
- ``statistics``: trimmed bounds, equivalence, thresholds, families of cells: arrays in, numbers out
- ``judge``: the decision tree from blocks to SLOWER, FASTER, SAME, INCONCLUSIVE or INVALID
- ``checks``: physical floor, bimodality, identity of the code that ran
- ``simulate``: false alarms and power on data whose truth is known
"""
