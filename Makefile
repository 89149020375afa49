# Targets for people and for CI. What is trained, and in which order, is in the Snakefile.
#
#   TIER=quick        tier that `make reproduce` runs: smoke, quick, proxy or paper
#   CORES=all         cores that it may use; every job uses one
#   PYTHON=...        Python 3.11 or 3.12; found automatically
#   TORCH_INDEX=...   package index for torch alone, e.g. that of PyTorch's CPU wheels; without it,
#                     pip may take a wheel that brings several gigabytes of CUDA

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

TIER ?= quick
CORES ?= all
PORT ?= 5000
NUM ?= 100
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
TIERS := $(basename $(notdir $(wildcard config/tiers/*.yaml)))
SCALES := $(basename $(notdir $(wildcard config/scales/*.yaml)))
SNAKEMAKE := $(BIN)/snakemake

export OMP_NUM_THREADS := 1

# --- environment ---------------------------------------------------------------------------------

IS_SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
IS_LOCKED := import sys; sys.exit(sys.version_info[:2] != (3, 11))
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c '$(IS_SUPPORTED)' 2>/dev/null && { command -v $$python; break; }; done)
TORCH := $(shell grep '^torch==' requirements.lock)
PIP_INSTALL := $(BIN)/python -m pip install --quiet
STAMP := $(VENV)/.installed-$(firstword $(shell cat requirements.lock pyproject.toml | cksum))

.PHONY: install
install: $(STAMP)  ## create .venv; again only after the lock or pyproject.toml has changed

# torch comes first, alone, so that nothing else chooses its build.
$(STAMP):
	@$(or $(PYTHON),false) -c '$(IS_SUPPORTED)' || \
		{ echo "Error: PYTHON='$(PYTHON)': need Python 3.11 or 3.12; nearest: PYTHON=python3.11" >&2; exit 1; }
	@rm -f $(VENV)/.installed-*
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@if $(BIN)/python -c '$(IS_LOCKED)'; then set -ex; \
		$(PIP_INSTALL) -r requirements.lock; \
		$(PIP_INSTALL) --no-deps -e .; \
	else set -x; \
		$(PIP_INSTALL) -e '.[dev,bo]'; \
	fi
	@touch $@

.PHONY: lock
lock:  ## write the installed versions (Python 3.11) to requirements.lock
	@{ grep '^#' requirements.lock; $(BIN)/python -m pip freeze --exclude-editable | \
		sed 's/+cpu$$//'; } > requirements.new && mv requirements.new requirements.lock

# --- results -------------------------------------------------------------------------------------

.PHONY: reproduce
reproduce: $(STAMP)  ## train, score and draw a tier (TIER=quick)
	@$(SNAKEMAKE) --cores $(CORES) --config tier=$(TIER) || \
		{ echo "Stopped. What is finished is kept: the same command continues." >&2; exit 1; }
	@echo "Tables:  results/$(subst @,-,$(TIER))/tables/ttp.md and its neighbours"
	@echo "Figures: results/$(subst @,-,$(TIER))/figures/"
	@echo "Report:  results/$(subst @,-,$(TIER))/report.html"
	@echo "MLflow:  make ui"

# No raw logs, and no table of several megabytes: what the large ones say is in the others.
REFERENCE := results/reference/$(subst @,-,$(TIER))
.PHONY: reference
reference:  ## copy the summaries of a tier to results/reference; what they say goes to its README.md
	rm -rf $(REFERENCE)/tables $(REFERENCE)/figures
	mkdir -p $(REFERENCE)/tables $(REFERENCE)/figures
	cp results/$(subst @,-,$(TIER))/tables/*.md $(REFERENCE)/tables/
	find results/$(subst @,-,$(TIER))/tables -name '*.csv' -size -2000k -exec cp {} $(REFERENCE)/tables/ \;
	cp results/$(subst @,-,$(TIER))/figures/*.png results/$(subst @,-,$(TIER))/figures/*.txt \
		$(REFERENCE)/figures/

# Without its job runner the server needs a third of the memory; runs are imported, not started.
.PHONY: ui
ui: $(STAMP)  ## serve the runs of mlflow.db at http://127.0.0.1:5000 (PORT=5000)
	MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
		$(BIN)/mlflow server --host 127.0.0.1 \
		--port $(PORT) --workers 1 --backend-store-uri sqlite:///mlflow.db

# --- quality -------------------------------------------------------------------------------------

.PHONY: check
check: $(STAMP)  ## lint, formats, types, a dry run of every tier and of the paper tier's scales
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check --compact-diff Snakefile workflow
	$(SNAKEMAKE) --lint
	@for tier in $(TIERS) $(addprefix paper@,$(SCALES)); do \
		jobs=$$($(SNAKEMAKE) --dry-run --cores 1 --config tier=$$tier results=build/dry-run 2>&1) \
			&& grep '^train_' <<< "$$jobs" > /dev/null \
			|| { echo "$$jobs"; echo "Error: tier $$tier schedules no training" >&2; exit 1; }; \
		echo "tier $$tier schedules its jobs"; \
	done

.PHONY: test
test: check  ## everything above, the tests, and the smoke tier end to end
	$(BIN)/pytest -m "not slow and not gpu" -n 2 --dist loadfile

.PHONY: test-slow
test-slow: $(STAMP)  ## the tests that take minutes
	$(BIN)/pytest -m slow

# With --quiet no warning would count; the variable silences word of another site generator.
.PHONY: docs
docs: $(STAMP)  ## build the documentation in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Documentation: build/site/index.html"

# NUM=100 SEED=0: how many, and which. A seed plays the same faults, at other moments.
.PHONY: soak
soak: $(STAMP)  ## play random faults over short runs, and compare (NUM=100 SEED=0)
	$(BIN)/python tests/faults/soak.py --num $(NUM) --seed $(SEED)

.PHONY: clean
clean:  ## delete logs and caches; keep .venv and results
	rm -rf logs build .snakemake .cache .pytest_cache .hypothesis .mypy_cache .ruff_cache

.PHONY: clean-results
clean-results:  ## delete all results but results/reference, and the MLflow store
	@if [ -d results ]; then \
		find results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} +; fi
	rm -rf mlflow.db mlflow.db.lock mlruns mlartifacts

.PHONY: help
help:
	@echo "Usage: make TARGET [TIER=quick] [CORES=all] [PORT=5000] [PYTHON=...] [TORCH_INDEX=...]"
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "  %-10s %s\n", $$1, $$2 }'
