# ullage: every task of the project, for people and for continuous integration alike.
# Environments live outside the tree, one for each version of torch, and are made when they are first needed.

SHELL := /bin/bash
PYTHON ?= python3
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ullage/environments
OLDEST := 2.11.0
NEWEST := 2.15.0
CUDA12 := 2.6.0 2.7.1 2.8.0
JOBS ?= 2
# What the newest torch is tried with on every change; `make truth` has the rest.
NEWEST_TESTS := $(addprefix tests/gpu/emulator/,test_torch.py test_card.py) tests/_child/test_children.py tests/recorded/allocator/test_allocator.py $(addprefix tests/predicting/prediction/,test_placement.py test_outside.py test_workspaces.py) tests/truth/test_roles.py tests/running/recording/test_recorder.py $(addprefix tests/gpu/emulator/cudnn/test_plans.py::,test_random_convolutions test_attention test_without_cudnn_it_is_said_once)

environment = $(CACHE)/torch-$(1)-py$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
OLDEST_ENV := $(call environment,$(OLDEST))
NEWEST_ENV := $(call environment,$(NEWEST))
DOCS_ENV := $(CACHE)/docs
COVERAGE_ENV := $(CACHE)/coverage
PUBLIC ?= $(dir $(CACHE))public
RIVALS ?= $(dir $(CACHE))rivals
LIBRARIES ?= $(dir $(CACHE))libraries
REAL ?= $(dir $(CACHE))real
SNAPSHOTS ?= $(dir $(CACHE))snapshots
COMMANDS ?= $(dir $(CACHE))commands-packages
VALUES ?= $(dir $(CACHE))values-packages
CLUSTERS ?= $(dir $(CACHE))clusters-packages
MADE_UP ?= $(dir $(CACHE))made-up-packages
WHEEL ?= $(dir $(CACHE))wheel
OUR_GPUS ?= $(dir $(CACHE))our-gpus-packages
OUR_GPUS_ENVIRONMENT = PYTHONPATH=$(OUR_GPUS) ULLAGE_CUDNN=$(OLDEST_ENV)-cudnn

.DEFAULT_GOAL := help
.PHONY: help setup setup-newest test test-of slow costs coverage lint lint-style lint-types lint-c sanitize fuzz fuzz-readers truth cuda12 versions public bench bench-before unexpected-costs bytes-left host rivals libraries common-advice advise roles values made-up commands ranks layouts clusters deploy cudnn tables contexts gpu gpu-dry-run gpu-compare gpu-keep gpu-wheels our-gpus-packages real snapshots stale-pages docs pictures symbols wheel clean

help:  ## Show this help.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

setup:  ## Make the test environment (the oldest tested torch) and install the project into it.
	tools/environment.sh $(OLDEST) $(OLDEST_ENV)
	tools/cudnn.sh $(OLDEST_ENV) $(OLDEST_ENV)-cudnn

setup-newest:
	tools/environment.sh $(NEWEST) $(NEWEST_ENV)
	tools/cudnn.sh $(NEWEST_ENV) $(NEWEST_ENV)-cudnn

test:  ## Lint, run the whole suite, and the emulated card on the newest torch (what continuous integration runs).
	$(MAKE) -j 2 lint setup-newest our-gpus-packages
	$(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --durations 25 tests
	$(NEWEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(NEWEST_TESTS)

test-of: setup  ## Run the tests of the files that you have changed, the shortest first, for less than a minute (FILES="src/ullage/..."; without: all that differ from main).
	$(OLDEST_ENV)/bin/python -m pytest --quick $$($(PYTHON) tools/tests_of.py $(FILES))

slow: our-gpus-packages  ## The whole suite with all that `make test` leaves out (an hour and more).
	ULLAGE_SLOW=1 $(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --durations 25 tests

costs: our-gpus-packages  ## Run all of the suite that takes turns over days, and write how long each test takes (half an hour).
	$(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --write-costs tests

coverage: setup  ## Run the suite with its branch coverage measured, and write build/coverage.md (half an hour; ONLY="tests/recorded").
	tools/coverage.sh $(OLDEST_ENV) $(COVERAGE_ENV) $(JOBS) $(ONLY)

lint: lint-style lint-types lint-c  ## Check style, types, layers, and the C code's warnings.

lint-style: setup
	$(OLDEST_ENV)/bin/ruff check src tests tools examples benchmarks
	$(OLDEST_ENV)/bin/ruff format --check src tests tools examples benchmarks
	cd src && $(OLDEST_ENV)/bin/lint-imports --config ../pyproject.toml
	tools/check_page.sh $(OLDEST_ENV)

lint-types: setup
	cd src && $(OLDEST_ENV)/bin/mypy

lint-c: setup
	tools/check_c.sh $(OLDEST_ENV)

sanitize:  ## Build the allocator core alone with sanitizers and run random programs (new seeds at every run).
	tools/sanitize.sh

fuzz:  ## Random operations on torch's own allocator and on the core, and random recordings explained (new seeds; PROGRAMS=400, VERSIONS="2.11.0 2.15.0").
	set -e; for version in $(or $(VERSIONS),$(OLDEST) $(NEWEST)); do \
	  tools/environment.sh $$version $(call environment,$$version); \
	  $(call environment,$$version)/bin/python -m tests.recorded.allocator.twin --programs $(or $(PROGRAMS),400); \
	  $(call environment,$$version)/bin/python -m tests.explaining.analysis.recordings --programs $(or $(PROGRAMS),400); done

fuzz-readers: setup  ## Random inputs for everything that is read of others, also guided by coverage (new seeds; MINUTES=10).
	tools/fuzz_readers.sh $(OLDEST_ENV) $(or $(MINUTES),10)

truth: setup  ## Compare every recorded workload of every torch version, to the byte (slow: downloads two more).
	$(OLDEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records
	tools/environment.sh 2.13.0 $(call environment,2.13.0)
	$(call environment,2.13.0)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records
	$(MAKE) setup-newest
	$(NEWEST_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/truth --all-records

cuda12: $(CUDA12:%=cuda12-%)  ## Run the tests of the emulated card on torch 2.6, 2.7 and 2.8, whose builds are for CUDA 12 (downloads them).

cuda12-%:
	tools/environment.sh $* $(call environment,$*)
	$(call environment,$*)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/gpu/emulator/test_torch.py tests/gpu/emulator/test_card.py

versions: setup  ## Try the emulated card on torch 2.6 to 2.15 and write docs/versions.md (slow: downloads nine; ONLY="2.8.0 2.15.0").
	tools/versions.sh $(CACHE) $(if $(ONLY),"$(ONLY)")

public: setup  ## Predict public scripts of others on three cards, and write docs/public_scripts.md (fetches them from GitHub).
	tools/packages.sh $(OLDEST_ENV) $(PUBLIC)/packages benchmarks/public
	$(OLDEST_ENV)/bin/python -m benchmarks.public.run $(PUBLIC) --write docs/public_scripts.md

BENCHMARKS := predict.py help.py allocator/run.py snapshot.py page.py guard/overhead.py monitor/overhead.py recording/overhead.py ownership/many.py
bench: setup  ## Measure the speed of predictions, of --help, of the allocator core beside PyTorch's own, of pages in a browser, of owners, of guards, monitors and runs, and of all beside the commit before (COMMIT=...); exit 1 past a bound.
	@status=0; for each in $(BENCHMARKS) "before.py $(or $(COMMIT),HEAD~1)"; do echo "benchmarks/$$each"; $(OLDEST_ENV)/bin/python benchmarks/$$each || status=1; done; exit $$status

bench-before: setup  ## Measure the speed beside an earlier commit alone (COMMIT=HEAD~1).
	$(OLDEST_ENV)/bin/python benchmarks/before.py $(or $(COMMIT),HEAD~1)

unexpected-costs: setup  ## Predict ten-line scripts that need more memory than one expects, and write docs/unexpected_costs.md (ONLY=amax).
	$(OLDEST_ENV)/bin/python -m benchmarks.unexpected_costs $(if $(ONLY),--only "$(ONLY)",--write docs/unexpected_costs.md)

bytes-left: setup  ## Measure what is left on the card after del, accelerate, Lightning and ullage.release; write docs/bytes_left.md.
	$(OLDEST_ENV)/bin/python -m benchmarks.ownership.bytes_left --write docs/bytes_left.md

host: setup  ## Compare the host's memory that predictions tell with the kernel's own high water of unobserved runs.
	$(OLDEST_ENV)/bin/python benchmarks/host/run.py

rivals: setup  ## Put ullage.Guard beside accelerate, Lightning and Composer's rule on the same faults (downloads two).
	tools/packages.sh $(OLDEST_ENV) $(RIVALS) benchmarks/guard
	PYTHONPATH=$(RIVALS) $(OLDEST_ENV)/bin/python benchmarks/guard/rivals.py

libraries: setup  ## Load and run the CUDA libraries people use beside torch on an emulated card, and write docs/libraries.md (downloads 4 GiB; ONLY=name, FROM=index).
	$(OLDEST_ENV)/bin/python -m benchmarks.libraries.run $(LIBRARIES) $(CACHE) $(if $(FROM),--from "$(FROM)") $(if $(ONLY),--only "$(ONLY)",--write docs/libraries.md)

common-advice: setup  ## Measure what people do and are advised to do against running out of memory, and write docs/common_advice.md (half an hour; ONLY=text).
	$(OLDEST_ENV)/bin/python -m benchmarks.common_advice.run $(if $(ONLY),--only "$(ONLY)",--write docs/common_advice.md)

advise: setup  ## Advise scripts on cards on which they do not fit, prove each answer, and write docs/advised_scripts.md (half an hour and more; ONLY=text; goes on where it was cut off).
	tools/packages.sh $(OLDEST_ENV) $(PUBLIC)/packages benchmarks/public
	$(OLDEST_ENV)/bin/python -m benchmarks.advise.run $(PUBLIC) $(if $(ONLY),--only "$(ONLY)",--write docs/advised_scripts.md)

roles: setup  ## Compare the roles of explain with those of predict on forty workloads, and write docs/explain_roles.md (ten minutes).
	$(OLDEST_ENV)/bin/python -m benchmarks.roles.run --write docs/explain_roles.md

commands: setup  ## Predict commands as people type them, each beside the plain script, and write docs/commands.md (installs trl, deepspeed, litgpt and others; ONLY=trl; what was run is kept in build/).
	tools/packages.sh $(OLDEST_ENV) $(COMMANDS) benchmarks/commands
	$(OLDEST_ENV)/bin/python -m benchmarks.commands.run $(COMMANDS) --kept build/commands.jsonl $(if $(ONLY),--only '$(ONLY)',--write docs/commands.md)

values: setup  ## Measure what values decide beside what is drawn, program by program (installs trl, ultralytics, torch_geometric; an hour; ONLY="grpo yolo").
	tools/packages.sh $(OLDEST_ENV) $(VALUES) benchmarks/values
	PYTHONPATH=$(VALUES) $(OLDEST_ENV)/bin/python benchmarks/values/sizes.py --measure $(ONLY)

made-up: setup  ## Predict programs of others on made-up weights and data, and write docs/made_up_programs.md (installs trl, peft, bitsandbytes, ...).
	tools/packages.sh $(OLDEST_ENV) $(MADE_UP) benchmarks/made_up
	PYTHONPATH=$(MADE_UP) $(OLDEST_ENV)/bin/python -m benchmarks.made_up.run --write docs/made_up_programs.md

ranks: setup  ## Run each kind of rank alone and among others, and write the table of docs/layouts.md (installs deepspeed; goes on where it was cut off; ONLY=pipeline).
	tools/packages.sh $(OLDEST_ENV) $(COMMANDS) benchmarks/commands
	mkdir -p build
	$(OLDEST_ENV)/bin/python -m benchmarks.layouts.ranks --packages $(COMMANDS) --kept build/ranks.jsonl $(if $(ONLY),--only '$(ONLY)',--write docs/layouts.md)

deploy: setup  ## Have a real Prometheus (Debian's, fetched into build/) take the rules and dashboard of deploy/, scrape and fire.
	tools/prometheus.sh build/prometheus
	ULLAGE_PROMETHEUS=$(CURDIR)/build/prometheus/usr/bin $(OLDEST_ENV)/bin/python -m pytest tests/running/export/test_deploy.py

layouts: setup  ## Search the layouts of a 7B and a 70B model on every engine, and compare (installs ray, submitit; two hours; goes on where it was cut off; ARGUMENTS="--cards 8 --sizes tiny").
	tools/packages.sh $(OLDEST_ENV) $(CLUSTERS) benchmarks/clusters
	PYTHONPATH=$(CLUSTERS) $(OLDEST_ENV)/bin/python -m benchmarks.layouts.engines build/layouts $(ARGUMENTS)

clusters: setup  ## Run the tests of the engines with Ray and submitit (installs both beside the environment).
	tools/packages.sh $(OLDEST_ENV) $(CLUSTERS) benchmarks/clusters
	PYTHONPATH=$(CLUSTERS) $(OLDEST_ENV)/bin/python -m pytest -W ignore tests/base/engines tests/predicting/layouts

cudnn: setup  ## Compare cuDNN's plans on emulated cards with an independent script, and write docs/cudnn_plans.md (ten minutes).
	ULLAGE_CUDNN=$(OLDEST_ENV)-cudnn $(OLDEST_ENV)/bin/python -m benchmarks.cudnn.compare --write docs/cudnn_plans.md

tables: setup  ## Measure cuDNN's workspaces for where it is not installed, on every card, and write the table (an hour).
	ULLAGE_CUDNN=$(OLDEST_ENV)-cudnn $(OLDEST_ENV)/bin/python benchmarks/cudnn/measure.py all build/answers src/ullage/gpu/emulator/cudnn/tables/9.19.csv

contexts: setup  ## Make the profiles of CUDA contexts from published readings, and write docs/contexts.md.
	$(OLDEST_ENV)/bin/python tools/read_contexts.py --write docs/contexts.md

gpu:  ## On a machine with a GPU and torch: measure it, stop in time, go on at the next call (no network needed; MINUTES=8, OUT=folder, ONLY=truth).
	$(PYTHON) -m benchmarks.our_gpus.measure --minutes $(or $(MINUTES),8) $(if $(OUT),--out '$(OUT)') $(if $(ONLY),--only $(ONLY))

gpu-dry-run: our-gpus-packages  ## The same on an emulated H100, without a GPU (five minutes; MINUTES, OUT, ONLY).
	$(OUR_GPUS_ENVIRONMENT) $(OLDEST_ENV)/bin/python -m benchmarks.our_gpus.measure --emulate H100 --minutes $(or $(MINUTES),8) --out '$(or $(OUT),build/our_gpus/dry-run)' $(if $(ONLY),--only $(ONLY))

gpu-compare: our-gpus-packages  ## Compare the records of real GPUs with the emulated GPU, and write docs/our_gpus.md (FILE=build/our_gpus/record: that one too).
	$(OUR_GPUS_ENVIRONMENT) $(OLDEST_ENV)/bin/python -m benchmarks.our_gpus.compare $(if $(FILE),'$(FILE)') --write docs/our_gpus.md

gpu-keep:  ## Copy what make gpu has measured into benchmarks/our_gpus/records, to be committed (FILE=folder).
	$(PYTHON) -m benchmarks.our_gpus.keep $(if $(FILE),'$(FILE)')

gpu-wheels:  ## Download what a GPU machine without a network lacks (bitsandbytes) into .wheels/.
	$(PYTHON) -m benchmarks.our_gpus.wheels

our-gpus-packages: setup
	tools/packages.sh $(OLDEST_ENV) $(OUR_GPUS) benchmarks/our_gpus

real: setup  ## Run again what others measured on real cards, and write docs/real_cards.md (ONLY=recordings/..., FROM=where repositories are; hours).
	$(OLDEST_ENV)/bin/python -m benchmarks.real_cards.run $(REAL) --environments $(CACHE) $(if $(FROM),--from '$(FROM)') $(if $(ONLY),--only '$(ONLY)') --write docs/real_cards.md

snapshots: setup  ## Explain the 151 snapshots of 37 public repositories, and write docs/snapshots.md (FROM=where repositories are, ONLY=name).
	$(OLDEST_ENV)/bin/python -m benchmarks.snapshots.run $(SNAPSHOTS) $(if $(FROM),--from '$(FROM)') $(if $(ONLY),--only '$(ONLY)',--write docs/snapshots.md)

stale-pages:  ## List the pages of docs/ that commands wrote, with the commits that have changed since then what they describe.
	@$(PYTHON) tools/stale_pages.py

docs: setup  ## Run the commands in the documents, and build the site build/site (SLOW=1: those that need torch, too).
	tools/site.sh $(OLDEST_ENV) $(DOCS_ENV) $(if $(SLOW),--slow)

pictures: setup  ## Make the pictures of the README and of the documents from real runs (needs Chromium and tmux).
	$(OLDEST_ENV)/bin/python tools/pictures.py

symbols: setup  ## Read the functions of NVIDIA's wheels (6 GB) and of the installed torch into the committed lists.
	$(OLDEST_ENV)/bin/pip install --quiet pyelftools
	tools/symbols.sh $(OLDEST_ENV)/bin/python
	$(OLDEST_ENV)/bin/python tools/read_symbols.py $(OLDEST_ENV)/lib/python*/site-packages/torch

wheel:  ## Build the sdist and the wheels into dist/, and try each on Python 3.11 to 3.14 without a compiler (downloads torch; ONLY="3.11 3.14").
	$(PYTHON) tools/wheel.py $(WHEEL) --torch $(NEWEST) $(if $(ONLY),--only "$(ONLY)")

clean:  ## Remove what was built in the tree.
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so*' -delete
