"""`python -m luce_kernels_rocm.aot gfx1201 sm_90`: compile, and print a line for each kernel."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from luce_kernels_rocm.aot.cases import cases
from luce_kernels_rocm.aot.compile import compile_cases
from luce_kernels_rocm.arch import ARCHES, arch_named


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m luce_kernels_rocm.aot", description=__doc__)
    parser.add_argument("arch", nargs="*", default=list(ARCHES), help=f"of {', '.join(ARCHES)}")
    parser.add_argument("--critical", action="store_true", help="only what every decode step runs")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled kernels")
    parser.add_argument("--json", type=Path, help="write the reports there")
    options = parser.parse_args()
    wanted = [
        case
        for case in cases()
        if options.only in case.name and (case.critical or not options.critical)
    ]
    cache = options.cache or Path(tempfile.mkdtemp(prefix="luce-kernels-rocm-"))
    reports = []
    for name in options.arch:
        for report in compile_cases(wanted, arch_named(name), cache):
            print(report.row, file=sys.stderr, flush=True)
            reports.append(report.as_dict)
    if options.json is not None:
        options.json.write_text(json.dumps(reports))


if __name__ == "__main__":
    main()
