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
    parser = argparse.ArgumentParser(prog="train_tiny_pair", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of everything written")
    parser.add_argument("--target-steps", type=int, default=600)
    parser.add_argument("--rollouts", type=int, default=24, help="batches of 128 sequences")
    parser.add_argument("--draft-steps", type=int, default=600)
    parser.add_argument("--compare-steps", type=int, default=0, help="0: no comparison")
    parser.add_argument("--prompts", type=int, default=32, help="held-out prompts to evaluate on")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
