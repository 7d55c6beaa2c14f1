# fencebeat: `make` shows the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV_VERSION := 0.13.9
# Test processes side by side: most tests wait for processes and leases, so a few more than there are cores.
JOBS   ?= 3
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: guards simulate help run test lint format chaos bench bench-drain bench-scale bench-takeover bench-freeze install install-dev install-bench pins rabbitmq

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fencebeat needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`. Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(BIN)/.run: $(BIN)/uv requirements/run.txt pyproject.toml beat/pyproject.toml
	@echo "Installing fencebeat (with PyTorch: about 6 GB on disk, kept once in the uv cache)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/run.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e beat -e .
	@touch $@

$(BIN)/.dev: $(BIN)/.run requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

$(BIN)/.bench: $(BIN)/.dev requirements/bench.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/bench.txt
	@touch $@

install: $(BIN)/.run ## Install what the application needs, into .venv

install-dev: $(BIN)/.dev ## The same and the tools for tests and checks

install-bench: $(BIN)/.bench # and the peers that the benchmarks measure us against

run: install ## Run the main job here: make run [CORPUS=folder] [ONCE=1]
	@exec $(BIN)/fencebeat up --with-parent $(if $(CORPUS),--corpus "$(CORPUS)") $(if $(ONCE),--once)

rabbitmq: ## Install RabbitMQ where it is missing: only tests need it (Debian, as root; else it says what is skipped)
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || test -n "$$RABBITMQ_URL" || { \
	  test "`id -u`" = 0 && command -v apt-get >/dev/null && echo "Installing RabbitMQ for the tests of the outbox" && \
	  apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
	  apt-get install -qq --no-install-recommends rabbitmq-server >/dev/null; } || \
	  echo "RabbitMQ is missing and was not installed (Debian: apt-get install rabbitmq-server): its tests are skipped, in CI they fail."

test: install-dev rabbitmq ## Run all tests on real servers: make test [ARGS="-k fence"] [JOBS=3]
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not timed"
	@$(BIN)/python -m pytest -m timed
endif

lint: install-dev ## Style, types, import rules, docstrings, spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry .
	@$(BIN)/interrogate --quiet --config pyproject.toml beat/src tasks control index ops config
	@$(BIN)/codespell

format: install-dev ## Let ruff format and fix what it can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

guards: install-dev ## Take each guard away in a copy of the tree; a test must die: make guards [GUARDS="commit- seal-"]
	@$(BIN)/python tests/guards/remove.py $(GUARDS)

RUNS   ?= 300
simulate: install-dev ## Simulate the scheduler in virtual time, faults at every call: make simulate [RUNS=10000]
	@FENCEBEAT_RUNS=$(RUNS) $(BIN)/python -m pytest -s tests/simulation -k "run or seed"

# Without SEEDS `make test` runs a short part of the same drives.
SEEDS  ?= 1
chaos: install-dev ## Run the drives with real processes at full length: make chaos [SEEDS=n] [ARGS="-k s19"]
	@FENCEBEAT_SEEDS=$(SEEDS) $(BIN)/python -m pytest --timeout 7200 tests/chaos $(ARGS)

bench: install-bench ## Run all benchmarks; each prints a ratio against a peer measured in the same run
	@for b in benchmarks/bench_*.py; do $(BIN)/python $$b || exit 1; done

bench-drain bench-scale bench-takeover bench-freeze: bench-%: install-bench
	@$(BIN)/python benchmarks/bench_$*.py $(ARGS)
bench-drain: ## 10,000 of 100,000 entries due at once, against RedBeat and Celery's beat
bench-scale: ## 100,000 entries, 1,000 due each second for a minute, one edit a second
bench-takeover: ## From SIGTERM and SIGKILL of the leader to the next leader's first message
bench-freeze: ## Leaders frozen in the middle of a tick of 300 entries, against RedBeat

pins: $(BIN)/uv ## Make requirements/*.txt anew from the pyproject files
	@$(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 --extra torch --extra local --no-emit-package fencebeat --custom-compile-command "make pins" -o requirements/run.txt pyproject.toml
	@$(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 --extra torch --extra local --group dev -c requirements/run.txt --no-emit-package fencebeat --custom-compile-command "make pins" -o requirements/dev.txt pyproject.toml
	@$(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 --group bench -c requirements/dev.txt --custom-compile-command "make pins" -o requirements/bench.txt
