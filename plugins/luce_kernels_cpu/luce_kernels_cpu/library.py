"""The native library: loaded once, its functions typed. Raises KernelsUnavailable if it cannot."""

from __future__ import annotations

import ctypes as c
from functools import cache
from pathlib import Path

from luce_core.errors import LuceError
from luce_kernels_cpu import structs

_HERE = Path(__file__).parent
LIBRARY = _HERE / "_native.so"
NOTE = _HERE / "_not_built.txt"

_BATCH = c.POINTER(structs.Batch)
# name -> (result, arguments)
_FUNCTIONS: tuple[tuple[str, object, tuple[object, ...]], ...] = (
    ("lk_abi_version", c.c_int32, ()),
    ("lk_last_error", c.c_char_p, ()),
    ("lk_isa", c.c_char_p, ()),
    ("lk_isas", c.c_char_p, ()),
    ("lk_force_isa", c.c_int32, (c.c_char_p,)),
    ("lk_pool_create", c.c_void_p, (c.c_int32, c.c_int32, c.c_int64)),
    ("lk_pool_destroy", None, (c.c_void_p,)),
    ("lk_pool_threads", c.c_int32, (c.c_void_p,)),
    ("lk_pool_keep_all", None, (c.c_void_p, c.c_int32)),
    (
        "lk_weight_pack",
        c.c_void_p,
        (c.c_void_p, c.c_int32, c.c_int64, c.c_int64, c.c_void_p, c.c_int64),
    ),
    ("lk_set_code_book", c.c_int32, (c.c_int32, c.c_void_p, c.c_int64)),
    ("lk_weight_free", None, (c.c_void_p,)),
    ("lk_weight_bytes", c.c_int64, (c.c_void_p,)),
    ("lk_weight_rows", c.c_int64, (c.c_void_p,)),
    ("lk_weight_columns", c.c_int64, (c.c_void_p,)),
    ("lk_weight_int8_block", c.c_int32, (c.c_void_p,)),
    ("lk_weight_kernel", c.c_char_p, (c.c_void_p,)),
    ("lk_peak_int8", c.c_double, (c.c_void_p,)),
    ("lk_peak_float", c.c_double, (c.c_void_p,)),
    ("lk_peak_read", c.c_double, (c.c_void_p, c.c_int64)),
    ("lk_tape_create", c.c_void_p, (c.POINTER(structs.Limits),)),
    ("lk_tape_add", c.c_int32, (c.c_void_p, c.c_int32, c.c_void_p, c.c_int64, c.c_int32)),
    ("lk_tape_free", None, (c.c_void_p,)),
    ("lk_tape_run", c.c_int32, (c.c_void_p, c.c_void_p, _BATCH, c.c_void_p)),
    ("lk_run", c.c_int32, (c.c_void_p, c.c_int32, c.c_void_p, c.c_int64, _BATCH)),
)


class KernelsUnavailable(LuceError):
    """The native library is missing or does not fit; luce goes on with the references."""


def load_library(path: Path) -> c.CDLL:
    """The library of a file. Its calls release the GIL."""
    if not path.exists():
        noted = NOTE.read_text().strip() if NOTE.exists() else f"{path} is missing"
        reason, *more = noted.splitlines()
        said = "\n".join(
            (
                f"the native kernels were not built: {reason}; the torch references do the work, "
                "many times slower; to try again: "
                "pip install --force-reinstall --no-deps luce-kernels-cpu",
                *more,
            )
        )
        raise KernelsUnavailable(said)
    try:
        library = c.CDLL(str(path))
        for name, result, arguments in _FUNCTIONS:
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise KernelsUnavailable(f"{path} cannot be loaded: {error}") from error
    version = library.lk_abi_version()
    if version != structs.ABI_VERSION:
        raise KernelsUnavailable(
            f"{path} has ABI version {version}, this package needs {structs.ABI_VERSION}; "
            "reinstall luce-kernels-cpu"
        )
    return library


@cache
def native() -> c.CDLL:
    """The package's own library, loaded at first use."""
    return load_library(LIBRARY)


def last_error(library: c.CDLL) -> str:
    """What the last failed call of this thread said."""
    message: bytes = library.lk_last_error()
    return message.decode(errors="replace")
