"""Trains a tiny code model and its block-diffusion draft, and writes both as GGUF files."""
