"""Flags, variables and the settings file, through the command; nothing is accepted and ignored."""

from __future__ import annotations

import logging
import shlex

import pytest

from luce_core.settings import ENV_PREFIX, Settings

# The published launches, with this project's program and file names; devices are cpu here.
QWEN_LAUNCH = """
    --target-device cpu --host 127.0.0.1 --port 18142 --model-name qwen38 --paged-attention
    --max-concurrency 6 --kv-pool-tokens 98304 --max-ctx 16384 --cache-type-k q8_0
    --cache-type-v q8_0 --fa-window 0 --prefix-cache-slots 0 --prefill-cache-slots 0
    --disk-prefix-cache off --admission-coalesce-ms 50 --chat-template-file raw_prompt_identity
    --min-tokens 256 --prefill-first-burst-steps 0 --idle-prefill-tokens 4096
    --max-concurrent-prefills 8
"""
DEEPSEEK_LAUNCH = """
    --target-device cpu --host 127.0.0.1 --port 18081 --model-name dflash --paged-attention
    --max-concurrency 6 --kv-pool-tokens 24576 --max-ctx 4096 --cache-type-k q4_0
    --cache-type-v q4_0 --prefix-cache-slots 0 --prefill-cache-slots 0 --disk-prefix-cache off
"""


@pytest.fixture
def settings_of(luce, tiny_model, monkeypatch):
    """The settings that `luce serve MODEL ...` would serve with."""
    served = []
    monkeypatch.setattr("luce_core.serve.serve", lambda *arguments: served.append(arguments) or 0)

    def parse(*words: object) -> Settings:
        outcome = luce("serve", tiny_model, *words)
        assert outcome.code == 0, outcome.err
        return served.pop()[0]

    return parse


def test_the_command_line_wins_over_environment_file_and_default(
    settings_of, tmp_path, monkeypatch
):
    file = tmp_path / "luce.toml"
    file.write_text('\ufeffport = 1003\nmax-queue = 3\nmax_n = 3\nmodel-name = ["a", "b"]\n')
    assert settings_of().port == 8080
    with_file = settings_of("--config", file)
    assert (with_file.port, with_file.max_queue, with_file.max_n) == (1003, 3, 3)
    assert with_file.model_name == ("a", "b")
    monkeypatch.setenv("LUCE_PORT", "1002")
    monkeypatch.setenv("LUCE_MAX_QUEUE", "2")
    with_both = settings_of("--config", file)
    assert (with_both.port, with_both.max_queue, with_both.max_n) == (1002, 2, 3)
    with_all = settings_of("--config", file, "--port", "1001")
    assert (with_all.port, with_all.max_queue, with_all.max_n) == (1001, 2, 3)
    monkeypatch.setenv("LUCE_CONFIG", str(file))
    assert settings_of().max_n == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"prot = 1\n", "--prot: unknown setting"),
        (b"port = 'x'\n", "--port: "),
        (b"port = \n", "Invalid value"),
        (b"port = '\xff'\n", "utf-8"),
        (None, "No such file"),
    ],
    ids=["unknown key", "wrong value", "no TOML", "no UTF-8", "no file"],
)
def test_a_wrong_settings_file_is_one_message(luce, tiny_model, tmp_path, content, said):
    file = tmp_path / "luce.toml"
    if content is not None:
        file.write_bytes(content)
    code, out, err = luce("serve", tiny_model, "--config", file)
    assert (code, out) == (1, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", ["--prot 1", "--max-con 3", "--n 4", "second.gguf", "--port", "-x"], ids=str
)
def test_an_unknown_or_half_flag_fails_with_a_short_message(luce, tiny_model, words):
    code, out, err = luce("serve", tiny_model, *words.split())
    assert (code, out) == (2, "")
    assert words.split()[0] in err.splitlines()[-1]
    assert len(err.splitlines()) == 2


def test_a_missing_model_is_said(luce):
    said = "no model given: name a GGUF file, a folder of shards or pkg:package/file"
    assert luce("serve") == (1, "", f"luce serve: {said}\n")


def test_the_model_too_may_come_from_variable_or_file(luce, tmp_path, monkeypatch):
    (tmp_path / "luce.toml").write_text("model = 'from_file.gguf'\n")
    said = luce("serve", "--config", tmp_path / "luce.toml").err
    assert said.startswith("luce serve: from_file.gguf: ")
    monkeypatch.setenv("LUCE_MODEL", "from_variable.gguf")
    said = luce("serve", "--config", tmp_path / "luce.toml").err
    assert said.startswith("luce serve: from_variable.gguf: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port 70000", "--port: .*less than or equal to 65535, got '70000'"),
        ("--cache-type-k q9", "--cache-type-k: .*'f32', 'f16', 'bf16', 'q8_0' or 'q4_0', got 'q9'"),
        ("--max-concurrency 0", "--max-concurrency: .*greater than or equal to 1, got '0'"),
        ("--reserve some", "--reserve: .*'rolling' or 'full', got 'some'"),
        ("--target-device tpu:0", "tpu:0.*cpu.*cuda"),
        ("--engine none", "no engine 'none'; installed engines: .*llama"),
        ("--op rope=fast", "fast"),
        ("--op warp=reference", "warp"),
        ("--max-ctx 100000", "--max-ctx 100000 is more than the model's 256"),
        ("--pre qwen99", "qwen99.*smollm"),
        ("--chat-template-file /no/such/file.jinja", "/no/such/file.jinja"),
    ],
)
def test_a_wrong_value_is_refused_with_flag_value_and_what_is_accepted(
    luce, tiny_model, words, said, monkeypatch
):
    monkeypatch.setattr("luce_core.serve.HttpServer.start", _nobody_listens)
    code, out, err = luce("serve", tiny_model, "--port", "0", *words.split())
    assert (code, out) == (1, "")
    assert_said(err, said)
    assert len(err.splitlines()) <= 2


async def _nobody_listens(self: object) -> None:
    """In place of listening, so that errors of loading come out of the command."""


def assert_said(message: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(message)


@pytest.mark.parametrize(
    "words",
    [
        "--draft x.gguf",
        "--draft-device cpu",
        "--draft-block-size 8",
        "--draft-min-acceptance 0.3",
        "--peer-access",
    ],
)
def test_an_engine_refuses_by_name_what_it_does_not_take(luce, tiny_model, words):
    code, out, err = luce("serve", tiny_model, *words.split())
    assert (code, out) == (1, "")
    assert err == f"luce serve: engine llama does not take {words.split()[0]}\n"


@pytest.mark.parametrize(
    "words",
    [
        "--fa-window 2048",
        "--prefix-cache-slots 4",
        "--prefill-cache-slots 1",
        "--disk-prefix-cache on",
        "--no-paged-attention",
    ],
)
def test_what_does_not_exist_yet_is_refused_by_name(luce, tiny_model, words):
    code, _, err = luce("serve", tiny_model, *words.split())
    assert code == 1
    assert err.startswith(f"luce serve: {words.split()[0].replace('--no-', '--')}: ")


@pytest.mark.parametrize("launch", [QWEN_LAUNCH, DEEPSEEK_LAUNCH], ids=["qwen", "deepseek"])
def test_the_core_flags_of_the_published_launches_are_honoured(settings_of, launch):
    words = shlex.split(launch)
    settings = settings_of(*words)
    for flag, value in zip(words, [*words[1:], "--"], strict=True):
        if flag.startswith("--") and not value.startswith("--"):
            found = getattr(settings, flag[2:].replace("-", "_"))
            found = found[0] if isinstance(found, tuple) else found
            assert str(found) == value, flag
    assert settings.paged_attention


@pytest.mark.parametrize(
    "words",
    ["--draft dflash2.gguf --draft-device hip:0 --target-device hip:0", "--peer-access"],
)
def test_the_devices_and_drafts_of_the_launches_parse(settings_of, words):
    settings = settings_of(*words.split())
    assert settings.draft_device == "hip:0" or settings.peer_access


def test_an_unknown_variable_of_ours_warns_and_the_server_starts(settings_of, monkeypatch, caplog):
    monkeypatch.setenv(f"{ENV_PREFIX}PROT", "1")
    monkeypatch.setenv("DFLASH_MIN_TOKENS", "256")
    monkeypatch.setenv(f"{ENV_PREFIX}MAX_QUEUE", "9")
    with caplog.at_level(logging.WARNING, logger="luce"):
        assert settings_of().max_queue == 9
    assert [record.getMessage() for record in caplog.records] == [
        "DFLASH_MIN_TOKENS does nothing here; it is called LUCE_MIN_TOKENS",
        "LUCE_PROT is not a setting of luce and does nothing",
    ]


def test_words_are_repeated_on_the_command_line_and_split_by_commas_in_variables(
    settings_of, monkeypatch
):
    assert settings_of("--model-name", "a", "--model-name", "b").model_name == ("a", "b")
    monkeypatch.setenv("LUCE_MODEL_NAME", "c, d")
    assert settings_of().model_name == ("c", "d")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_other_machines_are_let_in_only_with_a_key(luce, tiny_model, host, monkeypatch):
    monkeypatch.setattr("luce_core.serve.HttpServer.start", _must_not_listen)
    code, _, err = luce("serve", tiny_model, "--host", host)
    assert code == 1
    assert err == (
        f"luce serve: --host {host} can be reached from other machines: give --api-key or "
        "--api-key-file, or --insecure if that is meant\n"
    )


async def _must_not_listen(self: object) -> None:
    raise AssertionError("the port was opened")


def test_a_key_file_that_is_missing_is_named(luce, tiny_model, tmp_path):
    code, _, err = luce("serve", tiny_model, "--api-key-file", tmp_path / "keys")
    assert code == 1
    assert str(tmp_path / "keys") in err
    assert len(err.splitlines()) == 1
