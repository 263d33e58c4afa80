"""Replay of recorded steps: one captured graph for all steps of a shape, instead of a launch for
each op. Steps with prompt rows run op by op: their launches are hidden behind their work, and how
their rows are cut differs from step to step."""
