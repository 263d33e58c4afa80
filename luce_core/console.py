"""The console that commands print to: output can never raise, whatever the locale."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

# Tables that are piped into a file keep their columns.
_PIPED_COLUMNS = 120


def make_console() -> Console:
    """Console on stdout; characters that its encoding lacks are escaped instead of failing.

    Text is printed as it is: names and errors may hold brackets or colons that look like markup.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    return _Console(width=width, highlight=False, markup=False, emoji=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Who read our output has left (`luce serve | head`): go on without it."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
