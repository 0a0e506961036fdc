# ullage: every task of the project, for people and for continuous integration alike.
# Environments live outside the tree, one for each version of torch, and are made when they are first needed.

SHELL := /bin/bash
PYTHON ?= python3
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ullage/environments
OLDEST := 2.11.0
NEWEST := 2.15.0
JOBS ?= 2
# What the newest torch is tried with on every change; `make truth` has the rest.
NEWEST_TESTS := $(addprefix tests/emulated/,test_torch.py test_card.py test_children.py test_allocator.py) tests/truth/test_roles.py tests/recording/test_recorder.py $(addprefix tests/cudnn/test_plans.py::,test_random_convolutions test_attention test_without_cudnn_it_is_said_once) tests/emulated/test_workspaces.py

environment = $(CACHE)/torch-$(1)-py$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
OLDEST_ENV := $(call environment,$(OLDEST))
NEWEST_ENV := $(call environment,$(NEWEST))
DOCS_ENV := $(CACHE)/docs
PUBLIC ?= $(dir $(CACHE))public
RIVALS ?= $(dir $(CACHE))rivals

.DEFAULT_GOAL := help
.PHONY: help setup setup-newest test lint sanitize fuzz truth cuda12 versions public bench bytes-left habits rivals advice cudnn tables gpu docs pictures symbols clean

help:  ## Show this help.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

setup:  ## Make the test environment (the oldest tested torch) and install the project into it.
	tools/environment.sh $(OLDEST) $(OLDEST_ENV)
	tools/cudnn.sh $(OLDEST_ENV) $(OLDEST_ENV)-cudnn

setup-newest:
	tools/environment.sh $(NEWEST) $(NEWEST_ENV)
	tools/cudnn.sh $(NEWEST_ENV) $(NEWEST_ENV)-cudnn

test:  ## Lint, run the whole suite, and the emulated card on the newest torch (what continuous integration runs).
	$(MAKE) -j 2 lint setup-newest
	$(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --durations 25 tests
	$(NEWEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(NEWEST_TESTS)

lint: setup  ## Check style, types, layers, and the C code's warnings.
	$(OLDEST_ENV)/bin/ruff check src tests tools examples benchmarks
	$(OLDEST_ENV)/bin/ruff format --check src tests tools examples benchmarks
	cd src && $(OLDEST_ENV)/bin/mypy
	cd src && $(OLDEST_ENV)/bin/lint-imports --config ../pyproject.toml
	tools/check_c.sh

sanitize:  ## Build the allocator core alone with sanitizers and run random programs (new seeds at every run).
	tools/sanitize.sh

fuzz: setup setup-newest  ## Random operations on two versions of torch's own allocator and on the core (new seeds; PROGRAMS=400).
	$(OLDEST_ENV)/bin/python tests/emulated/twin.py --programs $(or $(PROGRAMS),400)
	$(NEWEST_ENV)/bin/python tests/emulated/twin.py --programs $(or $(PROGRAMS),400)

truth: setup  ## Compare every recorded workload of every torch version, to the byte (slow: downloads two more).
	$(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records
	tools/environment.sh 2.13.0 $(call environment,2.13.0)
	$(call environment,2.13.0)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records
	$(MAKE) setup-newest
	$(NEWEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records

cuda12:  ## Run the tests of the emulated card on torch 2.8, whose build is for CUDA 12 (downloads it).
	tools/environment.sh 2.8.0 $(call environment,2.8.0)
	$(call environment,2.8.0)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/emulated/test_torch.py tests/emulated/test_card.py

versions: setup  ## Try the emulated card on torch 2.8 to 2.15 and write docs/versions.md (slow: downloads seven; ONLY="2.8.0 2.15.0").
	tools/versions.sh $(CACHE) $(if $(ONLY),"$(ONLY)")

public: setup  ## Predict public scripts of others on three cards, and write docs/public_scripts.md (fetches them from GitHub).
	tools/packages.sh $(OLDEST_ENV) $(PUBLIC)/packages benchmarks/public
	$(OLDEST_ENV)/bin/python benchmarks/public/run.py $(PUBLIC) --write docs/public_scripts.md

bench: setup  ## Measure the speed of predictions, of the allocator core beside PyTorch's own, of owners, and what guards, monitors and runs cost; exit 1 past a bound.
	$(OLDEST_ENV)/bin/python benchmarks/predict.py
	$(OLDEST_ENV)/bin/python benchmarks/allocator/run.py
	$(OLDEST_ENV)/bin/python benchmarks/snapshot.py
	$(OLDEST_ENV)/bin/python benchmarks/guard/overhead.py
	$(OLDEST_ENV)/bin/python benchmarks/monitor/overhead.py
	$(OLDEST_ENV)/bin/python benchmarks/recording/overhead.py
	$(OLDEST_ENV)/bin/python benchmarks/ownership/many.py

bytes-left: setup  ## Measure what is left on the card after del, accelerate, Lightning and ullage.release; write docs/bytes_left.md.
	$(OLDEST_ENV)/bin/python benchmarks/ownership/bytes_left.py --write docs/bytes_left.md

habits: setup  ## Measure what habits against running out of memory do, and write docs/habits.md.
	$(OLDEST_ENV)/bin/python benchmarks/guard/habits.py --write docs/habits.md

rivals: setup  ## Put ullage.Guard beside accelerate, Lightning and Composer's rule on the same faults (downloads two).
	tools/packages.sh $(OLDEST_ENV) $(RIVALS) benchmarks/guard
	PYTHONPATH=$(RIVALS) $(OLDEST_ENV)/bin/python benchmarks/guard/rivals.py

advice: setup  ## Measure what threads advise against running out of memory, and write docs/advice.md (a quarter of an hour).
	$(OLDEST_ENV)/bin/python benchmarks/advice/run.py --write docs/advice.md

cudnn: setup  ## Compare cuDNN's plans on emulated cards with an independent script, and write docs/cudnn_plans.md (ten minutes).
	ULLAGE_CUDNN=$(OLDEST_ENV)-cudnn $(OLDEST_ENV)/bin/python benchmarks/cudnn/compare.py --write docs/cudnn_plans.md

tables: setup  ## Measure cuDNN's workspaces for where it is not installed, on every card, and write the table (an hour).
	ULLAGE_CUDNN=$(OLDEST_ENV)-cudnn $(OLDEST_ENV)/bin/python benchmarks/cudnn/measure.py all build/answers src/ullage/emulator/cudnn/tables/9.19.csv

gpu:  ## On a machine with a real GPU and torch: measure it, and write benchmarks/real/CARD-TORCH.json (no network needed).
	$(PYTHON) benchmarks/real_card.py measure

docs: setup  ## Run the commands in the documents, and build the site build/site (SLOW=1: those that need torch, too).
	tools/site.sh $(OLDEST_ENV) $(DOCS_ENV) $(if $(SLOW),--slow)

pictures: setup  ## Make the pictures of the README and of the documents from real runs (needs Chromium and tmux).
	$(OLDEST_ENV)/bin/python tools/pictures.py

symbols: setup  ## Read the CUDA symbols of the installed torch into the committed lists.
	$(OLDEST_ENV)/bin/pip install --quiet pyelftools
	$(OLDEST_ENV)/bin/python tools/read_symbols.py $(OLDEST_ENV)/lib/python*/site-packages/torch

clean:  ## Remove what was built in the tree.
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so*' -delete
