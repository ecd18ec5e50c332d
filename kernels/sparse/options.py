"""The variants of the metadata contract, by name.

The metadata of sparse attention has had several contracts in public inference engines. They differ in what a padded
token's row holds and in how indices outside the block table count, so a caller must be able to name the one its
attention kernel was written for.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bits of the `flags` argument of the kernels; the same values stand in sparse_topk_metadata.cu.
FLAG_MASKED = 1
FLAG_BOUNDS = 2
FLAG_IGNORE_SLOTS = 4


@dataclass(frozen=True)
class MetadataOptions:
    """Which contract the metadata follows. All defaults together are the baseline.

    The options are independent of each other; none of them changes what a row of a real token inside the table holds.
    """

    masked: bool = False
    """Rows of padded tokens are -1 throughout. Baseline: they are mapped like any other, only their length is 0."""

    bounds: bool = False
    """Entries that the block table cannot map (unknown request, block column past the table) are left out of the
    length. They are -1 with and without this option, for reading them would be an out-of-bounds access."""

    ignore_slots: bool = False
    """A negative slot does not make a token padding. Under decode context parallelism `slot_mapping` says which rank
    stores the token, and a query whose key lives elsewhere is still a query. Padding is then told by
    `actual_num_query_tokens` alone."""

    @property
    def flags(self) -> int:
        """The options as the kernels' bit set."""
        return FLAG_MASKED * self.masked + FLAG_BOUNDS * self.bounds + FLAG_IGNORE_SLOTS * self.ignore_slots

    @staticmethod
    def from_flags(flags: int) -> MetadataOptions:
        """The inverse of `flags`."""
        return MetadataOptions(
            masked=bool(flags & FLAG_MASKED),
            bounds=bool(flags & FLAG_BOUNDS),
            ignore_slots=bool(flags & FLAG_IGNORE_SLOTS),
        )


BASELINE = MetadataOptions()
MASKED = MetadataOptions(masked=True)
BOUNDS = MetadataOptions(masked=True, bounds=True)
CONTEXT_PARALLEL = MetadataOptions(masked=True, ignore_slots=True)
