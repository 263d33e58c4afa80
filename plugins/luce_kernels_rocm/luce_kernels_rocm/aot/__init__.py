"""Kernels compiled ahead of time, for any known GPU on a machine without one, and judged by their
machine code: registers, LDS, spills, matrix instructions.

Host functions run as they do while serving, on CPU tensors of real shapes; only the driver under
triton is another, which compiles what is launched and launches nothing. So what is compiled is
what serving would compile.
"""
