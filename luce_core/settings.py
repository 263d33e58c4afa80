"""Every setting of `luce serve`: a flag, a LUCE_ variable and a key of the settings file.

Precedence: command line > environment > file > default. The record is frozen; nothing reads the
environment after start-up. Imports no torch, so that `--help` is quick.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from luce_core.command_line import read_command_line
from luce_core.errors import ConfigError, PluginError

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]


def _only_zero(value: int) -> int:
    if value != 0:
        raise ValueError("only 0 is accepted, since luce does not have this yet")
    return value


Absent = Annotated[int, AfterValidator(_only_zero)]
Words = Annotated[tuple[str, ...], NoDecode]

ENV_PREFIX = "LUCE_"
# Read by the plugin manager before there are settings.
ENV_OF_PLUGINS = "LUCE_PLUGINS"


class Settings(BaseSettings):
    """What a server is told at its start. Fields that engines share are refused by name when the
    chosen engine does not take them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", validate_default=True
    )

    model: CliPositionalArg[str] = Field(
        "", description="GGUF file, folder of shards, or pkg:package/file"
    )
    config: Path | None = Field(None, description="TOML file with any of these settings")

    # -- model and devices
    engine: str | None = Field(None, description="engine by name; default: by architecture")
    target_device: str = Field("cpu", description="cpu, cuda:N or hip:N")
    draft: str | None = Field(None, description="draft model file, for speculation")
    draft_device: str | None = Field(None, description="device of the draft model")
    draft_block_size: int | None = Field(None, ge=1, description="tokens of a draft block")
    draft_min_acceptance: float | None = Field(
        None, ge=0, le=1, description="accepted share of drafts below which a slot drafts less"
    )
    peer_access: bool = Field(False, description="direct copies between two devices")
    op: Words = Field((), description="kernel choice: OP=PROVIDER or a PROVIDER for all")
    kernel_isa: str | None = Field(
        None, description="instruction set of the kernels, as avx2; default: the best"
    )
    kernel_table: Path | None = Field(
        None, description="tiles of GPU kernels, as luce tune wrote them for the device"
    )
    threads: int = Field(0, ge=0, le=1024, description="compute threads; 0: what cores allow")

    # -- limits of the model
    max_ctx: int = Field(0, ge=0, description="context of a request; 0: the model's own")
    max_concurrency: int = Field(8, ge=1, le=1024, description="requests that run at once (slots)")
    kv_pool_tokens: int = Field(0, ge=0, description="KV cache size; 0: what memory holds")
    cache_type_k: CacheType = Field("f16", description="type of cached keys")
    cache_type_v: CacheType = Field("f16", description="type of cached values")
    paged_attention: bool = Field(True, description="always on; there is no other mode")
    fa_window: Absent = Field(0, description="attention window: only 0 (all) exists")
    prefix_cache_slots: Absent = Field(0, description="prefix cache: only 0 (none) exists")
    prefill_cache_slots: Absent = Field(0, description="prefill cache: only 0 (none) exists")
    disk_prefix_cache: Literal["off"] = Field("off", description="disk cache: only off exists")

    # -- scheduling
    admission_coalesce_ms: int = Field(
        20, ge=0, le=10_000, description="going from idle to busy, wait for company at most this"
    )
    prefill_chunk: int | None = Field(
        None, ge=1, description="rows of one prompt beside decoders; none: measured at start"
    )
    prefill_tokens: int | None = Field(
        None, ge=1, description="prompt rows of a step beside decoders; none: measured at start"
    )
    idle_prefill_tokens: int = Field(
        4096, ge=1, description="prompt rows of a step when nobody decodes"
    )
    long_prefill_threshold: int = Field(768, ge=1, description="tokens that make a prompt long")
    long_prefill_tokens: int | None = Field(
        None,
        ge=1,
        description="as --prefill-tokens, while a long prompt is in prefill; none: twice that if "
        "set, else as measured",
    )
    max_concurrent_prefills: int = Field(8, ge=1, description="prompts in prefill in one step")
    prefill_first_burst_steps: int = Field(
        0, ge=0, le=1024, description="prefill-only steps before one with decode; 0: none"
    )
    reserve: Literal["rolling", "full"] = Field(
        "rolling", description="KV reserved at admission: prompt + headroom, or + max_tokens"
    )
    min_tokens: int = Field(
        0, ge=0, description="no request stops before this many tokens (benchmarks only)"
    )
    max_queue: int = Field(256, ge=0, description="requests that may wait beyond the slots")
    max_step_faults: int = Field(3, ge=1, description="failed steps in a row that end the server")

    # -- server
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port; 0: any free one")
    model_name: Words = Field((), description="name in the API; may be given more than once")
    strict_model_name: bool = Field(False, description="404 for other model names")
    api_key: Words = Field((), description="key that clients must send; more than once is fine")
    api_key_file: Path | None = Field(None, description="file with one key a line")
    insecure: bool = Field(False, description="allow other than loopback without a key")
    cors_origin: Words = Field((), description="origin that browsers may call from")
    allowed_host: Words = Field((), description="further Host header accepted on loopback")
    stall_timeout: float = Field(60.0, gt=0, description="s without a step: /health is 503")
    drain_timeout: float = Field(30.0, ge=0, description="s for running requests at shutdown")
    ping_interval: float = Field(15.0, gt=0, description="s of silence before an SSE comment")
    keepalive_timeout: float = Field(75.0, gt=0, description="s that idle connections are kept")
    reader_timeout: float = Field(30.0, gt=0, description="s in one write before a client is cut")
    reader_buffer_bytes: int = Field(1 << 20, ge=1024, description="unread text per request")

    # -- caps on what a client can size
    max_body_bytes: int = Field(32 << 20, ge=1024, description="request body")
    max_body_values: int = Field(
        1 << 18, ge=1024, description="values in a request body; a list or object counts as 8"
    )
    max_n: int = Field(8, ge=1, le=128, description="choices per request")
    max_stops: int = Field(32, ge=1, le=1024, description="stop strings per request")
    max_stop_bytes: int = Field(1024, ge=1, description="bytes of one stop string")
    max_logit_bias: int = Field(1024, ge=1, description="entries of logit_bias")
    max_prompts: int = Field(64, ge=1, description="prompts of one /v1/completions call")

    # -- text
    chat_template_file: Path | None = Field(
        None, description="Jinja file, or raw_prompt_identity for the one that ships with luce"
    )
    system_anywhere: bool = Field(
        False, description="render later system messages as user messages"
    )
    pre: str | None = Field(None, description="pre-tokenizer, if the file's is missing or wrong")
    reasoning: Literal["auto", "off"] = Field("auto", description="split <think> text from content")

    # -- output
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="log")

    engine_fields: ClassVar[Mapping[str, str]] = {}

    @field_validator("op", "model_name", "api_key", "cors_origin", "allowed_host", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        """One string from the environment holds words separated by commas."""
        if isinstance(value, str):
            value = [value]
        if isinstance(value, Sequence):
            parts = [part.strip() for item in value for part in str(item).split(",")]
            return tuple(part for part in parts if part)
        return value

    @field_validator("model")
    @classmethod
    def _model_is_given(cls, value: str) -> str:
        if not value:
            raise ValueError("name a GGUF file, a folder of shards or pkg:package/file")
        return value

    @field_validator("paged_attention")
    @classmethod
    def _always_paged(cls, value: bool) -> bool:
        if not value:
            raise ValueError("paging is always on, there is no other mode")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _FileSource(settings_cls))


class _FileSource(PydanticBaseSettingsSource):
    """The TOML file that `--config` or LUCE_CONFIG names. Keys may use - or _."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")  # of the sources before: command line, environment
        if not path:
            return {}
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"settings file {path}: {error}") from error
        return {key.replace("-", "_"): value for key, value in values.items()}


# What upstream's variables are called here, where the name differs.
_RENAMED = {
    "MIXED_PREFILL_TOKENS": "--prefill-tokens",
    "LONG_MIXED_PREFILL_TOKENS": "--long-prefill-tokens",
    "EXPERT_BUDGET_MB": "--ds4-expert-budget-mb",
    "DS4_MOE_TP": "--ds4-expert-device",
    "DS4_MOE_TP_INPROC": "--ds4-expert-device",
    "DS4_MOE_TP_GPU": "--ds4-expert-device",
    "DS4_TP_BATCH_SPLIT_COPIES": "--ds4-batch-copies",
    "DS4_TP_GROUPED_MMVQ": "--ds4-group-experts",
}
_NO_COUNTERPART = re.compile(r"(MMID_GROUPED|CUDA_MMVQ_\w+)")


def unknown_variables(environ: Mapping[str, str], known: type[BaseSettings]) -> list[str]:
    """One warning for each variable that looks like ours or upstream's and does nothing."""
    fields = {name.upper() for name in known.model_fields} | {"PLUGINS"}
    notes = []
    for variable in sorted(environ):
        prefix = next((p for p in (ENV_PREFIX, "DFLASH_") if variable.startswith(p)), "")
        name = variable.removeprefix(prefix)
        if _NO_COUNTERPART.fullmatch(name):
            notes.append(f"{variable} tunes kernels of another code base and does nothing here")
        elif not prefix or (prefix == ENV_PREFIX and name in fields):
            continue
        elif name in _RENAMED:
            notes.append(f"{variable} does nothing here; use {_RENAMED[name]}")
        elif name in fields:
            notes.append(f"{variable} does nothing here; it is called {ENV_PREFIX}{name}")
        else:
            notes.append(f"{variable} is not a setting of luce and does nothing")
    return notes


def with_engine_settings(models: Mapping[str, type[BaseModel]]) -> type[Settings]:
    """Settings with the fields of every engine's settings model (by engine name) added.

    PluginError if two of them, or one and the core, claim the same flag.
    """
    owners = dict.fromkeys(Settings.model_fields, "luce-core")
    fields: dict[str, Any] = {}
    for engine, model in models.items():
        for name, field in model.model_fields.items():
            if name in owners:
                flag = name.replace("_", "-")
                raise PluginError(f"engine {engine}: --{flag} is already a flag of {owners[name]}")
            owners[name] = engine
            fields[name] = (field.annotation, field)
    if not fields:
        return Settings
    combined = create_model("Settings", __base__=Settings, **fields)
    combined.engine_fields = {n: o for n, o in owners.items() if o != "luce-core"}
    return combined


_ABOUT = (
    "Every option is also a LUCE_ variable and a key of the file that --config names; the command "
    "line wins over the environment, and both over the file."
)


def parse_settings(
    arguments: Sequence[str], kind: type[Settings] = Settings, *, program: str = "luce serve"
) -> Settings:
    """Settings from a command line, the environment and the settings file.

    Unknown flags and --help end the process as argparse does; a bad value is a ConfigError that
    names each field.
    """
    try:
        return read_command_line(
            kind, arguments, program=program, usage="%(prog)s MODEL [options]", about=_ABOUT
        )
    except ValidationError as error:
        raise ConfigError(describe(error)) from error


def describe(error: ValidationError) -> str:
    """A pydantic error as lines that name the flag, the value and what is accepted."""
    lines = []
    for item in error.errors(include_url=False):
        name = "--" + str(item["loc"][0]).replace("_", "-") if item["loc"] else "settings"
        if name == "--model":
            lines.append(f"no model given: {item['msg'].removeprefix('Value error, ')}")
        elif item["type"] == "extra_forbidden":
            lines.append(f"{name}: unknown setting")
        else:
            problem = item["msg"].removeprefix("Value error, ")
            lines.append(f"{name}: {problem}, got {item['input']!r}")
    return "\n".join(lines)
