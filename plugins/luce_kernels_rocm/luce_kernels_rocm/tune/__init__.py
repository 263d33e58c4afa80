"""`luce tune`: candidates of tiles are timed on a GPU, and the best are written into a table."""
