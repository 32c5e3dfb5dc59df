# Everything runs in .venv, which any target below makes by itself when it is not there.

PYTHON ?= python3
OPERATORS ?= torchvision
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help pictures setup demo app check test test-all test-gpu test-slow test-app test-site test-peers parity lint format matrix tables reference docs release clean always

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  PYTHON=python3.12 chooses the interpreter, WORKERS=4 the test processes, ARGS="-k peg" goes to pytest or the demo;'
	@echo '  OPERATORS=compiled compiles those of mmcv, instead of using torchvision'"'"'s'

setup: $(READY)  ## make .venv with everything in it

# OPERATORS=compiled is asked of an environment that is ready, too.
$(READY): setup.py tools/setup_env.sh $(if $(filter torchvision,$(OPERATORS)),,always)
	OPERATORS=$(OPERATORS) tools/setup_env.sh $(PYTHON)
	@touch $@

demo: $(READY)  ## train a small detector and a small segmentor, run both at sizes not seen in training
	$(BIN)/python demo/demo.py $(ARGS)

# What finishes in a minute on two cores, the imports of the toolboxes included.
QUICK := tests/layers tests/checkpoints \
	tests/golden/test_golden.py::test_backbones \
	$(addprefix tests/backbones/test_,arguments.py outputs.py state_dict.py fuse.py)

app: $(READY)  ## try models on images in a browser, http://127.0.0.1:7860/; ARGS='CONFIG CHECKPOINT' adds one
	$(BIN)/python demo/app.py $(ARGS)

check: $(READY) lint  ## check style and types, run the quickest tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(QUICK) $(ARGS)

# One thread per process: torch's thread pools would otherwise fight over the cores.
test: $(READY)  ## run the tests of four minutes on two cores with AVX-512: one test of each kind
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

test-all: .venv/.docs  ## run all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(ARGS)

test-gpu: $(READY)  ## run the tests that need a GPU
	$(BIN)/python -m pytest -q -m "not slow" tests/test_gpu.py tests/tools/test_gpu_tools.py $(ARGS)

test-slow: $(READY)  ## run the slow tests
	$(BIN)/python -m pytest -q -m slow --timeout 3600 $(ARGS)

.venv/.browser: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --override .venv/overrides.txt -e '.[browser]'
	@touch $@

test-app: .venv/.browser  ## run the tests of the page in the Chromium of the system; pictures in build/app
	$(BIN)/python -m pytest -q -m slow tests/demo/test_app_browser.py $(ARGS)

test-site: .venv/.browser  ## open every page of the site in the Chromium of the system: accessibility, overflow
	$(BIN)/python -m pytest -q -m slow --timeout 1800 tests/docs/test_site_browser.py $(ARGS)

# Packages that are compared with, beside .venv: no user needs them.
PEERS := $(CURDIR)/build/peers
PEER_PACKAGES := transformers tokenizers regex ftfy open_clip_torch segmentation_models_pytorch peft accelerate \
	lightning lightning-utilities torchmetrics captum grad-cam ttach

$(PEERS)/.ready: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(PEERS) --no-deps $(PEER_PACKAGES)
	@touch $@

test-peers: $(PEERS)/.ready  ## run the tests of packages that are not in .venv: transformers, smp, peft, Lightning, ...
	PYTHONPATH=$(PEERS) $(BIN)/python -m pytest -q -m "not slow" tests/test_bridges.py tests/checkpoints/test_transformers.py tests/checkpoints/test_normalisation.py $(ARGS)

parity: $(PEERS)/.ready  ## measure the differences from timm, transformers, mm packages (two hours); writes docs/weights_parity.csv, configs/published/README.md
	$(BIN)/python benchmarks/parity.py timm mmpretrain mmseg mmdet
	PYTHONPATH=$(PEERS) $(BIN)/python benchmarks/parity.py open_clip transformers
	PYTHONPATH=$(PEERS) $(BIN)/python benchmarks/published.py $(ARGS)

matrix: $(READY)  ## run `make test` over versions of Python and torch (an hour); writes docs/install.md
	$(BIN)/python benchmarks/matrix.py $(ARGS)

DOCS ?= docs
RECIPES ?= configs/README.md
SPEED = $(BIN)/python benchmarks/speed.py --suite

tables:  ## write the tables in docs/speed.md, docs/weights.md, docs/models.md and configs/README.md again, from their CSV files
	$(SPEED) cpu --rounds 2 --out $(DOCS)/benchmarks/cpu.csv --docs $(DOCS)/speed.md --plot $(DOCS)/benchmarks/cpu.png >/dev/null
	$(SPEED) bf16 --rounds 2 --out $(DOCS)/benchmarks/bf16.csv --docs $(DOCS)/speed.md >/dev/null
	$(SPEED) export --rounds 2 --out $(DOCS)/benchmarks/export.csv --docs $(DOCS)/speed.md >/dev/null
	$(SPEED) gpu --rounds 2 --out $(DOCS)/benchmarks/gpu.csv --docs $(DOCS)/speed.md >/dev/null
	$(SPEED) train --rounds 2 --out $(DOCS)/benchmarks/train.csv --docs $(DOCS)/speed.md >/dev/null
	$(SPEED) rope --rounds 2 --out $(DOCS)/benchmarks/rope.csv --docs $(DOCS)/speed.md >/dev/null
	$(BIN)/python benchmarks/public_weights.py --docs $(DOCS)/weights.md
	$(BIN)/python docs/site/zoo.py --docs $(DOCS)/models.md --recipes $(RECIPES)

reference: .venv/.docs  ## write docs/api again, from `--help` and the docstrings
	$(BIN)/python docs/site/reference.py

# Nothing is fetched but the packages; the site opens without a server: build/site/index.html.
pictures: $(READY)  ## draw the pictures of README and docs again, from the models that ship
	$(BIN)/python docs/site/figures.py

.venv/.docs: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --override .venv/overrides.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs  ## build the documentation site, build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file docs/mkdocs.yml $(ARGS)

lint: $(READY)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

VERSION = $(shell sed -n "s/^__version__ = '\(.*\)'/\1/p" cpvt_backbones/version.py)

# Uploading is left to a person: CONTRIBUTING.md.
release: .venv/.docs lint  ## build and check the archives, try the wheel with mmdet and mmseg alone, tag the commit; uploads nothing
	git diff --quiet HEAD || { echo 'commit first'; exit 1; }
	grep -Eq '^## $(VERSION) \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$$' CHANGELOG.md || { echo 'CHANGELOG.md has no $(VERSION) with a date'; exit 1; }
	rm -rf dist build/release
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	$(BIN)/uv tool run --quiet twine check --strict dist/*
	$(BIN)/python -m pytest -q -m "not slow" tests/configs/test_installed.py tests/configs/test_release.py
	.ci/try_wheel det
	.ci/try_wheel seg
	git tag -a v$(VERSION) -m 'Version $(VERSION)'
	@echo 'tagged v$(VERSION); dist/ holds what is to be uploaded'

clean:  ## remove caches and build outputs (keeps .venv, data and work_dirs)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find cpvt cpvt_backbones benchmarks configs demo projects tools tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
