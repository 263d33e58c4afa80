"""Torch references: what each core op means. One file per op, each with its `SPEC`."""
