# Each target sets itself up in .venv; `make demo` and `make test` are all that a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test quick nightly nightly-tests torture mutants lint bench record pages pictures bench-paper paper-scale bench-content bench-pcm bench-ccm docs format release-check wheel clean help
help:
	@echo "make demo   tags, constraints, areas, updates and the service on real data; a chart in demo.png"
	@echo "make test   run the tests, in a quarter of an hour; those whose program is missing (Java, servers) are skipped, which the last lines say"
	@echo "make quick  run those that take one minute: no Spark, databases, simulated GPU and faults"
	@echo "make nightly  what takes longer: more with real Spark, benchmarks, sweeps of faults; and mutants"
	@echo "make torture MINUTES=60  thousands of faults: no memory, lost power, full and damaged disks, Ctrl-C, killed writers, several at once"
	@echo "make mutants  mistakes in every folder: each has to fail a test"
	@echo "make lint   style, types and import rules"
	@echo "make bench  measure speed and memory; JSON in bench-results/"
	@echo "make docs  the documentation site, into site/; needs no network"
	@echo "make release-check  what has to hold before a release: files, public interface, installs, the image, licences, known vulnerabilities"
	@echo "make wheel  a wheel with compiled kernels, for x86-64 machines and this version of Python, into dist/"
	@echo "make format  format and fix style"
	@echo "make clean  remove what these have made"
	@echo "make bench-content  constraints on attributes, beside SFF, OCM and BE-Tree; results in bench-results/content/"
	@echo "make bench-pcm, bench-ccm  the figures of PCM, and of CCM, of constraints; results in bench-results/pcm/ and ccm/"
	@echo "make record ONLY=two-cores/peers  measure recorded results again, into bench/results/, and fill in the documentation"
	@echo "make pages  fill in the numbers of the documentation from bench/results/"
	@echo "make bench-paper  the paper's tables and figures; results in bench-results/paper/"
	@echo "make paper-scale STEP='--part generate'  those with its 212 million sets, in steps; says first what they take and whether that fits"

# Python compiles the few modules that are used when they are
$(VENV)/.used: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tagmatch needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[demo]'
	@touch $@

$(VENV)/.installed: $(VENV)/.used bench/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./bench
	@touch $@

demo: $(VENV)/.used
	$(BIN)/python examples/demo.py

# Tests start hundreds of processes, each of which would compile all modules
unexport PYTHONDONTWRITEBYTECODE

# Files share the cores
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# Else tests would wait for kernels, some longer than they may
test: $(VENV)/.installed
	@$(BIN)/tagmatch warmup
	$(PYTEST)

quick: $(VENV)/.installed
	$(PYTEST) -m 'not gpu and not nightly and not slow' --hypothesis-profile quick --ignore tests/faults --ignore tests/spark --ignore tests/pipeline/cuda

# Each part can be run alone; of the tests, a folder with TESTS=tests/spark
nightly: nightly-tests mutants

nightly-tests: $(VENV)/.installed
	@$(BIN)/tagmatch warmup
	RECORD_RUN=$(if $(TESTS),,nightly) $(PYTEST) -m 'nightly and not gpu' $(TESTS)

torture: MINUTES ?= 60
torture: $(VENV)/.installed
	cd tests && ../$(BIN)/python -m faults --record --minutes $(MINUTES)
	seed=$$(date +%s); echo "seed $$seed"; STEPS=3000 $(BIN)/python -m pytest tests/interface/test_state_machine.py -m nightly --hypothesis-seed $$seed --timeout 1800

mutants: $(VENV)/.installed
	cd tests && ../$(BIN)/python -m mutants

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/tagmatch-bench cpu --output bench-results
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-json=bench-results/kernels.json

bench-paper: $(VENV)/.installed
	$(BIN)/tagmatch-bench paper --output bench-results/paper

# A step with STEP='--part generate'; on a machine with 16 cores, 128 GB and a GPU, each takes some minutes
paper-scale: $(VENV)/.installed
	$(BIN)/tagmatch-bench paper-scale $(STEP) --folder bench-results/paper-scale-data --output bench-results/paper-scale

bench-pcm bench-ccm: bench-%: $(VENV)/.installed
	$(BIN)/tagmatch-bench $* --output bench-results/$*

record: $(VENV)/.installed
	$(BIN)/tagmatch-bench record --only '$(ONLY)'

pages: $(VENV)/.installed
	$(BIN)/tagmatch-bench pages

pictures: $(VENV)/.installed
	$(BIN)/python release/pictures.py

bench-content: $(VENV)/.installed
	$(BIN)/tagmatch-bench content --output bench-results/content

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict --clean

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.installed
	rm -rf build/kernels
	$(BIN)/tagmatch warmup --export build/kernels
	TAGMATCH_KERNELS=build/kernels/tagmatch $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# SKIP=audit where the service that knows vulnerabilities cannot be reached
release-check: $(VENV)/.release
	$(BIN)/python release/check.py --skip "$(SKIP)"

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
