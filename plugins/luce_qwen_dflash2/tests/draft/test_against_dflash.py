"""Hidden states and proposed blocks against z-lab's `dflash` (PyPI 0.1.0).

The package pins another transformers, so it is installed without its dependencies:
`pip install --no-deps dflash==0.1.0`. Only its model is used, without its cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.draft import Anchor
from luce_qwen_dflash2.draft.write import tensor_names
from torch import Tensor

dflash = pytest.importorskip("dflash.model", reason="pip install --no-deps dflash==0.1.0")
Qwen3Config = pytest.importorskip("transformers").Qwen3Config

VOCAB, TARGET_LAYERS = 320, 6
CONTEXTS = (50, 63, 64, 65, 128, 1000)


class Oracle:
    """The package's model with the same weights, run over the whole context each time."""

    def __init__(
        self, config: DraftConfig, weights: dict[str, Tensor], table: Tensor, head: Tensor
    ) -> None:
        values: dict[str, Any] = {
            "block_size": config.block_size,
            "mask_token_id": config.mask_token,
            "target_layer_ids": list(config.target_layers),
        }
        if config.conv is not None and config.selector is not None:
            values |= {
                "conv_kernel_size": config.conv.taps,
                "conv_group_size": config.conv.group,
                "selector_rank": config.selector.rank,
                "selector_top_k": config.selector.top_k,
            }
        settings = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=config.width,
            intermediate_size=weights["blk.0.ffn_gate.weight"].shape[0],
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.eps,
            max_position_embeddings=config.context,
            use_sliding_window=True,
            sliding_window=max(config.windows),
            layer_types=[
                "sliding_attention" if window else "full_attention" for window in config.windows
            ],
            rope_parameters={"rope_type": "default", "rope_theta": config.rope["theta"]},
            attention_bias=False,
        )
        settings.num_target_layers = TARGET_LAYERS
        settings.dflash_config = values
        if config.selector is not None:
            settings.is_causal = False
        kind = dflash.DFlashDraftModel if config.selector is None else dflash.DFlash2DraftModel
        self._model = kind(settings).eval()
        state = {other: weights[ours] for ours, other in tensor_names(config).items()}
        self._model.load_state_dict(state, strict=True)
        self._config, self._table, self._head = config, table, head

    def block(self, features: Tensor, anchor: int, drafts: int) -> tuple[Tensor, list[int]]:
        """Hidden states of rows 1.. [drafts, width] and the greedy block, behind `features`."""
        past = len(features)
        tokens = [anchor] + [self._config.mask_token] * drafts
        with torch.inference_mode():
            hidden = self._model(
                position_ids=torch.arange(past + 1 + drafts)[None],
                noise_embedding=self._table[tokens][None],
                target_hidden=features[None],
            )[:, 1:]
            if self._config.selector is None:
                logits = self._model.compute_logits(hidden, self._logits)
                return hidden[0], logits[0].argmax(-1).tolist()
            path, _, _ = self._model.propose(hidden, torch.tensor([anchor]), self._logits, 0.0)
        return hidden[0], path[0].tolist()

    def _logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._head.t()


@pytest.fixture(params=["first", "second"])
def config(request: pytest.FixtureRequest) -> DraftConfig:
    found: DraftConfig = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("past", CONTEXTS)
def test_a_block_behind_any_context_is_the_packages(
    config: DraftConfig, load: Any, weights_of: Any, features_of: Any, past: int
) -> None:
    """Windows of 64 before, at and far behind their first wrap; the whole context at once."""
    ours = load(config)
    oracle = Oracle(config, weights_of(config), ours.embedding, ours.head)
    features = features_of(past)
    ours.inject(features)
    drafts = config.block_size - 1
    block = ours.draft.propose([Anchor(0, 17, past, drafts)])
    hidden, expected = oracle.block(features, 17, drafts)
    assert (ours.seen_hidden[-1] - hidden).abs().max() < 1e-4
    assert block == [expected]


def test_25_blocks_of_a_conversation_are_the_packages(
    config: DraftConfig, load: Any, weights_of: Any, features_of: Callable[..., Tensor]
) -> None:
    """A prompt in slices, then cycles that accept all, none, or some; widths change."""
    ours = load(config)
    oracle = Oracle(config, weights_of(config), ours.embedding, ours.head)
    chance = random.Random(4)
    features = features_of(400)
    for start, stop in ((0, 7), (7, 40), (40, 41)):
        ours.inject(features[start:stop], start=start)
    past, chosen = 41, set()
    for cycle in range(25):
        drafts = config.block_size - 1 if cycle % 3 else chance.randint(1, config.block_size - 1)
        anchor = chance.randrange(VOCAB)
        block = ours.draft.propose([Anchor(0, anchor, past, drafts)])[0]
        hidden, expected = oracle.block(features[:past], anchor, drafts)
        assert (ours.seen_hidden[-1] - hidden).abs().max() < 1e-4
        assert block == expected
        chosen |= set(block)
        accepted = (drafts, 0, chance.randint(0, drafts))[cycle % 3]
        rows = features[past : past + 1 + drafts]  # of a verify step: the anchor and all drafts
        kept = [Kept(0, 0, past, 1 + accepted)]
        ours.step(rows, kept)
        past += 1 + accepted
    assert len(chosen) > 20, "the blocks must differ to prove anything"


def test_the_selector_chooses_otherwise_than_the_logits(
    second: DraftConfig, load: Any, features_of: Any
) -> None:
    """Else the equality above would say nothing about it."""
    ours = load(second)
    features = features_of(80)
    ours.inject(features)
    block = ours.draft.propose([Anchor(0, 5, 80, 7)])[0]
    assert block != (ours.seen_hidden[-1] @ ours.head.t()).argmax(-1).tolist()
