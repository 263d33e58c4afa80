"""The worker pool keeps its promises at any number of threads, on however few cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CSRC = Path(__file__).parent.parent / "csrc"
CHECK = Path(__file__).with_name("pool_check.cpp")
SOURCES = (CHECK, CSRC / "pool.cpp", CSRC / "error.cpp")

# A sanitizer that the tests themselves run under is none for these programs.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def run_check(check: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [check, *words],
        timeout=90,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def compiled(folder: Path, *flags: str) -> Path:
    made = folder / "pool_check"
    command = ["g++", "-std=c++17", "-pthread", *flags, f"-I{CSRC}", *map(str, SOURCES)]
    subprocess.run([*command, "-o", str(made)], check=True, env=ENVIRONMENT)
    return made


@pytest.fixture(scope="module")
def pool_check(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("pool"), "-O2")


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_workers_meet_at_every_barrier_and_see_what_was_written(
    pool_check: Path, threads: int
) -> None:
    assert run_check(pool_check, str(threads), "1000", "50").returncode == 0


def test_workers_that_never_spin_meet_too(pool_check: Path) -> None:
    assert run_check(pool_check, "3", "500", "0").returncode == 0


def test_many_more_workers_than_cores_do_not_collapse(pool_check: Path) -> None:
    threads = 8 * (os.cpu_count() or 1)
    assert run_check(pool_check, str(threads), "100", "50").returncode == 0


def test_two_workers_on_one_core_do_not_wait_for_the_clock(pool_check: Path) -> None:
    """Both confined to one core: a waiter must give it up, or each barrier costs a time slice."""
    core = {min(os.sched_getaffinity(0))}
    done = run_check(pool_check, "2", "300", "50", preexec_fn=lambda: os.sched_setaffinity(0, core))
    assert done.returncode == 0


def test_no_data_race_is_found(tmp_path: Path) -> None:
    done = run_check(compiled(tmp_path, "-O1", "-g", "-fsanitize=thread"), "3", "100", "20")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING: ThreadSanitizer" not in done.stderr
