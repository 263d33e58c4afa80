"""All stages in order: corpus, target, rollouts, draft, files, evaluation. Run again to resume."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from . import data, export
from .evaluate import evaluate
from .rollouts import LENGTH, load_rollouts, make_rollouts
from .target import Target
from .train_draft import Source, train_draft
from .train_target import held_out_loss, train_target


def main() -> None:
    args = _arguments()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    data.prepare(out)
    trained = train_target(out, args.target_steps)
    export.write_target(out, trained)
    # From here on the target is what its file holds: the draft learns the quantised model.
    target = export.read_target(out)
    report: dict[str, object] = {"held_out_nats_per_token": round(held_out_loss(target, out), 4)}
    print(report, flush=True)
    make_rollouts(target, out, args.rollouts)
    rows, prompts = load_rollouts(out, args.rollouts)
    draft = train_draft(out, target, rows, prompts, args.draft_steps, "rollouts")
    export.write_draft(out, draft)
    result = evaluate(target, export.read_draft(out), out, args.prompts)
    report |= asdict(result)
    _write(out, report)
    print(f"{result.sample}\n\ntokens per target forward: {result.per_forward:.2f}", flush=True)
    if args.compare_steps:
        report["compared"] = _compare(out, target, args.rollouts, args.compare_steps, args.prompts)
        _write(out, report)


def _compare(
    out: Path, target: Target, rollouts: int, steps: int, prompts: int
) -> dict[str, object]:
    """Tokens per forward of two drafts with equally short training, by what they learn from."""
    rows, lengths = load_rollouts(out, rollouts)
    text = data.random_windows(data.load_ids(out, "train"), len(rows), LENGTH, seed=8_000_000)
    sources: tuple[tuple[Source, Tensor], ...] = (("rollouts", rows), ("text", text))
    figures: dict[str, object] = {"steps": steps}
    for source, sequences in sources:
        draft = train_draft(out, target, sequences, lengths, steps, source).eval()
        figures[source] = round(evaluate(target, draft, out, prompts).per_forward, 3)
    print(f"compared: {figures}", flush=True)
    return figures


def _write(out: Path, report: dict[str, object]) -> None:
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m train_tiny_pair",
        description=__doc__,
        epilog="What a step costs, and what came out: README.md beside this program.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def number(name: str, default: int, said: str, *, least: int = 0) -> None:
        def value(text: str) -> int:
            if not text.isdecimal() or int(text) < least:
                raise argparse.ArgumentTypeError(f"must be {least} or more, got {text!r}")
            return int(text)

        parser.add_argument(name, type=value, metavar="N", default=default, help=said)

    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        default=argparse.SUPPRESS,  # or its help would name None
        help="folder of everything written; the same one again goes on where it stopped",
    )
    number("--target-steps", 600, "training steps of the target", least=1)
    number("--rollouts", 24, "batches of 128 texts of the target, for the draft", least=1)
    number("--draft-steps", 600, "training steps of the draft", least=1)
    number("--compare-steps", 0, "steps of two more drafts, from rollouts and from text; 0: none")
    number("--prompts", 32, "held-out prompts that the pair is evaluated on", least=1)
    number("--threads", 2, "threads that torch uses", least=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
