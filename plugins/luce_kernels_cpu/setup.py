"""Compiles the native library when the package is built or installed for editing."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_native import LIBRARY, NOTE, PACKAGE, BuildError, build


class BuildWithLibrary(build_py):
    """Builds into the source package, from where its files are copied like any other."""

    def run(self) -> None:
        (PACKAGE / NOTE).unlink(missing_ok=True)
        try:
            build(PACKAGE / LIBRARY)
        except BuildError as error:
            # A machine without a compiler still gets luce, with the torch references.
            (PACKAGE / LIBRARY).unlink(missing_ok=True)
            (PACKAGE / NOTE).write_text(f"{error}\n")
            print(f"luce-kernels-cpu: built without native kernels: {error}", file=sys.stderr)
        super().run()


class PlatformWheel(bdist_wheel):
    """The library is loaded by ctypes: it fits any Python, but one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
)
