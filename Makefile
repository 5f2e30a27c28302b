# Every target works alone on a fresh machine: it makes the virtual environment and installs what it needs.
#
#   VENV=DIR              where the environment lives (.venv)
#   PYTHON=python3.12     which Python makes it
#   PACKAGES_OF=.venv     another environment, whose packages this one uses instead of installing them again
#   TORCH_INDEX=URL       another index to find torch on, e.g. PyTorch's own, whose CPU build is ten times smaller
#   FORETOKEN_NATIVE=...  auto (default), required, or off: the native module
#   WORKERS=2             processes that tests run in; each uses two threads
#   TESTS="not prove"     which tests, by their markers
#   SEED=1 TOKENS=9000    of the proof (20261121, 1000000)
#   MODELS=DIR,DIR        checkpoints that are proved about beside the embedded ones

VENV ?= .venv
PYTHON ?= python3
PACKAGES_OF ?=
TORCH_INDEX ?=
export FORETOKEN_NATIVE ?= auto
WORKERS ?= 2
TESTS ?= not prove
SEED ?= 20261121
TOKENS ?= 1000000
MODELS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
CLIENTS := .venv-clients
VLLM := .venv-vllm
INSTALLED := $(VENV)/.installed-$(FORETOKEN_NATIVE)

TODAY := $(shell date +%Y-%m-%d)

.PHONY: demo test check prove clients vllm bench docs clean
.DEFAULT_GOAL := demo

demo: $(INSTALLED) ## the main job on the embedded model: with drafting, then plainly, and whether they are identical
	@$(BIN)/foretoken demo

test: $(INSTALLED) ## the tests
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "$(TESTS)"

check: $(INSTALLED) ## style, types, layers, and that generated documents are fresh
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_repository.py -k "not python_in_the_documents"
	$(BIN)/python docs/generate.py --check

prove: $(INSTALLED) ## every contract in full, a million tokens, grammars, bad input, a server, sanitizers: slow; records in results/
	$(PIP) install -q --disable-pip-version-check "playwright>=1.45,<2"  # it drives the system's chromium
	$(BIN)/python -m pytest -q -n $(WORKERS) -m prove tests
	$(BIN)/python -m tests.prove --seed $(SEED) --tokens $(TOKENS) --models "$(MODELS)" --out results/$(TODAY)-prove.json
	$(BIN)/python -m foretoken.bench.constrained --out results/$(TODAY)-constrained.json
	$(BIN)/python -m tests.prove.bad_input --out results/$(TODAY)-bad-input.json
	$(BIN)/python -m tests.prove.serving --out results/$(TODAY)-serving.json
	$(BIN)/python -m tests.prove.sanitized

clients: ## LangChain, litellm, lm-evaluation-harness and schemathesis against a real server, in an environment of their own
	$(MAKE) VENV=$(CLIENTS) $(CLIENTS)/.installed-$(FORETOKEN_NATIVE)
	$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r tests/clients/packages.txt
	$(CLIENTS)/bin/python -m pytest -q -s -W ignore tests/clients

vllm: ## drafts inside vLLM's build for CPUs, in an environment of their own: gigabytes, and ten minutes
	$(MAKE) VENV=$(VLLM) $(VLLM)/.installed-$(FORETOKEN_NATIVE)
	$(VLLM)/bin/python -m pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r tests/vllm/packages.txt
	-$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pytest -q -W ignore tests/vllm

bench: $(INSTALLED) ## kernels, passes and copies beside what memory allows: a quarter of an hour, on an idle machine
	$(BIN)/foretoken bench kernels --json results/$(TODAY)-kernels.json --plot results/$(TODAY)-kernels.png
	$(BIN)/python -m foretoken.bench.passes --out results/$(TODAY)-passes.json
	$(BIN)/python -m foretoken.bench.copies --out results/$(TODAY)-copies.json

docs: $(INSTALLED) ## write the generated documents
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) $(CLIENTS) $(VLLM) build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(BIN)/python pyproject.toml CMakeLists.txt $(wildcard src/foretoken/kernels/csrc/*)
ifneq ($(PACKAGES_OF),)
	@echo "installing into $(VENV), with the packages of $(PACKAGES_OF) (the native module takes a minute)"
	@cd $(VENV) && echo $(abspath $(PACKAGES_OF))/lib/python*/site-packages > $$(echo lib/python*/site-packages)/packages.pth
	$(PIP) install -q --disable-pip-version-check --no-deps -e .
else
	@echo "installing into $(VENV) (torch is large: the first time takes minutes)"
	$(PIP) install -q --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e ".[dev]"
endif
	@rm -f $(VENV)/.installed-* && touch $@
	@$(BIN)/foretoken doctor --quick
