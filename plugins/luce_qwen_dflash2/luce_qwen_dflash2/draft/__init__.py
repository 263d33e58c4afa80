"""The DFlash and DFlash2 draft model: blocks of tokens proposed in one pass."""
