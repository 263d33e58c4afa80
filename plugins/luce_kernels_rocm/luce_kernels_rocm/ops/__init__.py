"""Host functions and their kernels, one op each."""
