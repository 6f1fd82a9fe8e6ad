# Everything a developer runs. Only `make env` needs a bare Python (3.10 or later); the rest uses .venv.
PYTHON ?= python3
ifeq ($(OS),Windows_NT)
PY := .venv/Scripts/python.exe
else
PY := .venv/bin/python
endif
SETUP := stagexec.bench.setup
JOBS ?= 1
# Without kept bytecode each start of a server compiles ComfyUI again: 15 s of CPU time instead of 12.
unexport PYTHONDONTWRITEBYTECODE
CODE := stagexec tests bench

.PHONY: help env host hosts checkpoint demo lint types test unit conformance overhead packs chaos docs clean

help:
	@echo "env host hosts checkpoint demo lint types test unit conformance overhead packs chaos docs clean"

env:
	@$(PYTHON) stagexec/bench/setup.py env

host: env
	@$(PY) -m $(SETUP) host

hosts: env  # the older hosts that are tested too
	@$(PY) -m $(SETUP) host 0.30.0 0.20.1 0.16.3

checkpoint: host
	@$(PY) -m $(SETUP) checkpoint

demo: checkpoint
	@$(PY) -m stagexec demo

lint: env
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)

types: env
	$(PY) -m mypy

unit: env  # seconds: no host is started
	$(PY) -m pytest -m "not host and not conformance and not gpu"

test: hosts checkpoint  # JOBS=2: in two processes, sooner done and harder on tests that look at times
ifeq ($(JOBS),1)
	$(PY) -m pytest
else
	@failed=0; \
	$(PY) -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m "not alone" || failed=1; \
	$(PY) -m pytest -m alone || failed=1; \
	exit $$failed
endif

conformance: checkpoint
	$(PY) -m pytest -m conformance -s tests/conformance

overhead: checkpoint  # our own cost against stock, interleaved; not a timed test
	$(PY) bench/overhead/run.py

packs: checkpoint  # real node packs of $STAGEXEC_PACKS, stock against ours; PACKS=--help tells the options
	$(PY) -m tests.packs $(PACKS)

# Kills, broken disks and hostile nodes at full size; make chaos KILLS=1000 SERVERS=24 MINUTES=60 SEED=5 ONLY=17,33
chaos: checkpoint
	$(PY) -m tests.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(SERVERS),--servers $(SERVERS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

docs: env
	$(PY) -W ignore::RuntimeWarning -m stagexec.format > docs/journal-format.md

clean:
	rm -rf .stagexec .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
