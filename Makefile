# The verbs of the project. Each one first sets up .venv from constraints.txt, and does nothing for it when neither
# pyproject.toml nor constraints.txt has changed: the demo what regard itself needs, the others all that its
# developers need. pip reads its own configuration: indexes and mirrors belong there.

SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/runtime
INSTALLED := .venv/installed
ORACLES := .venv/oracles
INSTALL := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable
# Of all that pip says, what it fetches, and how much of it.
FETCHES := awk '/^ *Downloading .* \([0-9.]+ [MG]B\)/ { print "  fetching", $$2, $$3, $$4; fflush() }'

CHECK_PYTHON := "import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and \
  'regard needs Python 3.11 or newer, and $(PYTHON) is ' + v + '. Name another: make PYTHON=python3.12 ...')"

help:  ## this list
	@awk -F ':.*## *' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' Makefile

demo: $(RUNTIME)  ## train a small Transformer in front of your eyes and draw what its heads look at
	@$(BIN)/regard demo

test: $(INSTALLED)  ## the whole test suite, a file at a time on each core
	@OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses logical --dist loadfile

check: lint  ## before every commit: format, lint, types, fast tests
	@$(BIN)/pytest -m "not slow"

oracles: $(ORACLES)  ## the tests that compare with programs which no other verb installs: trl, peft, seqeval, llama.cpp, ...
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m oracle -rs

MINUTES ?= 10
fuzz: $(INSTALLED)  ## files of any content to every loader, for MINUTES=10; by coverage as well where atheris is there
	@REGARD_FUZZ=$(MINUTES) $(BIN)/pytest tests/fuzz
	@! $(BIN)/python -c "import atheris" 2>/dev/null || for target in config weights tokenizer recipe checkpoint import others; do \
	  $(BIN)/python -m tests.fuzz.guided $$target -max_total_time=$$((10 * $(MINUTES))) -verbosity=0 || exit 1; done

lint: $(INSTALLED)  ## format, lint, types
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

# The runtime of a sanitizer comes before Python, which is not made for it: its leaks are not ours to look for. The
# compiler is better off without; PyTorch throws, and libstdc++ has to be there before.
UNDER = REGARD_CACHE=.venv/sanitized OMP_NUM_THREADS=1 LD_PRELOAD="$$(cc -print-file-name=$(1)) libstdc++.so.6" \
  $(BIN)/pytest -m "not slow" tests/native
sanitize: $(INSTALLED)  ## engine and kernels under ASan and UBSan, then under TSan (Linux with GCC, six minutes)
	@export CC="env -u LD_PRELOAD cc -g1 -fno-sanitize-recover=all -fsanitize=address,undefined,float-cast-overflow"; \
	  ASAN_OPTIONS=detect_leaks=0 $(call UNDER,libasan.so)
	@export CC="env -u LD_PRELOAD cc -g1 -fsanitize=thread"; \
	  TSAN_OPTIONS=halt_on_error=1 $(call UNDER,libtsan.so)

bench: $(INSTALLED)  ## attention's backends, and a training step beside its peers (Linux, some minutes)
	@$(BIN)/python bench/attention.py
	@$(BIN)/python bench/train_step.py

clean:  ## remove .venv, caches and builds; runs/ stays
	@rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The package is installed in place, so a change of its code asks for nothing here. The file is touched last, so an
# interrupted installation is done again. A .venv keeps the Python it was made with: `make clean` to change it.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "setting up .venv for regard: PyTorch and a few small packages, once; a minute or some" >&2
	@set -o pipefail; $(INSTALL) . | $(FETCHES) >&2
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "setting up .venv for developing: 2 GB with the programs that tests compare with, once; some minutes" >&2
	@set -o pipefail; $(INSTALL) '.[dev]' | $(FETCHES) >&2
	@touch $(RUNTIME) $@

$(ORACLES): pyproject.toml constraints.txt | $(INSTALLED)
	@set -o pipefail; $(INSTALL) '.[dev,oracles]' | $(FETCHES) >&2
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c $(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv

.PHONY: help demo test check oracles fuzz lint sanitize bench clean
