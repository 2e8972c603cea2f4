# Every target makes .venv by itself. PYTHON picks the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export ORT_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1

.PHONY: study test coverage check docs fuzz drills bench install lock clean

# A stamp per lock: an unchanged lock installs nothing.
$(VENV)/.run: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if (3,11)<=v<(3,14) else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}: run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the $$(grep -c == requirements.lock) packages of requirements.lock, once (some minutes where they are fetched)"
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "compiling the decision kernels, once (about a minute)"
	@$(BIN)/python -c 'from loadslice.sim import simulate; simulate.warm()'
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

install: $(VENV)/.run

# The whole journey on a real OCR service and real traffic; the last line is the report's path. Exit 3, a verdict that
# recommends none, is a result, and make would call it an error.
study: $(VENV)/.run
	@$(BIN)/loadslice study examples/ocr --out out/study || [ $$? -eq 3 ]

# Two passes: kernels interpreted, then compiled (what users run).
test: $(VENV)/.dev
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -n 2 -p no:cacheprovider src/loadslice/policy src/loadslice/sim src/loadslice/spec tests/same_core
	$(BIN)/python -m pytest -n 2

# Which branches the interpreted pass reaches; tracing makes it some four times slower.
coverage: $(VENV)/.dev
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest -q -p no:cacheprovider src/loadslice/policy src/loadslice/sim src/loadslice/spec tests/same_core
	$(BIN)/python -m coverage report --skip-covered --include='src/loadslice/policy/*,src/loadslice/sim/*,src/loadslice/spec/*'

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/codespell src docs examples tests benchmarks README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md
	$(MAKE) docs

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W -n -q -b html docs docs/_build/html

# Bad inputs in number: EXAMPLES of each kind, beyond the few that every test run tries.
EXAMPLES ?= 400
fuzz: $(VENV)/.dev
	LOADSLICE_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout 3600 tests/fuzz

# Every drill on the two examples, with everything that guards them.
drills: $(VENV)/.dev
	$(BIN)/loadslice drill --pipeline examples/ocr/guarded.yaml --pipeline examples/inspection/guarded.yaml --dilate 4

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Versions and hashes only: no index address may enter a lock.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -q \
	  --extra onnxruntime --extra openvino --extra grpc --extra plan --extra example --group build -o requirements.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -q \
	  --extra onnxruntime --extra openvino --extra plan --extra squeeze --extra grpc --extra otel --extra ray --extra watch --extra llm --extra example --group build --group test --group gate --group docs -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf $(VENV) out docs/_build
