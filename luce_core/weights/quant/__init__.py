"""GGUF quantisation types: the table of block layouts, and their meaning as float32."""
