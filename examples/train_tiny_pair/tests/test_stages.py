"""All stages, with few small steps: what they write, and that they go on where they stopped."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from train_tiny_pair import __main__ as program
from train_tiny_pair import checkpoint, data, export, rollouts

STEPS = {"--target-steps": 2, "--rollouts": 2, "--draft-steps": 2, "--prompts": 2, "--threads": 1}
FILES = (export.TARGET_FILE, export.DRAFT_FILE)


def run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for option, count in STEPS.items() for word in (option, str(count))]
    monkeypatch.setattr(sys, "argv", ["train_tiny_pair", "--out", str(out), *words])
    program.main()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few words instead of the standard library, short batches, a checkpoint after every step."""
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnop", k=7)) for _ in range(9000)]
    text = " ".join(words)
    monkeypatch.setattr(data, "read_corpus", lambda: ([text], [text[:20_000]]))
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", -1)
    for name, sizes in {
        "train_target": {"rows": 2, "length": 64},
        "held_out_loss": {"rows": 1},
        "make_rollouts": {"batch": 2},
        "train_draft": {"rows": 2},
        "evaluate": {"tokens": 8},
    }.items():
        monkeypatch.setattr(program, name, partial(getattr(program, name), **sizes))


class Stopped(Exception):
    """As a kill would do it."""


def stop_at(call: int, monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    """The function fails from its call number `call` on."""
    calls, function = 0, getattr(place, name)

    def counted(*args: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise Stopped
        return function(*args, **more)

    monkeypatch.setattr(place, name, counted)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_that_was_stopped_in_every_stage_writes_the_same_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, monkeypatch)
    for place, name, call in (
        (checkpoint.Optimizer, "step", 2),  # of the target
        (rollouts, "greedy", 2),
        (checkpoint.Optimizer, "step", 2),  # of the draft
        (program, "evaluate", 1),
    ):
        with monkeypatch.context() as patch:
            stop_at(call, patch, place, name)
            with pytest.raises(Stopped):
                run(broken, patch)
    capsys.readouterr()
    run(broken, monkeypatch)
    assert "target 1/2" not in capsys.readouterr().out
    for name in FILES:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    report = json.loads((broken / "report.json").read_text())
    assert report == json.loads((whole / "report.json").read_text())
    assert report["prompts"] == 2
    assert report["per_forward"] >= 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_another_number_of_steps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(2, patch, checkpoint.Optimizer, "step")
        with pytest.raises(Stopped):
            run(tmp_path, patch)
    monkeypatch.setitem(STEPS, "--target-steps", 3)
    with pytest.raises(SystemExit, match=r"target\.pt is of 2 steps, not 3: move it away"):
        run(tmp_path, monkeypatch)


def test_help_says_what_every_option_is_and_its_default() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "train_tiny_pair", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    shown = " ".join(done.stdout.split())
    for option in (*STEPS, "--compare-steps"):
        assert f"{option} N" in shown
    assert shown.count("(default: ") == len(STEPS) + 1


@pytest.mark.parametrize(("option", "value"), [("--draft-steps", "0"), ("--threads", "two")])
def test_a_wrong_number_is_refused_by_name(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_tiny_pair", "--out", "x", option, value])
    with pytest.raises(SystemExit):
        program.main()
    assert f"argument {option}: must be 1 or more, got '{value}'" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
