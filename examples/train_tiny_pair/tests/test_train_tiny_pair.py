import random
from dataclasses import replace

import pytest
import torch
from train_tiny_pair import checkpoint, data, export
from train_tiny_pair.draft import Draft, DraftConfig
from train_tiny_pair.evaluate import speculate
from train_tiny_pair.optimizer import Optimizer
from train_tiny_pair.rollouts import greedy
from train_tiny_pair.target import Target, TargetConfig


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnop", k=7)) for _ in range(6000)]
    data.train_tokenizer(words).save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    target, draft = Target(TargetConfig()), Draft(DraftConfig())
    with torch.no_grad():
        for weight in (*target.parameters(), *draft.parameters()):
            weight.add_(torch.randn_like(weight) * 0.06)
    export.write_target(folder, target)
    export.write_draft(folder, draft)
    return folder


@pytest.mark.slow
@torch.no_grad()
def test_the_target_computes_what_transformers_reads_from_its_file(out):
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(
        str(out), gguf_file=export.TARGET_FILE, dtype=torch.float32
    ).eval()
    assert type(oracle).__name__ == "Qwen3_5ForCausalLM"
    ids = torch.randint(data.END_ID, (2, 150), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        export.read_target(out)(ids), oracle(ids).logits, atol=1e-3, rtol=0.0
    )


@pytest.mark.slow
@torch.no_grad()
def test_speculation_gives_the_tokens_of_greedy_decoding(out):
    target, draft = export.read_target(out), export.read_draft(out)
    prompt = torch.arange(40, 60)
    got = speculate(target, draft, prompt, 12)
    assert got.tokens[:12] == greedy(target, prompt[None], 12)[0, 20:].tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@torch.no_grad()
@pytest.mark.parametrize("start", [40, 150])
def test_the_draft_proposes_what_its_authors_package_does(out, start):
    package = pytest.importorskip("dflash.model")
    from transformers import Qwen3Config

    target, draft = export.read_target(out), export.read_draft(out)
    # Shorter than the longer context, so that the window is seen to work.
    draft.config = replace(draft.config, window=100)
    config = draft.config
    reference_config = Qwen3Config(
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.ff,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        use_sliding_window=True,
        sliding_window=config.window,
        layer_types=["sliding_attention"] * config.layers,
    )
    reference_config.is_causal = False
    reference_config.num_target_layers = target.config.layers
    reference_config.dflash_config = {
        "block_size": config.block,
        "mask_token_id": data.MASK_ID,
        "target_layer_ids": list(config.taps),
        "conv_kernel_size": config.conv,
        "conv_group_size": config.conv_group,
        "selector_rank": config.rank,
        "selector_top_k": config.top_k,
    }
    reference = package.DFlash2DraftModel(reference_config).eval()
    reference.load_state_dict(draft.state_dict())
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(data.END_ID, (2, start), generator=draw)
    features = target.hidden(ids, taps=config.taps)[1]
    inputs = torch.full((2, config.block), data.MASK_ID)
    inputs[:, 0] = torch.tensor([5, 77])
    embedded = target.model.embed_tokens(inputs)
    theirs = reference(
        position_ids=torch.arange(start + config.block)[None],
        noise_embedding=embedded,
        target_hidden=features,
    )
    ours = draft(embedded[:, None], torch.full((2, 1), start), draft.inject(features))[:, 0]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0.0)
    wanted = reference.propose(theirs[:, 1:], inputs[:, 0], target.lm_head, 0.0)[0]
    got = draft.propose(ours[:, 1:], target.lm_head(ours[:, 1:]), inputs[:, 0])
    assert torch.equal(got, wanted)


def test_an_interrupted_training_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", -1)

    def run(name, stop_at):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 16)

        def loss_of(step):
            if step == stop_at:
                raise KeyboardInterrupt
            draw = torch.Generator().manual_seed(step)
            return {"loss": model(torch.randn(4, 16, generator=draw)).square().mean()}

        optimizer = Optimizer(model, frozenset(), lr=0.02, table_lr=0.004)
        checkpoint.train(tmp_path / name, model, optimizer, 6, loss_of)
        return model.weight.detach()

    whole = run("whole.pt", None)
    with pytest.raises(KeyboardInterrupt):
        run("broken.pt", 3)
    assert torch.equal(run("broken.pt", None), whole)
