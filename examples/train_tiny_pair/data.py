"""The corpus: source code of the Python standard library on this machine, and its vocabulary."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from luce_core.text.pretokenizers import PRE_TOKENIZERS

PRE = "qwen35"
VOCAB = 4096
END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
SPECIALS = (END, PAD, MASK)
END_ID, PAD_ID, MASK_ID = VOCAB - 3, VOCAB - 2, VOCAB - 1

# Never trained on; every release of Python that this project supports has them.
HELD_OUT = (
    "bisect.py",
    "cmd.py",
    "configparser.py",
    "csv.py",
    "fractions.py",
    "graphlib.py",
    "http/cookies.py",
    "json/decoder.py",
    "queue.py",
    "sched.py",
    "shlex.py",
    "textwrap.py",
)
# Tests, vendored wheels and generated tables say little about how code is written.
_SKIPPED = frozenset(
    {"__pycache__", "encodings", "ensurepip", "pydoc_data", "site-packages", "test", "tests"}
)
_LARGEST = 400_000


def read_corpus() -> tuple[list[str], list[str]]:
    """Texts to train on, in a fixed random order, and the held-out texts."""
    root = Path(sysconfig.get_path("stdlib"))
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if _SKIPPED & set(name.split("/")) or name.startswith("_sysconfigdata"):
            continue
        if not 0 < path.stat().st_size <= _LARGEST:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        (held_out if name in HELD_OUT else train).append(text)
    random.Random(0).shuffle(train)
    return train, held_out


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of VOCAB tokens that splits as `tokenizer.ggml.pre` = qwen35 says."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[PRE].build()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    if tokenizer.get_vocab_size() != VOCAB or tokenizer.token_to_id(MASK) != MASK_ID:
        raise SystemExit(
            f"the corpus gave {tokenizer.get_vocab_size()} tokens, {VOCAB} are needed: "
            f"is the standard library's source installed at {sysconfig.get_path('stdlib')}?"
        )
    return tokenizer


def prepare(out: Path) -> None:
    """Write tokenizer.json, train.npy and held_out.npy (uint16 token ids) unless they exist."""
    if (out / "held_out.npy").exists():
        return
    train, held_out = read_corpus()
    tokenizer = train_tokenizer(train)
    tokenizer.save(str(out / "tokenizer.json"))
    for name, texts in (("train", train), ("held_out", held_out)):
        rows = [[*encoding.ids, END_ID] for encoding in tokenizer.encode_batch(texts)]
        ids = np.concatenate([np.array(row, np.uint16) for row in rows])
        np.save(out / f"{name}.npy", ids)
        size = sum(len(text.encode()) for text in texts)
        print(f"{name}: {len(texts)} files, {size} bytes, {len(ids)} tokens", flush=True)


def load_tokenizer(out: Path) -> Tokenizer:
    return Tokenizer.from_file(str(out / "tokenizer.json"))


def load_ids(out: Path, name: str) -> Tensor:
    """All token ids of one part, `[N]` int64."""
    return torch.from_numpy(np.load(out / f"{name}.npy").astype(np.int64))


def random_windows(ids: Tensor, count: int, length: int, seed: int) -> Tensor:
    """`[count, length]`: windows at random places."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - length, (count,), generator=draw).tolist()
    return torch.stack([ids[at : at + length] for at in starts])


def windows(ids: Tensor, rows: int, length: int, start: int, seed: int) -> Iterator[Tensor]:
    """Batches `[rows, length]`, without end, from batch number `start` of the endless series.

    One epoch cuts the text into windows at a random offset and shuffles them, so that each token
    is seen once an epoch.
    """
    batch = 0
    epoch = 0
    while True:
        draw = torch.Generator().manual_seed(seed * 1000 + epoch)
        offset = int(torch.randint(length, (1,), generator=draw))
        count = (len(ids) - offset) // length
        order = torch.randperm(count, generator=draw) * length + offset
        for chosen in order.split(rows):
            if len(chosen) == rows:
                if batch >= start:
                    yield torch.stack([ids[at : at + length] for at in chosen.tolist()])
                batch += 1
        epoch += 1
