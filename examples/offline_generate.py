"""Generates text for several prompts at once, without HTTP.

Usage: offline_generate.py MODEL PROMPT [PROMPT ...]. Takes the settings of `luce serve` from the
environment (LUCE_MAX_CTX, LUCE_ENGINE, ...).
"""

from __future__ import annotations

import sys

from luce_core.load import load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.request import SamplingParams
from luce_core.settings import parse_settings
from luce_core.testing.driver import Driver


def main(model: str, *prompts: str) -> None:
    plugins = build_plugin_manager()
    opened = open_model(parse_settings([model]), plugins)
    loaded = load_model(opened, plugins, lambda done, total, what: None)
    tokenizer = opened.text.tokenizer
    driver = Driver(loaded.engine, pool_blocks=loaded.pool.blocks)
    requests = []
    for prompt in prompts:
        chat = opened.text.chat_format.render([{"role": "user", "content": prompt}])
        requests.append(
            driver.submit(
                tokenizer.encode_prompt(chat),
                max_tokens=40,
                params=SamplingParams(temperature=0.7, seed=1),
                stop_ids=tokenizer.eos_ids,
            )
        )
    driver.run()  # all prompts share the engine's steps
    for prompt, request in zip(prompts, requests, strict=True):
        output = driver.output(request)
        text = tokenizer.decode(output.tokens)  # end tokens add no text
        print(f"{prompt}\n  {text.strip()}\n  [{output.finish}, {len(output.tokens)} tokens]")
    loaded.engine.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
